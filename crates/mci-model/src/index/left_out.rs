//! What there was no room for in the index, so that it counts as unknown for no longer than that lasts. Pure.

use std::collections::BTreeMap;

use crate::name::Key;

/// Objects of one kind in one member that are there, and are not kept.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// What each of them weighs, in bytes: at most [`MAX_NAMED`].
    named: BTreeMap<Key, usize>,
    bytes: usize,
    /// There are more than are known by name: only a list tells what became of them.
    more: bool,
    /// A list was asked for that has not come yet.
    asked: bool,
    lists: u32,
}

/// How much more could be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) objects: usize,
    pub(super) bytes: usize,
}

/// How often a member is to list anew what it listed already, since there is room again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    pub pools: u32,
    pub imports: u32,
}

/// Half of what one member may export: half a MiB of names.
const MAX_NAMED: usize = 1000;

// === impl LeftOut ===

impl LeftOut {
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.more
    }

    /// There is no room for it.
    pub(super) fn add(&mut self, key: Key, bytes: usize) {
        self.settle(&key);
        if self.named.len() < MAX_NAMED {
            self.bytes = self.bytes.saturating_add(bytes);
            self.named.insert(key, bytes);
        } else {
            self.more = true;
        }
    }

    /// It is kept now, or gone.
    pub(super) fn settle(&mut self, key: &Key) {
        let bytes = self.named.remove(key).unwrap_or_default();
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// A list came: it tells of all that there is.
    pub(super) fn listed(&mut self) {
        *self = Self {
            lists: self.lists,
            ..Self::default()
        };
    }

    /// Asks for a list, once, where there is room for all that is known to be left out.
    pub(super) fn review(&mut self, room: Room) {
        let fits = self.named.len() <= room.objects && self.bytes <= room.bytes;
        if fits && !self.asked && !self.is_empty() {
            self.asked = true;
            self.lists = self.lists.wrapping_add(1);
        }
    }

    /// How often a list was asked for.
    pub(super) fn lists(&self) -> u32 {
        self.lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::mk_key;

    const ALL: Room = Room {
        objects: usize::MAX,
        bytes: usize::MAX,
    };

    #[test]
    fn what_is_kept_after_all_or_gone_is_left_out_no_more() {
        let mut left_out = LeftOut::default();
        left_out.add(mk_key("a"), 10);
        left_out.add(mk_key("a"), 20);
        left_out.add(mk_key("b"), 5);
        assert_eq!(left_out.bytes, 25);
        left_out.settle(&mk_key("never-heard-of"));
        left_out.settle(&mk_key("a"));
        assert_eq!((left_out.is_empty(), left_out.bytes), (false, 5));
        left_out.settle(&mk_key("b"));
        assert!(left_out.is_empty());
        left_out.review(ALL);
        assert_eq!(left_out.lists(), 0, "nothing is wanting");
    }

    #[test]
    fn a_list_is_asked_for_once_when_all_of_it_fits() {
        let mut left_out = LeftOut::default();
        left_out.add(mk_key("a"), 10);
        left_out.add(mk_key("b"), 10);
        for room in [
            Room { objects: 1, ..ALL },
            Room { bytes: 19, ..ALL },
            Room {
                objects: 0,
                bytes: 0,
            },
        ] {
            left_out.review(room);
            assert_eq!(left_out.lists(), 0, "{room:?}");
        }
        let room = Room {
            objects: 2,
            bytes: 20,
        };
        left_out.review(room);
        left_out.review(room);
        assert_eq!(left_out.lists(), 1);
        // it came, and left out something again
        left_out.listed();
        assert!(left_out.is_empty());
        left_out.add(mk_key("a"), 10);
        left_out.review(room);
        assert_eq!(left_out.lists(), 2);
    }

    #[test]
    fn of_more_than_can_be_named_only_a_list_tells() {
        let mut left_out = LeftOut::default();
        let keys = || (0..=MAX_NAMED).map(|at| mk_key(&format!("pool-{at}")));
        for key in keys() {
            left_out.add(key, 1);
        }
        assert_eq!(left_out.named.len(), MAX_NAMED);
        for key in keys() {
            left_out.settle(&key);
        }
        assert!(!left_out.is_empty());
        left_out.review(ALL);
        assert_eq!(left_out.lists(), 1);
        left_out.listed();
        assert!(left_out.is_empty());
    }
}
