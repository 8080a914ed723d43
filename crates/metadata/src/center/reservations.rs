//! Charges of picks that no batch confirmed yet.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicUsize, Ordering},
};

use moment::Moment;
use parking_lot::{Mutex, MutexGuard};

use super::{endpoints::Charge, timed::Timed};
use crate::name::RequestId;

/// Batches that confirm do not wait for each other, nor for a sweep.
const PARTS: usize = 64;

/// The reservations of one cluster.
#[derive(Debug)]
pub(super) struct Reservations {
    parts: Box<[Mutex<Timed<Charge>>]>,
    hasher: RandomState,
    /// How many there are, so that batches look without a lock whether there is one.
    count: AtomicUsize,
}

// === impl Reservations ===

impl Reservations {
    pub(super) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::new(Timed::new())).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The charge reserved under this id until after `now`; one that is over is taken out and is to be subtracted.
    pub(super) fn find(&self, id: &RequestId, now: Moment) -> (Option<Charge>, Option<Charge>) {
        let mut part = self.part(id);
        match part.get_mut(id) {
            Some((until, charge)) if *until > now => (Some(*charge), None),
            Some(_) => (None, self.take_from(&mut part, id)),
            None => (None, None),
        }
    }

    /// Adds a reservation. There must be none of this id.
    pub(super) fn insert(&self, id: RequestId, until: Moment, charge: Charge) {
        let mut part = self.part(&id);
        part.insert(id, until, charge);
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn contains(&self, id: &RequestId) -> bool {
        self.len() > 0 && self.part(id).contains(id)
    }

    pub(super) fn take(&self, id: &RequestId) -> Option<Charge> {
        if self.len() == 0 {
            return None;
        }
        self.take_from(&mut self.part(id), id)
    }

    /// Takes out those of these ids.
    pub(super) fn take_all<'a>(&self, ids: impl Iterator<Item = &'a RequestId>) -> Vec<Charge> {
        if self.len() == 0 {
            return Vec::new();
        }
        ids.filter_map(|id| self.take(id)).collect()
    }

    /// Takes out those that are over at `now`, some at a time; says how many.
    pub(super) fn sweep(&self, now: Moment, mut over: impl FnMut(Vec<Charge>)) -> usize {
        let mut swept = 0;
        for part in &self.parts {
            let mut from = Some(0);
            while let Some(at) = from {
                let mut taken = Vec::new();
                from = part.lock().sweep(at, now, |charge| taken.push(charge));
                self.count.fetch_sub(taken.len(), Ordering::Release);
                swept += taken.len();
                // Without the lock: who has that of the endpoints may wait for this one.
                if !taken.is_empty() {
                    over(taken);
                }
            }
        }
        swept
    }

    fn take_from(&self, part: &mut Timed<Charge>, id: &RequestId) -> Option<Charge> {
        let charge = part.remove(id)?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(charge)
    }

    fn part(&self, id: &RequestId) -> MutexGuard<'_, Timed<Charge>> {
        let part = self.hasher.hash_one(id) % PARTS as u64;
        self.parts[usize::try_from(part).unwrap_or(0)].lock()
    }
}
