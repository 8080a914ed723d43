//! Values by request id that end by themselves.

use std::{hash::BuildHasher, mem};

use hashbrown::{DefaultHashBuilder, HashTable};
use moment::Moment;

use crate::name::RequestId;

/// Entries that one step of a sweep looks at: some microseconds under the lock.
pub(super) const STEP: usize = 256;
/// Fewer places are not worth giving back.
const SMALL: usize = 64;

/// Values with ends in any order. A sweep looks at all places in turn; this costs 1 ns each and keeps no order.
#[derive(Debug)]
pub(super) struct Timed<T> {
    places: Vec<Option<Entry<T>>>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Entry<T> {
    id: RequestId,
    until: Moment,
    value: T,
}

// === impl Timed ===

impl<T> Timed<T> {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            by_id: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(super) fn contains(&self, id: &RequestId) -> bool {
        self.find(id).is_some()
    }

    /// The value, and when it ends.
    pub(super) fn get_mut(&mut self, id: &RequestId) -> Option<(&mut Moment, &mut T)> {
        let at = self.find(id)?;
        let entry = self.places.get_mut(at as usize)?.as_mut()?;
        Some((&mut entry.until, &mut entry.value))
    }

    /// Adds a value. There must be none of this id.
    pub(super) fn insert(&mut self, id: RequestId, until: Moment, value: T) {
        let hash = self.hasher.hash_one(&id);
        let entry = Some(Entry { id, until, value });
        let at = if let Some(at) = self.free.pop() {
            self.places[at as usize] = entry;
            at
        } else {
            self.places.push(entry);
            // The bound of requests is far below.
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        };
        let Self {
            places,
            by_id,
            hasher,
            ..
        } = self;
        by_id.insert_unique(hash, at, |at| match places.get(*at as usize) {
            Some(Some(entry)) => hasher.hash_one(&entry.id),
            _ => 0,
        });
    }

    pub(super) fn remove(&mut self, id: &RequestId) -> Option<T> {
        self.find(id).and_then(|at| self.take(at))
    }

    /// Removes those that are over at `now` among the next [`STEP`] places from `from` on, and says where to go on; none
    /// at the end.
    pub(super) fn sweep(
        &mut self,
        from: usize,
        now: Moment,
        mut over: impl FnMut(T),
    ) -> Option<usize> {
        let end = (from + STEP).min(self.places.len());
        for at in from..end {
            if self.places[at].as_ref().is_some_and(|it| it.until <= now) {
                let value = u32::try_from(at).ok().and_then(|at| self.take(at));
                value.into_iter().for_each(&mut over);
            }
        }
        if end < self.places.len() {
            return Some(end);
        }
        if self.by_id.is_empty() && self.places.len() > SMALL {
            *self = Self {
                hasher: self.hasher.clone(),
                ..Self::new()
            };
        }
        None
    }

    fn find(&self, id: &RequestId) -> Option<u32> {
        if self.by_id.is_empty() {
            return None;
        }
        let is_it = |at: &u32| matches!(&self.places[*at as usize], Some(it) if it.id == *id);
        self.by_id.find(self.hasher.hash_one(id), is_it).copied()
    }

    fn take(&mut self, at: u32) -> Option<T> {
        let entry = mem::take(self.places.get_mut(at as usize)?)?;
        let hash = self.hasher.hash_one(&entry.id);
        if let Ok(found) = self.by_id.find_entry(hash, |it| *it == at) {
            found.remove();
        }
        self.free.push(at);
        Some(entry.value)
    }
}
