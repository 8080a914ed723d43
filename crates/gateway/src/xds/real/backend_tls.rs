//! TLS from the real Envoy to backends: which certificates it takes, and that nothing is sent without one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ::tls::test_pki::Ca;
use parking_lot::Mutex;
use rcgen::CertificateParams;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::fixture::{add_route, add_slice, key, mk_parent_entry, mk_ref, mk_route, mk_rule};
use crate::world::authorities::mk_bundle;
use crate::world::{
    Authorities, AuthorityRef, BackendTlsPolicy, BadBundle, SubjectName, TlsTarget, TlsValidation,
    World,
};

use super::bed::{Bed, EPP, POD_B, REMOTE_POD, free_port};

/// Where TLS is spoken.
const FRONT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 21);

/// What is spoken inside of TLS.
const HTTP1: &str = "http/1.1";
const HTTP2: &str = "h2";

/// It ends TLS, and passes on what is inside.
struct Front {
    protocol: &'static str,
    shown: Arc<Mutex<Shown>>,
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

/// What new connections meet.
#[derive(Clone)]
struct Shown {
    acceptor: TlsAcceptor,
    /// Ends the connections.
    end: CancellationToken,
}

#[derive(Default)]
struct Seen {
    /// Of connections with TLS.
    server_names: Vec<Option<String>>,
    /// Connections that did not begin with TLS.
    plaintext: usize,
}

impl Front {
    /// Its certificate is of this authority, for these names.
    async fn start(
        protocol: &'static str,
        (at, to): (SocketAddr, SocketAddr),
        ca: &Ca,
        names: &[&str],
    ) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let shown = Arc::new(Mutex::new(Shown::new(protocol, ca, names)));
        let seen = Arc::<Mutex<Seen>>::default();
        let mut tasks = JoinSet::new();
        let (current, noted) = (Arc::clone(&shown), Arc::clone(&seen));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (shown, noted) = (current.lock().clone(), Arc::clone(&noted));
                connections.spawn(async move {
                    let passed = pass_on(stream, shown.acceptor, noted, to);
                    shown.end.run_until_cancelled(passed).await;
                });
            }
        });
        Self {
            protocol,
            shown,
            seen,
            _tasks: tasks,
        }
    }

    /// Ends all connections, and shows another certificate from now on.
    fn renew(&self, ca: &Ca, names: &[&str]) {
        let next = Shown::new(self.protocol, ca, names);
        let before = std::mem::replace(&mut *self.shown.lock(), next);
        before.end.cancel();
    }

    fn last_name(&self) -> Option<String> {
        self.seen.lock().server_names.last().cloned().flatten()
    }

    fn assert_all_tls(&self) {
        assert_eq!(self.seen.lock().plaintext, 0);
    }
}

impl Shown {
    fn new(protocol: &str, ca: &Ca, names: &[&str]) -> Self {
        Self {
            acceptor: mk_acceptor(protocol, ca, names),
            end: CancellationToken::new(),
        }
    }
}

async fn pass_on(stream: TcpStream, acceptor: TlsAcceptor, seen: Arc<Mutex<Seen>>, to: SocketAddr) {
    let mut first = [0];
    // Health checks by TCP send nothing.
    if stream.peek(&mut first).await.unwrap_or(0) == 0 {
        return;
    }
    // The type of a record with a handshake.
    if first != [22] {
        seen.lock().plaintext += 1;
        return;
    }
    let Ok(mut stream) = acceptor.accept(stream).await else {
        return;
    };
    let name = stream.get_ref().1.server_name().map(ToOwned::to_owned);
    seen.lock().server_names.push(name);
    let mut backend = TcpStream::connect(to).await.unwrap();
    let _ = copy_bidirectional(&mut stream, &mut backend).await;
}

