//! One model server that a request can be sent to.

use std::{fmt, net::SocketAddr, sync::Arc};

use crate::{load::Load, snapshot::Member};

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

/// A member of the pool, with what is known of its load. Shared by all snapshots that contain it.
#[derive(Debug)]
pub struct Endpoint {
    id: EndpointId,
    address: SocketAddr,
    engine: Arc<str>,
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
    pub fn new(member: Member) -> Self {
        let Member {
            id,
            address,
            engine,
        } = member;
        Self {
            id,
            address,
            engine,
            load: Load::default(),
        }
    }

    /// Its name.
    pub fn id(&self) -> &EndpointId {
        &self.id
    }

    /// Where it listens. An IPv6 address prints bracketed, as the protocol wants it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it runs, as its pod says; empty: it does not say. Only the names of its metrics hang on it.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Its load, from scrapes and from our own picks.
    pub fn load(&self) -> &Load {
        &self.load
    }
}
