//! Names that stand in other objects' metadata: annotations, labels, field managers.

/// API group of [`InferencePoolImport`](crate::InferencePoolImport).
pub const IMPORT_GROUP: &str = "inference.networking.x-k8s.io";
/// Kind of [`InferencePoolImport`](crate::InferencePoolImport).
pub const IMPORT_KIND: &str = "InferencePoolImport";
/// Plural of [`InferencePoolImport`](crate::InferencePoolImport), as in URLs.
pub const IMPORT_PLURAL: &str = "inferencepoolimports";
/// API group of `InferencePool` v1.
pub const POOL_GROUP: &str = "inference.networking.k8s.io";
/// Kind of `InferencePool`.
pub const POOL_KIND: &str = "InferencePool";
/// API group of Gateway, GatewayClass, HTTPRoute, ReferenceGrant.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// On a pool: asks for its export. The only legal value is [`EXPORT_CLUSTER_SET`] (R15).
pub const EXPORT: &str = "inference.networking.x-k8s.io/export";
/// Value of [`EXPORT`]: to all members of the ClusterSet.
pub const EXPORT_CLUSTER_SET: &str = "ClusterSet";
/// On a pool, beside [`EXPORT`]: how importing gateways reach it, `EndpointMode` or `ParentMode` (R16).
pub const EXPORT_MODE: &str = "inference.networking.x-k8s.io/export-mode";

/// On an exported pool: seconds (0-3600) that a withdrawn entry stays, marked as draining.
pub const DRAIN_SECONDS: &str = "isthmus.dev/drain-seconds";
/// On a pool: number or name of the EPP Service's port that serves gRPC health.
pub const HEALTH_PORT: &str = "isthmus.dev/health-port";
/// On a pool: number or name of the EPP Service's port that serves metrics.
pub const METRICS_PORT: &str = "isthmus.dev/metrics-port";
/// On a pool: name of the Secret, in the import's namespace, for health checks.
pub const HEALTH_SECRET: &str = "isthmus.dev/health-secret";
/// On a pool: name of the Secret, in the import's namespace, for scraping metrics.
pub const METRICS_SECRET: &str = "isthmus.dev/metrics-secret";

/// Label of a Secret at home that is a member; its value is `true`.
pub const MEMBER: &str = "isthmus.dev/member";
/// On a member's Secret: the member's name, where it is not the Secret's.
pub const CLUSTER_NAME: &str = "isthmus.dev/cluster-name";
/// On a member's Secret or ClusterProfile: networks that the member's addresses are narrowed to.
pub const ALLOWED_ADDRESSES: &str = "isthmus.dev/allowed-addresses";
/// On a member's Secret or ClusterProfile, or a property of that: networks of the member's pods, which its endpoint
/// pickers may pick from.
pub const POD_CIDRS: &str = "isthmus.dev/pod-cidrs";
/// The same: namespaces whose pools the member may export.
pub const EXPORT_NAMESPACES: &str = "isthmus.dev/export-namespaces";
/// On a member's Secret or ClusterProfile: uid of a cluster that may take the member's name over.
pub const ACCEPT_IDENTITY: &str = "isthmus.dev/accept-identity";
/// On what a member grants a controller: identity of the home that `kubectl mci leave` has begun to take it away for.
pub const LEAVING: &str = "isthmus.dev/leaving";

/// Label of objects a controller of ours manages; see [`MANAGED_BY_CONTROLLER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on imports.
pub const MANAGED_BY_CONTROLLER: &str = "isthmus-mci-controller";
/// Label of an import: the ClusterSet it belongs to.
pub const CLUSTERSET: &str = "isthmus.dev/clusterset";
/// Label of an import: the controller instance that wrote it.
pub const CONTROLLER_INSTANCE: &str = "isthmus.dev/controller-instance";

/// Field manager and default controller name of `mci-controller`.
pub const MCI_CONTROLLER: &str = "isthmus.dev/mci-controller";
/// Field manager and controller name of `gateway`.
pub const GATEWAY_CONTROLLER: &str = "isthmus.dev/gateway";

/// Annotation of a CRD: the release of its API group; ours equals that of the InferencePool CRD we are built for.
pub const BUNDLE_VERSION: &str = "inference.networking.k8s.io/bundle-version";
/// Value of [`BUNDLE_VERSION`] on our CRD.
pub const BUNDLE_VERSION_VALUE: &str = "v1.6.0";
/// The same of CRDs of the group `isthmus.dev`.
pub const OWN_BUNDLE_VERSION: &str = "isthmus.dev/bundle-version";
/// Value of [`OWN_BUNDLE_VERSION`]: changes with the schema of one of them.
pub const OWN_BUNDLE_VERSION_VALUE: &str = "v0.1.0";

/// Label of a Secret in an import's namespace: the exporting cluster whose endpoint picker the Secret's credential may be
/// sent to. A cluster names the Secret, so without the label it could have any other sent to itself.
pub const METRICS_CREDENTIAL: &str = "isthmus.dev/metrics-credential";
