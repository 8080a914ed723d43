//! The kinds that are served.

/// One kind, as it stands in URLs and objects.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// API group; empty for core.
    pub group: &'static str,
    /// API version, without the group.
    pub version: &'static str,
    /// As in URLs.
    pub plural: &'static str,
    /// As in objects.
    pub kind: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Served only while a CRD stands.
    pub custom: bool,
}

const fn core(plural: &'static str, kind: &'static str) -> Kind {
    Kind {
        group: "",
        version: "v1",
        plural,
        kind,
        namespaced: true,
        custom: false,
    }
}

const fn custom(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Kind {
    Kind {
        group,
        version,
        plural,
        kind,
        namespaced: true,
        custom: true,
    }
}

/// Namespace.
pub static NAMESPACES: Kind = Kind {
    namespaced: false,
    ..core("namespaces", "Namespace")
};
/// Service.
pub static SERVICES: Kind = core("services", "Service");
/// Pod.
pub static PODS: Kind = core("pods", "Pod");
/// Secret.
pub static SECRETS: Kind = core("secrets", "Secret");
/// `ConfigMap`.
pub static CONFIG_MAPS: Kind = core("configmaps", "ConfigMap");
/// Event of the core group.
pub static CORE_EVENTS: Kind = core("events", "Event");
/// Event.
pub static EVENTS: Kind = Kind {
    group: "events.k8s.io",
    ..core("events", "Event")
};
/// `EndpointSlice`.
pub static ENDPOINT_SLICES: Kind = Kind {
    group: "discovery.k8s.io",
    ..core("endpointslices", "EndpointSlice")
};
/// Lease.
pub static LEASES: Kind = Kind {
    group: "coordination.k8s.io",
    ..core("leases", "Lease")
};
/// `CustomResourceDefinition`.
pub static CRDS: Kind = Kind {
    group: "apiextensions.k8s.io",
    namespaced: false,
    ..core("customresourcedefinitions", "CustomResourceDefinition")
};
/// `InferencePool`.
pub static POOLS: Kind = custom(
    "inference.networking.k8s.io",
    "v1",
    "inferencepools",
    "InferencePool",
);
/// `InferencePoolImport`.
pub static IMPORTS: Kind = custom(
    "inference.networking.x-k8s.io",
    "v1alpha1",
    "inferencepoolimports",
    "InferencePoolImport",
);
/// Gateway.
pub static GATEWAYS: Kind = custom("gateway.networking.k8s.io", "v1", "gateways", "Gateway");
/// `HTTPRoute`.
pub static HTTP_ROUTES: Kind = custom("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute");
/// `GatewayClass`.
pub static GATEWAY_CLASSES: Kind = Kind {
    namespaced: false,
    ..custom(
        "gateway.networking.k8s.io",
        "v1",
        "gatewayclasses",
        "GatewayClass",
    )
};
/// `ReferenceGrant`.
pub static REFERENCE_GRANTS: Kind = custom(
    "gateway.networking.k8s.io",
    "v1",
    "referencegrants",
    "ReferenceGrant",
);
/// Node.
pub static NODES: Kind = Kind {
    namespaced: false,
    ..core("nodes", "Node")
};
/// `ServiceCIDR`.
pub static SERVICE_CIDRS: Kind = Kind {
    group: "networking.k8s.io",
    namespaced: false,
    ..core("servicecidrs", "ServiceCIDR")
};
/// Deployment.
pub static DEPLOYMENTS: Kind = Kind {
    group: "apps",
    ..core("deployments", "Deployment")
};
/// `ServiceAccount`.
pub static SERVICE_ACCOUNTS: Kind = core("serviceaccounts", "ServiceAccount");
/// `PodDisruptionBudget`.
pub static DISRUPTION_BUDGETS: Kind = Kind {
    group: "policy",
    ..core("poddisruptionbudgets", "PodDisruptionBudget")
};
/// `ClusterProperty`.
pub static CLUSTER_PROPERTIES: Kind = Kind {
    namespaced: false,
    ..custom(
        "about.k8s.io",
        "v1alpha1",
        "clusterproperties",
        "ClusterProperty",
    )
};
/// `ClusterProfile`.
pub static CLUSTER_PROFILES: Kind = custom(
    "multicluster.x-k8s.io",
    "v1alpha1",
    "clusterprofiles",
    "ClusterProfile",
);

pub(crate) static ALL: [&Kind; 23] = [
    &NAMESPACES,
    &SERVICES,
    &PODS,
    &SECRETS,
    &CONFIG_MAPS,
    &CORE_EVENTS,
    &EVENTS,
    &ENDPOINT_SLICES,
    &LEASES,
    &CRDS,
    &POOLS,
    &IMPORTS,
    &GATEWAYS,
    &HTTP_ROUTES,
    &GATEWAY_CLASSES,
    &REFERENCE_GRANTS,
    &NODES,
    &SERVICE_CIDRS,
    &DEPLOYMENTS,
    &SERVICE_ACCOUNTS,
    &DISRUPTION_BUDGETS,
    &CLUSTER_PROPERTIES,
    &CLUSTER_PROFILES,
];

// === impl Kind ===

impl Kind {
    /// `group/version`, or the version alone.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Name of its CRD.
    pub fn crd_name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }
}
