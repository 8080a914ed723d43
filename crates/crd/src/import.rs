//! `InferencePoolImport` v1alpha1: what other clusters export under one namespace and name.
//!
//! The object is status-only. Two writers share it: `mci-controller` owns `conditions`, `clusters` and its entry of
//! `controllers`; each gateway owns `parents` in a `controllers` entry of its own. Nothing in the status is required,
//! because either writer's required field would refuse the other's apply. Readers take an absent list as an empty one.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::core::{NamespaceResourceScope, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    annotations::{IMPORT_GROUP, IMPORT_KIND, IMPORT_PLURAL},
    schema,
};

/// API version, without the group.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of the kind.
pub const API_VERSION: &str = "inference.networking.x-k8s.io/v1alpha1";

/// An InferencePool of other clusters, usable as a backendRef. Managed by the ClusterSet controller: not to be edited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolImport {
    #[serde(default = "default_api_version")]
    api_version: Cow<'static, str>,
    #[serde(default = "default_kind")]
    kind: Cow<'static, str>,
    /// Namespace and name are those of the exported pools.
    pub metadata: ObjectMeta,
    /// Empty, and usually absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<InferencePoolImportSpec>,
    /// What is imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<InferencePoolImportStatus>,
}

/// Nothing can be asked for yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InferencePoolImportSpec {}

/// Status communicates the imported targets (endpoint pickers, parents) and their readiness.
// `E` is how an entry is held: as it is, or by somebody who has many imports, shared or not read yet. Said here, because
// what stands above is the description in the CRD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    bound(serialize = "E: Serialize", deserialize = "E: Deserialize<'de>")
)]
pub struct InferencePoolImportStatus<E = ImportedCluster> {
    /// The import's generation that the controller has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted: has a valid entry. Ready: at least one entry is ready. Consistent: the entries agree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The controllers that write this import, each in its own entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 8, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub controllers: Vec<ControllerStatus>,
    /// One entry per exporting cluster; never the cluster this import is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub clusters: Vec<E>,
}

/// What one controller says of this import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// A domain-prefixed path, such as "isthmus.dev/mci-controller".
    #[schemars(length(min = 1, max = 253), extend("pattern" = schema::CONTROLLER_NAME))]
    pub name: String,
    /// All clusters that export the pool, this one included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 1024, "x-kubernetes-list-type" = "atomic"))]
    pub exporting_clusters: Vec<ClusterName>,
    /// The gateways that use this import, written by their controllers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub parents: Vec<ControllerParent>,
    /// The controller's view of the import as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// A cluster, by its name in the ClusterSet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ClusterName {
    /// Name of the cluster.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A parent (usually a Gateway) of routes that use the import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerParent {
    /// Which parent.
    pub parent_ref: ParentReference,
    /// The controller that wrote this entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("pattern" = schema::CONTROLLER_NAME))]
    pub controller_name: Option<String>,
    /// How the import fares under that parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Reference to a parent; group and kind default to Gateway's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ParentReference {
    /// API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub group: Option<String>,
    /// Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: Option<String>,
    /// Name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace; absent: the import's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// The pool of one exporting cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportedCluster {
    /// Name of the exporting cluster in the ClusterSet.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// How gateways reach the pool.
    pub routing_mode: RoutingMode,
    /// First port that the model servers listen on.
    #[schemars(schema_with = "schema::port")]
    pub target_port_number: u16,
    /// All ports that the model servers listen on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 8, "x-kubernetes-list-type" = "atomic"))]
    pub target_ports: Vec<TargetPort>,
    /// Application protocol of the model servers, verbatim from the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub app_protocol: Option<String>,
    /// Facts about the cluster, such as its region; not for selection by default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub labels: BTreeMap<String, String>,
    /// While the export is being withdrawn: when this entry goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::date_time")]
    pub drain_until: Option<Time>,
    /// Networks of the cluster's pods, as the object that makes it a member says: its endpoint picker may pick no endpoint
    /// outside of them.
    #[serde(rename = "podCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::networks")]
    pub pod_cidrs: Vec<String>,
    /// The exported pool's endpoint picker; EndpointMode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_picker: Option<EndpointPicker>,
    /// The exported pool's parents; ParentMode only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub parents: Vec<Parent>,
    /// Accepted, ResolvedRefs, Ready, Reachable; observedGeneration is the exported pool's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// How importing gateways reach an exported pool.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum RoutingMode {
    /// Ask the exporting cluster's endpoint picker, connect to the model server it picks.
    EndpointMode,
    /// Proxy to a parent (a Gateway) in the exporting cluster.
    ParentMode,
}

