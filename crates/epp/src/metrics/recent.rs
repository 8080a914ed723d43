//! A table of bounded size, of which the most recently used values stay.

use std::{collections::HashMap, sync::Arc};

/// How many of the oldest values are looked at for one that may leave: bounds the work of one insert when a hostile
/// client keeps many in use.
const MAX_LOOKS: usize = 32;

/// The end of the list.
const NONE: usize = usize::MAX;

/// Values by key. Look-up and insert take constant time.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    capacity: usize,
    /// Never shrinks: a value that leaves gives its place to the new one.
    places: Vec<Place<V>>,
    index: HashMap<Arc<[u8]>, usize>,
    newest: usize,
    oldest: usize,
}

#[derive(Debug)]
struct Place<V> {
    key: Arc<[u8]>,
    value: V,
    newer: usize,
    older: usize,
}

/// What became of an insert.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted<V> {
    /// There was room.
    Added,
    /// This value left.
    Replaced(V),
    /// Nothing may leave: the value came back.
    Refused(V),
}

// === impl Recent ===

impl<V> Recent<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            places: Vec::new(),
            index: HashMap::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// The value of a key, which is the most recently used from now on.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<&V> {
        let at = *self.index.get(key)?;
        self.renew(at);
        Some(&self.places[at].value)
    }

    /// As [`Self::get`], to change it.
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let at = *self.index.get(key)?;
        self.renew(at);
        Some(&mut self.places[at].value)
    }

    /// All values, the most recently used first.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        let at = |at: usize| self.places.get(at);
        let places = std::iter::successors(at(self.newest), move |place| at(place.older));
        places.map(|place| &place.value)
    }

    /// Inserts the value of a key that is not there. In a full table the least recently used one leaves that is not
    /// `in_use`; one that is counts as used just now.
    pub(crate) fn insert(
        &mut self,
        key: &[u8],
        value: V,
        in_use: impl Fn(&V) -> bool,
    ) -> Inserted<V> {
        let key: Arc<[u8]> = key.into();
        if self.places.len() < self.capacity {
            let at = self.places.len();
            self.places.push(Place {
                key: Arc::clone(&key),
                value,
                newer: NONE,
                older: NONE,
            });
            self.index.insert(key, at);
            self.link(at);
            return Inserted::Added;
        }
        for _ in 0..MAX_LOOKS.min(self.places.len()) {
            let at = self.oldest;
            self.renew(at);
            let place = &mut self.places[at];
            if in_use(&place.value) {
                continue;
            }
            let left = std::mem::replace(&mut place.value, value);
            let left_key = std::mem::replace(&mut place.key, Arc::clone(&key));
            self.index.remove(&left_key);
            self.index.insert(key, at);
            return Inserted::Replaced(left);
        }
        Inserted::Refused(value)
    }

    fn renew(&mut self, at: usize) {
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
    }

    fn unlink(&mut self, at: usize) {
        let Place { newer, older, .. } = self.places[at];
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.places[older].newer = newer,
        }
    }

    /// Makes an unlinked place the newest.
    fn link(&mut self, at: usize) {
        self.places[at].newer = NONE;
        self.places[at].older = self.newest;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.places[newest].newer = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn insert(table: &mut Recent<u8>, value: u8) -> Inserted<u8> {
        table.insert(&[value], value, |_| false)
    }

    #[test]
    fn the_least_recently_used_leaves() {
        let mut table = Recent::new(2);
        assert_eq!(insert(&mut table, 1), Inserted::Added);
        assert_eq!(insert(&mut table, 2), Inserted::Added);
        assert_eq!(table.get(&[1]), Some(&1));
        assert_eq!(insert(&mut table, 3), Inserted::Replaced(2));
        assert_eq!(table.get(&[2]), None);
        assert_eq!(table.get(&[1]), Some(&1));
        assert_eq!(table.values().collect::<Vec<_>>(), [&1, &3]);
    }

    #[test]
    fn a_value_in_use_stays() {
        let mut table = Recent::new(2);
        insert(&mut table, 1);
        insert(&mut table, 2);
        assert_eq!(
            table.insert(&[3], 3, |value| *value == 1),
            Inserted::Replaced(2)
        );
        assert_eq!(table.insert(&[4], 4, |_| true), Inserted::Refused(4));
        assert_eq!(table.get(&[1]), Some(&1));
        assert_eq!(table.get(&[3]), Some(&3));
    }

    #[test]
    fn an_insert_looks_at_few_values() {
        let mut table = Recent::new(200);
        for value in 0..200 {
            insert(&mut table, value);
        }
        let looks = std::cell::Cell::new(0);
        let refused = table.insert(&[200], 200, |_| {
            looks.set(looks.get() + 1);
            true
        });
        assert_eq!(refused, Inserted::Refused(200));
        assert_eq!(looks.get(), MAX_LOOKS);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_in_order_of_use(uses in prop::collection::vec(0u8..12, 0..200)) {
            let mut table = Recent::new(5);
            let mut model: VecDeque<u8> = VecDeque::new();
            for value in uses {
                let known = model.iter().position(|other| *other == value);
                prop_assert_eq!(table.get(&[value]).copied(), known.map(|_| value));
                if let Some(at) = known {
                    model.remove(at);
                } else {
                    let left = (model.len() == 5).then(|| model.pop_front()).flatten();
                    let expected = left.map_or(Inserted::Added, Inserted::Replaced);
                    prop_assert_eq!(insert(&mut table, value), expected);
                }
                model.push_back(value);
            }
        }
    }
}
