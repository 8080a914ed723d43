//! What Envoys may make this program hold. All connections and streams of one Gateway share one budget, and all budgets share one
//! memory, so that whoever has the certificates of some Gateways leaves enough for the others.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::world::Key;
use crate::xds::Kind;

mod memory;
mod requests;

#[cfg(test)]
mod tests;

pub(super) use memory::Full;
pub(super) use requests::{Counted, GRACE, LONGEST_REQUEST, Unread};

use memory::{GatewayMemory, Memory, Taken};

/// An Envoy that reconnects names each resource twice, once with its version: 10,000 of a type with names of 100 bytes are
/// 2.3 MB, and 10,000 with names of 190 bytes fit.
pub(super) const MAX_REQUEST: usize = 4 << 20;

/// What a connection holds that says nothing: 64 KiB that were received and are not read ([`WINDOW`]), one frame of 16 KiB, and
/// the buffers of TLS and of HTTP/2.
const CONNECTION: usize = 128 << 10;

/// Bytes that a client may send before they are read, of a stream and of a connection. The smallest that HTTP/2 has for a
/// connection.
pub(super) const WINDOW: u32 = 65_535;

/// A name of one byte is three bytes of a request, and 100 where it is decoded into a growing list.
const DECODED: usize = 36;

/// The one request of any size.
#[cfg(test)]
const LARGE: usize = MAX_REQUEST * DECODED;

/// What is kept of refusals of all Gateways: see [`super::proxies`].
#[cfg(test)]
const REFUSALS: usize = 24 << 20;

/// Responses are counted in pieces of this many bytes.
const PIECE: usize = 1 << 10;

/// How much there may be at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections of all Gateways with their handshake done or in progress, each an open file.
    pub(crate) connections: usize,
    /// Connections, and also streams, of one Gateway: it has at most 1000 Envoys, and as many that end.
    pub(crate) of_gateway: usize,
    /// Bytes of the names that are kept for the streams of one Gateway.
    pub(crate) names: usize,
    /// Bytes of one Gateway's requests that are not read whole yet, beside one request of any size of all Gateways.
    pub(crate) requests: usize,
    /// Bytes of responses that Envoys of one Gateway have not answered.
    pub(crate) responses: usize,
    /// Bytes of all this, of all Gateways together, beside the one request.
    pub(crate) memory: usize,
    /// Bytes of responses beyond that: of a Gateway that finds no memory, one response after the other is sent all the same.
    pub(crate) reserve: usize,
    /// An Envoy answers a response within milliseconds. One that does not for so long is not waited for by others.
    pub(crate) answer: Duration,
}

/// The budgets of all Gateways. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Budgets {
    limits: Limits,
    by_gateway: Arc<Mutex<BTreeMap<Key, Weak<Budget>>>>,
    common: Arc<Common>,
}

/// What all budgets share.
#[derive(Debug)]
struct Common {
    memory: Arc<Memory>,
    /// For responses that find no memory: of clusters, and of all else.
    reserves: [Responses; 2],
    /// The place of the one request of any size that is received at a time. What it takes is no part of the memory, so that no
    /// Gateway can keep others from it for longer than one request may take.
    large: Arc<Semaphore>,
}

/// The budget of one Gateway.
#[derive(Debug)]
pub(super) struct Budget {
    common: Arc<Common>,
    memory: Arc<GatewayMemory>,
    connections: Arc<Pool>,
    names: Arc<Pool>,
    requests: Arc<Pool>,
    /// Who waits for room for a request: one of each Gateway, so that many of one do not hold back others.
    first: Arc<Semaphore>,
    /// Of clusters, and of all else. Envoy answers a response of clusters once it has their assignments: these must not wait for
    /// that answer.
    responses: [Responses; 2],
}

/// Something of which there is so much.
#[derive(Debug)]
struct Pool {
    size: usize,
    used: AtomicUsize,
    /// Bytes of one.
    weight: usize,
    memory: Arc<GatewayMemory>,
}

/// What one party has of a pool, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    pool: Arc<Pool>,
    has: usize,
}

/// Responses are waited for in order: a large one is not passed over for ever.
#[derive(Debug)]
struct Responses {
    pieces: usize,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// The bytes of one response, until it is answered.
#[derive(Debug)]
pub(super) struct Turn {
    _pieces: Option<OwnedSemaphorePermit>,
    room: Room,
}

/// Where the bytes of a response are counted.
#[derive(Debug)]
enum Room {
    Memory {
        _taken: Taken,
    },
    Reserve {
        _pieces: Option<OwnedSemaphorePermit>,
    },
}

// === impl Limits ===

impl Limits {
    /// The most that Envoys make this program hold, in bytes.
    #[cfg(test)]
    pub(crate) const fn bytes(&self) -> usize {
        self.memory + self.reserve + LARGE + REFUSALS
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_000,
            of_gateway: 2_000,
            names: 128 << 20,
            requests: 2 << 20,
            responses: 64 << 20,
            memory: 456 << 20,
            reserve: 64 << 20,
            answer: Duration::from_secs(30),
        }
    }
}

// === impl Budgets ===

