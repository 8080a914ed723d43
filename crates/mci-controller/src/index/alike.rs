//! What many imports say alike, kept once: the import of one pool says the same in nearly all members, and is by far the
//! largest thing that is kept of a member.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::{Arc, Weak},
};

use xxhash_rust::xxh3::Xxh3Default;

use super::{facts::LiveImport, update::Change};

/// What some import said last, for the next that says the same. Holds nothing alive itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Alike {
    statuses: Kept<crd::InferencePoolImportStatus>,
    owned_entries: Kept<Vec<String>>,
}

/// By hash. Two that collide are kept apart, and only the newer is found.
#[derive(Clone, Debug)]
struct Kept<T> {
    kept: BTreeMap<u64, Weak<T>>,
    /// At this many, those that nobody has any more are looked for.
    sweep_at: usize,
}

/// Fewer are not worth a look.
const SWEEP_MIN: usize = 64;

// === impl Alike ===

impl Alike {
    /// Lets what is reported share what is known already.
    pub(super) fn share(&mut self, change: &mut Change<LiveImport>) {
        let imports = match change {
            Change::Listed(imports) => imports.as_mut_slice(),
            Change::Applied(import) => std::slice::from_mut(import),
            Change::Deleted(_) => return,
        };
        for import in imports {
            let exact = import.status.exact();
            self.statuses.share(exact, import.status.said_mut());
            let mut hash = Xxh3Default::new();
            import.owned_entries.hash(&mut hash);
            self.owned_entries
                .share(hash.finish(), &mut import.owned_entries);
        }
    }
}

// === impl Kept ===

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            kept: BTreeMap::new(),
            sweep_at: SWEEP_MIN,
        }
    }
}

impl<T: PartialEq> Kept<T> {
    fn share(&mut self, hash: u64, one: &mut Arc<T>) {
        match self.kept.get(&hash).and_then(Weak::upgrade) {
            Some(known) if known == *one => *one = known,
            _ => {
                self.kept.insert(hash, Arc::downgrade(one));
                self.sweep();
            }
        }
    }

    /// Amortised: the next comes after as many as are left.
    fn sweep(&mut self) {
        if self.kept.len() >= self.sweep_at {
            self.kept.retain(|_, one| one.strong_count() > 0);
            self.sweep_at = SWEEP_MIN.max(2 * self.kept.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use crd::{ImportedCluster, InferencePoolImportStatus};
    use serde_json::json;

    use super::*;
    use crate::{
        fixtures::mk_key,
        index::{digest::LiveStatus, facts::Claim},
    };

    fn mk_status(second: u32) -> InferencePoolImportStatus {
        let entry: ImportedCluster = serde_json::from_value(json!({
            "name": "a", "routingMode": "EndpointMode", "targetPortNumber": 8000,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Good", "message": "",
                "lastTransitionTime": format!("2026-01-01T00:00:{second:02}Z")}],
        }))
        .expect("an entry");
        InferencePoolImportStatus {
            clusters: vec![entry],
            ..InferencePoolImportStatus::default()
        }
    }

    fn mk_import(status: InferencePoolImportStatus) -> LiveImport {
        LiveImport {
            key: mk_key("llm"),
            uid: "uid".to_owned(),
            resource_version: "1".to_owned(),
            generation: 1,
            claim: Claim::Ours,
            owned_entries: Arc::new(vec!["a".to_owned()]),
            status: LiveStatus::new(status, "us"),
        }
    }

    fn shared(alike: &mut Alike, import: LiveImport) -> LiveImport {
        let mut change = Change::Applied(import);
        alike.share(&mut change);
        match change {
            Change::Applied(import) => import,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn imports_that_say_the_same_share_it_and_no_others() {
        let mut alike = Alike::default();
        let first = shared(&mut alike, mk_import(mk_status(1)));
        let second = shared(&mut alike, mk_import(mk_status(1)));
        // a time alone is in no digest
        let later = shared(&mut alike, mk_import(mk_status(2)));
        assert_eq!(first.status.digest(), later.status.digest());
        assert!(first.status.is_one_with(&second.status));
        assert!(!first.status.is_one_with(&later.status));
        assert!(Arc::ptr_eq(&first.owned_entries, &later.owned_entries));
        assert_eq!(*later.status, mk_status(2));
        for (known, second) in [(&first, 1), (&later, 2)] {
            let again = shared(&mut alike, mk_import(mk_status(second)));
            assert!(known.status.is_one_with(&again.status));
        }
    }

    #[test]
    fn what_no_import_says_any_more_is_forgotten() {
        let mut alike = Alike::default();
        let kept = shared(&mut alike, mk_import(mk_status(0)));
        for generation in 0..10_000 {
            let mut status = mk_status(1);
            status.observed_generation = Some(generation);
            shared(&mut alike, mk_import(status));
        }
        assert!(alike.statuses.kept.len() <= SWEEP_MIN);
        let again = shared(&mut alike, mk_import(mk_status(0)));
        assert!(kept.status.is_one_with(&again.status));
    }
}
