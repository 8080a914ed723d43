//! Streams whose peers take no answers.
//!
//! The server asks a stream for answers only while its peer has room for them. A peer that gives none would keep its
//! stream from its deadline and from the end of the drain, and with it the request's place at its endpoint and the
//! memory of its body. So each thread looks at all its streams now and then.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use scheduling::Moment;
use slab::Slab;

/// Between two looks: a drain leaves two seconds after its end for such streams.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A stream that is asked for answers does what is due within a turn of the loop: this long after, it was not asked.
pub(super) const OVERDUE: Duration = LOOK_EVERY;

/// A stream that can be looked at from outside.
pub(super) trait Overdue: Send + Sync {
    /// Gives up what is overdue.
    fn look(&self, now: Moment);
}

/// The open streams of one thread. Its lock is taken when one opens or ends, by that thread alone.
#[derive(Default)]
pub(super) struct OpenStreams(Mutex<Slab<Weak<dyn Overdue>>>);

// === impl OpenStreams ===

impl OpenStreams {
    /// Gives the key to remove it with.
    pub(super) fn insert(&self, stream: Weak<dyn Overdue>) -> usize {
        self.0.lock().insert(stream)
    }

    pub(super) fn remove(&self, key: usize) {
        self.0.lock().try_remove(key);
    }

    /// Looks at all of them.
    pub(super) fn look(&self, now: Moment) {
        let open: Vec<Arc<dyn Overdue>> = {
            let open = self.0.lock();
            open.iter().filter_map(|(_, one)| one.upgrade()).collect()
        };
        for stream in open {
            stream.look(now);
        }
    }
}
