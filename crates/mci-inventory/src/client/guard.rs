//! Bounds what one request can cost: a list waits for its turn and has a deadline, an answer has to begin in time, and
//! no body grows past what is legal.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use tokio::time::{Instant, timeout};
use tower::{BoxError, Service};

use super::turns::{MemberTurns, Turn};

/// The guarded service.
#[derive(Clone)]
pub(super) struct Guard<S> {
    inner: S,
    turns: MemberTurns,
    /// Bytes of the pages that this client is reading.
    reading: Arc<AtomicUsize>,
}

/// A body that ends with an error where it grows too large or takes too long.
pub(super) struct GuardedBody<B> {
    inner: B,
    bound: Bound,
    /// Of a list.
    turn: Option<Turn>,
    /// Of a list.
    page: Option<Page>,
    /// When a watch began, until it has ended.
    began: Option<Instant>,
}

/// A page of a list that is being read.
struct Page {
    /// All that its client is reading.
    reading: Arc<AtomicUsize>,
    bytes: usize,
    objects: usize,
}

/// What may still come.
#[derive(Debug)]
enum Bound {
    /// Bytes in all, of so many.
    Total { left: usize, of: usize },
    /// Bytes up to the next end of line, and JSON objects since the last.
    Line { left: usize, objects: usize },
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Watch,
    List,
    Other,
}

#[derive(Debug, thiserror::Error)]
enum Excess {
    #[error("the server did not begin to answer within {0:?}")]
    Late(Duration),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the lists being read are larger than {0} bytes together")]
    TooMuch(usize),
    #[error("a page of a list has more than {0} JSON objects")]
    TooMany(usize),
    #[error("an event is larger than {0} bytes")]
    EventTooLarge(usize),
    #[error("an event has more than {0} JSON objects")]
    EventTooMany(usize),
    #[error("the watch ended within {0:?}: expected the server to keep it open")]
    EndedAtOnce(Duration),
}

/// An answer begins within this; one of a list has its turn's time instead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// One object: 2 MiB, where etcd by default takes 1.5, and what JSON adds to it.
const MAX_OBJECT: usize = 2 * 1024 * 1024 + 64 * 1024;
/// Pages of one member that are being read: 64 KiB for each of 500 objects on one.
const MAX_PAGES: usize = 32 * 1024 * 1024;
/// JSON objects on one page, nested ones too: what is decoded is larger than its text, and 3 bytes may become a
/// kilobyte, so this bounds it at 256 MiB. Of the largest lists, those of imports, an object takes 50 bytes and more.
const MAX_JSON_OBJECTS: usize = 256 * 1024;
/// The same in one event of a watch, so 64 MiB: the largest import, of 256 entries, has 20 000.
const MAX_EVENT_OBJECTS: usize = 64 * 1024;
/// A watch that ends sooner has failed, whatever it sent: the watcher begins the next one at once, and only a failure
/// makes it wait. Far below the 30 s that we ask for, and what is above it costs a request in 2 s.
const MIN_WATCH: Duration = Duration::from_secs(2);

fn purpose(uri: &Uri) -> Purpose {
    let has = |wanted: &str| {
        let mut pairs = uri.query().unwrap_or_default().split('&');
        pairs.any(|pair| pair.split('=').next() == Some(wanted))
    };
    if has("watch") {
        Purpose::Watch
    } else if has("limit") {
        Purpose::List
    } else {
        Purpose::Other
    }
}

// === impl Guard ===

impl<S> Guard<S> {
    pub(super) fn new(inner: S, turns: MemberTurns) -> Self {
        Self {
            inner,
            turns,
            reading: Arc::default(),
        }
    }
}

