//! One model server that a request can be sent to.

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc};

use crate::{load::Load, slot::Slot};

/// Names one (pod, target port) for as long as the pod lives.
///
/// The uid is part of the identity: a pod that was deleted and made anew under the same name is
/// another endpoint, with no history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Index in the pool's target ports, 0 to 7: the data-parallel rank.
    pub rank: u8,
    /// UID of the pod.
    pub uid: Arc<str>,
}

/// Labels of a pod.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// What discovery says about one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its name.
    pub id: EndpointId,
    /// Where it serves requests and metrics.
    pub address: SocketAddr,
    /// What it runs, as its pod says; may be empty.
    pub engine: Arc<str>,
    /// Labels of its pod, for filters.
    pub labels: Arc<Labels>,
}

/// A model server, with what is known of its load. It keeps its slot while labels change and while it leaves and
/// comes back.
#[derive(Debug)]
pub struct Endpoint {
    slot: Slot,
    id: EndpointId,
    address: SocketAddr,
    /// The address in text, as every answer has it.
    destination: Box<str>,
    load: Load,
}

// === impl EndpointId ===

/// `namespace/pod-rank-0`, as the ecosystem labels its metrics.
impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            pod,
            rank,
            uid: _,
        } = self;
        write!(f, "{namespace}/{pod}-rank-{rank}")
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// An endpoint of whose load nothing is known yet.
    pub(crate) fn new(slot: Slot, id: EndpointId, address: SocketAddr) -> Self {
        Self {
            slot,
            id,
            address,
            destination: address.to_string().into(),
            load: Load::default(),
        }
    }

    /// Its place in tables.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Its name.
    pub fn id(&self) -> &EndpointId {
        &self.id
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address in the protocol's text: `10.0.0.1:8000`, `[fd00::1]:8000`.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Its load, from scrapes and from our own picks.
    pub fn load(&self) -> &Load {
        &self.load
    }
}
