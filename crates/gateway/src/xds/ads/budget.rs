//! What the Envoys of one Gateway may make this program hold. All their connections and streams share one budget, so that
//! whoever has the certificate of a Gateway takes no memory from the others.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use crate::world::Key;
use crate::xds::Kind;

use super::connections::Peer;

/// What a connection holds that says nothing: 64 KiB that were received and are not read ([`WINDOW`]), one frame of 16 KiB, and
/// the buffers of TLS and of HTTP/2.
#[cfg(test)]
const CONNECTION: usize = 128 << 10;

/// Bytes that a client may send before they are read, of a stream and of a connection. The smallest that HTTP/2 has for a
/// connection.
pub(super) const WINDOW: u32 = 65_535;

/// A name of one byte is three bytes of a request, and 100 where it is decoded into a growing list.
#[cfg(test)]
const DECODED: usize = 36;

/// What Envoys refuse: see [`super::proxies`].
#[cfg(test)]
const REFUSALS: usize = 32 << 20;

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
    /// Bytes of one Gateway's requests that are not read whole yet.
    pub(crate) requests: usize,
    /// Bytes of responses that Envoys of one Gateway have not answered.
    pub(crate) responses: usize,
    /// An Envoy answers a response within milliseconds. One that does not for so long is not waited for by others.
    pub(crate) answer: Duration,
}

/// The budgets of all Gateways. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Budgets {
    limits: Limits,
    by_gateway: Arc<Mutex<BTreeMap<Key, Weak<Budget>>>>,
}

/// The budget of one Gateway.
#[derive(Debug)]
pub(super) struct Budget {
    connections: Arc<Pool>,
    names: Arc<Pool>,
    requests: Arc<Pool>,
    /// Of clusters, and of all else. Envoy answers a response of clusters once it has their assignments: these must not wait for
    /// that answer.
    responses: [Responses; 2],
}

/// Something of which there is so much.
#[derive(Debug)]
struct Pool {
    size: usize,
    used: AtomicUsize,
}

/// What one party has of a pool, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    pool: Arc<Pool>,
    has: usize,
}

/// There is not so much left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

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
}

/// What was received of a stream's next request. Its clones are one.
#[derive(Clone)]
pub(super) struct Unread(Arc<Mutex<Share>>);

/// A service that counts what it receives against the budget of its peer.
#[derive(Clone)]
pub(super) struct Counted<S>(pub(super) S);

struct CountedBody {
    body: Body,
    unread: Unread,
}

// === impl Limits ===

impl Limits {
    /// The most that Envoys of one Gateway make this program hold, in bytes.
    #[cfg(test)]
    pub(crate) const fn bytes_of_gateway(&self) -> usize {
        self.of_gateway * CONNECTION
            + self.names
            + self.requests * DECODED
            + self.responses
            + REFUSALS
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_000,
            of_gateway: 2_000,
            names: 128 << 20,
            requests: 6 << 20,
            responses: 64 << 20,
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
        let budget = Arc::new(Budget::new(&self.limits));
        known.insert(gateway.clone(), Arc::downgrade(&budget));
        budget
    }
}

// === impl Budget ===

impl Budget {
    fn new(limits: &Limits) -> Self {
        let pieces = (limits.responses / 2 / PIECE).clamp(1, 1 << 30);
        let responses = || Responses {
            pieces,
            free: Arc::new(Semaphore::new(pieces)),
            waiting: AtomicUsize::new(0),
        };
        Self {
            connections: Pool::new(limits.of_gateway),
            names: Pool::new(limits.names),
            requests: Pool::new(limits.requests),
            responses: [responses(), responses()],
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

    pub(super) fn unread(&self) -> Unread {
        Unread(Arc::new(Mutex::new(Share::of(&self.requests))))
    }

    /// Waits until a response of the type and of so many bytes may be sent. It is encoded twice on its way. One that is larger
    /// than all that there is waits for all of it.
    pub(super) async fn turn(self: Arc<Self>, kind: Kind, bytes: usize) -> Turn {
        let Responses {
            pieces,
            free,
            waiting,
        } = &self.responses[usize::from(kind != Kind::Cluster)];
        let wanted = (bytes.saturating_mul(2) / PIECE + 1).min(*pieces);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        if let Ok(has) = Arc::clone(free).try_acquire_many_owned(wanted) {
            return Turn { _pieces: Some(has) };
        }
        let _waits = Waits::of(waiting);
        // never closed
        let has = Arc::clone(free).acquire_many_owned(wanted).await.ok();
        Turn { _pieces: has }
    }

    /// Whether a response waits for others to be answered.
    pub(super) fn is_waited_for(&self) -> bool {
        let mut waiting = self.responses.iter().map(|one| &one.waiting);
        waiting.any(|count| count.load(Ordering::Relaxed) > 0)
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
    fn new(size: usize) -> Arc<Self> {
        let used = AtomicUsize::new(0);
        Arc::new(Self { size, used })
    }
}

// === impl Share ===

impl Share {
    fn of(pool: &Arc<Pool>) -> Self {
        let pool = Arc::clone(pool);
        Self { pool, has: 0 }
    }

    /// Has so much from now on; where there is not so much, it has what it had.
    pub(super) fn set(&mut self, wanted: usize) -> Result<(), Full> {
        let (size, has) = (self.pool.size, self.has);
        let swapped = |used: usize| {
            let next = used - has + wanted;
            (wanted <= has || next <= size).then_some(next)
        };
        let used = &self.pool.used;
        let changed = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, swapped);
        changed.map_err(|_| Full)?;
        self.has = wanted;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.has, Ordering::Relaxed);
    }
}

// === impl Unread ===

impl Unread {
    fn add(&self, bytes: usize) -> Result<(), Full> {
        let mut share = self.0.lock();
        let wanted = share.has.saturating_add(bytes);
        share.set(wanted)
    }