impl<S, B> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Send + 'static,
{
    type Response = Response<GuardedBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // the one that was polled ready is the one to call
        let waiting = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, waiting);
        let (turns, reading) = (self.turns.clone(), self.reading.clone());
        Box::pin(async move {
            let purpose = purpose(request.uri());
            let page = (purpose == Purpose::List).then(|| Page::new(reading));
            let (bound, turn) = match purpose {
                Purpose::Watch => (Bound::line(), None),
                Purpose::Other => (Bound::total(MAX_OBJECT), None),
                Purpose::List => (Bound::total(MAX_PAGES), Some(turns.next().await?)),
            };
            let answer = inner.call(request);
            let (answer, turn) = match turn {
                Some(turn) => in_turn(answer, turn).await?,
                None => match timeout(ANSWER_TIMEOUT, answer).await {
                    Ok(answer) => (answer.map_err(Into::into)?, None),
                    Err(_) => return Err(Excess::Late(ANSWER_TIMEOUT).into()),
                },
            };
            // a refusal ends at once, and is no watch that ended too early
            let watching = purpose == Purpose::Watch && answer.status().is_success();
            let began = watching.then(Instant::now);
            Ok(answer.map(|inner| GuardedBody {
                inner,
                bound,
                turn,
                page,
                began,
            }))
        })
    }
}

async fn in_turn<T, E: Into<BoxError>>(
    answer: impl Future<Output = Result<T, E>>,
    mut turn: Turn,
) -> Result<(T, Option<Turn>), BoxError> {
    let mut answer = std::pin::pin!(answer);
    let answer = poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(answer.map_err(Into::into)),
        Poll::Pending => turn.poll_too_slow(cx).map(|slow| Err(slow.into())),
    })
    .await?;
    Ok((answer, Some(turn)))
}

// === impl GuardedBody ===

impl<B> GuardedBody<B> {
    fn count(&mut self, data: &Bytes) -> Result<(), BoxError> {
        self.bound.count(data)?;
        if let Some(page) = &mut self.page {
            page.count(data)?;
        }
        Ok(())
    }
}

