//! Each change of a kind, in order, until a test takes it: what lies between two looks is not missed.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{kinds::Kind, server::Server, store::Change};

/// A change of an object.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Namespace of the object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it changed.
    pub at: Instant,
    /// Whether it is gone.
    pub deleted: bool,
    /// The object as JSON text, as stored; of one that is gone, as it was last.
    pub text: Bytes,
}

/// What was recorded since the last call.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// In the order in which they happened.
    pub changes: Vec<Recorded>,
    /// Later changes that found no room.
    pub missed: u64,
}

/// Changes that wait to be taken.
#[derive(Debug)]
pub(crate) struct Journal {
    changes: VecDeque<Change>,
    most: usize,
    missed: u64,
}

// === impl Journal ===

impl Journal {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            changes: VecDeque::new(),
            most,
            missed: 0,
        }
    }

    pub(crate) fn add(&mut self, change: &Change) {
        if self.changes.len() < self.most {
            self.changes.push_back(change.clone());
        } else {
            self.missed += 1;
        }
    }

    pub(crate) fn take(&mut self) -> (Vec<Change>, u64) {
        let missed = std::mem::take(&mut self.missed);
        (self.changes.drain(..).collect(), missed)
    }
}

// === impl Server ===

impl Server {
    /// Records each change of a kind from now on, by whomever: at most so many until they are taken.
    pub fn record(&self, kind: &'static Kind, most: usize) {
        self.shared.store.lock().record(kind, most);
    }

    /// The changes since [`Server::record`] or the last call.
    pub fn take_recorded(&self, kind: &'static Kind) -> Recording {
        let (changes, missed) = self.shared.store.lock().take_recorded(kind);
        let changes = changes.into_iter().map(|change| Recorded {
            namespace: change.object.namespace.clone(),
            name: change.object.name.clone(),
            at: change.object.at,
            deleted: change.deleted,
            text: change.object.json(),
        });
        Recording {
            changes: changes.collect(),
            missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{kinds::POOLS, store::Store};

    #[test]
    fn each_change_is_recorded_once_and_what_does_not_fit_is_counted() {
        let mut store = Store::new("s");
        let put = |store: &mut Store, name: &str| {
            store.put(
                &POOLS,
                json!({"metadata": {"namespace": "ml", "name": name}}),
            );
        };
        put(&mut store, "before");
        store.record(&POOLS, 3);
        put(&mut store, "a");
        put(&mut store, "a");
        store.remove(&POOLS, "ml", "a");
        put(&mut store, "b");
        let (changes, missed) = store.take_recorded(&POOLS);
        let found: Vec<_> = changes
            .iter()
            .map(|one| (one.object.name.as_str(), one.deleted))
            .collect();
        assert_eq!(found, [("a", false), ("a", false), ("a", true)]);
        assert_eq!(missed, 1);
        put(&mut store, "c");
        let (changes, missed) = store.take_recorded(&POOLS);
        assert_eq!((changes.len(), missed), (1, 0));
    }
}
