//! Memory that all Gateways have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// There is not so much left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Full;

/// A Gateway has at most this many times what is left for all others. So one that takes all it can leaves a third of the memory,
/// two of them leave a fifth, and there is always something left for another one.
const TIMES_LEFT: usize = 2;

#[derive(Debug)]
pub(super) struct Memory {
    size: usize,
    used: Mutex<usize>,
    freed: Notify,
}

/// What one Gateway has of it.
#[derive(Debug)]
pub(super) struct GatewayMemory {
    memory: Arc<Memory>,
    /// Changed only with the lock of `memory.used`.
    has: AtomicUsize,
}

/// So many bytes, until they are dropped.
#[derive(Debug)]
pub(super) struct Taken {
    of: Arc<GatewayMemory>,
    bytes: usize,
}

// === impl Memory ===

impl Memory {
    pub(super) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            used: Mutex::new(0),
            freed: Notify::new(),
        })
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        *self.used.lock()
    }
}

// === impl GatewayMemory ===

impl GatewayMemory {
    pub(super) fn new(memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            has: AtomicUsize::new(0),
        })
    }

    pub(super) fn take(&self, bytes: usize) -> Result<(), Full> {
        let mut used = self.memory.used.lock();
        let all = used.checked_add(bytes).ok_or(Full)?;
        let left = self.memory.size.checked_sub(all).ok_or(Full)?;
        let has = self.has.load(Ordering::Relaxed).saturating_add(bytes);
        if bytes > 0 && has > left.saturating_mul(TIMES_LEFT) {
            return Err(Full);
        }
        self.has.store(has, Ordering::Relaxed);
        *used = all;
        Ok(())
    }

    pub(super) fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut used = self.memory.used.lock();
        *used = used.saturating_sub(bytes);
        let has = self.has.load(Ordering::Relaxed);
        self.has.store(has.saturating_sub(bytes), Ordering::Relaxed);
        drop(used);
        self.memory.freed.notify_waiters();
    }

    /// Comes back when some Gateway has given something back.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.memory.freed.notified()
    }
}

// === impl Taken ===

impl Taken {
    pub(super) fn of(gateway: &Arc<GatewayMemory>, bytes: usize) -> Result<Self, Full> {
        gateway.take(bytes)?;
        Ok(Self {
            of: Arc::clone(gateway),
            bytes,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.give_back(self.bytes);
    }
}
