//! Gets one metrics page after the other over a connection that is kept.

use std::{io, net::SocketAddr, pin::Pin};

use bytes::Bytes;
use http::{Request, header::HOST};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use scheduling::ScrapeFailure;
use tokio::net::TcpStream;

use super::scanner::Scanner;

/// 8 MiB: a hundred times the page of a busy server.
const MAX_PAGE: usize = 8 * 1024 * 1024;

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] hyper::Error),
    /// No complete page in time.
    #[error("no complete page within a second")]
    Timeout,
    /// The server answered, but not with its metrics.
    #[error("the server answered {0} for /metrics, not 200")]
    Status(u16),
    /// The page does not end.
    #[error("the page is larger than {MAX_PAGE} bytes")]
    TooLarge,
}

/// The metrics page of one server.
pub(super) struct Page {
    address: SocketAddr,
    connection: Option<Open>,
}

type Driver = Pin<Box<Connection<TokioIo<TcpStream>, Empty<Bytes>>>>;

struct Open {
    requests: SendRequest<Empty<Bytes>>,
    /// Moves the bytes; polled while a page is read. Dropped when the connection is over, which ends a
    /// request that still waits for it.
    driver: Option<Driver>,
}

// === impl PageError ===

impl PageError {
    /// Stable label.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Broken(_) => "broken",
            Self::Timeout => "timeout",
            Self::Status(_) => "status",
            Self::TooLarge => "too-large",
        }
    }

    pub(super) fn failure(&self) -> ScrapeFailure {
        match self {
            Self::Connect(_) | Self::Broken(_) | Self::Timeout => ScrapeFailure::Unreachable,
            Self::Status(_) | Self::TooLarge => ScrapeFailure::Useless,
        }
    }
}

// === impl Page ===

impl Page {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
        }
    }

    /// The next page comes over a new connection.
    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Reads the page into `scanner`. The caller bounds the time, and disconnects after an error.
    pub(super) async fn read(&mut self, scanner: &mut Scanner) -> Result<(), PageError> {
        if let Some(mut open) = self.connection.take()
            && let Ok(done) = open.get(self.address, scanner).await
        {
            self.keep(open);
            return done;
        }
        // A server may close an idle connection at any time; only a new one proves anything.
        let _ = scanner.finish();
        let mut open = Open::connect(self.address).await?;
        let done = open
            .get(self.address, scanner)
            .await
            .map_err(PageError::Broken)?;
        self.keep(open);
        done
    }

    fn keep(&mut self, open: Open) {
        self.connection = Some(open).filter(|open| open.driver.is_some());
    }
}

// === impl Open ===

impl Open {
    async fn connect(address: SocketAddr) -> Result<Self, PageError> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(PageError::Connect)?;
        stream.set_nodelay(true).map_err(PageError::Connect)?;
        let (requests, driver) = handshake(TokioIo::new(stream))
            .await
            .map_err(PageError::Broken)?;
        Ok(Self {
            requests,
            driver: Some(Box::pin(driver)),
        })
    }

    /// The outer error is the connection's, the inner one the page's.
    async fn get(
        &mut self,
        address: SocketAddr,
        scanner: &mut Scanner,
    ) -> Result<Result<(), PageError>, hyper::Error> {
        let Self { requests, driver } = self;
        let exchange = exchange(requests, address, scanner);
        tokio::pin!(exchange);
        loop {
            tokio::select! {
                biased;
                done = &mut exchange => return done,
                // The bytes that came before the end still wait to be read.
                () = drive(driver) => {}
            }
        }
    }
}

/// Waits for the end of the connection; for ever, when that was before.
async fn drive(driver: &mut Option<Driver>) {
    match driver {
        Some(connection) => {
            // The exchange meets the error too, and says it.
            let _ = connection.as_mut().await;
            *driver = None;
        }
        None => std::future::pending().await,
    }
}

async fn exchange(
    requests: &mut SendRequest<Empty<Bytes>>,
    address: SocketAddr,
    scanner: &mut Scanner,
) -> Result<Result<(), PageError>, hyper::Error> {
    requests.ready().await?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = http::Uri::from_static("/metrics");
    let host = http::HeaderValue::try_from(address.to_string()).expect("an address is plain ASCII");
    request.headers_mut().insert(HOST, host);
    let response = requests.send_request(request).await?;
    let status = response.status().as_u16();
    if status != 200 {
        return Ok(Err(PageError::Status(status)));
    }
    let mut body = response.into_body();
    let mut size = 0_usize;
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame?.into_data() else {
            continue;
        };
        size = size.saturating_add(bytes.len());
        if size > MAX_PAGE {
            return Ok(Err(PageError::TooLarge));
        }
        scanner.feed(&bytes);
    }
    Ok(Ok(()))
}
