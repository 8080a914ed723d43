//! Interns import statuses: the imports of one pool are equal in nearly all members, down to their text, and are by far the
//! largest objects that are read and kept of a member. Each text is parsed and stored once.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::index::{
    digest::{LiveStatus, SharedStatus},
    entry::{Entry, SharedEntry},
};

/// The statuses and entries in use, by hash. It holds weak references only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interner(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    /// By the hash of their text. The text is not kept, so a collision would return the wrong status: the hash has a secret
    /// key, so that no cluster can forge a text that collides with one of another cluster.
    texts: Mutex<Kept<SharedStatus>>,
    /// By the hash of their content: texts differ also by what others write into the object.
    statuses: Mutex<Kept<SharedStatus>>,
    /// Entries, by the hash of their text.
    entries: Mutex<Kept<SharedEntry>>,
    names: Mutex<Kept<Vec<String>>>,
    hasher: RandomState,
}

/// Weak references by hash. Of two that collide, only the newer is found.
#[derive(Debug)]
struct Kept<T> {
    kept: BTreeMap<u64, Weak<T>>,
    /// Dead references are removed once there are this many.
    sweep_at: usize,
}

/// Number of texts: one for each of as many imports as we are measured with. At the limit, all are dropped and read again.
const MAX_TEXTS: usize = 100_000;
/// The same for entries, of which each import has a few: 50 MiB if all of them are dead.
const MAX_ENTRIES: usize = 5 * MAX_TEXTS;
/// Below this number, dead references are not removed.
const SWEEP_MIN: usize = 64;

// === impl Interner ===

impl Interner {
    /// The status of a text; `read` parses a text that no live import has.
    /// # Errors
    /// Those of `read`.
    pub(super) fn status<E>(
        &self,
        text: &str,
        read: impl FnOnce(&str) -> Result<LiveStatus, E>,
    ) -> Result<LiveStatus, E> {
        let hash = self.0.hasher.hash_one(text);
        let known = self.0.texts.lock().find(hash);
        if let Some(known) = known {
            return Ok(known.into());
        }
        let status = read(text)?;
        let status = shared(&self.0.statuses, status.exact(), status.shared().clone());
        let mut texts = self.0.texts.lock();
        texts.insert(hash, &status);
        // one live status may have many texts: others may change their part of the object at any time
        texts.limit(MAX_TEXTS);
        drop(texts);
        Ok(status.into())
    }

    /// The entry of a text; `read` parses a text that no live entry has.
    /// # Errors
    /// Those of `read`.
    pub(super) fn entry<E>(
        &self,
        text: &str,
        read: impl FnOnce(&str) -> Result<Entry, E>,
    ) -> Result<Entry, E> {
        let hash = self.0.hasher.hash_one(text);
        let known = self.0.entries.lock().find(hash);
        if let Some(known) = known {
            return Ok(known.into());
        }
        let entry = read(text)?;
        let mut entries = self.0.entries.lock();
        // another may have read it meanwhile
        if let Some(known) = entries.find(hash) {
            return Ok(known.into());
        }
        entries.insert(hash, entry.shared());
        entries.limit(MAX_ENTRIES);
        Ok(entry)
    }

    /// A list of names.
    pub(super) fn names(&self, names: Vec<String>) -> Arc<Vec<String>> {
        let hash = self.0.hasher.hash_one(&names);
        shared(&self.0.names, hash, Arc::new(names))
    }
}

