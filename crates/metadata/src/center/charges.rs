//! The charges of one owner.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::endpoints::Charge;
use crate::name::RequestId;

/// More charges go into many tables: a table of all would take milliseconds to grow.
const SMALL: usize = 4096;
const PARTS: usize = 64;
/// A table with so much room is given back when it is mostly unused.
const WORTH_SHRINKING: usize = 256;

/// Charges by request id: 48 bytes each, with the room of the tables between 55 and 112.
#[derive(Debug)]
pub(super) struct Charges {
    /// One, or [`PARTS`].
    parts: Vec<HashTable<(RequestId, Charge)>>,
    len: usize,
    hasher: DefaultHashBuilder,
}

// === impl Charges ===

impl Charges {
    pub(super) fn new() -> Self {
        Self {
            parts: vec![HashTable::new()],
            len: 0,
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, id: &RequestId) -> Option<Charge> {
        let hash = self.hasher.hash_one(id);
        let found = self.parts[self.part(hash)].find(hash, |(it, _)| it == id);
        found.map(|(_, charge)| *charge)
    }

    /// Sets the charge; answers with the one before.
    pub(super) fn insert(&mut self, id: RequestId, charge: Charge) -> Option<Charge> {
        if self.len >= SMALL && self.parts.len() == 1 {
            self.split();
        }
        let hash = self.hasher.hash_one(&id);
        let part = self.part(hash);
        let hasher = &self.hasher;
        let same = |(it, _): &(RequestId, Charge)| *it == id;
        let rehash = |(id, _): &(RequestId, Charge)| hasher.hash_one(id);
        match self.parts[part].entry(hash, same, rehash) {
            hashbrown::hash_table::Entry::Occupied(mut entry) => {
                Some(std::mem::replace(&mut entry.get_mut().1, charge))
            }
            hashbrown::hash_table::Entry::Vacant(entry) => {
                entry.insert((id, charge));
                self.len += 1;
                None
            }
        }
    }

    pub(super) fn remove(&mut self, id: &RequestId) -> Option<Charge> {
        let hash = self.hasher.hash_one(id);
        let part = self.part(hash);
        let part = &mut self.parts[part];
        let found = part.find_entry(hash, |(it, _)| it == id).ok()?;
        let ((_, charge), _) = found.remove();
        self.len -= 1;
        if part.capacity() > WORTH_SHRINKING && part.len() < part.capacity() / 8 {
            part.shrink_to(part.len() * 2, |(id, _)| self.hasher.hash_one(id));
        }
        Some(charge)
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = Charge> {
        self.parts.into_iter().flatten().map(|(_, charge)| charge)
    }

    fn split(&mut self) {
        let old = std::mem::replace(
            &mut self.parts,
            (0..PARTS).map(|_| HashTable::new()).collect(),
        );
        for (id, charge) in old.into_iter().flatten() {
            let hash = self.hasher.hash_one(&id);
            let part = self.part(hash);
            let hasher = &self.hasher;
            self.parts[part].insert_unique(hash, (id, charge), |(id, _)| hasher.hash_one(id));
        }
    }

    /// By bits that the tables do not use.
    fn part(&self, hash: u64) -> usize {
        usize::try_from(hash >> 40).unwrap_or(0) % self.parts.len()
    }
}
