//! Former modes of clusters of imports.
//!
//! A cluster that changes its mode is not always reached in the new one at once: its Gateways may have no addresses yet, or have begun
//! a moment ago. The entry of before is kept for that time. The model makes of it what holds now, with the policies and networks of
//! now, and uses it only beside an entry that still wants requests, where no other cluster of the import can serve them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use moment::Moment;

use super::{ImportedCluster, InferencePoolImport, Key};

/// A former mode outlives the moment when the new one became ready by this time, in which an Envoy checks the health of the new mode
/// several times: that of an address that it did not know at once, that of an unhealthy one within 4 s.
const SETTLES: Duration = Duration::from_secs(30);

/// A former mode outlives its end by this time at most. A load balancer gets its address within some minutes.
const MOST: Duration = Duration::from_mins(10);

/// By import and name of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Formers(BTreeMap<Key, BTreeMap<String, Former>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Former {
    /// As it was when the mode changed.
    entry: ImportedCluster,
    /// When the mode changed.
    changed: Moment,
    /// When the new mode became ready.
    ready: Option<Moment>,
}

// === impl Formers ===

impl Formers {
    /// The entry of the cluster in its former mode.
    pub(crate) fn of(&self, import: &Key, cluster: &str) -> Option<&ImportedCluster> {
        let former = self.0.get(import)?.get(cluster)?;
        Some(&former.entry)
    }

    /// Follows an import that was `before` and is `now`.
    pub(crate) fn follow(
        &mut self,
        key: &Key,
        before: Option<&InferencePoolImport>,
        now: Option<&InferencePoolImport>,
        at: Moment,
    ) {
        let known = self.0.remove(key).unwrap_or_default();
        let entries = now.iter().flat_map(|import| &import.clusters);
        let formers = entries.filter_map(|entry| {
            let mut earlier = before.iter().flat_map(|import| &import.clusters);
            let earlier = earlier.find(|one| one.name == entry.name);
            let known = known.get(&entry.name);
            let former = Former::beside(entry, earlier, known, at)?;
            Some((entry.name.clone(), former))
        });
        let formers: BTreeMap<_, _> = formers.collect();
        if !formers.is_empty() {
            self.0.insert(key.clone(), formers);
        }
    }

    /// Forgets those whose time is over. Returns their imports.
    pub(crate) fn expire(&mut self, at: Moment) -> BTreeSet<Key> {
        let mut changed = BTreeSet::new();
        self.0.retain(|key, formers| {
            let count = formers.len();
            formers.retain(|_, former| !former.is_over(at));
            if formers.len() < count {
                changed.insert(key.clone());
            }
            !formers.is_empty()
        });
        changed
    }
}

// === impl Former ===

impl Former {
    /// The former mode beside an entry: that of the entry before, if its mode is another one and was ready, or the known one.
    fn beside(
        entry: &ImportedCluster,
        before: Option<&ImportedCluster>,
        known: Option<&Self>,
        at: Moment,
    ) -> Option<Self> {
        let is_changed = |before: &&ImportedCluster| before.parent_mode != entry.parent_mode;
        let mut former = match before.filter(is_changed) {
            Some(before) if before.is_ready() => Self {
                entry: before.clone(),
                changed: at,
                ready: None,
            },
            Some(_) => return None,
            None => known?.clone(),
        };
        if entry.is_ready() {
            former.ready.get_or_insert(at);
        } else if former.ready.is_some() {
            return None; // an entry that was ready and is so no more gets nothing
        }
        (!former.is_over(at)).then_some(former)
    }

    fn is_over(&self, at: Moment) -> bool {
        let settled = self.ready.is_some_and(|ready| ready.plus(SETTLES) <= at);
        settled || self.changed.plus(MOST) <= at
    }
}

// === impl ImportedCluster ===

