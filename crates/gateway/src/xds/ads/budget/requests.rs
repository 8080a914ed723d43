//! Requests while they are received.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::super::connections::Peer;
use super::super::owned;
use super::{Budget, Full, Share};

/// A request that does not find room at once waits this long for it: so long that two others can be received. Then an Envoy begins
/// anew.
pub(super) const ROOM_LIMIT: Duration = Duration::from_secs(20);

/// A request that has the place for one of any size is received and read in this time.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(8);

/// A stream that is over one of these limits says so itself where its client lets it. Otherwise its connection ends so much later.
pub(in super::super) const GRACE: Duration = Duration::from_secs(1);

/// No request takes longer.
pub(in super::super) const LONGEST_REQUEST: Duration =
    Duration::from_secs(ROOM_LIMIT.as_secs() + REQUEST_LIMIT.as_secs());

/// What was received of a stream's next request. Its clones are one.
#[derive(Clone)]
pub(in super::super) struct Unread(Arc<Mutex<Received>>);

struct Received {
    /// Of what all requests of the Gateway have together.
    share: Share,
    whole: Option<Whole>,
    /// Ends the connection when the request is late: nobody polls the stream of a client that takes no responses.
    late: Option<AbortOnDropHandle<()>>,
    close: CancellationToken,
}

/// The place for one request of any size: the request that has it can be received to its end, however many others wait in the middle
/// of theirs.
struct Whole {
    _first: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

/// A service that counts what it receives against the budget of its peer.
#[derive(Clone)]
pub(in super::super) struct Counted<S>(pub(in super::super) S);

pub(super) struct CountedBody {
    body: Body,
    budget: Arc<Budget>,
    unread: Unread,
    /// A frame that there is no room for yet.
    held: Option<(Frame<Bytes>, AbortOnDropHandle<()>)>,
    /// The end of patience with a request that found no room at once.
    limit: Option<Pin<Box<Sleep>>>,
}

// === impl Unread ===

impl Unread {
    pub(super) fn new(share: Share, close: CancellationToken) -> Self {
        Self(Arc::new(Mutex::new(Received {
            share,
            whole: None,
            late: None,
            close,
        })))
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
        received.late = None;
        drop(received);
        drop(whole);
    }
}

impl Received {
    /// The connection ends if the request is not read soon after the limit.
    fn end_after(&mut self, limit: Duration) {
        let close = self.close.clone();
        let late = owned::spawn(async move {
            sleep(limit + GRACE).await;
            close.cancel();
        });
        self.late = Some(late);
    }
}

/// Comes back when there is room for so many bytes more of the request. Requests wait in the order in which they came. It is a task of
/// its own, so that no request has a place without a limit.
async fn room(budget: Arc<Budget>, unread: Unread, bytes: usize) {
    let Ok(first) = Arc::clone(&budget.first).acquire_owned().await else {
        return; // it is never closed
    };
    let mut large = pin!(Arc::clone(&budget.common.large).acquire_owned());
    loop {
        let mut freed = pin!(budget.memory.freed());
        freed.as_mut().enable();
        if unread.add(bytes).is_ok() {
            unread.0.lock().late = None;
            return;
        }
        tokio::select! {
            place = &mut large => {
                let Ok(place) = place else { return };
                let mut received = unread.0.lock();
                let _ = received.share.set(0);
                received.whole = Some(Whole { _first: first, _place: place });
                received.end_after(REQUEST_LIMIT);
                return;
            }
            () = freed => {}
        }
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
        let counted = peer.and_then(|peer| Some((peer.budget.clone()?, peer.close.clone())));
        let Some((budget, close)) = counted else {
            return self.0.call(request);
        };
        let unread = budget.unread(close);
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
                    this.unread.0.lock().end_after(ROOM_LIMIT);
                    let room = room(Arc::clone(&this.budget), this.unread.clone(), bytes);
                    let room = owned::spawn(room);
                    this.held = Some((frame, room));
                    this.limit = Some(Box::pin(sleep(ROOM_LIMIT)));
                }
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => {}
            }
        }
        if let Some((frame, mut room)) = this.held.take() {
            if room.poll_unpin(cx).is_ready() {
                let has_whole = this.unread.has_whole();
                this.limit = has_whole.then(|| Box::pin(sleep(REQUEST_LIMIT)));
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
