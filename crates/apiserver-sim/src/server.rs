//! A running server, and all that a test may do to it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::Instant};
use tokio_rustls::TlsAcceptor;

use crate::{
    calls::{Call, Calls},
    faults::{Fault, Rule, Rules},
    hand::Flavour,
    handler::handle,
    kinds::{self, Kind, NAMESPACES},
    link::{Link, Links},
    pki::{Authority, H2, PkiError},
    store::Store,
    target::Verb,
    watching::{Ending, Orders},
};

/// A server to be started.
pub struct Builder<'a> {
    name: String,
    authority: Option<&'a Authority>,
    token: String,
    late: Duration,
}

/// A running API server; it ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    name: String,
    address: SocketAddr,
    authority: Option<String>,
    pub(crate) shared: Arc<Shared>,
    accepting: Mutex<JoinSet<()>>,
    tls: Option<TlsDebug>,
}

/// What requests work with.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Mutex<Store>,
    pub(crate) rules: Mutex<Rules>,
    pub(crate) calls: Mutex<Calls>,
    pub(crate) orders: watch::Sender<Orders>,
    /// The one that is let in; empty: everybody.
    pub(crate) token: Mutex<String>,
    links: Arc<Links>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be bound.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// No certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

#[derive(Clone)]
struct TlsDebug(TlsAcceptor);

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A loopback address of its own for each server of the process, from 127.16.0.1 on.
fn next_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::SeqCst) % (1 << 20);
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 16, 0, 0)) + number)
}

/// An address that nobody listens on.
/// # Errors
/// [`StartError::Listen`] when the loopback network cannot be used.
pub fn free_address() -> Result<SocketAddr, StartError> {
    let any = SocketAddr::V4(SocketAddrV4::new(next_address(), 0));
    let bound = std::net::TcpListener::bind(any).and_then(|listener| listener.local_addr());
    bound.map_err(|error| StartError::Listen(any, error))
}

// === impl TlsDebug ===

impl std::fmt::Debug for TlsDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

// === impl Builder ===

impl<'a> Builder<'a> {
    /// Speaks TLS with a certificate of this authority.
    #[must_use]
    pub fn tls(self, authority: &'a Authority) -> Self {
        Self {
            authority: Some(authority),
            ..self
        }
    }

    /// Each answer comes this much late.
    #[must_use]
    pub fn late(self, late: Duration) -> Self {
        Self { late, ..self }
    }

    /// Starts the server with `kube-system`, `default`, and the CRDs of pools, imports, Gateways and HTTPRoutes.
    /// Call it within a runtime.
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Server, StartError> {
        let ip = next_address();
        let tls = match self.authority {
            Some(authority) => Some(TlsDebug(authority.server(ip)?.into())),
            None => None,
        };
        let any = SocketAddr::V4(SocketAddrV4::new(ip, 0));
        let listener = listen(any)?;
        let address = listener
            .local_addr()
            .map_err(|error| StartError::Listen(any, error))?;
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(&self.name)),
            rules: Mutex::new(Rules::default()),
            calls: Mutex::new(Calls::default()),
            orders: watch::Sender::new(Orders::new()),
            token: Mutex::new(self.token),
            links: Arc::new(Links::default()),
        });
        if !self.late.is_zero() {
            shared.rules.lock().add(Rule::all(Fault::Late(self.late)));
        }
        let server = Server {
            name: self.name,
            address,
            authority: self.authority.map(Authority::pem),
            shared,
            accepting: Mutex::new(JoinSet::new()),
            tls,
        };
        for namespace in ["kube-system", "default"] {
            server.put(&NAMESPACES, json!({"metadata": {"name": namespace}}));
        }
        server.install_import_crd(Flavour::Superset);
        for kind in [&kinds::POOLS, &kinds::GATEWAYS, &kinds::HTTP_ROUTES] {
            server.install_crd(kind);
        }
        server.accept(listener);
        Ok(server)
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bind = || {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|error| StartError::Listen(address, error))
}

// === impl Server ===

impl Server {
    /// A server to be started, named as the member is.
    pub fn builder(name: &str) -> Builder<'static> {
        Builder {
            name: name.to_owned(),
            authority: None,
            token: "first".to_owned(),
            late: Duration::ZERO,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A kubeconfig that leads to it, with the token that it takes now.
    pub fn kubeconfig(&self) -> String {
        let mut cluster = json!({"server": self.url()});
        if let Some(pem) = &self.authority {
            cluster["certificate-authority-data"] = STANDARD.encode(pem).into();
        }
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": *self.shared.token.lock()}}],
        })
        .to_string()
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Takes this token alone from now on.
    pub fn rotate_token(&self, token: &str) {
        token.clone_into(&mut self.shared.token.lock());
    }

