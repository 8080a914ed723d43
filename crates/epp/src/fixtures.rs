//! What many tests need.

use std::net::SocketAddr;

use scheduling::{EndpointId, Member};

/// A member of the namespace `ns` that says nothing of its engine and has no labels.
pub(crate) fn mk_member(pod: &str, address: SocketAddr) -> Member {
    Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: pod.into(),
            rank: 0,
            uid: pod.into(),
        },
        address,
        engine: "".into(),
        labels: std::sync::Arc::default(),
    }
}
