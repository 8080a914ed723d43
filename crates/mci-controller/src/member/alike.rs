//! What many imports say alike, kept once: the import of one pool says the same in nearly all members, and is by far the
//! largest thing that is kept of a member.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::{Arc, Weak},
};

use crd::InferencePoolImportStatus;
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3Default;

use crate::index::facts::LiveImport;

/// What the imports of all members say, for the next that says the same. Keeps nothing alive itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alike {
    statuses: Arc<Mutex<Kept<InferencePoolImportStatus>>>,
    owned_entries: Arc<Mutex<Kept<Vec<String>>>>,
}

/// By hash. Of two that collide, only the newer is found.
#[derive(Debug)]
struct Kept<T> {
    kept: BTreeMap<u64, Weak<T>>,
    /// At this many, those that nobody has any more are looked for.
    sweep_at: usize,
}

/// Fewer are not worth a look.
const SWEEP_MIN: usize = 64;

// === impl Alike ===

impl Alike {
    /// Lets an import share what another has said.
    pub(super) fn share(&self, import: &mut LiveImport) {
        let exact = import.status.exact();
        share(&self.statuses, exact, import.status.said_mut());
        let mut hash = Xxh3Default::new();
        import.owned_entries.hash(&mut hash);
        share(
            &self.owned_entries,
            hash.finish(),
            &mut import.owned_entries,
        );
    }
}

/// Compares what is found only after the lock is released: it may be long.
fn share<T: PartialEq>(kept: &Mutex<Kept<T>>, hash: u64, one: &mut Arc<T>) {
    let known = kept.lock().find(hash);
    match known {
        Some(known) if known == *one => *one = known,
        _ => kept.lock().insert(hash, one),
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

impl<T> Kept<T> {
    fn find(&self, hash: u64) -> Option<Arc<T>> {
        self.kept.get(&hash).and_then(Weak::upgrade)
    }

    fn insert(&mut self, hash: u64, one: &Arc<T>) {
        self.kept.insert(hash, Arc::downgrade(one));
        self.sweep();
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

    fn shared(alike: &Alike, mut import: LiveImport) -> LiveImport {
        alike.share(&mut import);
        import
    }

    #[test]
    fn imports_that_say_the_same_share_it_and_no_others() {
        let alike = Alike::default();
        let first = shared(&alike, mk_import(mk_status(1)));
        let second = shared(&alike, mk_import(mk_status(1)));
        // a time alone is in no digest
        let later = shared(&alike, mk_import(mk_status(2)));
        assert_eq!(first.status.digest(), later.status.digest());
        assert!(first.status.is_one_with(&second.status));
        assert!(!first.status.is_one_with(&later.status));
        assert!(Arc::ptr_eq(&first.owned_entries, &later.owned_entries));
        assert_eq!(*later.status, mk_status(2));
        for (known, second) in [(&first, 1), (&later, 2)] {
            let again = shared(&alike, mk_import(mk_status(second)));
            assert!(known.status.is_one_with(&again.status));
        }
    }

    #[test]
    fn what_no_import_says_any_more_is_forgotten() {
        let alike = Alike::default();
        let kept = shared(&alike, mk_import(mk_status(0)));
        for generation in 0..10_000 {
            let mut status = mk_status(1);
            status.observed_generation = Some(generation);
            shared(&alike, mk_import(status));
        }
        assert!(alike.statuses.lock().kept.len() <= SWEEP_MIN);
        let again = shared(&alike, mk_import(mk_status(0)));
        assert!(kept.status.is_one_with(&again.status));
    }
}
