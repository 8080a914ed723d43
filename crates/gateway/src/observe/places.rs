//! How many observations run at once, in all and for one namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::NAMESPACE_PART;

/// Places of one kind of observation.
pub(super) struct Places {
    all: Arc<Semaphore>,
    of_one: usize,
    /// Those of namespaces that have an observation which runs or waits.
    namespaces: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// One place, until it is dropped.
pub(super) struct Place {
    _of_namespace: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

// === impl Places ===

impl Places {
    pub(super) fn new(places: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(places)),
            of_one: (places / NAMESPACE_PART).max(1),
            namespaces: Mutex::default(),
        }
    }

    /// Waits for a place of the namespace, and only then for one of all: those that wait for the first take none of the second.
    /// `None`: the program ends.
    pub(super) async fn take(&self, namespace: &str) -> Option<Place> {
        let of_namespace = self.of_namespace(namespace);
        let of_namespace = of_namespace.acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Place {
            _of_namespace: of_namespace,
            _of_all: of_all,
        })
    }

    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut namespaces = self.namespaces.lock();
        if let Some(known) = namespaces.get(namespace) {
            return Arc::clone(known);
        }
        // Permits and those that wait for one hold theirs.
        namespaces.retain(|_, places| Arc::strong_count(places) > 1);
        let places = Arc::new(Semaphore::new(self.of_one));
        namespaces.insert(namespace.to_owned(), Arc::clone(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_namespace_leaves_places_to_the_others() {
        let places = Places::new(8);
        let take = |namespace: &str| places.take(namespace).now_or_never().flatten();
        let first = [take("a"), take("a")];
        assert!(first.iter().all(Option::is_some));
        assert!(take("a").is_none());
        let others = ["b", "c", "d"].map(|namespace| [take(namespace), take(namespace)]);
        assert!(others.iter().flatten().all(Option::is_some));
        // Of all there are none left.
        assert!(take("e").is_none());
        drop(first);
        assert!(take("a").is_some());
    }

    #[test]
    fn namespaces_that_are_gone_are_forgotten() {
        let places = Places::new(8);
        for number in 0..100 {
            let namespace = format!("n{number}");
            assert!(places.take(&namespace).now_or_never().flatten().is_some());
        }
        assert_eq!(places.namespaces.lock().len(), 1);
    }
}
