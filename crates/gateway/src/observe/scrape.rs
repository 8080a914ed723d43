//! What an endpoint picker reports of its pool.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tls::Alpn;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::select::PoolLoad;
use crate::world::Credential;

use super::dial::{self, DialError, Pace, Targets};
use super::page::Page;
use super::resolve::Resolver;

/// Bytes of a page, of which one line is held at a time.
pub(super) const MAX_PAGE: usize = 8 << 20;

/// Targets that one scrape tries, one after the other: a page costs an endpoint picker more than a probe does.
const TRIES: u32 = 4;

/// A scrape of one cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scrape {
    pub(crate) targets: Targets,
    pub(crate) credential: Option<Credential>,
}

// === impl Scrape ===

impl Scrape {
    pub(crate) fn new(targets: Targets, credential: Option<Credential>) -> Self {
        Self {
            targets,
            credential,
        }
    }

    /// The first page of the targets that has all that is needed.
    pub(super) async fn run(
        &mut self,
        pool: &str,
        time: Duration,
        resolver: &Resolver,
    ) -> Result<PoolLoad, &'static str> {
        let pace = Pace {
            at_once: 1,
            batches: TRIES,
            time,
        };
        let credential = self.credential.as_ref();
        let one = |host: String, at| async move { scrape(credential, &host, at, pool).await };
        self.targets.race(resolver, pace, one).await
    }
}

async fn scrape(
    credential: Option<&Credential>,
    host: &str,
    at: SocketAddr,
    pool: &str,
) -> Result<PoolLoad, &'static str> {
    let trust = credential.and_then(Credential::trust);
    let authorization = credential.and_then(Credential::authorization);
    let authority = if host.contains(':') {
        format!("[{host}]:{}", at.port())
    } else {
        format!("{host}:{}", at.port())
    };
    let mut request = Request::get("/metrics")
        .header(HOST, authority)
        .header(ACCEPT, "text/plain")
        .body(Empty::<Bytes>::new())
        .map_err(|_| "its name is none")?;
    if let Some(value) = authorization {
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, value);
    }
    match trust {
        Some(trust) => {
            let name = credential.and_then(Credential::server_name).unwrap_or(host);
            let stream = dial::tls(at, name, trust, Alpn::Http1).await;
            let stream = stream.map_err(DialError::text)?;
            read(stream, request, pool).await
        }
        None => read(dial::tcp(at).await?, request, pool).await,
    }
}

/// Redirects are not followed: they would lead to where nobody checked the address.
async fn read(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
    pool: &str,
) -> Result<PoolLoad, &'static str> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|_| "no HTTP connection")?;
    let exchange = async move {
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|_| "the connection ended before an answer")?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err("it does not accept the credential");
            }
            _ => return Err("its answer is not 200"),
        }
        let mut page = Page::new(pool);
        let (mut body, mut size) = (answer.into_body(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| "the connection ended within the page")?;
            if let Some(piece) = frame.data_ref() {
                size += piece.len();
                if size > MAX_PAGE {
                    return Err("its page is larger than 8 MiB");
                }
                page.feed(piece);
            }
        }
        page.finish()
    };
    tokio::pin!(connection, exchange);
    // The connection makes no progress of its own. Once it has ended, the exchange says what came of it.
    tokio::select! {
        result = &mut exchange => result,
        _ = &mut connection => exchange.await,
    }
}
