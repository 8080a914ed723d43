//! What is kept of each object: only the fields that are used. An event that leaves the facts equal changes nothing.

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
    /// The export that its annotations ask for.
    pub export: Export,
    /// None: the pool names no endpoint picker.
    pub epp: Option<EppRef>,
    /// At least one, in the pool's order.
    pub target_ports: Vec<u16>,
    /// Verbatim; absent where the pool's CRD has no such field.
    pub app_protocol: Option<String>,
    /// Conditions of our entry in `status.parents`; none: there is no such entry.
    pub exported: Option<Vec<Condition>>,
    /// The Gateways that accepted it, by `status.parents`, sorted.
    pub parents: Vec<Key>,
    /// `status.parents` is full with others' entries: there is no room for ours.
    pub status_full: bool,
}

/// `spec.endpointPickerRef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EppRef {
    /// API group; empty for core, the only one that can be exported.
    pub group: String,
    /// Kind in that group; anything but `Service` cannot be exported.
    pub kind: String,
    /// Name in the pool's namespace, verbatim: it may be one that no Service can have.
    pub name: String,
    /// Number of the Service's port; none: it counts as port 0, which no Service has.
    pub port: Option<u16>,
    /// What importing gateways do when the endpoint picker does not answer; none: not set.
    pub failure_mode: Option<FailureMode>,
}

/// A core Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    /// Namespace and name.
    pub key: Key,
    /// Decides which of its addresses are exported.
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
    /// In a Service, the port that clients connect to; in an EndpointSlice, the port that pods listen on.
    pub number: u16,
    /// Transport, such as `TCP`; none: not set.
    pub protocol: Option<String>,
    /// Application protocol, verbatim; none: not set.
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
    /// Addresses of endpoints that still serve while they terminate, sorted: the last resort of the whole Service.
    pub terminating: Vec<IpAddr>,
    /// Ports of all its endpoints.
    pub ports: Vec<PortFacts>,
}

/// A Gateway: what another cluster needs to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayFacts {
    /// Namespace and name.
    pub key: Key,
    /// Whether its data plane works.
    pub programmed: Programmed,
    /// `status.addresses`: IPs and host names, not checked yet.
    pub addresses: Vec<String>,
    /// Those for HTTP or HTTPS whose conditions report no failure.
    pub listeners: Vec<ListenerFacts>,
}

/// The state of a Gateway's data plane, by its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programmed {
    /// It can take requests.
    Yes,
    /// It has no address.
    NoAddress,
    /// Its condition is false or missing.
    No,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFacts {
    /// Unique in its Gateway; what [`RouteParent::section`] names.
    pub name: String,
    /// Port that clients connect to.
    pub port: u16,
    /// HTTP or HTTPS.
    pub protocol: ListenerProtocol,
    /// Hosts that it accepts; any if it names none.
    pub hostname: Hostname,
    /// Namespaces whose routes may attach to it.
    pub admits: Admits,
}

/// Which HTTPRoutes may attach to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    /// Those of the Gateway's namespace.
    SameNamespace,
    /// Those of all namespaces. Also where a selector limits them, which is not evaluated: if no other listener is meant,
    /// the route's status already shows whether it attached.
    AnyNamespace,
    /// None: the listener is for other kinds of routes.
    Nobody,
}

/// An HTTPRoute: what is needed of those that lead to pools or imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteFacts {
    /// Namespace and name.
    pub key: Key,
    /// The Gateways that accepted it.
    pub parents: Vec<RouteParent>,
    /// Any host if the route names none.
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
    /// Name of the one listener it attaches to; none: all of them.
    pub section: Option<String>,
    /// Port of the listeners it attaches to; none: any port.
    pub port: Option<u16>,
}

/// A Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// Its name, also its key in the store.
    pub name: Arc<str>,
    /// Being deleted: nothing can be created in it.
    pub terminating: bool,
}

/// An import as its member's watch last showed it.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveImport {
    /// Namespace and name, the same as of its pools.
    pub key: Key,
    /// Distinguishes a recreated import from the one before; empty: the server sent none, or one that is too long.
    pub uid: String,
    /// Precondition of writes; empty: the server sent none, or one that is too long.
    pub resource_version: String,
    /// `metadata.generation`, which its conditions repeat as `observedGeneration`.
    pub generation: i64,
    /// Its owner, which decides whether we may write or delete it.
    pub claim: Claim,
    /// Names in `status.clusters` that an apply of ours owns.
    pub owned_entries: Arc<Vec<String>>,
    /// The status, which is compared with the plan.
    pub status: LiveStatus,
}

/// Who owns an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// All three ownership labels are ours.
    Ours,
    /// It has none of the labels, and nobody else wrote our parts of the status: we may adopt it.
    Unclaimed,
    /// Another controller or a user owns it: it is never written.
    Foreign,
}

/// The answer to a GET of the pools CRD after a pool vanished (K8: deleting a CRD first deletes all its objects).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdCheck {
    /// It exists and is not being deleted.
    Serving {
        /// A new uid is a new CRD, under which absence proves nothing about earlier objects.
        uid: String,
    },
    /// It is gone or being deleted: the absence of a pool proves nothing.
    Doubtful,
}