    /// What the server's clock is ahead of ours.
    pub fn set_clock(&self, ahead: SignedDuration) {
        self.shared.store.lock().skew = ahead;
    }

    fn accept(&self, listener: TcpListener) {
        let (shared, tls) = (self.shared.clone(), self.tls.clone());
        self.accepting.lock().spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        // answers are small and wait for nobody
                        let _ = stream.set_nodelay(true);
                        let link = shared.links.enter(stream);
                        connections.spawn(serve(shared.clone(), link, tls.clone()));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
    }

    // --- faults of the connection ---

    /// Goes down as a process that dies: connections end, new ones are refused.
    pub fn stop(&self) {
        self.shared.links.thaw();
        self.shared.links.cut();
        self.accepting.lock().abort_all();
    }

    /// Comes back on the same address, with all that it held.
    /// # Errors
    /// [`StartError::Listen`] when the address is taken.
    pub async fn restart(&self) -> Result<(), StartError> {
        let mut old = std::mem::take(&mut *self.accepting.lock());
        while old.join_next().await.is_some() {}
        self.accept(listen(self.address)?);
        Ok(())
    }

    /// Accepts connections and neither reads nor writes on any.
    pub fn hang(&self) {
        self.shared.links.freeze(true);
    }

    /// Open connections fall silent without an end and without acknowledging a packet, for ever; new ones work.
    /// # Errors
    /// When the kernel knows no socket filters.
    pub fn strand_connections(&self) -> io::Result<()> {
        self.shared.links.strand()
    }

    /// Open connections end; new ones work.
    pub fn cut_connections(&self) {
        self.shared.links.cut();
    }

    /// Undoes [`Server::hang`].
    pub fn thaw(&self) {
        self.shared.links.thaw();
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.shared.links.count()
    }

    // --- faults of answers and watches ---

    /// Adds a fault; the number removes it.
    pub fn add_fault(&self, rule: Rule) -> u64 {
        self.shared.rules.lock().add(rule)
    }

    /// Removes a fault.
    pub fn remove_fault(&self, number: u64) {
        self.shared.rules.lock().remove(number);
    }

    /// Removes all faults, [`Builder::late`] among them.
    pub fn heal(&self) {
        self.shared.rules.lock().clear();
    }

    /// Ends the open watches of a kind.
    pub fn end_watches(&self, kind: &'static Kind, ending: Ending) {
        self.shared.orders.send_modify(|orders| {
            let order = orders.entry(kind.crd_name()).or_insert((0, ending));
            *order = (order.0 + 1, ending);
        });
    }

    /// Forgets the changes of a kind: watches end with 410, and none can resume.
    pub fn expire(&self, kind: &'static Kind) {
        self.shared.store.lock().compact(kind);
        self.end_watches(kind, Ending::Expired);
    }

    // --- what was asked ---

    /// The latest calls, oldest first: at least 4000.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().log()
    }

    /// How many calls of a verb there were on a kind, by its plural.
    pub fn count(&self, verb: Verb, resource: &str) -> u64 {
        self.shared.calls.lock().total(verb, resource)
    }

    /// When the last write on an object of this name arrived.
    pub fn last_write(&self, name: &str) -> Option<Instant> {
        self.shared.calls.lock().last_write(name)
    }

    /// Writes that were taken and changed nothing.
    pub fn idle_writes(&self) -> u64 {
        self.shared.calls.lock().idle_writes
    }

    /// Writes on a kind, of all verbs.
    pub fn writes(&self, resource: &str) -> u64 {
        let verbs = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
        verbs.iter().map(|&verb| self.count(verb, resource)).sum()
    }
}

async fn serve(shared: Arc<Shared>, link: Link, tls: Option<TlsDebug>) {
    let number = link.number();
    let links = shared.links.clone();
    let service = service_fn(move |request| handle(shared.clone(), request));
    let mut http1 = http1::Builder::new();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(BUFFER);
    let work = async {
        // how a connection ends is the client's to judge
        let _ = match tls {
            Some(TlsDebug(acceptor)) => {
                let Ok(stream) = acceptor.accept(link).await else {
                    return;
                };
                if stream.get_ref().1.alpn_protocol() == Some(H2) {
                    http2::Builder::new(TokioExecutor::new())
                        .max_concurrent_streams(MAX_STREAMS)
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                } else {
                    http1.serve_connection(TokioIo::new(stream), service).await
                }
            }
            None => http1.serve_connection(TokioIo::new(link), service).await,
        };
    };
    tokio::select! {
        () = work => {}
        () = links.cut_off(number) => {}
    }
}

/// Most of what a connection buffers: a thousand servers have seven thousand connections.
const BUFFER: usize = 16 * 1024;
/// As kube-apiserver has it.
const MAX_STREAMS: u32 = 100;
