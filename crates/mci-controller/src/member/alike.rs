//! What many imports say alike, read once and kept once: the import of one pool says the same in nearly all members, in the
//! same words, and is by far the largest thing that is read and kept of a member.

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

/// What the imports of all members say, for the next that says the same. Keeps nothing alive itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alike(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    /// By their text. That is not kept: two texts of one hash would be taken for the same, so the hash is one with a
    /// secret key. Nobody can make a text that passes for what another cluster is going to say.
    texts: Mutex<Kept<SharedStatus>>,
    /// By what is kept of them: what others write beside us is in the text.
    statuses: Mutex<Kept<SharedStatus>>,
    /// Entries, by their text.
    entries: Mutex<Kept<SharedEntry>>,
    names: Mutex<Kept<Vec<String>>>,
    hasher: RandomState,
}

/// By hash. Of two that collide, only the newer is found.
#[derive(Debug)]
struct Kept<T> {
    kept: BTreeMap<u64, Weak<T>>,
    /// At this many, those that nobody has any more are looked for.
    sweep_at: usize,
}

/// Texts that are remembered: one for each of as many imports as we are measured with. Past it they are read again.
const MAX_TEXTS: usize = 100_000;
/// The same for entries, of which each import has a few: 50 MiB, were they all dead.
const MAX_ENTRIES: usize = 5 * MAX_TEXTS;
/// Fewer are not worth a look.
const SWEEP_MIN: usize = 64;

// === impl Alike ===

impl Alike {
    /// The status that a text means; `read` is asked for a text that no living import has.
    /// # Errors
    /// What `read` says.
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
        // many texts may mean one status that stands: what others write beside us changes at will
        texts.limit(MAX_TEXTS);
        drop(texts);
        Ok(status.into())
    }

    /// The entry that a text means; `read` is asked for a text that no living entry has.
    /// # Errors
    /// What `read` says.
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

/// What is known and the same, else this one. Compares after the lock is released: it may be long.
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

    /// Forgets all at so many.
    fn limit(&mut self, max: usize) {
        if self.kept.len() >= max {
            self.kept.clear();
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

    fn known(alike: &Alike, text: &str) -> LiveStatus {
        alike.status(text, read).expect("a status")
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let alike = Alike::default();
        let first = known(&alike, &text(1));
        let again = alike.status::<Infallible>(&text(1), |_| panic!("read again"));
        assert!(first.ptr_eq(&again.expect("known")));
        drop(first);
    }

    #[test]
    fn other_words_for_the_same_are_read_and_shared_and_nothing_else_is() {
        let alike = Alike::default();
        let first = known(&alike, &text(1));
        let padded = known(&alike, &format!(" {}", text(1)));
        assert!(first.ptr_eq(&padded));
        // a time alone is in no digest
        let later = known(&alike, &text(2));
        assert_eq!(first.digest(), later.digest());
        assert!(!first.ptr_eq(&later));
        assert_ne!(first, later);
        for (one, second) in [(&first, 1), (&later, 2)] {
            assert!(one.ptr_eq(&known(&alike, &text(second))));
        }
        let names = || vec!["a".to_owned()];
        let kept = alike.names(names());
        assert!(Arc::ptr_eq(&kept, &alike.names(names())));
        assert!(!Arc::ptr_eq(&kept, &alike.names(Vec::new())));
    }

    #[test]
    fn entries_are_shared_though_the_lists_of_them_differ() {
        let alike = Alike::default();
        let text = |name: &str| {
            let entry =
                json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000});
            entry.to_string()
        };
        let read = |text: &str| serde_json::from_str(text).map(Entry::new);
        let entry = |name: &str| alike.entry(&text(name), read).expect("an entry");
        let [a, b] = ["a", "b"].map(entry);
        assert!(a.ptr_eq(&entry("a")) && !a.ptr_eq(&b));
        drop((a, b));
        let read = |_: &str| Err(());
        // nothing else has it
        assert_eq!(alike.entry(&text("a"), read), Err(()), "kept alive");
    }

    #[test]
    fn texts_without_end_for_one_status_are_forgotten() {
        let alike = Alike::default();
        let kept = known(&alike, "{}");
        let mut most = 0;
        for n in 0..MAX_TEXTS + 10 {
            let one = known(&alike, &format!(r#"{{"unknown": {n}}}"#));
            assert!(kept.ptr_eq(&one));
            most = most.max(alike.0.texts.lock().kept.len());
        }
        assert!(most < MAX_TEXTS, "{most}");
    }

    #[test]
    fn what_cannot_be_read_is_not_remembered() {
        let alike = Alike::default();
        assert!(alike.status("{", read).is_err());
        assert!(alike.status("{", read).is_err());
    }

    #[test]
    fn what_no_import_says_any_more_is_forgotten() {
        let alike = Alike::default();
        let kept = known(&alike, &text(0));
        for generation in 0..10_000 {
            known(
                &alike,
                &format!(r#"{{"observedGeneration": {generation}}}"#),
            );
        }
        assert!(alike.0.statuses.lock().kept.len() <= SWEEP_MIN);
        assert!(alike.0.texts.lock().kept.len() <= SWEEP_MIN);
        assert!(kept.ptr_eq(&known(&alike, &text(0))));
    }
}
