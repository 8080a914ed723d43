//! The workers of a pool.

use crate::{
    index::{Index, WorkerBlocks},
    loads::{Limits, Loads},
};

/// What they have and what they have to do.
pub struct Workers {
    /// What they have.
    pub index: Index,
    /// What they have to do.
    pub loads: Loads,
}

// === impl Workers ===

impl Workers {
    /// No workers; the index is for up to so many bytes.
    pub fn new(limits: Limits, index_max_bytes: usize) -> Self {
        Self {
            index: Index::new(limits.block_size, index_max_bytes),
            loads: Loads::new(limits),
        }
    }

    /// A new worker, or a rank of one; none when there are too many. Whoever has it applies its events.
    pub fn add(&self) -> Option<WorkerBlocks> {
        let worker = self.index.add()?;
        self.loads.add(worker.slot());
        Some(worker)
    }

    /// The worker is gone: no prompt goes there from now on.
    pub fn remove(&self, worker: WorkerBlocks) {
        self.loads.remove(worker.slot());
        self.index.remove(worker);
    }
}