impl Budgets {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            by_gateway: Arc::default(),
            common: Arc::new(Common {
                memory: Memory::new(limits.memory),
                reserves: [limits.reserve; 2].map(|size| Responses::new(size / 2)),
                large: Arc::new(Semaphore::new(1)),
            }),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The budget of the Gateway, which lasts for as long as somebody holds it.
    pub(super) fn of(&self, gateway: &Key) -> Arc<Budget> {
        let mut known = self.by_gateway.lock();
        if let Some(budget) = known.get(gateway).and_then(Weak::upgrade) {
            return budget;
        }
        known.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::new(Budget::new(&self.limits, &self.common));
        known.insert(gateway.clone(), Arc::downgrade(&budget));
        budget
    }
}

// === impl Budget ===

impl Budget {
    fn new(limits: &Limits, common: &Arc<Common>) -> Self {
        let memory = GatewayMemory::new(&common.memory);
        let pool = |size, weight| Pool::new(size, weight, &memory);
        Self {
            connections: pool(limits.of_gateway, CONNECTION),
            names: pool(limits.names, 1),
            requests: pool(limits.requests, DECODED),
            first: Arc::new(Semaphore::new(1)),
            responses: [limits.responses; 2].map(|size| Responses::new(size / 2)),
            common: Arc::clone(common),
            memory,
        }
    }

    pub(super) fn connection(&self) -> Result<Share, Full> {
        let mut share = Share::of(&self.connections);
        share.set(1)?;
        Ok(share)
    }

    pub(super) fn names(&self) -> Share {
        Share::of(&self.names)
    }

    /// For the requests of a stream; `close` ends its connection.
    pub(super) fn unread(&self, close: CancellationToken) -> Unread {
        Unread::new(Share::of(&self.requests), close)
    }

    /// Waits until a response of the type and of so many bytes may be sent. It is encoded twice on its way. One that is larger
    /// than all that there is waits for all of it.
    pub(super) async fn turn(self: Arc<Self>, kind: Kind, bytes: usize) -> Turn {
        let of_kind = usize::from(kind != Kind::Cluster);
        let bytes = bytes.saturating_mul(2);
        let pieces = self.responses[of_kind].take(bytes).await;
        let room = self.room(&self.common.reserves[of_kind], bytes).await;
        Turn {
            _pieces: pieces,
            room,
        }
    }

    /// Room in the memory, or in the reserve, whichever is there first.
    async fn room(&self, reserve: &Responses, bytes: usize) -> Room {
        let mut reserved = pin!(reserve.take(bytes));
        loop {
            let mut freed = pin!(self.memory.freed());
            freed.as_mut().enable();
            if let Ok(taken) = Taken::of(&self.memory, bytes) {
                return Room::Memory { _taken: taken };
            }
            tokio::select! {
                () = freed => {}
                pieces = &mut reserved => return Room::Reserve { _pieces: pieces },
            }
        }
    }

    /// Whether a response waits for the answer to the one that has this turn: one of this Gateway, or one of any that waits for the
    /// reserve, where the turn is of the reserve or this Gateway has much of the memory.
    pub(super) fn is_waited_for(&self, turn: &Turn) -> bool {
        let waits = |all: &[Responses; 2]| {
            let mut all = all.iter();
            all.any(|one| one.waiting.load(Ordering::Relaxed) > 0)
        };
        let is_of_reserve = matches!(turn.room, Room::Reserve { .. });
        waits(&self.responses)
            || waits(&self.common.reserves) && (is_of_reserve || self.memory.has_its_part())
    }
}

// === impl Responses ===

impl Responses {
    fn new(bytes: usize) -> Self {
        let pieces = (bytes / PIECE).clamp(1, 1 << 30);
        Self {
            pieces,
            free: Arc::new(Semaphore::new(pieces)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for so many bytes, or for all there are. None only where they are closed, which they never are.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let wanted = (bytes / PIECE + 1).min(self.pieces);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        if let Ok(has) = Arc::clone(&self.free).try_acquire_many_owned(wanted) {
            return Some(has);
        }
        let _waits = Waits::of(&self.waiting);
        Arc::clone(&self.free).acquire_many_owned(wanted).await.ok()
    }
}

/// One who waits, until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Pool ===

impl Pool {
    fn new(size: usize, weight: usize, memory: &Arc<GatewayMemory>) -> Arc<Self> {
        Arc::new(Self {
            size,
            used: AtomicUsize::new(0),
            weight,
            memory: Arc::clone(memory),
        })
    }
}

// === impl Share ===

impl Share {
    fn of(pool: &Arc<Pool>) -> Self {
        let pool = Arc::clone(pool);
        Self { pool, has: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.has == 0
    }

    /// Has so much from now on; where there is not so much, it has what it had.
    pub(super) fn set(&mut self, wanted: usize) -> Result<(), Full> {
        let (pool, has) = (&self.pool, self.has);
        let swapped = |used: usize| {
            let next = used - has + wanted;
            (wanted <= has || next <= pool.size).then_some(next)
        };
        let changed = pool
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, swapped);
        changed.map_err(|_| Full::Own)?;
        let more = wanted.saturating_sub(has);
        if let Err(full) = pool.memory.take(more.saturating_mul(pool.weight)) {
            pool.used.fetch_sub(more, Ordering::Relaxed);
            return Err(full);
        }
        let less = has.saturating_sub(wanted);
        pool.memory.give_back(less.saturating_mul(pool.weight));
        self.has = wanted;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // less is always there
        let _ = self.set(0);
    }
}
