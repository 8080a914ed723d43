//! The routing model (pure): what each Gateway serves, and the status that says so.
//!
//! ```text
//! World ── listeners ── attach ── refs ── rules ── vhosts ──► GatewayModel   (what Envoy does)
//!              └───────────┴────────┴────────────────────────► WantedStatus  (what users read)
//! Feedback ───────────────────────────────────────────────────────▲
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crd::networks::Cidr;

use crate::select::Ineligible;
use crate::world::{Certificate, Key, RouteFilter, RouteMatch, World};

mod attach;
pub(crate) mod backend_tls;
mod backends;
mod build;
mod built;
pub(crate) mod certificates;
mod gateways;
mod order;
pub(crate) mod policies;
mod refs;
mod rules;
mod status;
mod values;
mod vhosts;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use backend_tls::{
    NotSecured, Policed, Security, TlsPolicies, Trusted, Verification, security,
};
pub(crate) use backends::is_h2c;
pub(crate) use built::{Built, Delta, StatusDelta, Unreported};
#[cfg(test)]
pub(crate) use built::{build, build_with};
pub(crate) use crd::Hostname;
pub(crate) use order::{literal_start, prefix_of};
pub(crate) use refs::picker;
pub(crate) use rules::parse_duration;
pub(crate) use status::{
    ClassStatus, Cond, GatewayStatus, ImportStatus, ListenerStatus, ParentStatus, Target, Truth,
    WantedStatus,
};

/// What the model needs to know besides the world.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The name in `GatewayClass.spec.controllerName`.
    pub(crate) controller: String,
    /// This cluster's name, under which its own pool joins an import.
    pub(crate) cluster_name: String,
    pub(crate) epp_tls: EppTls,
    /// Where remote EPPs may send requests, by exporting cluster; key `*`: any.
    pub(crate) pod_cidrs: BTreeMap<String, Vec<Cidr>>,
    /// Addresses that no import may name, this host and its link included.
    pub(crate) deny_cidrs: Vec<Cidr>,
    /// The only networks in which endpoint pickers and Gateways of other clusters may be; empty: any.
    pub(crate) remote_cidrs: Vec<Cidr>,
}

/// How EPPs are spoken to when nothing at the EPP says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EppTls {
    /// TLS without checking the certificate, which EPPs sign themselves by default.
    Unverified,
    /// HTTP/2 without TLS.
    Plaintext,
    /// Only those that a BackendTLSPolicy names, or whose port says appProtocol kubernetes.io/h2c.
    Required,
}

/// One Gateway's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayModel {
    pub(crate) key: Key,
    /// Of the Gateway object.
    pub(crate) uid: String,
    /// By listener port.
    pub(crate) ports: BTreeMap<u16, PortModel>,
    /// By Secret.
    pub(crate) certificates: BTreeMap<Key, Certificate>,
    pub(crate) services: BTreeMap<(Key, u16), ServiceBackend>,
    pub(crate) pools: BTreeMap<Key, Arc<Pool>>,
    pub(crate) imports: BTreeMap<Key, Arc<Import>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortModel {
    /// The port Envoy binds.
    pub(crate) bind: u16,
    /// How long an Envoy that is stopped serves on.
    pub(crate) drain: Duration,
    /// Without any the port is not served: all its listeners wait for a certificate.
    pub(crate) chains: Vec<Chain>,
}

