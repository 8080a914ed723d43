//! Memory of the lists of one member that are in progress. A hostile server may never complete a list, so each object is
//! reduced to its facts as it is decoded, and these are counted until the list ends.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use watch::OddObject;

use crate::{
    index::{heap::Heap, memory::MEMBER_MEMORY},
    name::Key,
};

/// Bytes of all lists of a session that are in progress: at most what may be kept of the member.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<AtomicUsize>);

/// The list of one watch.
#[derive(Clone, Debug)]
pub(super) struct ListMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: UnderWay,
    own: Mutex<Own>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Own {
    bytes: usize,
    /// Something of the list was dropped.
    is_over: bool,
    is_reported: bool,
}

/// An object, reduced to what is kept of it.
#[derive(Clone, Debug)]
pub(super) struct Seen<F> {
    /// None: its names may not enter a URL.
    pub(super) key: Option<Key>,
    pub(super) facts: Option<F>,
}

// === impl ListMemory ===

impl ListMemory {
    pub(super) fn new(all: &UnderWay) -> Self {
        let (all, own) = (all.clone(), Mutex::default());
        Self(Arc::new(Shared { all, own }))
    }

    /// Counts a reduced object.
    /// # Errors
    /// The lists take too much memory: the object is dropped.
    pub(super) fn add<F: Heap>(&self, seen: Seen<F>) -> Result<Seen<F>, OddObject> {
        let bytes = size_of::<Seen<F>>() + seen.key.heap() + seen.facts.heap();
        let Shared { all, own } = &*self.0;
        let mut own = own.lock();
        let before = all.0.fetch_add(bytes, Ordering::Relaxed);
        own.bytes += bytes;
        // an incomplete list is useless
        own.is_over |= before + bytes > MEMBER_MEMORY;
        if !own.is_over {
            return Ok(seen);
        }
        own.bytes -= bytes;
        all.0.fetch_sub(bytes, Ordering::Relaxed);
        let names = seen.key.map(|key| (key.namespace, key.name));
        let (namespace, name) = names.unwrap_or_default();
        Err(OddObject {
            namespace: namespace.to_string(),
            name: name.to_string(),
            error: format!("the lists of this member take more than {MEMBER_MEMORY} bytes"),
        })
    }

    /// Whether something was dropped; once for each list.
    pub(super) fn is_newly_over(&self) -> bool {
        let mut own = self.0.own.lock();
        own.is_over && !std::mem::replace(&mut own.is_reported, true)
    }

    /// The list ended, or a single event arrived. Returns whether nothing was dropped.
    pub(super) fn end(&self) -> bool {
        let Own { bytes, is_over, .. } = std::mem::take(&mut *self.0.own.lock());
        self.0.all.0.fetch_sub(bytes, Ordering::Relaxed);
        !is_over
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.all
            .0
            .fetch_sub(self.own.get_mut().bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::mk_key;

    fn mk(bytes: usize) -> Seen<String> {
        Seen {
            key: Some(mk_key("x")),
            facts: Some("x".repeat(bytes)),
        }
    }

    #[test]
    fn the_lists_of_a_member_are_bounded_together() {
        let all = UnderWay::default();
        let [first, second] = [(); 2].map(|()| ListMemory::new(&all));
        let half = MEMBER_MEMORY / 2 - 1000;
        for list in [&first, &second] {
            list.add(mk(half)).expect("both fit");
        }
        let odd = first.add(mk(2000)).expect_err("it does not fit");
        assert_eq!((odd.namespace, odd.name), ("ml".to_owned(), "x".to_owned()));
        first.add(mk(1)).expect_err("the list is useless");
        assert!(first.is_newly_over() && !first.is_newly_over());
        second.add(mk(1)).expect("the other is not");
        assert!(!second.is_newly_over() && second.end());
        // the next one may take what this one took
        assert!(!first.end());
        first.add(mk(2 * half)).expect("it is alone now");
        assert!(first.end());
        first.add(mk(2 * half)).expect("and again");
        drop((first, second));
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