fn mk_acceptor(protocol: &str, ca: &Ca, names: &[&str]) -> TlsAcceptor {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    for name in names {
        let text = (*name).try_into().unwrap();
        params.subject_alt_names.push(if name.contains("://") {
            rcgen::SanType::URI(text)
        } else {
            rcgen::SanType::DnsName(text)
        });
    }
    let (certificate, key) = ca.sign(params);
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// By the authorities in the ConfigMap `ca`.
fn set_policy(
    world: &mut World,
    (group, kind, name): (&str, &str, &str),
    hostname: &str,
    names: Vec<SubjectName>,
) {
    let policy = BackendTlsPolicy {
        generation: 1,
        created: 0,
        targets: vec![TlsTarget {
            group: group.into(),
            kind: kind.into(),
            name: name.into(),
            section: None,
        }],
        validation: Ok(TlsValidation {
            hostname: hostname.into(),
            names,
            authorities: Authorities::Named(vec![AuthorityRef {
                group: String::new(),
                kind: "ConfigMap".into(),
                name: "ca".into(),
            }]),
        }),
    };
    world.tls_policies.insert(key(name), policy);
}

fn dns(name: &str) -> Vec<SubjectName> {
    vec![SubjectName::Dns(name.to_owned())]
}

fn trust(world: &mut World, ca: &Ca) {
    let bundle = mk_bundle("ca", ca);
    world.authorities.insert(key("ca"), Ok(bundle));
}

/// The route `/tls` leads to a Service at the front.
fn add_service(bed: &mut Bed, port: u16) {
    let service = bed.world.services[&key("web")].clone();
    bed.world.services.insert(key("tls"), service);
    let ports = [("http", port)];
    add_slice(&mut bed.endpoints, "tls", &FRONT.to_string(), &ports);
    let rule = mk_rule("/tls", vec![mk_ref("service", "tls", 1)]);
    add_route(&mut bed.world, mk_route("tls", vec![rule]));
}

/// Until then, requests for this path are another route's.
async fn until_reached(bed: &Bed) {
    let body = format!("{POD_B} 0");
    bed.wait("the pod behind the front answers", || async {
        bed.get("/tls").await.body == body
    })
    .await;
}

const SERVICE: (&str, &str, &str) = ("", "Service", "tls");

#[tokio::test(flavor = "multi_thread")]
async fn service_is_reached_by_the_certificate_that_its_policy_asks_for_and_no_other() {
    let mut bed = Bed::start(|_| {}).await;
    let (ca, other) = (Ca::new("a"), Ca::new("b"));
    let (port, uri) = (free_port().await, "spiffe://a/b");
    let (front, pod) = ((FRONT, port).into(), (POD_B, bed.pods).into());
    let front = Front::start(HTTP1, (front, pod), &ca, &["a.test", uri]).await;
    add_service(&mut bed, port);
    trust(&mut bed.world, &ca);
    set_policy(&mut bed.world, SERVICE, "a.test", dns("a.test"));
    bed.publish();
    until_reached(&bed).await;
    assert_eq!(front.last_name().as_deref(), Some("a.test"));
    let cases = [
        ("other.test", dns("other.test"), 503),
        ("other.test", vec![SubjectName::Uri(uri.into())], 200),
        ("a.test", vec![SubjectName::Uri("spiffe://a/c".into())], 503),
        ("other.test", dns("a.test"), 200),
    ];
    for (hostname, names, status) in cases {
        set_policy(&mut bed.world, SERVICE, hostname, names);
        bed.publish();
        bed.until("/tls", status).await;
        if status == 200 {
            assert_eq!(front.last_name().as_deref(), Some(hostname));
        }
    }
    // Of another authority.
    trust(&mut bed.world, &other);
    set_policy(&mut bed.world, SERVICE, "a.test", dns("a.test"));
    bed.publish();
    bed.until("/tls", 503).await;
    // Of none: the policy cannot be followed.
    bed.world
        .authorities
        .insert(key("ca"), Err(BadBundle::NotFound));
    bed.publish();
    bed.until("/tls", 503).await;
    trust(&mut bed.world, &ca);
    bed.publish();
    bed.until("/tls", 200).await;
    front.assert_all_tls();
}

/// The cluster is not replaced: that would end its streams.
#[tokio::test(flavor = "multi_thread")]
async fn rotated_authorities_come_to_the_clusters_that_there_are() {
    let mut bed = Bed::start(|_| {}).await;
    let (ca, next) = (Ca::new("a"), Ca::new("b"));
    let port = free_port().await;
    let (front, pod) = ((FRONT, port).into(), (POD_B, bed.pods).into());
    let front = Front::start(HTTP1, (front, pod), &ca, &["a.test"]).await;
    add_service(&mut bed, port);
    trust(&mut bed.world, &ca);
    set_policy(&mut bed.world, SERVICE, "a.test", dns("a.test"));
    bed.publish();
    until_reached(&bed).await;
    let before = bed.clusters();
    front.renew(&next, &["a.test"]);
    trust(&mut bed.world, &next);
    bed.publish();
    bed.wait("a handshake with the next certificate", || async {
        let handshakes = front.seen.lock().server_names.len();
        bed.get("/tls").await.status == 200 && handshakes > 1
    })
    .await;
    assert_eq!(bed.clusters(), before);
    front.assert_all_tls();
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_picker_is_asked_by_the_certificate_that_its_policy_asks_for_and_no_other() {
    let mut bed = Bed::start(|_| {}).await;
    let (ca, other) = (Ca::new("a"), Ca::new("b"));
    let pick = bed.at(POD_B);
    let epp = bed.epp(EPP, pick).await;
    let port = free_port().await;
    let (front, picker) = ((FRONT, port).into(), bed.picker_at(EPP));
    let front = Front::start(HTTP2, (front, picker), &ca, &["epp.test"]).await;
    add_slice(
        &mut bed.endpoints,
        "epp",
        &FRONT.to_string(),
        &[("grpc", port)],
    );
    trust(&mut bed.world, &ca);
    let target = ("", "Service", "epp");
    set_policy(&mut bed.world, target, "epp.test", dns("epp.test"));
    bed.publish();
    let answer = bed.until("/pool", 200).await;
    assert_eq!(answer.body, format!("{POD_B} 0"));
    assert_eq!(front.last_name().as_deref(), Some("epp.test"));
    let asked = epp.asked();
    assert!(asked > 0);
    set_policy(&mut bed.world, target, "epp.test", dns("other.test"));
    bed.publish();
    bed.until("/pool", 503).await;
    trust(&mut bed.world, &other);
    set_policy(&mut bed.world, target, "epp.test", dns("epp.test"));
    bed.publish();
    bed.until("/pool", 503).await;
    front.assert_all_tls();
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_of_another_cluster_is_verified_as_its_policy_says() {
    let mut bed = Bed::start(|_| {}).await;
    let (ca, port) = (Ca::new("a"), free_port().await);
    let (front, pod) = ((FRONT, port).into(), (REMOTE_POD, bed.pods).into());
    let front = Front::start(HTTP1, (front, pod), &ca, &["gateway.test"]).await;
    let south = mk_parent_entry("south", &FRONT.to_string(), &[port], &["llm.example"]);
    bed.world.imports.get_mut(&key("llm")).unwrap().clusters = vec![south];
    trust(&mut bed.world, &ca);
    let target = (
        "inference.networking.x-k8s.io",
        "InferencePoolImport",
        "llm",
    );
    set_policy(&mut bed.world, target, "gateway.test", dns("gateway.test"));
    bed.publish();
    let answer = bed.until("/import", 200).await;
    assert_eq!(answer.body, format!("{REMOTE_POD} 0"));
    assert_eq!(front.last_name().as_deref(), Some("gateway.test"));
    let seen = bed.seen.take().remove(0);
    assert_eq!(seen.headers["host"], "llm.example");
    set_policy(&mut bed.world, target, "gateway.test", dns("llm.example"));
    bed.publish();
    bed.until("/import", 503).await;
    front.assert_all_tls();
}