/// What a gateway does when the endpoint picker fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailureMode {
    /// Pick a model server itself.
    FailOpen,
    /// Drop the request.
    FailClose,
}

/// One port of the model servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TargetPort {
    /// Port number.
    #[schemars(schema_with = "schema::port")]
    pub number: u16,
}

/// The endpoint picker (EPP) of an exported pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPicker {
    /// Name of its Service in the exporting cluster.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Where it serves ext_proc.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(extend("maxItems" = 4, "x-kubernetes-list-type" = "atomic"))]
    pub service: Vec<ServiceEndpoints>,
    /// Where it serves gRPC health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<PortRef>,
    /// Where it serves Prometheus metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<PortRef>,
    /// The exporter's wish; absent: FailClose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_mode: Option<FailureMode>,
    /// Addresses of the ready EPP pods, where the controller publishes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 100, "x-kubernetes-list-type" = "atomic"))]
    pub endpoints: Vec<String>,
}

/// A port of the endpoint picker, with an optional credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRef {
    /// Port number.
    #[schemars(schema_with = "schema::port")]
    pub port: u16,
    /// A Secret in the import's namespace; Isthmus copies none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// Reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// Addresses and ports of a Service in the exporting cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ServiceEndpoints {
    /// Type of the Service, for information.
    #[serde(rename = "type")]
    pub type_: ServiceType,
    /// IP addresses and host names, as the exporting cluster gives them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::addresses")]
    pub addresses: Vec<String>,
    /// Ports that are served on each address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<ServicePort>,
}

/// Type of a core Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Cluster-internal addresses.
    ClusterIP,
    /// Published by its cluster addresses.
    NodePort,
    /// Addresses of a load balancer.
    LoadBalancer,
    /// A DNS name: never accepted for an export.
    ExternalName,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Port number.
    #[schemars(schema_with = "schema::port")]
    pub number: u16,
    /// Name of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// Transport protocol; absent: TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub protocol: Option<String>,
    /// Application protocol, verbatim from the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub app_protocol: Option<String>,
}

/// A parent of the exported pool: a Gateway of the exporting cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// Name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Where it listens.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(extend("maxItems" = 4, "x-kubernetes-list-type" = "atomic"))]
    pub service: Vec<ServiceEndpoints>,
    /// Host names under which its routes lead to the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub hostnames: Vec<String>,
    /// Its HTTP and HTTPS listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub listeners: Vec<Listener>,
    /// Programmed, HostnamesKnown, LoopFree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// A listener of a parent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Listener {
    /// Name of the listener.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Port number.
    #[schemars(schema_with = "schema::port")]
    pub port: u16,
    /// Protocol.
    pub protocol: ListenerProtocol,
    /// Host name that it is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub hostname: Option<String>,
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ListenerProtocol {
    /// Cleartext HTTP.
    #[serde(rename = "HTTP")]
    Http,
    /// HTTP over TLS.
    #[serde(rename = "HTTPS")]
    Https,
}

// === impl InferencePoolImport ===

impl InferencePoolImport {
    /// An import without status, as it is created.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            api_version: default_api_version(),
            kind: default_kind(),
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: None,
            status: None,
        }
    }

    /// The entries of exporting clusters; an absent list is an empty one.
    pub fn clusters(&self) -> &[ImportedCluster] {
        self.status
            .as_ref()
            .map_or(&[][..], |status| &status.clusters)
    }

    /// The conditions of the import as a whole.
    pub fn conditions(&self) -> &[Condition] {
        self.status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions)
    }

    /// What the named controller has written.
    pub fn controller(&self, name: &str) -> Option<&ControllerStatus> {
        self.status
            .as_ref()?
            .controllers
            .iter()
            .find(|controller| controller.name == name)
    }
}

// === impl InferencePoolImportStatus ===

impl<E> Default for InferencePoolImportStatus<E> {
    fn default() -> Self {
        Self {
            observed_generation: None,
            conditions: Vec::new(),
            controllers: Vec::new(),
            clusters: Vec::new(),
        }
    }
}

impl Resource for InferencePoolImport {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        IMPORT_KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        IMPORT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        IMPORT_PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn default_api_version() -> Cow<'static, str> {
    Cow::Borrowed(API_VERSION)
}

fn default_kind() -> Cow<'static, str> {
    Cow::Borrowed(IMPORT_KIND)
}

/// The proposal's types say a list, its example an object (C1): we write the list and read both.
fn one_or_many<'de, D>(deserializer: D) -> Result<Vec<ServiceEndpoints>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        Many(Vec<ServiceEndpoints>),
        One(ServiceEndpoints),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(many) => many,
        OneOrMany::One(one) => vec![one],
    })
}

#[cfg(test)]
mod tests;
