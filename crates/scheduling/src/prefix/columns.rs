//! Which endpoint has which column, and how many blocks each may keep.

use std::collections::VecDeque;

use crate::slot::Slot;

/// Columns of endpoints. A removed endpoint's column serves another one only when no shard has a block under it any
/// more: a block left behind is never taken for one of the next endpoint.
#[derive(Debug)]
pub(super) struct Columns {
    /// By slot index.
    places: Vec<Place>,
    /// By column.
    columns: Vec<Column>,
    /// Removed, some shard may still have their blocks; the oldest first.
    leaving: VecDeque<usize>,
    /// Changes with the limits.
    version: u64,
    bounds: Bounds,
}

/// What all endpoints share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Shards, by which capacities are divided.
    pub(super) shards: usize,
    /// Entries of all endpoints in one shard.
    pub(super) entries: usize,
    /// Columns, those of removed endpoints included.
    pub(super) columns: usize,
    /// Slot indexes from here on are not tracked.
    pub(super) places: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    generation: u32,
    tenant: Tenant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Tenant {
    #[default]
    Unknown,
    Column(usize),
    Removed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Column {
    used: bool,
    /// Blocks in one shard: as configured, and as the bound allows. Both 0 for a removed endpoint.
    wanted: usize,
    limit: usize,
}

// === impl Columns ===

impl Columns {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            places: Vec::new(),
            columns: Vec::new(),
            leaving: VecDeque::new(),
            version: 0,
            bounds,
        }
    }

    /// The most heap bytes that columns within `bounds` take.
    pub(super) const fn max_bytes(bounds: Bounds) -> usize {
        bounds.places * size_of::<Place>()
            + bounds.columns * (size_of::<Column>() + 2 * size_of::<usize>())
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
            + self.columns.capacity() * size_of::<Column>()
            + self.leaving.capacity() * size_of::<usize>()
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Another value when a limit may have changed.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// All columns, used or not.
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    pub(super) fn endpoints(&self) -> usize {
        self.columns.iter().filter(|it| it.wanted > 0).count()
    }

    pub(super) fn column(&self, slot: Slot) -> Option<usize> {
        match self.place(slot.index) {
            Some(Place {
                generation,
                tenant: Tenant::Column(column),
            }) if generation == slot.generation => Some(column),
            _ => None,
        }
    }

    /// Whether `admit` may give the slot a column: neither removed, nor older than one that was seen, nor too large.
    pub(super) fn admits(&self, slot: Slot) -> bool {
        match self.place(slot.index) {
            None => (slot.index as usize) < self.bounds.places,
            Some(place) => {
                slot.generation > place.generation
                    || slot.generation == place.generation && place.tenant != Tenant::Removed
            }
        }
    }

    /// Blocks which the column may keep in each shard.
    pub(super) fn limit(&self, column: usize) -> usize {
        self.columns.get(column).map_or(0, |it| it.limit)
    }

    /// Blocks of the slot in each shard, as configured.
    pub(super) fn wanted(&self, slot: Slot) -> Option<usize> {
        Some(self.columns[self.column(slot)?].wanted)
    }

    /// `capacity` blocks as blocks of one shard.
    pub(super) fn per_shard(&self, capacity: usize) -> usize {
        // The bound also keeps the sums of `scale` from overflow.
        (capacity / self.bounds.shards).clamp(1, self.bounds.entries)
    }

    /// Sets the capacity of the slot, which gets a column if it has none. `emptied(column)` says whether no shard has
    /// blocks of that removed column; it is asked a few times at most. None: not admitted, or no column is free now.
    pub(super) fn admit(
        &mut self,
        slot: Slot,
        wanted: usize,
        emptied: impl FnMut(&Self, usize) -> bool,
    ) -> Option<usize> {
        if !self.admits(slot) {
            return None;
        }
        let column = if let Some(column) = self.column(slot) {
            column
        } else {
            self.vacate(slot.index);
            self.scale();
            let column = self.free_column(emptied)?;
            self.settle(slot, Tenant::Column(column));
            column
        };
        self.columns[column].used = true;
        self.columns[column].wanted = wanted;
        self.scale();
        Some(column)
    }

    /// Refuses these and former generations of the slots from now on.
    pub(super) fn remove(&mut self, slots: &[Slot]) {
        for slot in slots {
            if self.admits(*slot) {
                self.vacate(slot.index);
                self.settle(*slot, Tenant::Removed);
            }
        }
        self.scale();
    }

    fn place(&self, index: u32) -> Option<Place> {
        self.places.get(index as usize).copied()
    }

    fn settle(&mut self, slot: Slot, tenant: Tenant) {
        let index = slot.index as usize;
        if self.places.len() <= index {
            let room = (index + 1 + index / 4).min(self.bounds.places);
            self.places.reserve_exact(room - self.places.len());
            self.places.resize(index + 1, Place::default());
        }
        self.places[index] = Place {
            generation: slot.generation,
            tenant,
        };
    }

    /// Takes the column from whoever has the place.
    fn vacate(&mut self, index: u32) {
        if let Some(Place {
            tenant: Tenant::Column(column),
            ..
        }) = self.place(index)
        {
            self.columns[column].wanted = 0;
            self.leaving.push_back(column);
            self.places[index as usize].tenant = Tenant::Removed;
        }
    }

    /// The lowest free column, so that few words cover all: one that is unused, or was emptied, or a new one.
    fn free_column(&mut self, mut emptied: impl FnMut(&Self, usize) -> bool) -> Option<usize> {
        /// So many removed endpoints are looked at for each that arrives: two keep up with any churn.
        const ATTEMPTS: usize = 2;

        for _ in 0..ATTEMPTS.min(self.leaving.len()) {
            if let Some(column) = self.leaving.pop_front() {
                if emptied(self, column) {
                    self.columns[column].used = false;
                } else {
                    self.leaving.push_back(column);
                }
            }
        }
        if let Some(column) = self.columns.iter().position(|it| !it.used) {
            return Some(column);
        }
        let len = self.columns.len();
        if len >= self.bounds.columns {
            return None;
        }
        if len == self.columns.capacity() {
            let room = (len + len / 4 + 8).min(self.bounds.columns);
            self.columns.reserve_exact(room - len);
        }
        self.columns.push(Column::default());
        Some(len)
    }

    /// Recomputes the limits: as wanted while the sum fits into a shard, else one each and the rest in proportion.
    fn scale(&mut self) {
        let Bounds { entries, .. } = self.bounds;
        let count = self.endpoints();
        let sum: usize = self.columns.iter().map(|it| it.wanted).sum();
        for column in &mut self.columns {
            column.limit = match column.wanted {
                wanted if sum <= entries || wanted == 0 => wanted,
                wanted => 1 + scaled(wanted - 1, entries - count, sum - count),
            };
        }
        self.version += 1;
    }
}

/// `value * numerator / denominator`, rounded down.
fn scaled(value: usize, numerator: usize, denominator: usize) -> usize {
    let product = value as u128 * numerator as u128;
    usize::try_from(product / denominator as u128).unwrap_or(usize::MAX)
}
