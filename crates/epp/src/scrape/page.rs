//! Gets one metrics page after the other over a connection that is kept.

use std::{io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, header::HOST};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::Incoming,
    client::conn::http1::{Connection, SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use scheduling::ScrapeFailure;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{fetch::Fetch, scanner::Scanner};

/// 8 MiB: a hundred times the page of a busy server.
const MAX_PAGE: usize = 8 * 1024 * 1024;

/// 64 KiB: the text of an error. It is read only to keep the connection; a longer one costs the connection.
const MAX_ERROR: usize = 64 * 1024;

/// The text of an error is sent with the status; waiting longer would make it a timeout, which means another failure.
const ERROR_WAIT: Duration = Duration::from_millis(100);

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    /// No connection, or no TLS on it.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] hyper::Error),
    /// No complete page in time.
    #[error("no complete page within a second")]
    Timeout,
    /// The server answered, but not with its metrics.
    #[error("the server answered {0}, not 200")]
    Status(u16),
    /// The page does not end.
    #[error("the page is larger than {MAX_PAGE} bytes")]
    TooLarge,
}

/// The metrics page of one server.
pub(super) struct Page {
    address: SocketAddr,
    fetch: Arc<Fetch>,
    connection: Option<Open>,
}

type Driver = Pin<Box<Connection<TokioIo<Either<TcpStream, TlsStream<TcpStream>>>, Empty<Bytes>>>>;

struct Open {
    requests: SendRequest<Empty<Bytes>>,
    /// Moves the bytes; polled while a page is read. Dropped when the connection is over, which ends a
    /// request that still waits for it.
    driver: Option<Driver>,
}

/// The end of one request.
struct Answered {
    result: Result<(), PageError>,
    /// The whole body was read, so that another request may follow.
    whole: bool,
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
    /// Of the server that listens at `endpoint`.
    pub(super) fn new(endpoint: SocketAddr, fetch: Arc<Fetch>) -> Self {
        Self {
            address: fetch.address(endpoint),
            fetch,
            connection: None,
        }
    }

    /// Reads the page into `scanner`. The caller bounds the time: dropped half-way, it leaves no connection.
    pub(super) async fn read(&mut self, scanner: &mut Scanner) -> Result<(), PageError> {
        if let Some(mut open) = self.connection.take() {
            match open.get(self.address, &self.fetch, scanner).await {
                Ok(answered) => return self.keep(open, answered),
                // A server may close an idle connection at any time; only a new one proves anything.
                Err(_) => scanner.reset(),
            }
        }
        let mut open = Open::connect(self.address, &self.fetch).await?;
        let answered = open
            .get(self.address, &self.fetch, scanner)
            .await
            .map_err(PageError::Broken)?;
        self.keep(open, answered)
    }

    fn keep(&mut self, open: Open, answered: Answered) -> Result<(), PageError> {
        let Answered { result, whole } = answered;
        self.connection = Some(open).filter(|open| whole && open.driver.is_some());
        result
    }
}

// === impl Open ===

impl Open {
    async fn connect(address: SocketAddr, fetch: &Fetch) -> Result<Self, PageError> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(PageError::Connect)?;
        stream.set_nodelay(true).map_err(PageError::Connect)?;
        let stream = match &fetch.tls {
            None => Either::Left(stream),
            Some(tls) => {
                let name = ServerName::from(address.ip());
                let stream = tls.connect(name, stream).await;
                Either::Right(stream.map_err(PageError::Connect)?)
            }
        };
        let (requests, driver) = handshake(TokioIo::new(stream))
            .await
            .map_err(PageError::Broken)?;
        Ok(Self {
            requests,
            driver: Some(Box::pin(driver)),
        })
    }

    /// The error is the connection's.
    async fn get(
        &mut self,
        address: SocketAddr,
        fetch: &Fetch,
        scanner: &mut Scanner,
    ) -> Result<Answered, hyper::Error> {
        let Self { requests, driver } = self;
        let exchange = exchange(requests, address, fetch, scanner);
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
    fetch: &Fetch,
    scanner: &mut Scanner,
) -> Result<Answered, hyper::Error> {
    requests.ready().await?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = fetch.path.clone();
    let host = http::HeaderValue::try_from(address.to_string()).expect("an address is plain ASCII");
    request.headers_mut().insert(HOST, host);
    let response = requests.send_request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body();
    if status != 200 {
        return Ok(Answered {
            result: Err(PageError::Status(status)),
            // The status says enough, even when the rest does not come.
            whole: matches!(
                timeout(ERROR_WAIT, read_body(body, MAX_ERROR, |_| {})).await,
                Ok(Ok(true))
            ),
        });
    }
    let whole = read_body(body, MAX_PAGE, |bytes| scanner.feed(bytes)).await?;
    Ok(Answered {
        result: if whole {
            Ok(())
        } else {
            Err(PageError::TooLarge)
        },
        whole,
    })
}

/// Whether the body ended within `max` bytes.
async fn read_body(
    mut body: Incoming,
    max: usize,
    mut feed: impl FnMut(&[u8]),
) -> Result<bool, hyper::Error> {
    let mut size = 0_usize;
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame?.into_data() else {
            continue;
        };
        size = size.saturating_add(bytes.len());
        if size > max {
            return Ok(false);
        }
        feed(&bytes);
    }
    Ok(true)
}
