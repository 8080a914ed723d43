//! What becomes of what this gateway makes: the objects that run Gateways, what their Envoys refuse, and what writers met.
//!
//! Status is made from it, and it says when objects of before may go. What Envoys serve never follows from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::Key;

/// The newest of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feedback {
    /// What runs for Gateways, by the name of its objects: one whose class changed has two for a while.
    pub(crate) infra: BTreeMap<Key, Infra>,
    /// Objects of others that stand where a Gateway's should be, for people; by Gateway.
    pub(crate) taken: BTreeMap<Key, String>,
    /// Objects of a Gateway that the API server does not take as they are wanted, for people; by Gateway.
    pub(crate) refused: BTreeMap<Key, String>,
    /// What Envoys refused, by Gateway.
    pub(crate) rejections: BTreeMap<Key, Vec<Rejection>>,
}

/// What runs for one Gateway, as seen in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Infra {
    /// IPs and hostnames of the LoadBalancer Service (its clusterIP where its type is ClusterIP).
    pub(crate) addresses: Vec<String>,
    /// Ports of that Service.
    pub(crate) ports: BTreeSet<u16>,
    /// Available replicas of the Deployment.
    pub(crate) available: i32,
    /// Why more of them cannot be made.
    pub(crate) failure: Option<String>,
}

/// A resource that an Envoy of the Gateway refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// What is not served as it shall be while the resource is refused.
    pub(crate) of: Refused,
    /// The resource's own name.
    pub(crate) name: String,
    /// Who refuses it, and why.
    pub(crate) message: String,
    /// Envoys that are ready do not refuse it.
    pub(crate) others_serve: bool,
}

/// The part of a Gateway that a resource is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// All listeners of this port.
    Port(u16),
    /// The routes of one filter chain.
    Table {
        port: u16,
        /// The chain's host name as it is written; none with HTTP, which has one chain for a port.
        hostname: Option<String>,
    },
    /// The certificate in the Secret with this key.
    Certificate(Key),
    /// Clusters of the port of a Service.
    Service(Key, u16),
    /// Clusters, internal listeners and their tables of a pool.
    Pool(Key),
    /// Those of an import.
    Import(Key),
    /// Nothing that a status is about.
    Other,
}

// === impl Feedback ===

impl Feedback {
    /// What Envoys of the Gateway refused.
    pub(crate) fn rejections_of(&self, gateway: &Key) -> &[Rejection] {
        self.rejections.get(gateway).map_or(&[], Vec::as_slice)
    }
}
