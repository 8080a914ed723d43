//! LoRA adapters on the simulated GPU: which are there, and which one leaves for another. Pure.

use std::sync::Arc;

/// Places for adapters. One that running sequences use stays; of the others the least recently used leaves
/// first.
#[derive(Debug)]
pub(super) struct AdapterSlots {
    most: usize,
    /// At most `most`.
    slots: Vec<Slot>,
    /// Counts how often an adapter was taken into use.
    clock: u64,
}

#[derive(Debug)]
struct Slot {
    name: Arc<str>,
    users: usize,
    last_used: u64,
}

/// Whether a sequence can have its adapter now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is there, or none is needed.
    Ready,
    /// It takes the place of another, or a free one.
    Swap,
    /// All places are in use.
    Full,
}

// === impl AdapterSlots ===

impl AdapterSlots {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            slots: Vec::new(),
            clock: 0,
        }
    }

    pub(super) fn check(&self, name: Option<&str>) -> Admission {
        let Some(name) = name else {
            return Admission::Ready;
        };
        if self.slots.iter().any(|slot| *slot.name == *name) {
            return Admission::Ready;
        }
        let idle = self.slots.iter().any(|slot| slot.users == 0);
        if idle || self.slots.len() < self.most {
            Admission::Swap
        } else {
            Admission::Full
        }
    }

    /// Takes an adapter into use that [`AdapterSlots::check`] did not find [`Admission::Full`].
    pub(super) fn acquire(&mut self, name: &Arc<str>) {
        self.clock += 1;
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.name == *name) {
            slot.users += 1;
            slot.last_used = self.clock;
            return;
        }
        if self.slots.len() >= self.most {
            let idle = self.slots.iter().enumerate();
            let oldest = idle
                .filter(|(_, slot)| slot.users == 0)
                .min_by_key(|(_, slot)| slot.last_used)
                .map(|(place, _)| place);
            if let Some(place) = oldest {
                self.slots.swap_remove(place);
            }
        }
        self.slots.push(Slot {
            name: name.clone(),
            users: 1,
            last_used: self.clock,
        });
    }

    pub(super) fn release(&mut self, name: &str) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| *slot.name == *name) {
            slot.users = slot.users.saturating_sub(1);
        }
    }

    /// Adapters of running sequences.
    pub(super) fn running(&self) -> impl Iterator<Item = &Arc<str>> {
        let used = self.slots.iter().filter(|slot| slot.users > 0);
        used.map(|slot| &slot.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_idle_adapter_leaves() {
        let mut slots = AdapterSlots::new(2);
        let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Into::into);
        assert_eq!(slots.check(None), Admission::Ready);
        for name in [&a, &b, &a] {
            assert_ne!(slots.check(Some(name)), Admission::Full);
            slots.acquire(name);
        }
        assert_eq!(slots.check(Some(&c)), Admission::Full);
        slots.release(&a);
        slots.release(&b);
        assert_eq!(slots.check(Some(&c)), Admission::Swap);
        slots.acquire(&c);
        assert_eq!(
            slots.check(Some(&b)),
            Admission::Full,
            "a has one more user"
        );
        slots.release(&a);
        assert_eq!(
            slots.check(Some(&a)),
            Admission::Ready,
            "it stays while idle"
        );
        assert_eq!(slots.running().collect::<Vec<_>>(), [&c]);
    }
}