impl ImportedCluster {
    /// The exporting side wants requests, and says where its mode takes them.
    fn is_ready(&self) -> bool {
        let has_address = if self.parent_mode {
            let mut parents = self.parents.iter();
            parents.any(|one| !one.unprogrammed && !one.addresses.is_empty())
        } else {
            let picker = self.picker.as_ref();
            picker.is_some_and(|picker| picker.port.is_some() && !picker.given().is_empty())
        };
        let is_wanted = self.not_ready.is_none() && self.drain_until.is_none();
        self.accepted && is_wanted && has_address
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixture::{key, mk_import, mk_parent_entry};

    const SECOND: Duration = Duration::from_secs(1);

    fn by_picker() -> ImportedCluster {
        mk_import(&[("east", "10.2.0.9")]).clusters.remove(0)
    }

    fn by_gateway() -> ImportedCluster {
        mk_parent_entry("east", "10.3.0.7", &[80], &[])
    }

    fn unready(entry: ImportedCluster) -> ImportedCluster {
        ImportedCluster {
            not_ready: Some("ParentNotProgrammed".into()),
            ..entry
        }
    }

    fn without_address(mut entry: ImportedCluster) -> ImportedCluster {
        entry.parents.clear();
        entry
    }

    /// Entries of an import that follow each other, with the time of each since the start. Returns the seconds for which the former
    /// mode is known after the last one.
    #[allow(clippy::unwrap_in_result, reason = "none is for no former mode")]
    fn outlives(entries: &[(u64, ImportedCluster)]) -> Option<u64> {
        let mut formers = Formers::default();
        let mut before: Option<InferencePoolImport> = None;
        let mut last = Moment::START;
        for (second, entry) in entries {
            last = Moment::START.plus(Duration::from_secs(*second));
            let now = InferencePoolImport {
                clusters: vec![entry.clone()],
                ..InferencePoolImport::default()
            };
            formers.follow(&key("llm"), before.as_ref(), Some(&now), last);
            before = Some(now);
        }
        formers.of(&key("llm"), "east")?;
        let over = (1..=1_000).find(|seconds| {
            let at = last.plus(SECOND.saturating_mul(*seconds));
            let expired = formers.expire(at);
            assert_eq!(
                expired.is_empty(),
                formers.of(&key("llm"), "east").is_some()
            );
            !expired.is_empty()
        });
        Some(u64::from(over.expect("it ends")))
    }

    #[rstest]
    #[case::same_mode(&[(0, by_picker()), (1, unready(by_picker()))], None)]
    #[case::ready_at_once(&[(0, by_picker()), (1, by_gateway())], Some(30))]
    #[case::back_to_endpoints(&[(0, by_gateway()), (1, by_picker())], Some(30))]
    #[case::another_change_of_the_entry(&[(0, by_picker()), (1, by_gateway()), (11, by_gateway())], Some(20))]
    #[case::never_ready(&[(0, by_picker()), (1, unready(by_gateway()))], Some(600))]
    #[case::without_an_address(&[(0, by_picker()), (1, without_address(by_gateway()))], Some(600))]
    #[case::ready_later(&[(0, by_picker()), (1, without_address(by_gateway())), (101, by_gateway())], Some(30))]
    #[case::ready_late(&[(0, by_picker()), (1, unready(by_gateway())), (591, by_gateway())], Some(10))]
    #[case::ready_and_then_not(&[(0, by_picker()), (1, by_gateway()), (11, unready(by_gateway()))], None)]
    #[case::was_not_ready(&[(0, unready(by_picker())), (1, by_gateway())], None)]
    #[case::there_and_back(&[(0, by_picker()), (1, by_gateway()), (2, by_picker())], Some(30))]
    #[case::there_and_back_unready(&[(0, by_picker()), (1, unready(by_gateway())), (2, by_picker())], None)]
    fn former_mode_stays_until_the_new_one_has_been_ready_for_a_while(
        #[case] entries: &[(u64, ImportedCluster)],
        #[case] stays: Option<u64>,
    ) {
        assert_eq!(outlives(entries), stays);
    }
}
