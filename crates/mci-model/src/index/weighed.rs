//! Maps that keep no more than so many bytes: a member may fill every object that it has up to what one may be. Pure.

use std::{borrow::Borrow, collections::BTreeMap, ops::Deref};

use super::weight::Heap;

/// Objects of one kind in one member, within a budget. Read as the map that it is.
#[derive(Clone, Debug)]
pub struct Weighed<K, V> {
    map: BTreeMap<K, V>,
    /// For log lines: what is kept.
    what: &'static str,
    budget: usize,
    bytes: usize,
    /// It was told that something did not fit since all was replaced.
    told: bool,
}

/// Of each kind but imports: 1.6 KiB for each of 20 000 objects, where a usual one takes a third.
pub(super) const KIND_BYTES: usize = 32 * 1024 * 1024;
/// Of imports, and of what is remembered of their entries: twice what a list of them may be long, for 2000 pools with 50
/// exporters of 2.5 KiB each.
pub(super) const IMPORT_BYTES: usize = 256 * 1024 * 1024;

// === impl Weighed ===

impl<K: Ord, V: Heap> Weighed<K, V> {
    pub fn new(what: &'static str, budget: usize) -> Self {
        Self {
            map: BTreeMap::new(),
            what,
            budget,
            bytes: 0,
            told: false,
        }
    }

    /// What one takes that is kept, in bytes, about.
    pub fn weight(value: &V) -> usize {
        weight::<K, V>(value)
    }

    /// How many bytes more may be kept.
    pub fn room(&self) -> usize {
        self.budget.saturating_sub(self.bytes)
    }

    /// What is kept, in bytes, about.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether these would be too much.
    pub fn is_too_much<'a>(&self, all: impl Iterator<Item = &'a V>) -> bool
    where
        V: 'a,
    {
        all.map(weight::<K, V>).sum::<usize>() > self.budget
    }

    /// Whether there is room, in the place of what is there. It is told once that there is none.
    pub fn admits(&mut self, key: &K, value: &V) -> bool {
        if self.excess(key, value) == 0 {
            return true;
        }
        if !std::mem::replace(&mut self.told, true) {
            let (what, budget) = (self.what, self.budget);
            tracing::warn!(
                what,
                budget,
                "what a member says takes too many bytes: not all of it is kept"
            );
        }
        false
    }

    /// Keeps it in the place of what was there, unless there is no room; whether it does.
    pub fn insert(&mut self, key: K, value: V) -> bool {
        if !self.admits(&key, &value) {
            return false;
        }
        self.bytes = self.bytes.saturating_add(weight::<K, V>(&value));
        let old = self.map.insert(key, value);
        self.forget(old.as_ref());
        true
    }

    /// How many bytes it would take past the budget, in the place of what is there.
    fn excess(&self, key: &K, value: &V) -> usize {
        let old = self.map.get(key).map_or(0, weight::<K, V>);
        let bytes = self.bytes.saturating_sub(old);
        let bytes = bytes.saturating_add(weight::<K, V>(value));
        bytes.saturating_sub(self.budget)
    }

    /// Drops what is not spared until this one fits and there are at most `max`, the heaviest first; nothing where even that
    /// would not do. What is spared is asked only where something has to go.
    pub fn make_room<S>(&mut self, key: &K, value: &V, max: usize, spared: impl FnOnce() -> S)
    where
        K: Clone,
        S: Fn(&K, &V) -> bool,
    {
        let needed = self.excess(key, value);
        let one_more = usize::from(!self.map.contains_key(key));
        let too_many = (self.map.len() + one_more).saturating_sub(max);
        if needed == 0 && too_many == 0 {
            return;
        }
        let is_spared = spared();
        let spare = self
            .map
            .iter()
            .filter(|(kept, value)| *kept != key && !is_spared(kept, value));
        let mut spare: Vec<(usize, &K)> = spare
            .map(|(kept, value)| (weight::<K, V>(value), kept))
            .collect();
        spare.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut freed = 0;
        let mut gone = Vec::new();
        for (bytes, kept) in spare {
            if freed >= needed && gone.len() >= too_many {
                break;
            }
            freed += bytes;
            gone.push(kept.clone());
        }
        let does = freed >= needed && gone.len() >= too_many;
        for kept in gone.into_iter().filter(|_| does) {
            self.remove(&kept);
        }
    }

    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let old = self.map.remove(key);
        self.forget(old.as_ref());
        old
    }

    /// All of it; nothing is left.
    pub fn take(&mut self) -> BTreeMap<K, V> {
        (self.bytes, self.told) = (0, false);
        std::mem::take(&mut self.map)
    }

    pub fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        let mut gone = 0;
        self.map.retain(|key, value| {
            let keeps = keeps(key, value);
            if !keeps {
                gone += weight::<K, V>(value);
            }
            keeps
        });
        self.bytes = self.bytes.saturating_sub(gone);
    }

    /// To change what does not weigh.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    /// To change what does not weigh.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.map.iter_mut()
    }

    fn forget(&mut self, old: Option<&V>) {
        self.bytes = self.bytes.saturating_sub(old.map_or(0, weight::<K, V>));
    }
}

