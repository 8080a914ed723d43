//! Values by key, in order of insertion.

use hashbrown::HashTable;

/// A map in one slab; the order of its keys is a list through it. What is moved or inserted becomes the newest.
///
/// A value of 24 bytes takes 40 in the slab, which grows by an eighth, and 6 to 12 in the table.
#[derive(Debug)]
pub(crate) struct Ordered<T> {
    nodes: Vec<Node<T>>,
    table: HashTable<u32>,
    /// Unused nodes, linked through `newer`.
    free: u32,
    oldest: u32,
    newest: u32,
    /// Odd; hides which keys fall on the same place from those who choose keys.
    secret: u64,
}

#[derive(Debug)]
struct Node<T> {
    key: u64,
    older: u32,
    newer: u32,
    value: T,
}

/// No node.
const NONE: u32 = u32::MAX;
/// Below this nothing is given back.
const SMALL: usize = 64;

// === impl Ordered ===

impl<T: Default> Ordered<T> {
    pub(crate) fn new(secret: u64) -> Self {
        Self {
            nodes: Vec::new(),
            table: HashTable::new(),
            free: NONE,
            oldest: NONE,
            newest: NONE,
            secret: secret | 1,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<T>>() + self.table.allocation_size()
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.find(key).map(|at| &self.nodes[at as usize].value)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.find(key).map(|at| &mut self.nodes[at as usize].value)
    }

    /// The value, made if there is none; whether it was.
    pub(crate) fn or_insert_with(&mut self, key: u64, make: impl FnOnce() -> T) -> (&mut T, bool) {
        let (at, is_new) = match self.find(key) {
            Some(at) => (at, false),
            None => (self.insert(key, make()), true),
        };
        (&mut self.nodes[at as usize].value, is_new)
    }

    /// Adds what is not there.
    fn insert(&mut self, key: u64, value: T) -> u32 {
        let node = Node {
            key,
            older: NONE,
            newer: NONE,
            value,
        };
        let at = self.free;
        let at = if at == NONE {
            if self.nodes.len() == self.nodes.capacity() {
                // doubling would leave half of the memory unused
                self.nodes.reserve_exact(self.nodes.len() / 8 + 16);
            }
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        } else {
            self.free = self.nodes[at as usize].newer;
            self.nodes[at as usize] = node;
            at
        };
        self.link(at);
        self.enter(at);
        at
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let at = self.take(key)?;
        self.unlink(at);
        let node = &mut self.nodes[at as usize];
        node.newer = self.free;
        self.free = at;
        let value = std::mem::take(&mut node.value);
        if self.nodes.capacity() > SMALL && self.len() < self.nodes.capacity() / 4 {
            self.compact();
        }
        Some(value)
    }

    /// Makes it the newest, if it is there.
    pub(crate) fn touch(&mut self, key: u64) {
        if let Some(at) = self.find(key).filter(|at| *at != self.newest) {
            self.unlink(at);
            self.link(at);
        }
    }

    /// The key of the one that is the oldest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.nodes.get(self.oldest as usize).map(|node| node.key)
    }

    /// Takes out the one that was inserted before all others.
    pub(crate) fn pop_oldest(&mut self) -> Option<(u64, T)> {
        let key = self.nodes.get(self.oldest as usize)?.key;
        Some((key, self.remove(key)?))
    }

    fn find(&self, key: u64) -> Option<u32> {
        let is_it = |at: &u32| self.nodes[*at as usize].key == key;
        self.table.find(spread(key, self.secret), is_it).copied()
    }

    fn take(&mut self, key: u64) -> Option<u32> {
        let nodes = &self.nodes;
        let is_it = |at: &u32| nodes[*at as usize].key == key;
        let entry = self.table.find_entry(spread(key, self.secret), is_it);
        Some(entry.ok()?.remove().0)
    }

    fn enter(&mut self, at: u32) {
        let (nodes, secret) = (&self.nodes, self.secret);
        let hash = |at: &u32| spread(nodes[*at as usize].key, secret);
        self.table.insert_unique(hash(&at), at, hash);
    }

    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = at,
            None => self.oldest = at,
        }
        let node = &mut self.nodes[at as usize];
        (node.older, node.newer) = (older, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let Node { older, newer, .. } = self.nodes[at as usize];
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }

    /// Moves all together, in their order, into memory that just fits.
    fn compact(&mut self) {
        let len = self.len();
        let mut new = Self::new(self.secret);
        new.nodes.reserve_exact(len + len / 8);
        new.table.reserve(len, |_| 0);
        let mut at = self.oldest;
        while let Some(node) = self.nodes.get_mut(at as usize) {
            at = node.newer;
            new.insert(node.key, std::mem::take(&mut node.value));
        }
        *self = new;
    }
}

/// Spreads keys that their senders chose.
fn spread(key: u64, secret: u64) -> u64 {
    let (low, high) = (key ^ secret.rotate_left(32)).carrying_mul(secret, 0);
    low ^ high
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_list_of_pairs(ops in prop::collection::vec((0..4, 0_u64..300), 1..2000)) {
            let mut real = Ordered::new(77);
            let mut model: Vec<(u64, u64)> = Vec::new();
            for (number, (op, key)) in (0..).zip(ops) {
                let place = model.iter().position(|one| one.0 == key);
                match (op, place) {
                    (0 | 1, None) => {
                        real.or_insert_with(key, || number);
                        model.push((key, number));
                    }
                    (1, Some(_)) => {
                        let oldest = model.remove(0);
                        prop_assert_eq!(real.pop_oldest(), Some(oldest));
                    }
                    (3, place) => {
                        real.touch(key);
                        if let Some(at) = place {
                            let touched = model.remove(at);
                            model.push(touched);
                        }
                    }
                    (_, place) => {
                        let value = place.map(|at| model.remove(at).1);
                        prop_assert_eq!(real.remove(key), value);
                    }
                }
                let value = model.iter().find(|one| one.0 == key).map(|one| one.1);
                prop_assert_eq!(real.get(key).copied(), value);
                prop_assert_eq!(real.len(), model.len());
                prop_assert_eq!(real.oldest(), model.first().map(|one| one.0));
            }
            while let Some(oldest) = real.pop_oldest() {
                prop_assert_eq!(oldest, model.remove(0));
            }
            prop_assert!(model.is_empty());
        }
    }

    #[test]
    fn memory_of_what_was_removed_is_given_back() {
        let mut real = Ordered::new(1);
        (0..100_000).for_each(|key| assert!(real.or_insert_with(key, || [0_u64; 3]).1));
        let most = real.bytes();
        assert!(most <= 100_000 * 58, "{most}");
        (0..99_990).for_each(|key| assert!(real.remove(key).is_some()));
        assert!(real.bytes() < most / 100, "{}", real.bytes());
        assert_eq!(real.pop_oldest().map(|one| one.0), Some(99_990));
    }
}