/// Connections to a port that have one route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) protocol: Protocol,
    /// Most specific domain first.
    pub(crate) vhosts: Vec<VirtualHost>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Https {
        /// The server names of TLS that lead here, unless another chain's are more specific.
        hostname: Hostname,
        /// The Secrets of its certificates; at least one.
        certificates: Vec<Key>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VirtualHost {
    pub(crate) domain: Hostname,
    /// The domain belongs to a listener that other connections lead to: the answer is 421.
    pub(crate) misdirected: bool,
    /// In order: the first that matches answers.
    pub(crate) rules: Vec<Arc<Rule>>,
}

/// One match of one rule of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: RuleId,
    /// The route's, in seconds since 1970; older routes win ties.
    pub(crate) created: i64,
    pub(crate) matcher: RouteMatch,
    pub(crate) filters: Vec<RouteFilter>,
    pub(crate) timeouts: Timeouts,
    pub(crate) action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleId {
    pub(crate) route: Key,
    /// Index of the rule in the route.
    pub(crate) rule: usize,
    /// Index of the match in the rule.
    pub(crate) index: usize,
}

/// `None`: not said; zero: no limit, not even on idleness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub(crate) request: Option<Duration>,
    pub(crate) backend: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// At least one entry, each weight above zero.
    Forward(Vec<Weighted>),
    Redirect(crate::world::Redirect),
    /// Answered by Envoy itself.
    Status(u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weighted {
    pub(crate) weight: u32,
    pub(crate) filters: Vec<RouteFilter>,
    pub(crate) backend: Backend,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    Service(Key, u16),
    Pool(Key),
    Import(Key),
    /// Answers 500 for its share.
    Invalid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceBackend {
    /// Name of the Service port; empty where unnamed.
    pub(crate) port_name: String,
    pub(crate) http2: bool,
    /// Requests may be upgraded to WebSocket.
    pub(crate) websocket: bool,
    /// `None`: it is not connected to, since a policy asks for what cannot be had.
    pub(crate) security: Option<Security>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) key: Key,
    pub(crate) http2: bool,
    pub(crate) fail_open: bool,
    pub(crate) target_ports: Vec<u16>,
    /// `None`: nothing may be picked, every request gets 503.
    pub(crate) epp: Option<Epp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epp {
    pub(crate) addresses: EppAddresses,
    /// Sent as `:authority`.
    pub(crate) authority: String,
    pub(crate) security: Security,
    /// Whether a gRPC health port is known; its number stands with the addresses.
    pub(crate) grpc_health: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EppAddresses {
    /// The pods behind a Service port, and where they tell their health.
    Slices {
        service: Key,
        port_name: String,
        health: Option<HealthPort>,
    },
    Ips {
        addresses: Vec<SocketAddr>,
        health: Option<u16>,
    },
    Dns {
        hosts: Vec<(String, u16)>,
        health: Option<u16>,
    },
}

/// The port of gRPC health checks of EPP pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HealthPort {
    /// A port of the EPP's Service.
    Named(String),
    /// The pods' own.
    Number(u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) key: Key,
    /// Its clusters are tried one after the other, by their priorities.
    pub(crate) ordered: bool,
    /// Sorted by name.
    pub(crate) clusters: Vec<Imported>,
    /// Some of these in their former mode. See [`Self::former_hops`] for which of them serve.
    pub(crate) formers: Vec<Imported>,
}

/// One exporting cluster of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Imported {
    pub(crate) name: String,
    /// How requests get there, or why none can. This alone decides which hops, listeners and clusters Envoys have.
    pub(crate) mode: Result<Mode, Ineligible>,
    /// Whether the exporting side wants new requests. It changes assignments alone.
    pub(crate) readiness: Readiness,
    /// Its model servers speak HTTP/2 without TLS.
    pub(crate) http2: bool,
    /// The failure mode that its pool or entry asks for.
    pub(crate) fail_open: bool,
    /// Where the load of its pool can be read.
    pub(crate) metrics: Option<Metrics>,
}

/// What an exporting side says of new requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Or it does not say, and the last state holds.
    Ready,
    /// Why not.
    NotReady(String),
    /// Existing streams go on, nothing new is sent.
    Draining {
        /// When the entry goes, in seconds since 1970, where that is known.
        until: Option<i64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Endpoint(EndpointMode),
    /// The pool of this cluster, with its own EPP and failure mode.
    Local(Key),
    Parent(ParentMode),
}

/// The EPP of the exporting cluster is asked, and requests go where it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointMode {
    pub(crate) epp: Epp,
    /// Where it may send requests.
    pub(crate) cidrs: Vec<Cidr>,
    /// Networks within `cidrs` to which requests are denied.
    pub(crate) denied: Vec<Cidr>,
    pub(crate) ports: Vec<u16>,
}

/// Requests go to Gateways of the exporting cluster, which have the pick made there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParentMode {
    pub(crate) addresses: ParentAddresses,
    /// They are connected to by TLS, and else in plaintext.
    pub(crate) tls: bool,
    /// How their certificates are verified, with TLS. `None`: for the host of each request.
    pub(crate) verification: Option<Arc<Verification>>,
    /// The hosts that they route to the pool, each once, in their own order; empty: any. Where certificates are verified for the
    /// host of each request, one of them is no wildcard.
    pub(crate) hosts: Vec<Hostname>,
    /// Networks that names among the addresses must not lead to.
    pub(crate) denied: Vec<Cidr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParentAddresses {
    Ips(Vec<SocketAddr>),
    Dns(Vec<(String, u16)>),
}

/// Where an EPP of another cluster serves Prometheus metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metrics {
    /// IP addresses and host names that this cluster may name, with the port.
    pub(crate) addresses: Vec<(String, u16)>,
    /// With the credentials; in the import's namespace.
    pub(crate) secret: Option<Key>,
}

