//! The port, and streams of clients at it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use moment::Clock;
use prometheus_client::registry::Registry;
use rcgen::CertificateParams;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tls::test_pki::Ca;
use tls::{Acceptor, MadeTls, TlsMetrics};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::{LIMIT, UID, mk_snapshot};
use crate::metrics::AdsMetrics;
use crate::pki::{Authority, Identity};
use crate::world::Key;
use crate::xds::ads::budget::{Budgets, Limits};
use crate::xds::ads::connections::{Trust, serve};
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::AdsServer;
use crate::xds::proto::core::Node;
use crate::xds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::xds::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use crate::xds::{Kind, Snapshot};

const HOST: &str = "isthmus-gateway.isthmus-system.svc";

/// The port of cluster `west`, which has two Gateways, `ns/gw` and `ns/other`.
pub(super) struct Port {
    pub(super) address: SocketAddr,
    pub(super) authority: Authority,
    pub(super) proxies: Proxies,
    pub(super) snapshots: watch::Sender<crate::xds::ads::server::Snapshots>,
    _tasks: JoinSet<()>,
}

/// What a client shows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown {
    Nothing,
    Foreign,
    /// Of a cluster and a Gateway; with `*` of one that had its name before.
    Of(&'static str, &'static str),
}

/// A stream that was begun.
pub(super) struct Stream {
    pub(super) requests: mpsc::Sender<DeltaDiscoveryRequest>,
    pub(super) responses: Streaming<DeltaDiscoveryResponse>,
}

impl Port {
    pub(super) async fn open(limits: Limits, is_secure: bool) -> Self {
        let now = crate::pki::now();
        let (authority, _) = Authority::make(now).unwrap();
        let (snapshots, newest) = watch::channel(Arc::default());
        let proxies = Proxies::default();
        let server = AdsServer {
            snapshots: newest,
            proxies: proxies.clone(),
            metrics: AdsMetrics::default(),
            clock: Clock::start(),
            removal_delay: Duration::from_secs(30),
            budgets: Budgets::new(limits),
            drain: CancellationToken::new(),
            private_channel: false,
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (acceptor, trust) = if is_secure {
            let issued = authority.issue_server(HOST, now).unwrap();
            let (chain, key) = (issued.certificate.into_bytes(), issued.key.into_bytes());
            let metrics = TlsMetrics::register(&mut Registry::default(), "test").port("ads");
            let ca = authority.pem().as_bytes();
            let (acceptor, _) = MadeTls::begin(ca, chain, key, metrics).unwrap();
            (acceptor, Trust::Cluster("west".into()))
        } else {
            (Acceptor::plaintext(), Trust::Anyone)
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let never = std::future::pending();
            let served = serve(server, listener, acceptor, trust, never).await;
            served.unwrap();
        });
        let port = Self {
            address,
            authority,
            proxies,
            snapshots,
            _tasks: tasks,
        };
        port.publish(&mk_snapshot(&[], "x"), UID);
        port
    }

    /// Both Gateways have this snapshot, and the first one this UID.
    pub(super) fn publish(&self, snapshot: &Snapshot, uid: &str) {
        let of = |name: &str, uid: &str| {
            let uid = uid.to_owned();
            let snapshot = Snapshot {
                uid,
                ..snapshot.clone()
            };
            (Key::new("ns", name), Arc::new(snapshot))
        };
        let all = BTreeMap::from([of("gw", uid), of("other", UID)]);
        self.snapshots.send_replace(Arc::new(all));
    }

    /// A connection, or why there is none: the client's verdict comes before the server's.
    pub(super) async fn connect(&self, shown: Shown) -> Result<Channel, String> {
        self.connect_with_window(shown, None).await
    }

    /// The client takes so many bytes of a stream before it reads them.
    pub(super) async fn connect_with_window(
        &self,
        shown: Shown,
        window: Option<u32>,
    ) -> Result<Channel, String> {
        let (address, config) = (self.address, self.config(shown));
        let connector = tower::service_fn(move |_| {
            let config = config.clone();
            async move {
                let tcp = TcpStream::connect(address).await?;
                let name = ServerName::try_from(HOST).unwrap();
                let tls = TlsConnector::from(config).connect(name, tcp).await?;
                Ok::<_, std::io::Error>(TokioIo::new(tls))
            }
        });
        let endpoint = Endpoint::from_static("http://ads")
            .timeout(LIMIT)
            .initial_stream_window_size(window);
        let connected = endpoint.connect_with_connector(connector).await;
        connected.map_err(|error| format!("{error:?}"))
    }

    pub(super) fn config(&self, shown: Shown) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let pair = match shown {
            Shown::Nothing => None,
            Shown::Foreign => {
                let uri = "spiffe://west/gateway/ns/gw/uid-1".try_into().unwrap();
                let mut params = CertificateParams::default();
                params.subject_alt_names = vec![rcgen::SanType::URI(uri)];
                let (certificate, key) = Ca::new("another").sign(params);
                Some((certificate.pem(), key.serialize_pem()))
            }
            Shown::Of(cluster, gateway) => {
                let identity = Identity {
                    cluster: cluster.to_owned(),
                    gateway: Key::new("ns", gateway.trim_end_matches('*')),
                    uid: if gateway.ends_with('*') {
                        "uid-0".to_owned()
                    } else {
                        UID.to_owned()
                    },
                };
                let issued = self.authority.issue_client(&identity, crate::pki::now());
                let issued = issued.unwrap();
                Some((issued.certificate, issued.key))
            }
        };
        let mut config = match pair {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

/// Begins a stream as an Envoy of the Gateway `node_cluster`, asks for all clusters, and reads the first response.
pub(super) async fn begin(channel: Channel, node_cluster: &str) -> Result<Stream, Status> {
    let mut stream = open(channel, node_cluster).await?;
    stream.next().await?;
    Ok(stream)
}

pub(super) async fn open(channel: Channel, node_cluster: &str) -> Result<Stream, Status> {
    let (requests, outgoing) = mpsc::channel(4);
    let first = DeltaDiscoveryRequest {
        node: Some(Node {
            id: "envoy.ns".to_owned(),
            cluster: node_cluster.to_owned(),
            ..Node::default()
        }),
        type_url: Kind::Cluster.type_url().to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(first).await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let call = client.delta_aggregated_resources(ReceiverStream::new(outgoing));
    let responses = timeout(LIMIT, call).await.expect("an answer in time")?;
    Ok(Stream {
        requests,
        responses: responses.into_inner(),
    })
}

impl Stream {
    /// Asks for so many names of so many bytes.
    pub(super) async fn ask(&self, count: usize, length: usize) {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let names = (0..count).map(|_| {
            let at = ASKED.fetch_add(1, Ordering::Relaxed);
            format!("{at:0length$}")
        });
        let request = DeltaDiscoveryRequest {
            type_url: Kind::Endpoints.type_url().to_owned(),
            resource_names_subscribe: names.collect(),
            ..DeltaDiscoveryRequest::default()
        };
        // a stream that has ended says so with its next response
        let _ = self.requests.send(request).await;
    }

    /// Acknowledges the first response.
    pub(super) async fn answer(&mut self) {
        let request = DeltaDiscoveryRequest {
            type_url: Kind::Cluster.type_url().to_owned(),
            response_nonce: "1".to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    pub(super) async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        let message = timeout(LIMIT, self.responses.message()).await;
        let message = message.expect("a message in time")?;
        message.ok_or_else(|| Status::cancelled("the stream ended"))
    }
}
