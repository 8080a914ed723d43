//! Memory that all Gateways have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// There is not so much left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Full {
    /// Of what one Gateway may have.
    Own,
    /// Of the memory that all Gateways have together.
    Common,
}

/// A Gateway has at most this many times what is left for all others. So one that takes all it can leaves a third of the memory, two
/// of them leave a fifth. Where they take it one after the other, each leaves a third of what the one before it left: after four
/// of them 5.6 MiB are left, and after eight 70 KiB, which is less than a connection takes.
const TIMES_LEFT: usize = 2;

#[derive(Debug)]
pub(super) struct Memory {
    size: usize,
    used: Mutex<Used>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Used {
    bytes: usize,
    /// Gateways that have some.
    gateways: usize,
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
            used: Mutex::default(),
            freed: Notify::new(),
        })
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.lock().bytes
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
        let all = used.bytes.checked_add(bytes).ok_or(Full::Common)?;
        let left = self.memory.size.checked_sub(all).ok_or(Full::Common)?;
        let had = self.has.load(Ordering::Relaxed);
        let has = had.saturating_add(bytes);
        if bytes > 0 && has > left.saturating_mul(TIMES_LEFT) {
            return Err(Full::Common);
        }
        self.has.store(has, Ordering::Relaxed);
        used.bytes = all;
        used.gateways += usize::from(had == 0 && has > 0);
        Ok(())
    }

    pub(super) fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut used = self.memory.used.lock();
        used.bytes = used.bytes.saturating_sub(bytes);
        let had = self.has.load(Ordering::Relaxed);
        let has = had.saturating_sub(bytes);
        self.has.store(has, Ordering::Relaxed);
        let is_last = had > 0 && has == 0;
        used.gateways = used.gateways.saturating_sub(usize::from(is_last));
        drop(used);
        self.memory.freed.notify_waiters();
    }

    /// Whether it has as much as Gateways have on average, or more.
    pub(super) fn has_its_part(&self) -> bool {
        let used = self.memory.used.lock();
        let has = self.has.load(Ordering::Relaxed);
        has > 0 && has.saturating_mul(used.gateways) >= used.bytes
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
