//! Model servers of the test bed. The path selects the answer, so that each test shows it beside its request.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, RawQuery};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::xds::names::FAILOVER;

/// The path whose answer a pod sends in pieces.
pub(super) const STREAM: &str = "/stream";

/// End of the paths where a pod answers with the header by which hops request that another cluster is tried.
pub(super) const FORGED_FAILOVER: &str = "/forged-failover";

/// End of the paths where a pod answers 503.
pub(super) const UNAVAILABLE: &str = "/unavailable";

/// The body of the POST requests that [`serve_no_posts`] reads.
pub(super) const ORDER: &[u8] = b"the order";

/// Start of the paths where a pod never answers.
pub(super) const HANG: &str = "/hang";

/// A request as a pod read it.
pub(super) struct SeenRequest {
    pub(super) path: String,
    /// The path with its query.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
}

/// All requests that pods have read.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<SeenRequest>>>);

// === impl Seen ===

impl Seen {
    /// Returns all requests so far and forgets them.
    pub(super) fn take(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut self.0.lock())
    }

    /// Returns the paths of all requests so far and forgets the requests.
    pub(super) fn take_paths(&self) -> Vec<String> {
        self.take()
            .into_iter()
            .map(|request| request.path)
            .collect()
    }
}

/// Answers with its own address and the length of the body, after it has read the whole body; at [`STREAM`] in as many
/// pieces as the query requests.
pub(super) async fn serve(listener: TcpListener, seen: Seen) {
    let name = listener.local_addr().unwrap().ip().to_string();
    let pieces = async |RawQuery(number): RawQuery| {
        let number: u32 = number.unwrap().parse().unwrap();
        let piece = async |left: u32| {
            sleep(Duration::from_millis(50)).await;
            (left > 0).then(|| (Ok::<_, Infallible>("piece"), left - 1))
        };
        Body::from_stream(futures::stream::unfold(number, piece))
    };
    let echo = move |uri: Uri, headers: HeaderMap, body: Bytes| {
        seen.0.lock().push(SeenRequest {
            path: uri.path().to_owned(),
            target: uri.to_string(),
            headers,
        });
        let answer = format!("{name} {}", body.len());
        async move { answer_at(uri.path(), answer).await }
    };
    let app = Router::new().route(STREAM, get(pieces)).fallback(echo);
    let app = app.layer(DefaultBodyLimit::disable());
    axum::serve(listener, app).await.unwrap();
}

async fn answer_at(path: &str, body: String) -> Response {
    if path.starts_with(HANG) {
        std::future::pending::<()>().await;
    }
    if path.ends_with(FORGED_FAILOVER) {
        return ([(FAILOVER, "1")], body).into_response();
    }
    if path.ends_with(UNAVAILABLE) {
        return (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
    }
    body.into_response()
}

/// A server whose keep-alive time is always over: it answers the first request of each connection, and closes when it has
/// read the second, which has no body.
pub(super) async fn serve_one_each(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(answer_one(stream));
    }
}

/// A server that reads each POST whole, counts it and closes the connection without an answer, as one that dies of it. It
/// answers all else.
pub(super) async fn serve_no_posts(listener: TcpListener, posts: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(answer_unless_post(stream, posts.clone()));
    }
}

async fn answer_unless_post(mut stream: TcpStream, posts: Arc<AtomicUsize>) {
    let mut seen = Vec::new();
    loop {
        if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return;
        }
        if seen.starts_with(b"POST") && (seen.ends_with(ORDER) || seen.ends_with(b"\r\n0\r\n\r\n"))
        {
            posts.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if !seen.starts_with(b"POST") && seen.ends_with(b"\r\n\r\n") {
            seen.clear();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        }
    }
}

/// A server that upgrades each connection to WebSocket, and returns the bytes that follow.
pub(super) async fn serve_upgrades(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(upgrade(stream));
    }
}

async fn upgrade(mut stream: TcpStream) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let answer =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    stream.write_all(answer).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    // The other side may close without having read all.
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}

async fn answer_one(mut stream: TcpStream) {
    let mut seen = Vec::new();
    for is_first in [true, false] {
        while !seen.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
                return;
            }
        }
        seen.clear();
        if is_first {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst";
            stream.write_all(answer).await.unwrap();
        }
    }
}
