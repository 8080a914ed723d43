//! Requests while they are received.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::super::connections::Peer;
use super::memory::Taken;
use super::{Budget, DECODED, Full, MAX_REQUEST, Share};

/// A request that does not find room at once has this long to be received. Then an Envoy begins anew. It is less than the time for
/// the first request, so that the stream ends for this reason.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(8);

/// What was received of a stream's next request. Its clones are one.
#[derive(Clone)]
pub(in super::super) struct Unread(Arc<Mutex<Received>>);

struct Received {
    /// Of what all requests of the Gateway have together.
    share: Share,
    whole: Option<Whole>,
}

/// The place for one request of any size, of which a Gateway has one: the request that has it can be received to its end, however
/// many others wait in the middle of theirs.
struct Whole {
    _permit: OwnedSemaphorePermit,
    _room: Taken,
}

/// A service that counts what it receives against the budget of its peer.
#[derive(Clone)]
pub(in super::super) struct Counted<S>(pub(in super::super) S);

pub(super) struct CountedBody {
    body: Body,
    budget: Arc<Budget>,
    unread: Unread,
    /// A frame that there is no room for yet.
    held: Option<(Frame<Bytes>, BoxFuture<'static, ()>)>,
    /// The end of patience with a request that found no room at once.
    limit: Option<Pin<Box<Sleep>>>,
}

// === impl Unread ===

impl Unread {
    pub(super) fn new(share: Share) -> Self {
        Self(Arc::new(Mutex::new(Received { share, whole: None })))
    }

    fn add(&self, bytes: usize) -> Result<(), Full> {
        let mut received = self.0.lock();
        if received.whole.is_some() {
            return Ok(()); // no request is larger
        }
        let wanted = received.share.has.saturating_add(bytes);
        received.share.set(wanted)
    }

    fn has_whole(&self) -> bool {
        self.0.lock().whole.is_some()
    }

    /// The request was read.
    pub(in super::super) fn clear(&self) {
        let mut received = self.0.lock();
        // less is always there
        let _ = received.share.set(0);
        let whole = received.whole.take();
        drop(received);
        drop(whole);
    }
}

/// Comes back when there is room for so many bytes more of the request. Requests wait in the order in which they came.
async fn room(budget: Arc<Budget>, unread: Unread, bytes: usize) {
    let permit = Arc::clone(&budget.whole).acquire_owned().await;
    let Ok(permit) = permit else {
        return; // it is never closed
    };
    loop {
        let mut freed = pin!(budget.memory.freed());
        freed.as_mut().enable();
        if unread.add(bytes).is_ok() {
            return;
        }
        if let Ok(room) = Taken::of(&budget.memory, MAX_REQUEST * DECODED) {
            let mut received = unread.0.lock();
            let _ = received.share.set(0);
            received.whole = Some(Whole {
                _permit: permit,
                _room: room,
            });
            return;
        }
        freed.await;
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
        let counted = |body| Body::new(CountedBody::new(body, budget, unread));
        self.0.call(request.map(counted))
    }
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}

// === impl CountedBody ===

impl CountedBody {
    pub(super) fn new(body: Body, budget: Arc<Budget>, unread: Unread) -> Self {
        Self {
            body,
            budget,
            unread,
            held: None,
            limit: None,
        }
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.held.is_none() && !this.unread.has_whole() {
            this.limit = None;
        }
        if this.held.is_none() {
            let polled = Pin::new(&mut this.body).poll_frame(cx);
            match polled {
                Poll::Ready(Some(Ok(frame))) => {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    if this.unread.add(bytes).is_ok() {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    let room = room(Arc::clone(&this.budget), this.unread.clone(), bytes);
                    this.held = Some((frame, room.boxed()));
                    this.limit = Some(Box::pin(tokio::time::sleep(REQUEST_LIMIT)));
                }
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => {}
            }
        }
        if let Some((frame, mut room)) = this.held.take() {
            if room.poll_unpin(cx).is_ready() {
                return Poll::Ready(Some(Ok(frame)));
            }
            this.held = Some((frame, room));
        }
        let limit = this.limit.as_mut();
        if limit.is_some_and(|limit| limit.poll_unpin(cx).is_ready()) {
            this.held = None;
            let text = "Envoys of this Gateway send too much at once";
            return Poll::Ready(Some(Err(Status::resource_exhausted(text))));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.held.is_some() {
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}