impl<B> HttpBody for GuardedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Pending => {
                let turn = this.turn.as_mut();
                return turn.map_or(Poll::Pending, |turn| {
                    turn.poll_too_slow(cx).map(|slow| Some(Err(slow.into())))
                });
            }
            Poll::Ready(frame) => frame,
        };
        match frame {
            None => {
                if let Some(turn) = this.turn.take() {
                    turn.finish();
                }
                match this.began.take() {
                    Some(began) if began.elapsed() < MIN_WATCH => {
                        Poll::Ready(Some(Err(Excess::EndedAtOnce(MIN_WATCH).into())))
                    }
                    _ => Poll::Ready(None),
                }
            }
            Some(Ok(frame)) => {
                let data = frame.data_ref();
                let within = data.map_or(Ok(()), |data| this.count(data));
                Poll::Ready(Some(within.map(|()| frame)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(match this.began.take() {
                // the watcher may take a connection that breaks for the end of a watch
                Some(began) if began.elapsed() < MIN_WATCH => Excess::EndedAtOnce(MIN_WATCH).into(),
                _ => error.into(),
            }))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.began.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

// === impl Page ===

impl Page {
    fn new(reading: Arc<AtomicUsize>) -> Self {
        Self {
            reading,
            bytes: 0,
            objects: 0,
        }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), Excess> {
        self.bytes += data.len();
        let before = self.reading.fetch_add(data.len(), Ordering::Relaxed);
        if before + data.len() > MAX_PAGES {
            return Err(Excess::TooMuch(MAX_PAGES));
        }
        // those within texts are counted too: there are few
        self.objects += memchr::memchr_iter(b'{', data).count();
        if self.objects > MAX_JSON_OBJECTS {
            return Err(Excess::TooMany(MAX_JSON_OBJECTS));
        }
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.reading.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// === impl Bound ===

impl Bound {
    fn total(of: usize) -> Self {
        Self::Total { left: of, of }
    }

    fn line() -> Self {
        Self::Line {
            left: MAX_OBJECT,
            objects: 0,
        }
    }

    fn count(&mut self, data: &Bytes) -> Result<(), Excess> {
        match self {
            Self::Total { left, of } => match left.checked_sub(data.len()) {
                Some(rest) => *left = rest,
                None => return Err(Excess::TooLarge(*of)),
            },
            Self::Line { left, objects } => {
                let mut rest = &**data;
                loop {
                    let end = memchr::memchr(b'\n', rest);
                    let (text, more) = rest.split_at(end.unwrap_or(rest.len()));
                    *left = left
                        .checked_sub(text.len())
                        .ok_or(Excess::EventTooLarge(MAX_OBJECT))?;
                    *objects += memchr::memchr_iter(b'{', text).count();
                    if *objects > MAX_EVENT_OBJECTS {
                        return Err(Excess::EventTooMany(MAX_EVENT_OBJECTS));
                    }
                    let Some(more) = more.get(1..) else { break };
                    (*left, *objects) = (MAX_OBJECT, 0);
                    rest = more;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use futures::stream;
    use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
    use tokio::time::{Instant, sleep};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::client::Turns;

    type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

    /// A server that answers after `late` with this many chunks, `gap` apart.
    async fn ask(
        uri: &str,
        late: Duration,
        chunk: Bytes,
        count: usize,
        gap: Duration,
    ) -> Result<usize, String> {
        let server = service_fn(move |_: Request<Body>| {
            let chunk = chunk.clone();
            async move {
                sleep(late).await;
                let chunks = stream::unfold(0, move |sent| {
                    let chunk = chunk.clone();
                    async move {
                        sleep(gap).await;
                        (sent < count).then(|| (Ok::<_, Infallible>(Frame::data(chunk)), sent + 1))
                    }
                });
                let body = UnsyncBoxBody::new(StreamBody::new(chunks));
                Ok::<Answer, Infallible>(Response::new(body))
            }
        });
        let guard = Guard::new(server, Turns::default().member());
        let request = Request::get(uri).body(Body::empty()).expect("a request");
        let answer = guard
            .oneshot(request)
            .await
            .map_err(|error| error.to_string())?;
        let body = answer.into_body().collect().await;
        body.map(|body| body.to_bytes().len())
            .map_err(|error| error.to_string())
    }

    const AT_ONCE: Duration = Duration::ZERO;
    const MIB: usize = 1024 * 1024;

    #[tokio::test(start_paused = true)]
    async fn an_endless_body_ends() {
        let chunk = Bytes::from(vec![b'x'; MIB]);
        for (uri, limit) in [("/version", 2), ("/api/v1/services?limit=500", 32)] {
            let within = ask(uri, AT_ONCE, chunk.clone(), limit, AT_ONCE).await;
            assert_eq!(within, Ok(limit * MIB), "{uri}");
            let error = ask(uri, AT_ONCE, chunk.clone(), usize::MAX, AT_ONCE).await;
            let error = error.expect_err("endless");
            assert!(error.contains("larger than"), "{uri}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_of_tiny_objects_ends() {
        let uri = "/api/v1/services?limit=500";
        let chunk = Bytes::from("{},".repeat(1024));
        let within = MAX_JSON_OBJECTS / 1024;
        let answer = ask(uri, AT_ONCE, chunk.clone(), within, AT_ONCE).await;
        assert_eq!(answer, Ok(within * chunk.len()));
        let error = ask(uri, AT_ONCE, chunk, within + 1, AT_ONCE).await;
        assert!(error.expect_err("too many").contains("JSON objects"));
    }

    #[test]
    fn the_pages_of_one_client_are_bounded_together_until_they_are_read() {
        let reading = Arc::<AtomicUsize>::default();
        let [mut first, mut second] = [(); 2].map(|()| Page::new(reading.clone()));
        let half = vec![b' '; MAX_PAGES / 2];
        for page in [&mut first, &mut second] {
            page.count(&half).expect("both fit");
        }
        let error = second.count(b" ").expect_err("too much");
        assert!(error.to_string().contains("together"), "{error}");
        drop(second);
        first.count(&half).expect("it is alone now");
        drop(first);
        assert_eq!(reading.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_may_go_on_and_an_event_may_not() {
        let uri = "/api/v1/services?watch=true&timeoutSeconds=30";
        let event = Bytes::from([vec![b'x'; MIB], b"\n".to_vec()].concat());
        let seen = ask(uri, AT_ONCE, event.clone(), 100, Duration::from_mins(1)).await;
        assert_eq!(seen, Ok(100 * event.len()));
        let part = Bytes::from(vec![b'x'; MIB]);
        let error = ask(uri, AT_ONCE, part, usize::MAX, AT_ONCE).await;
        assert!(error.expect_err("endless").contains("an event is larger"));
        // objects are counted within an event alone
        let half = [b"{".repeat(MAX_EVENT_OBJECTS / 2 + 1), b"\n".to_vec()].concat();
        let seen = ask(uri, AT_ONCE, Bytes::from(half), 9, Duration::from_mins(1)).await;
        seen.expect("each event is small enough");
        let part = Bytes::from(b"{".repeat(MAX_EVENT_OBJECTS / 2 + 1));
        let error = ask(uri, AT_ONCE, part, 2, AT_ONCE).await;
        let error = error.expect_err("two parts of one event");
        assert!(error.contains("JSON objects"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_at_once_has_failed() {
        let uri = "/api/v1/services?watch=true&timeoutSeconds=30";
        let event = Bytes::from_static(b"{}\n");
        for count in [0, 3] {
            let error = ask(uri, AT_ONCE, event.clone(), count, AT_ONCE).await;
            assert!(error.expect_err("short").contains("ended within"));
            let list = ask(
                "/api/v1/services?limit=1",
                AT_ONCE,
                event.clone(),
                count,
                AT_ONCE,
            )
            .await;
            assert_eq!(list, Ok(count * event.len()));
        }
        assert_eq!(ask(uri, AT_ONCE, event, 1, MIN_WATCH).await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_breaks_at_once_has_failed_like_one_that_ends() {
        for (after, expected) in [(AT_ONCE, "ended within"), (MIN_WATCH, "unexpected end")] {
            let server = service_fn(move |_: Request<Body>| async move {
                let broken = stream::once(async move {
                    sleep(after).await;
                    let broken = io::Error::from(io::ErrorKind::UnexpectedEof);
                    Err::<Frame<Bytes>, _>(broken)
                });
                let body = UnsyncBoxBody::new(StreamBody::new(broken));
                Ok::<_, Infallible>(Response::new(body))
            });
            let guard = Guard::new(server, Turns::default().member());
            let request = Request::get("/api/v1/services?watch=true");
            let request = request.body(Body::empty()).expect("a request");
            let answer = guard.oneshot(request).await.expect("an answer");
            let error = answer.into_body().collect().await.expect_err("broken");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_to_begin_in_time() {
        for uri in ["/version", "/api/v1/services?watch=true"] {
            let start = Instant::now();
            let error = ask(uri, Duration::from_hours(1), Bytes::new(), 1, AT_ONCE).await;
            assert!(error.expect_err("late").contains("did not begin"), "{uri}");
            assert_eq!(start.elapsed(), ANSWER_TIMEOUT, "{uri}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_drips_ends() {
        let uri = "/api/v1/services?limit=500";
        for late in [AT_ONCE, Duration::from_hours(1)] {
            let start = Instant::now();
            let drip = Bytes::from_static(b" ");
            let error = ask(uri, late, drip, usize::MAX, Duration::from_millis(900)).await;
            assert!(error.expect_err("dripping").contains("took longer"));
            assert!(
                start.elapsed() <= Duration::from_secs(21),
                "{:?}",
                start.elapsed()
            );
        }
    }
}
