//! The authorities of several ConfigMaps as one, which all policies that name the same ones share.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::{Bundle, Key};

#[derive(Debug, Default)]
pub(super) struct Merged {
    /// By all that is named.
    now: BTreeMap<BTreeSet<Key>, One>,
    /// Those in use until now: what is the same is not made again.
    before: BTreeMap<BTreeSet<Key>, One>,
}

#[derive(Debug)]
struct One {
    parts: Vec<Bundle>,
    bundle: Bundle,
}

// === impl Merged ===

impl Merged {
    /// Of those of its ConfigMaps that can be used; `None`: there is none.
    pub(super) fn of(&mut self, maps: BTreeSet<Key>, usable: &[&Bundle]) -> Option<Bundle> {
        if let ([one], 1) = (usable, maps.len()) {
            return Some((*one).clone());
        }
        if let Some(one) = self.now.get(&maps) {
            return Some(one.bundle.clone());
        }
        let before = self.before.remove(&maps);
        let one = match before.filter(|before| before.parts.iter().eq(usable.iter().copied())) {
            Some(same) => same,
            None => One {
                bundle: Bundle::merged(&maps, usable)?,
                parts: usable.iter().map(|one| (*one).clone()).collect(),
            },
        };
        let bundle = one.bundle.clone();
        self.now.insert(maps, one);
        Some(bundle)
    }

    /// For what follows this one.
    pub(super) fn take_over(&mut self) -> Self {
        Self {
            before: std::mem::take(&mut self.now),
            ..Self::default()
        }
    }

    pub(super) fn forget_before(&mut self) {
        self.before.clear();
    }
}