// === impl Action ===

impl Action {
    pub(crate) fn backends(&self) -> &[Weighted] {
        match self {
            Self::Forward(backends) => backends,
            Self::Redirect(_) | Self::Status(_) => &[],
        }
    }
}

// === impl Import ===

impl Import {
    /// The clusters that requests can get to, whether or not they shall at this moment.
    pub(crate) fn hops(&self) -> impl Iterator<Item = (&Imported, &Mode)> + Clone {
        let clusters = self.clusters.iter();
        clusters.filter_map(|cluster| Some((cluster, cluster.mode.as_ref().ok()?)))
    }

    /// The former modes of its clusters. They are there only while every cluster that requests can get to has one: else another
    /// cluster serves what the new mode of one cannot, and a former mode that is dead takes no attempt from it.
    pub(crate) fn former_hops(&self) -> impl Iterator<Item = (&Imported, &Mode)> + Clone {
        let mut hops = self.hops();
        let is_alone =
            hops.all(|(cluster, _)| self.formers.iter().any(|one| one.name == cluster.name));
        let formers = self.formers.iter().filter(move |_| is_alone);
        formers.filter_map(|cluster| Some((cluster, cluster.mode.as_ref().ok()?)))
    }

    /// Whether the pool of this cluster is among them and goes on without its EPP.
    pub(crate) fn fails_open(&self) -> bool {
        self.hops()
            .any(|(cluster, mode)| cluster.fail_open && matches!(mode, Mode::Local(_)))
    }
}

// === impl Imported ===

impl Imported {
    /// How new requests get there, or the first reason that none shall. One that drains is eligible, and gets none.
    pub(crate) fn eligible(&self) -> Result<&Mode, Ineligible> {
        let unusable = self.mode.as_ref().err();
        let first =
            unusable.filter(|why| matches!(why, Ineligible::InvalidName | Ineligible::NotAccepted));
        match (first, &self.readiness) {
            (Some(why), _) => Err(why.clone()),
            (None, Readiness::NotReady(reason)) => Err(Ineligible::NotReady(reason.clone())),
            (None, Readiness::Ready | Readiness::Draining { .. }) => {
                self.mode.as_ref().map_err(Clone::clone)
            }
        }
    }
}

// === impl Mode ===

impl Mode {
    /// As `routingMode` has it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Endpoint(_) | Self::Local(_) => "EndpointMode",
            Self::Parent(_) => "ParentMode",
        }
    }
}

// === impl ParentMode ===

impl ParentMode {
    /// What requests to other hosts than the Gateways' get instead of theirs.
    pub(crate) fn host(&self) -> Option<&str> {
        self.hosts.iter().find_map(|host| match host {
            Hostname::Exact(host) => Some(host.as_str()),
            Hostname::Suffix(_) | Hostname::Any => None,
        })
    }
}

// === impl GatewayModel ===

impl GatewayModel {
    /// Every rule once, whichever vhosts hold it.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let mut seen = BTreeSet::new();
        self.ports
            .values()
            .flat_map(|port| &port.chains)
            .flat_map(|chain| &chain.vhosts)
            .flat_map(|vhost| &vhost.rules)
            .filter(move |rule| seen.insert(&rule.id))
    }
}

// === impl Protocol ===

impl Protocol {
    /// `Less`: `self` is asked first for a server name.
    fn compare_specificity(&self, other: &Self) -> std::cmp::Ordering {
        let host = |one: &Self| match one {
            Self::Http => Hostname::Any,
            Self::Https { hostname, .. } => hostname.clone(),
        };
        let (one, other) = (host(self), host(other));
        let specificity = one.compare_specificity(&other);
        specificity.then_with(|| one.cmp(&other))
    }
}

/// Whether the Gateways of a class are ours, by its controller.
fn is_ours(world: &World, controller: &str, class: &str) -> bool {
    let class = world.classes.get(class);
    class.is_some_and(|class| class.controller == controller)
}
