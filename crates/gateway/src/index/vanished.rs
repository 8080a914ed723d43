//! Objects that went with their CRD: nobody deleted them, so they stay in use for a while (gateway spec 4.1, facts K8).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use moment::Moment;

use crate::world::Key;

/// How long objects stay in use after their CRD vanished: time to install it again, and for its objects to be written
/// again.
pub(crate) const GRACE: Duration = Duration::from_mins(10);

/// The kinds that a CRD defines, with its name.
pub(crate) const CRDS: [(&str, &str); 8] = [
    ("GatewayClass", "gatewayclasses.gateway.networking.k8s.io"),
    ("Gateway", "gateways.gateway.networking.k8s.io"),
    ("HTTPRoute", "httproutes.gateway.networking.k8s.io"),
    (
        "InferencePool",
        "inferencepools.inference.networking.k8s.io",
    ),
    (
        "InferencePoolImport",
        "inferencepoolimports.inference.networking.x-k8s.io",
    ),
    (
        "ReferenceGrant",
        "referencegrants.gateway.networking.k8s.io",
    ),
    (
        crd::selection_policy::KIND,
        "clusterselectionpolicies.isthmus.dev",
    ),
    (
        "BackendTLSPolicy",
        "backendtlspolicies.gateway.networking.k8s.io",
    ),
];

/// By kind. A kind without a CRD is never in it, so its objects go when the API server says so.
#[derive(Debug, Default)]
pub(super) struct Vanished {
    kinds: BTreeMap<&'static str, OfKind>,
    /// What is kept may be other than when it was last asked.
    changed: bool,
}

#[derive(Debug, Default)]
struct OfKind {
    /// What vanishes next was not deleted by anybody: its CRD is gone, or is another one.
    doubted: bool,
    /// Objects without a CRD, and until when they stay.
    kept: BTreeMap<Key, Moment>,
}

// === impl Vanished ===

impl Vanished {
    /// Whether what vanishes by the next update of the kind was deleted by somebody.
    pub(super) fn set_confirmed(&mut self, kind: &'static str, confirmed: bool) {
        self.kinds.entry(kind).or_default().doubted = !confirmed;
    }

    /// An object was deleted: whether it was so by somebody, and is gone. Else it stays.
    pub(super) fn delete(&mut self, kind: &'static str, key: Key, now: Moment) -> bool {
        let Some(one) = self.kinds.get_mut(kind) else {
            return true;
        };
        self.changed = true;
        if one.doubted {
            one.keep(key, now);
        } else {
            one.kept.remove(&key);
        }
        !one.doubted
    }

    /// A complete list came: which of the missing ones stay.
    pub(super) fn list(
        &mut self,
        kind: &'static str,
        missing: impl Iterator<Item = Key>,
        now: Moment,
    ) -> BTreeSet<Key> {
        let Some(one) = self.kinds.get_mut(kind) else {
            return BTreeSet::new();
        };
        self.changed = true;
        if one.doubted {
            missing.for_each(|key| one.keep(key, now));
        }
        one.kept.keys().cloned().collect()
    }

    /// The kind is not served any more (404 on a list): what is known of it stays.
    pub(super) fn lose_kind(
        &mut self,
        kind: &'static str,
        known: impl Iterator<Item = Key>,
        now: Moment,
    ) {
        if let Some(one) = self.kinds.get_mut(kind) {
            self.changed = true;
            known.for_each(|key| one.keep(key, now));
        }
    }

    /// The object is there again.
    pub(super) fn show(&mut self, kind: &str, key: &Key) {
        if let Some(one) = self.kinds.get_mut(kind) {
            self.changed |= one.kept.remove(key).is_some();
        }
    }

    /// Whether [`Self::kept`] may be other than at the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn is_kept(&self, kind: &str, key: &Key) -> bool {
        self.kinds
            .get(kind)
            .is_some_and(|one| one.kept.contains_key(key))
    }

    /// All that stays in use though its CRD is gone.
    pub(super) fn kept(&self) -> BTreeSet<(&'static str, Key)> {
        let all = self.kinds.iter();
        all.flat_map(|(kind, one)| one.kept.keys().map(|key| (*kind, key.clone())))
            .collect()
    }

    /// Those whose time is over: they are gone from now on.
    pub(super) fn take_expired(&mut self, now: Moment) -> Vec<(&'static str, Key)> {
        let mut expired = Vec::new();
        for (kind, one) in &mut self.kinds {
            one.kept.retain(|key, until| {
                let stays = *until > now;
                if !stays {
                    self.changed = true;
                    expired.push((*kind, key.clone()));
                }
                stays
            });
        }
        expired
    }
}

// === impl OfKind ===

impl OfKind {
    fn keep(&mut self, key: Key, now: Moment) {
        self.kept.entry(key).or_insert(now + GRACE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "HTTPRoute";

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn kept(vanished: &Vanished) -> Vec<String> {
        let kept = vanished.kept();
        kept.into_iter().map(|(_, key)| key.name).collect()
    }

    fn mk(confirmed: bool) -> Vanished {
        let mut vanished = Vanished::default();
        vanished.set_confirmed(KIND, confirmed);
        vanished
    }

    #[test]
    fn only_a_confirmed_deletion_counts() {
        for confirmed in [true, false] {
            let mut vanished = mk(confirmed);
            assert_eq!(vanished.delete(KIND, key("a"), at(1)), confirmed);
            assert_eq!(kept(&vanished).is_empty(), confirmed);
        }
        // a kind without a CRD
        assert!(Vanished::default().delete("Service", key("a"), at(1)));
    }

    #[test]
    fn what_a_doubted_list_lacks_stays_until_it_shows() {
        let mut vanished = mk(false);
        let stay = vanished.list(KIND, [key("a"), key("b")].into_iter(), at(1));
        assert_eq!(stay, BTreeSet::from([key("a"), key("b")]));
        vanished.show(KIND, &key("a"));
        vanished.set_confirmed(KIND, true);
        let stay = vanished.list(KIND, [key("a"), key("b")].into_iter(), at(2));
        assert_eq!(stay, BTreeSet::from([key("b")]));
    }

    #[test]
    fn what_is_kept_goes_ten_minutes_after_it_vanished() {
        let mut vanished = mk(true);
        vanished.lose_kind(KIND, [key("a")].into_iter(), at(1));
        vanished.lose_kind(KIND, [key("a"), key("b")].into_iter(), at(31));
        assert_eq!(vanished.take_expired(at(600)), []);
        assert_eq!(vanished.take_expired(at(601)), [(KIND, key("a"))]);
        assert!(vanished.is_kept(KIND, &key("b")));
        assert_eq!(vanished.take_expired(at(631)), [(KIND, key("b"))]);
        assert_eq!(kept(&vanished), Vec::<String>::new());
    }

    #[test]
    fn a_kept_object_that_is_deleted_under_its_new_crd_is_gone() {
        let mut vanished = mk(false);
        vanished.delete(KIND, key("a"), at(1));
        vanished.set_confirmed(KIND, true);
        assert!(vanished.delete(KIND, key("a"), at(3)));
        assert!(!vanished.is_kept(KIND, &key("a")));
    }
}
