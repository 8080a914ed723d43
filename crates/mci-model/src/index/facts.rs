//! What we keep of each object: the fields that decide, nothing else.
//!
//! Equal facts mean an event changed nothing for us, so `PartialEq` here is what keeps quiet events quiet.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use crd::{Condition, FailureMode, Hostname, ListenerProtocol, ServiceType};
use jiff::Timestamp;

use super::{digest::LiveStatus, entry::ImportStatus};
use crate::{export::Export, name::Key};

/// An InferencePool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolFacts {
    pub key: Key,
    /// Distinguishes a recreated pool from the one before.
    pub uid: String,
    pub generation: i64,
    /// The oldest pool is the reference of `Consistent`.
    pub created: Timestamp,
    /// What its annotations ask for.
    pub export: Export,
    pub epp: Option<EppRef>,
    /// At least one, in the pool's order.
    pub target_ports: Vec<u16>,
    /// Verbatim; absent where the pool's CRD has no such field.
    pub app_protocol: Option<String>,
    /// Conditions of our entry in `status.parents`; none: no such entry.
    pub exported: Option<Vec<Condition>>,
    /// The Gateways that say in `status.parents` that they accepted it, sorted.
    pub parents: Vec<Key>,
    /// Others' entries fill `status.parents`: there is no place for ours.
    pub status_full: bool,
}

/// `spec.endpointPickerRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EppRef {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub port: Option<u16>,
    pub failure_mode: Option<FailureMode>,
}

/// A core Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    pub key: Key,
    pub type_: ServiceType,
    /// Empty for a headless Service.
    pub cluster_ips: Vec<String>,
    pub headless: bool,
    /// IPs and host names of the load balancer.
    pub ingress: Vec<String>,
    pub ports: Vec<PortFacts>,
}

/// One port of a Service or an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Empty for the only, unnamed port.
    pub name: String,
    pub number: u16,
    pub protocol: Option<String>,
    pub app_protocol: Option<String>,
}

/// An EndpointSlice of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    pub key: Key,
    /// Name of the Service, in the slice's namespace.
    pub service: Arc<str>,
    /// Addresses of ready endpoints, sorted.
    pub ready: Vec<IpAddr>,
    pub ports: Vec<PortFacts>,
}

/// A Gateway, as far as another cluster could use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayFacts {
    pub key: Key,
    pub programmed: Programmed,
    /// `status.addresses`: IPs and host names, not checked yet.
    pub addresses: Vec<String>,
    /// Those for HTTP or HTTPS of which nothing says that they do not work.
    pub listeners: Vec<ListenerFacts>,
}

/// What a Gateway's conditions say of its data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programmed {
    Yes,
    /// For want of an address.
    NoAddress,
    No,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFacts {
    pub name: String,
    pub port: u16,
    pub protocol: ListenerProtocol,
    pub hostname: Hostname,
    pub admits: Admits,
}

/// Which HTTPRoutes a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    /// Those of the Gateway's namespace.
    SameNamespace,
    /// Those of all namespaces; or of some that a selector names, which is not judged here: where such a listener is
    /// the only one, the route's status already tells.
    AnyNamespace,
    /// None: it is for other kinds of routes.
    Nobody,
}

/// An HTTPRoute, as far as it leads to pools or imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteFacts {
    pub key: Key,
    /// The Gateways that accepted it.
    pub parents: Vec<RouteParent>,
    /// Any host where the route names none.
    pub hostnames: Vec<Hostname>,
    /// Pools that it sends requests to.
    pub pools: BTreeSet<Key>,
    /// Imports that it sends requests to.
    pub imports: BTreeSet<Key>,
}

/// A parentRef of a route, accepted by its Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteParent {
    pub gateway: Key,
    /// Name of the one listener meant; none: all of them.
    pub section: Option<String>,
    /// Port of the listeners meant; none: all of them.
    pub port: Option<u16>,
}

/// A Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    pub name: Arc<str>,
    pub terminating: bool,
}

/// An import as its member's watch last showed it.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveImport {
    pub key: Key,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub claim: Claim,
    /// Names in `status.clusters` that an apply of ours owns.
    pub owned_entries: Arc<Vec<String>>,
    /// What we write of it, for what is planned is compared with that.
    pub status: LiveStatus,
}

/// Whose an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// All three ownership labels are ours.
    Ours,
    /// None of the labels is there and nobody else wrote the parts of the status that we would: ours to adopt.
    Unclaimed,
    /// Another controller's, or a user's: hands off.
    Foreign,
}

/// What a GET of the pools CRD said, after a pool vanished (K8: a deleted CRD first deletes all its objects).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdCheck {
    /// It is there and stays.
    Serving { uid: String },
    /// It is gone or going: the absence of a pool proves nothing.
    Doubtful,
}

// === impl LiveImport ===

impl LiveImport {
    /// Ours, and without a status: as a creation first shows.
    pub fn is_bare(&self) -> bool {
        self.claim == Claim::Ours && *self.status == ImportStatus::default()
    }
}