    /// The request was read.
    pub(super) fn clear(&self) {
        let mut share = self.0.lock();
        // less is always there
        let _ = share.set(0);
    }
}

// === impl Counted ===

impl<S> Service<http::Request<Body>> for Counted<S>
where
    S: Service<http::Request<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> S::Future {
        let peer = request.extensions().get::<Peer>();
        let budget = peer.and_then(|peer| peer.budget.clone());
        let Some(budget) = budget else {
            return self.0.call(request);
        };
        let unread = budget.unread();
        request.extensions_mut().insert(unread.clone());
        self.0
            .call(request.map(|body| Body::new(CountedBody { body, unread })))
    }
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}

// === impl CountedBody ===

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && self.unread.add(data.len()).is_err()
        {
            let text = "Envoys of this Gateway send too much at once";
            return Poll::Ready(Some(Err(Status::resource_exhausted(text))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn mk_budgets() -> Budgets {
        Budgets::new(Limits {
            connections: 10,
            of_gateway: 2,
            names: 100,
            requests: 100,
            responses: 128 << 10,
            answer: Duration::ZERO,
        })
    }

    fn mk_gateway(name: &str) -> Key {
        Key::new("ns", name)
    }

    /// The limit of memory in the chart is 1 GiB. The sum is in the documents.
    #[test]
    fn one_gateway_leaves_memory_for_the_others() {
        let bytes = Limits::default().bytes_of_gateway();
        assert!(bytes < 700 << 20, "{bytes}");
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway.md");
        let pages = std::fs::read_to_string(pages).unwrap();
        let said = format!("| all of this, for one Gateway | {} MiB", bytes >> 20);
        assert!(pages.contains(&said), "{said}");
    }

    #[test]
    fn all_of_a_gateway_have_one_budget_and_others_another() {
        let budgets = mk_budgets();
        let (one, same) = (budgets.of(&mk_gateway("a")), budgets.of(&mk_gateway("a")));
        let (mut first, mut second) = (one.names(), same.names());
        assert_eq!(first.set(70), Ok(()));
        assert_eq!(second.set(31), Err(Full));
        assert_eq!(second.set(30), Ok(()));
        // who has too much may have less, and gets no more
        assert_eq!(first.set(71), Err(Full));
        assert_eq!(first.set(60), Ok(()));
        assert_eq!(second.set(40), Ok(()));
        assert_eq!(budgets.of(&mk_gateway("b")).names().set(100), Ok(()));
        drop(second);
        assert_eq!(first.set(100), Ok(()));
        let connections = [one.connection(), same.connection()];
        assert!(connections.iter().all(Result::is_ok));
        assert_eq!(one.connection().err(), Some(Full));
        drop((one, same, first, connections));
        // nobody holds it: it is forgotten, and begins anew
        let anew = budgets.of(&mk_gateway("a"));
        assert_eq!(anew.names().set(100), Ok(()));
        budgets.of(&mk_gateway("c"));
        assert!(budgets.by_gateway.lock().len() <= 2);
    }

    #[test]
    fn responses_wait_in_order_until_others_are_answered() {
        let budget = mk_budgets().of(&mk_gateway("a"));
        let turn = |bytes: usize| Arc::clone(&budget).turn(Kind::Cluster, bytes);
        let first = turn(20 << 10).now_or_never().unwrap();
        assert!(!budget.is_waited_for());
        let mut large = Box::pin(turn(1 << 20)); // more than there ever is
        assert!(large.as_mut().now_or_never().is_none());
        assert!(budget.is_waited_for());
        // the endpoints that Envoy needs to answer are sent
        let endpoints = Arc::clone(&budget).turn(Kind::Endpoints, 20 << 10);
        assert!(endpoints.now_or_never().is_some());
        // it is not passed over
        let mut small = Box::pin(turn(100));
        assert!(small.as_mut().now_or_never().is_none());
        drop(first);
        let large = large.as_mut().now_or_never().unwrap();
        assert!(small.as_mut().now_or_never().is_none());
        drop(large);
        assert!(small.as_mut().now_or_never().is_some());
        assert!(!budget.is_waited_for());
    }
}
