//! The routing model as Envoy resources (pure), and the server that keeps Envoys at them.
//!
//! ```text
//! GatewayModel ── translate ──► Plan ── assignments(Endpoints, Selection) ──► Snapshot ──► ads (one state machine per Envoy)
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::resource::is_authorities;

pub(crate) mod ads;
mod cluster;
mod endpoints;
mod errors;
mod extproc;
mod filters;
mod http;
mod listener;
pub(crate) mod names;
pub(crate) mod proto;
mod redirect;
mod route;
mod served;
mod translate;
mod upstream_tls;

#[cfg(test)]
mod real;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use crate::resource::Resource;
pub(crate) use endpoints::Assignment;
#[cfg(test)]
pub(crate) use endpoints::assign;
pub(crate) use served::{Reads, Served};
pub(crate) use translate::{Plan, translate};

/// What of Envoy's configuration does not come from the cluster's objects.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Service name asked for in gRPC health checks of EPPs.
    pub(crate) health_service: String,
    /// Streams without a byte for this long end.
    pub(crate) stream_idle_timeout: Duration,
    /// Request bodies up to this many bytes can be retried.
    pub(crate) retry_body_limit: u64,
    /// What edges bind.
    pub(crate) bind_address: IpAddr,
    /// This cluster's name, which requests to Gateways of other clusters carry.
    pub(crate) cluster_name: String,
    /// The file in Envoy's image with the authorities that certificates of such Gateways are verified by.
    pub(crate) roots: String,
}

/// The resource types we serve, in the order that adds are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Cluster,
    Endpoints,
    /// Certificates with their keys, and those of authorities.
    Secret,
    Listener,
    Routes,
}

/// All resources of one Gateway, by type and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Of the Gateway: Envoys of one that had its name before are not served.
    pub(crate) uid: String,
    pub(crate) clusters: BTreeMap<String, Arc<Resource>>,
    pub(crate) endpoints: BTreeMap<String, Arc<Resource>>,
    pub(crate) secrets: BTreeMap<String, Arc<Resource>>,
    pub(crate) listeners: BTreeMap<String, Arc<Resource>>,
    pub(crate) routes: BTreeMap<String, Arc<Resource>>,
}

// === impl Kind ===

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Cluster,
        Self::Endpoints,
        Self::Secret,
        Self::Listener,
        Self::Routes,
    ];

    pub(crate) fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Routes => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    pub(crate) fn of_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == url)
    }

    /// For metrics and people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cds",
            Self::Endpoints => "eds",
            Self::Secret => "sds",
            Self::Listener => "lds",
            Self::Routes => "rds",
        }
    }
}

// === impl Snapshot ===

impl Snapshot {
    pub(crate) fn of(&self, kind: Kind) -> &BTreeMap<String, Arc<Resource>> {
        match kind {
            Kind::Cluster => &self.clusters,
            Kind::Endpoints => &self.endpoints,
            Kind::Secret => &self.secrets,
            Kind::Listener => &self.listeners,
            Kind::Routes => &self.routes,
        }
    }

    /// The same for an Envoy that may not have private keys.
    pub(crate) fn without_secrets(&self) -> Self {
        let public = self.secrets.iter();
        let public = public.filter(|(name, _)| is_authorities(name));
        Self {
            secrets: public
                .map(|(name, resource)| (name.clone(), Arc::clone(resource)))
                .collect(),
            ..self.clone()
        }
    }
}