/// The known value that is equal, else `one`. Compares after the lock is released, since that may take long.
fn shared<T: PartialEq>(kept: &Mutex<Kept<T>>, hash: u64, one: Arc<T>) -> Arc<T> {
    let known = kept.lock().find(hash);
    match known {
        Some(known) if known == one => known,
        _ => {
            kept.lock().insert(hash, &one);
            one
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

impl<T> Kept<T> {
    fn find(&self, hash: u64) -> Option<Arc<T>> {
        self.kept.get(&hash).and_then(Weak::upgrade)
    }

    fn insert(&mut self, hash: u64, one: &Arc<T>) {
        self.kept.insert(hash, Arc::downgrade(one));
        self.sweep();
    }

    /// Drops all at `max`.
    fn limit(&mut self, max: usize) {
        if self.kept.len() >= max {
            self.kept.clear();
        }
    }

    /// Removes dead references; amortised, since the next sweep is at twice the number left.
    fn sweep(&mut self) {
        if self.kept.len() >= self.sweep_at {
            self.kept.retain(|_, one| one.strong_count() > 0);
            self.sweep_at = SWEEP_MIN.max(2 * self.kept.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;

    use super::*;
    use crate::fixtures::mk_status;

    fn text(second: u32) -> String {
        let status = json!({"clusters": [{
            "name": "a", "routingMode": "EndpointMode", "targetPortNumber": 8000,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Good", "message": "",
                "lastTransitionTime": format!("2026-01-01T00:00:{second:02}Z")}],
        }]});
        status.to_string()
    }

    fn read(text: &str) -> Result<LiveStatus, serde_json::Error> {
        Ok(LiveStatus::new(
            mk_status(serde_json::from_str(text)?),
            "us",
        ))
    }

    fn known(interner: &Interner, text: &str) -> LiveStatus {
        interner.status(text, read).expect("a status")
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let interner = Interner::default();
        let first = known(&interner, &text(1));
        let again = interner.status::<Infallible>(&text(1), |_| panic!("read again"));
        assert!(first.ptr_eq(&again.expect("known")));
        drop(first);
    }

    #[test]
    fn another_text_of_an_equal_status_is_read_and_shared() {
        let interner = Interner::default();
        let first = known(&interner, &text(1));
        let padded = known(&interner, &format!(" {}", text(1)));
        assert!(first.ptr_eq(&padded));
        // a time alone is in no digest
        let later = known(&interner, &text(2));
        assert_eq!(first.digest(), later.digest());
        assert!(!first.ptr_eq(&later));
        assert_ne!(first, later);
        for (one, second) in [(&first, 1), (&later, 2)] {
            assert!(one.ptr_eq(&known(&interner, &text(second))));
        }
        let names = || vec!["a".to_owned()];
        let kept = interner.names(names());
        assert!(Arc::ptr_eq(&kept, &interner.names(names())));
        assert!(!Arc::ptr_eq(&kept, &interner.names(Vec::new())));
    }

    #[test]
    fn entries_are_shared_though_the_lists_of_them_differ() {
        let interner = Interner::default();
        let text = |name: &str| {
            let entry =
                json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000});
            entry.to_string()
        };
        let read = |text: &str| serde_json::from_str(text).map(Entry::new);
        let entry = |name: &str| interner.entry(&text(name), read).expect("an entry");
        let [a, b] = ["a", "b"].map(entry);
        assert!(a.ptr_eq(&entry("a")) && !a.ptr_eq(&b));
        drop((a, b));
        let read = |_: &str| Err(());
        // nothing else has it
        assert_eq!(interner.entry(&text("a"), read), Err(()), "kept alive");
    }

    #[test]
    fn texts_without_end_for_one_status_are_forgotten() {
        let interner = Interner::default();
        let kept = known(&interner, "{}");
        let mut most = 0;
        for n in 0..MAX_TEXTS + 10 {
            let one = known(&interner, &format!(r#"{{"unknown": {n}}}"#));
            assert!(kept.ptr_eq(&one));
            most = most.max(interner.0.texts.lock().kept.len());
        }
        assert!(most < MAX_TEXTS, "{most}");
    }

    #[test]
    fn what_cannot_be_read_is_not_remembered() {
        let interner = Interner::default();
        assert!(interner.status("{", read).is_err());
        assert!(interner.status("{", read).is_err());
    }

    #[test]
    fn a_status_of_no_import_is_forgotten() {
        let interner = Interner::default();
        let kept = known(&interner, &text(0));
        for generation in 0..10_000 {
            known(
                &interner,
                &format!(r#"{{"observedGeneration": {generation}}}"#),
            );
        }
        assert!(interner.0.statuses.lock().kept.len() <= SWEEP_MIN);
        assert!(interner.0.texts.lock().kept.len() <= SWEEP_MIN);
        assert!(kept.ptr_eq(&known(&interner, &text(0))));
    }
}
