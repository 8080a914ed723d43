//! Maps that count their bytes: all that is kept of a member is in them. Pure.

use std::{borrow::Borrow, collections::BTreeMap, ops::Deref};

use super::heap::Heap;

/// Objects of one kind in one member. It derefs to the map for reads; all changes go through methods that keep the count.
#[derive(Clone, Debug)]
pub struct Counted<K, V> {
    map: BTreeMap<K, V>,
    bytes: usize,
}

/// The approximate size of one object, in bytes. Its key is a clone, whose text is shared.
pub(super) fn size<K, V: Heap>(value: &V) -> usize {
    size_of::<(K, V)>() + value.heap()
}

// === impl Counted ===

impl<K: Ord, V: Heap> Counted<K, V> {
    /// The approximate size of all objects, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size of this object; 0 if there is none.
    pub(super) fn bytes_of(&self, key: &K) -> usize {
        self.map.get(key).map_or(0, size::<K, V>)
    }

    /// The size that these would have.
    pub(super) fn bytes_for<'a>(values: impl IntoIterator<Item = &'a V>) -> usize
    where
        V: 'a,
    {
        values.into_iter().map(size::<K, V>).sum()
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.bytes = self.bytes.saturating_add(size::<K, V>(&value));
        let old = self.map.insert(key, value);
        self.subtract(old.as_ref());
    }

    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let old = self.map.remove(key);
        self.subtract(old.as_ref());
        old
    }

    /// Removes and returns all objects.
    pub fn take(&mut self) -> BTreeMap<K, V> {
        std::mem::take(self).map
    }

    pub fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        let mut gone = 0;
        self.map.retain(|key, value| {
            let keeps = keeps(key, value);
            if !keeps {
                gone += size::<K, V>(value);
            }
            keeps
        });
        self.bytes = self.bytes.saturating_sub(gone);
    }

    /// Only for changes that do not affect the size.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    /// Only for changes that do not affect the size.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.map.iter_mut()
    }

    fn subtract(&mut self, old: Option<&V>) {
        self.bytes = self.bytes.saturating_sub(old.map_or(0, size::<K, V>));
    }
}

impl<K, V> Default for Counted<K, V> {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<K, V> Deref for Counted<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.map
    }
}

impl<'a, K, V> IntoIterator for &'a Counted<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::collections::btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_count_is_of_what_is_there(
            steps in prop::collection::vec((0..5_u8, 0..8_u16, 0..2000_usize), 0..200)
        ) {
            let mut map = Counted::<u16, String>::default();
            for (step, key, length) in steps {
                match step {
                    0 => drop(map.remove(&key)),
                    1 => map.retain(|kept, _| *kept % 3 != key % 3),
                    2 if length < 20 => drop(map.take()),
                    _ => map.insert(key, "x".repeat(length)),
                }
                prop_assert_eq!(map.bytes(), Counted::<u16, String>::bytes_for(map.values()));
            }
        }
    }
}
