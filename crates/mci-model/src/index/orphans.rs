//! Exports that ended while no controller ran: importers still have their entries, though the pool is gone.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Changes, World,
    facts::{Claim, LiveImport},
    member::Unseen,
};
use crate::evidence::Evidence;
use crate::name::{ClusterName, Key};

/// The entries to check, after something new became known.
#[derive(Clone, Copy)]
pub(super) enum Suspects<'a> {
    /// All of them.
    All,
    /// All in this importer.
    In(&'a ClusterName),
    /// All of these exporters, in every importer. Costs one pass over every import.
    Of(&'a BTreeSet<ClusterName>),
    /// Those of this exporter, whose pools were just listed.
    Listed(&'a ClusterName),
    /// One key of one exporter.
    One(&'a ClusterName, &'a Key),
}

/// The orphans that were reported, so that each is reported once.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    /// Each with the importer that showed it: at most [`MAX_SHOWN`] per importer.
    reported: BTreeMap<(ClusterName, Key), ClusterName>,
    /// Their number per importer.
    counts: BTreeMap<ClusterName, usize>,
    /// Members in the record of an earlier run that the first inventory lacked. Any other name that is no member may be
    /// forged.
    left: BTreeSet<ClusterName>,
    /// Number of imports checked.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) checked: usize,
}

/// Orphans that are reported because one importer shows them: imports may be forged, and a member has room for millions of
/// entries. Twice a hundred members with fifty pools each.
const MAX_SHOWN: usize = 10_000;

// === impl World ===

impl World {
    /// Withdraws the exports whose entries are in imports although they are now proven to have ended.
    pub(super) fn withdraw_orphans(&mut self, suspects: Suspects<'_>, changes: &mut Changes) {
        let mut orphans = std::mem::take(&mut self.orphans);
        match suspects {
            Suspects::All => orphans.check_all(self, None, None, changes),
            Suspects::In(importer) => orphans.check_all(self, Some(importer), None, changes),
            Suspects::Of(exporters) => orphans.check_all(self, None, Some(exporters), changes),
            Suspects::One(exporter, key) => orphans.check_key(self, exporter, key, changes),
            Suspects::Listed(exporter) => match self.members.get(exporter) {
                Some(member) if member.pools.unseen == Unseen::Absent => {
                    let exporters = BTreeSet::from([exporter.clone()]);
                    orphans.check_all(self, None, Some(&exporters), changes);
                }
                // there is proof only for the pools that were seen
                Some(member) => {
                    for key in member.pools.records.keys().chain(&member.pools.gone) {
                        orphans.check_key(self, exporter, key, changes);
                    }
                }
                None => {}
            },
        }
        self.orphans = orphans;
    }
}

// === impl Orphans ===

impl Orphans {
    /// Adds members of the last controller run that are no members now.
    pub(super) fn add_left(&mut self, members: Vec<ClusterName>) {
        self.left.extend(members);
    }

    /// Removes a member, as exporter and as importer.
    pub(super) fn forget(&mut self, name: &ClusterName) {
        let counts = &mut self.counts;
        self.reported.retain(|(exporter, _), importer| {
            if exporter == name
                && let Some(count) = counts.get_mut(importer)
            {
                *count = count.saturating_sub(1);
            }
            exporter != name && importer != name
        });
        self.counts.remove(name);
        self.left.remove(name);
    }

    /// Checks one key of one exporter, in every importer.
    fn check_key(
        &mut self,
        world: &World,
        exporter: &ClusterName,
        key: &Key,
        changes: &mut Changes,
    ) {
        let exporting = world.members.get(exporter);
        if exporting.is_none_or(|member| member.pools.lacks_export(key).is_none()) {
            return;
        }
        for (importer, member) in &world.members {
            if let Some(import) = member.imports.items.get(key) {
                let one = |name: &str| name == exporter.as_str();
                self.check_import(world, importer, import, one, changes);
            }
        }
    }

    /// Checks all keys; none: of every importer, of every exporter.
    fn check_all(
        &mut self,
        world: &World,
        importer: Option<&ClusterName>,
        exporters: Option<&BTreeSet<ClusterName>>,
        changes: &mut Changes,
    ) {
        let of = |name: &str| exporters.is_none_or(|exporters| exporters.contains(name));
        for (name, member) in &world.members {
            if importer.is_none_or(|one| one == name) {
                for import in member.imports.items.values() {
                    self.check_import(world, name, import, of, changes);
                }
            }
        }
    }

    /// Checks the entries of one import whose exporters are selected by `of`. Nothing is allocated before there is proof:
    /// millions of entries are checked after a start, and nearly all of them have their pool.
    fn check_import(
        &mut self,
        world: &World,
        importer: &ClusterName,
        import: &LiveImport,
        of: impl Fn(&str) -> bool,
        changes: &mut Changes,
    ) {
        #[cfg(any(test, feature = "fixtures"))]
        {
            self.checked += 1;
        }
        if import.claim != Claim::Ours || self.is_full(importer) {
            return;
        }
        let key = &import.key;
        for entry in &import.status.clusters {
            // one that drains already was reported when its drain began
            if entry.drain_until.is_some() || !of(&entry.name) {
                continue;
            }
            let exporting = world.members.get(entry.name.as_str());
            let evidence = match exporting {
                Some(exporting) => exporting.pools.lacks_export(key),
                None if self.left.contains(entry.name.as_str()) => Some(Evidence::MemberRemoved),
                None => None,
            };
            if let Some(evidence) = evidence
                && let Ok(exporter) = ClusterName::new(&entry.name)
                && !self.is_full(importer)
                && self.record(importer, &exporter, key)
            {
                changes.withdraw_orphan(&exporter, key, evidence);
            }
        }
    }

    fn is_full(&self, importer: &ClusterName) -> bool {
        self.counts
            .get(importer)
            .is_some_and(|count| *count >= MAX_SHOWN)
    }

    /// Records that it is reported; returns whether it was not before.
    fn record(&mut self, importer: &ClusterName, exporter: &ClusterName, key: &Key) -> bool {
        let place = self.reported.entry((exporter.clone(), key.clone()));
        let Entry::Vacant(place) = place else {
            return false;
        };
        place.insert(importer.clone());
        let count = self.counts.entry(importer.clone()).or_default();
        *count += 1;
        if *count == MAX_SHOWN {
            tracing::warn!(member = %importer, exports = MAX_SHOWN,
                "its imports carry too many exports that do not exist: no more of them are reported or drained");
        }
        true
    }
}

#[cfg(test)]
mod tests;