impl<K, V> Deref for Weighed<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.map
    }
}

impl<'a, K, V> IntoIterator for &'a Weighed<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::collections::btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.iter()
    }
}

fn weight<K, V: Heap>(value: &V) -> usize {
    size_of::<(K, V)>() + value.heap()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: usize = 4096;

    /// What it should take.
    fn bytes(map: &Weighed<u16, String>) -> usize {
        map.values().map(weight::<u16, String>).sum()
    }

    proptest! {
        #[test]
        fn it_knows_what_it_keeps_and_keeps_no_more_than_its_budget(
            steps in prop::collection::vec((0..5_u8, 0..8_u16, 0..2000_usize), 0..200)
        ) {
            let mut map = Weighed::new("texts", BUDGET);
            for (step, key, length) in steps {
                match step {
                    0 => drop(map.remove(&key)),
                    1 => map.retain(|kept, _| *kept % 3 != key % 3),
                    2 if length < 20 => drop(map.take()),
                    _ => {
                        let (before, text) = (map.get(&key).cloned(), "x".repeat(length));
                        let others = bytes(&map) - before.as_ref().map_or(0, weight::<u16, String>);
                        let fits = others + weight::<u16, String>(&text) <= BUDGET;
                        prop_assert_eq!(map.insert(key, text.clone()), fits);
                        prop_assert_eq!(map.get(&key), if fits { Some(&text) } else { before.as_ref() });
                    }
                }
                prop_assert_eq!(map.bytes(), bytes(&map));
                prop_assert_eq!(map.room(), BUDGET - bytes(&map));
                prop_assert!(map.bytes() <= BUDGET);
            }
        }
    }

    #[test]
    fn room_is_made_of_the_heaviest_and_only_where_it_does() {
        let mut map = Weighed::new("texts", BUDGET);
        for (key, length) in [(1, 500), (2, 1500), (3, 1000), (4, 200)] {
            assert!(map.insert(key, "x".repeat(length)));
        }
        let kept = |map: &Weighed<u16, String>| map.keys().copied().collect::<Vec<_>>();
        let spare =
            |spared: &'static [u16]| move || move |key: &u16, _: &String| spared.contains(key);
        map.make_room(
            &5,
            &String::new(),
            usize::MAX,
            || -> fn(&u16, &String) -> bool { unreachable!("there is room") },
        );
        let text = "x".repeat(1200);
        map.make_room(&5, &text, usize::MAX, spare(&[1, 2, 3]));
        assert_eq!(kept(&map), [1, 2, 3, 4], "it would not do");
        map.make_room(&5, &text, usize::MAX, spare(&[2]));
        assert_eq!(kept(&map), [1, 2, 4]);
        assert!(map.insert(5, text));
        map.make_room(&6, &String::new(), 3, spare(&[]));
        assert_eq!(kept(&map), [1, 4]);
    }
}
