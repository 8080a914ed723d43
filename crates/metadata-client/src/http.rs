//! Calls over HTTP: HTTP/2 without an upgrade for our own service, HTTP/1.1 for one that existing clients use.

use std::{
    future::Future,
    io, iter,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE},
    uri::{Authority, Scheme},
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioTimer};
use tls::{Alpn, Trust};
use tokio::{net::lookup_host, sync::Semaphore, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    connect::{Connector, scheme},
    settings::Api,
    token::BearerToken,
    transport::{Call, CallError, MAX_REPLY, Peer, Reply, Transport},
};

/// Connections to one address with HTTP/2: each carries many calls.
const H2_CONNECTIONS: usize = 2;
/// Connections to one address with HTTP/1.1: each carries one call.
const H1_CONNECTIONS: usize = 32;
const IDLE: Duration = Duration::from_mins(5);
/// A resolver that does not answer leaves the addresses as they are.
const RESOLVE: Duration = Duration::from_secs(3);

const TRACE_ID: HeaderName = HeaderName::from_static("traceid");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const BOOT: HeaderName = HeaderName::from_static("x-metadata-boot");

/// A service at a host and a port.
#[derive(Debug)]
pub struct Http {
    host: String,
    port: u16,
    api: Api,
    authority: Authority,
    /// Absent: plaintext.
    trust: Option<Trust>,
    token: Arc<BearerToken>,
    tasks: TaskTracker,
}

/// One address of a service.
#[derive(Debug)]
pub struct HttpPeer {
    /// Each has one connection with HTTP/2, and several with HTTP/1.1.
    clients: Vec<Client<Connector, Full<Bytes>>>,
    turn: AtomicUsize,
    /// Where each call needs a connection.
    connections: Option<Semaphore>,
    scheme: Scheme,
    authority: Authority,
    token: Arc<BearerToken>,
}

/// Runs the tasks of connections, and sees them end.
#[derive(Clone)]
struct Tracked(TaskTracker);

/// The host and port cannot stand in a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no host with a port: expected a DNS name or an IP address, such as metadata-center.llm.svc"
)]
pub struct HostError(String);

// === impl Http ===

impl Http {
    /// Nothing is looked up or connected to yet. With `trust` TLS is spoken, and the certificate of the service must be the host's.
    ///
    /// # Errors
    /// [`HostError`] for a host that cannot stand in a URL.
    pub fn new(host: &str, port: u16, api: Api, trust: Option<Trust>) -> Result<Self, HostError> {
        let bare = host.trim_matches(['[', ']']);
        let url = if bare.contains(':') {
            format!("[{bare}]:{port}")
        } else {
            format!("{bare}:{port}")
        };
        let authority = url.parse::<Authority>().ok();
        // Nothing but a host: no user, no path.
        let is_host = |it: &Authority| {
            let host = it.host().trim_matches(['[', ']']);
            !host.is_empty() && host == bare
        };
        let authority = authority.filter(is_host).ok_or(HostError(url))?;
        Ok(Self {
            host: bare.to_owned(),
            port,
            api,
            authority,
            trust,
            token: Arc::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Where the token is put.
    pub fn token(&self) -> Arc<BearerToken> {
        Arc::clone(&self.token)
    }

    fn client(&self, address: SocketAddr) -> Client<Connector, Full<Bytes>> {
        let mut builder = Client::builder(Tracked(self.tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(H1_CONNECTIONS)
            .http2_only(self.api == Api::Isthmus);
        let alpn = match self.api {
            Api::Isthmus => Alpn::H2,
            Api::Compat => Alpn::Http1,
        };
        builder.build(Connector::new(address, alpn, self.trust.clone()))
    }
}

impl Transport for Http {
    type Peer = HttpPeer;

    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found = timeout(RESOLVE, lookup_host((self.host.as_str(), self.port))).await;
        let found = found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(found.collect())
    }

    fn peer(&self, address: SocketAddr) -> Self::Peer {
        let (clients, connections) = match self.api {
            Api::Isthmus => (H2_CONNECTIONS, None),
            Api::Compat => (1, Some(Semaphore::new(H1_CONNECTIONS))),
        };
        let clients = iter::repeat_with(|| self.client(address)).take(clients);
        HttpPeer {
            clients: clients.collect(),
            turn: AtomicUsize::new(0),
            connections,
            scheme: scheme(self.trust.as_ref()),
            authority: self.authority.clone(),
            token: self.token(),
        }
    }

    async fn closed(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

// === impl HttpPeer ===

impl HttpPeer {
    fn request(&self, call: Call) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(call.path.as_ref())
            .build()?;
        let mut request = Request::builder().method(call.method).uri(uri);
        if let Some(headers) = request.headers_mut() {
            if !call.body.is_empty() {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            let named = [
                (TRACE_ID, call.trace.id),
                (TRACE_PARENT, call.trace.parent),
                (AUTHORIZATION, self.token.header()),
            ];
            for (name, value) in named {
                value.map(|value| headers.insert(name, value));
            }
        }
        request.body(Full::new(call.body))
    }
}

impl Peer for HttpPeer {
    async fn call(&self, call: Call) -> Result<Reply, CallError> {
        let broken = |error: &dyn std::error::Error| CallError::Broken(chain(error));
        let request = self.request(call).map_err(|error| broken(&error))?;
        let _connection = match &self.connections {
            Some(connections) => connections.acquire().await.ok(),
            None => None,
        };
        let turn = self.turn.fetch_add(1, Relaxed) % self.clients.len().max(1);
        let Some(client) = self.clients.get(turn) else {
            return Err(CallError::Connect("no connections".to_owned()));
        };
        match client.request(request).await {
            Ok(response) => read(response).await,
            Err(error) if error.is_connect() => Err(CallError::Connect(chain(&error))),
            Err(error) => Err(broken(&error)),
        }
    }
}

async fn read(response: Response<Incoming>) -> Result<Reply, CallError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_REPLY).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => CallError::TooLarge,
        None => CallError::Broken(chain(error.as_ref())),
    })?;
    let boot = head.headers.get(BOOT).and_then(|it| it.to_str().ok());
    Ok(Reply {
        status: head.status,
        boot: boot.and_then(|boot| u64::from_str_radix(boot, 16).ok()),
        body: body.to_bytes(),
    })
}

/// The text of an error and of its causes: those of HTTP say little by themselves.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

// === impl Tracked ===

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}
