//! What we keep of each object: the fields that decide, nothing else.
//!
//! Equal facts mean an event changed nothing for us, so `PartialEq` here is what keeps quiet events quiet.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use crd::{Condition, FailureMode, Hostname, ListenerProtocol, ServiceType};
use jiff::Timestamp;

use super::digest::LiveStatus;
use crate::{export::Export, name::Key};

/// An InferencePool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolFacts {
    /// Namespace and name, which its imports have too.
    pub key: Key,
    /// Distinguishes a recreated pool from the one before.
    pub uid: String,
    /// `metadata.generation`, which the conditions of our entry repeat as `observedGeneration`.
    pub generation: i64,
    /// The oldest pool is the reference of `Consistent`.
    pub created: Timestamp,
    /// What its annotations ask for.
    pub export: Export,
    /// None: the pool names no endpoint picker.
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
    /// API group; empty for core, the only one that can be exported.
    pub group: String,
    /// Kind in that group; anything but `Service` cannot be exported.
    pub kind: String,
    /// Name in the pool's namespace, as it was written: it may be no name that a Service can have.
    pub name: String,
    /// Number of the Service's port; none: it counts as port 0, which no Service has.
    pub port: Option<u16>,
    /// What importing gateways do when the endpoint picker does not answer; none: the pool does not say.
    pub failure_mode: Option<FailureMode>,
}

/// A core Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    /// Namespace and name.
    pub key: Key,
    /// Decides which of its addresses are passed on.
    pub type_: ServiceType,
    /// Empty for a headless Service.
    pub cluster_ips: Vec<String>,
    /// It has no cluster IP: the addresses of its ready endpoints are used.
    pub headless: bool,
    /// IPs and host names of the load balancer.
    pub ingress: Vec<String>,
    /// In the order of the Service.
    pub ports: Vec<PortFacts>,
}

/// One port of a Service or an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Empty for the only, unnamed port.
    pub name: String,
    /// Of a Service what clients connect to, of an EndpointSlice what the pods listen on.
    pub number: u16,
    /// Transport, such as `TCP`; none: not set.
    pub protocol: Option<String>,
    /// Application protocol as it was written; none: not set.
    pub app_protocol: Option<String>,
}

/// An EndpointSlice of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    /// Namespace and name of the slice.
    pub key: Key,
    /// Name of the Service, in the slice's namespace.
    pub service: Arc<str>,
    /// Addresses of ready endpoints, sorted.
    pub ready: Vec<IpAddr>,
    /// Ports of all its endpoints.
    pub ports: Vec<PortFacts>,
}

/// A Gateway, as far as another cluster could use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayFacts {
    /// Namespace and name.
    pub key: Key,
    /// Whether its data plane works.
    pub programmed: Programmed,
    /// `status.addresses`: IPs and host names, not checked yet.
    pub addresses: Vec<String>,
    /// Those for HTTP or HTTPS of which nothing says that they do not work.
    pub listeners: Vec<ListenerFacts>,
}

/// What a Gateway's conditions say of its data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programmed {
    /// It can take requests.
    Yes,
    /// For want of an address.
    NoAddress,
    /// Its condition says no, or is not there.
    No,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFacts {
    /// Unique in its Gateway; the `section` of a [`RouteParent`].
    pub name: String,
    /// Port that clients connect to.
    pub port: u16,
    /// HTTP or HTTPS.
    pub protocol: ListenerProtocol,
    /// Hosts that it takes; any where it names none.
    pub hostname: Hostname,
    /// Namespaces whose routes may attach to it.
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
    /// Namespace and name.
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
    /// Namespace and name of the Gateway.
    pub gateway: Key,
    /// Name of the one listener meant; none: all of them.
    pub section: Option<String>,
    /// Port of the listeners meant; none: all of them.
    pub port: Option<u16>,
}

/// A Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// The key in the store of namespaces.
    pub name: Arc<str>,
    /// On its way out: nothing can be created in it.
    pub terminating: bool,
}

/// An import as its member's watch last showed it.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveImport {
    /// Namespace and name, those of the pools that it stands for.
    pub key: Key,
    /// Distinguishes a recreated import from the one before; empty: the server sent none that can be kept.
    pub uid: String,
    /// What a write may be made conditional on; empty: the server sent none that can be kept.
    pub resource_version: String,
    /// `metadata.generation`, which its conditions repeat as `observedGeneration`.
    pub generation: i64,
    /// Decides whether it may be written or deleted.
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
    Serving {
        /// Another uid is another CRD, under which absence proves nothing of the objects before.
        uid: String,
    },
    /// It is gone or going: the absence of a pool proves nothing.
    Doubtful,
}
