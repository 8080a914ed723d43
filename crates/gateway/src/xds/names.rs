//! Names of listeners, route tables, clusters and secrets: one place, since status and Envoy must mean the same.

use crate::model::{Backend, Protocol};
use crate::world::Key;

/// The pick, as dynamic metadata of namespace [`LB_NAMESPACE`].
pub(crate) const PICK: &str = "x-gateway-destination-endpoint";
/// Clients could narrow the pick with it; metadata of that name is for Envoy alone.
pub(crate) const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Where the request went.
pub(crate) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Inside Envoy: this is not the model's answer, try another cluster.
pub(crate) const FAILOVER: &str = "x-isthmus-failover";
/// The cluster from which a request was sent to a Gateway of another one: from there it goes to no further one. It comes from
/// outside as well: clients that send it restrict themselves.
pub(crate) const HOP: &str = "x-isthmus-hop";
/// Metadata namespace of picks.
pub(crate) const LB_NAMESPACE: &str = "envoy.lb";

/// The listener that clients reach; of HTTP also its routes.
pub(crate) fn edge(port: u16) -> String {
    format!("edge/{port}")
}

/// The routes of a filter chain: of HTTPS each has its own.
pub(crate) fn table(port: u16, protocol: &Protocol) -> String {
    match protocol {
        Protocol::Http => edge(port),
        Protocol::Https { hostname, .. } => format!("edge/{port}/{hostname}"),
    }
}

/// Whether the route table of this name is one of the [`edge`]'s.
pub(crate) fn is_table_of(table: &str, edge: &str) -> bool {
    let rest = table.strip_prefix(edge);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The certificate of a Kubernetes Secret.
pub(crate) fn certificate(secret: &Key) -> String {
    format!("cert/{secret}")
}

/// The authorities in a `ConfigMap`.
pub(crate) fn authorities(map: &Key) -> String {
    format!("ca/{map}")
}

/// Whether the secret of this name is one of [`authorities`], and nothing that must not be read.
pub(crate) fn is_authorities(secret: &str) -> bool {
    secret.starts_with("ca/")
}

/// The internal listener of one exporting cluster of an import, whose endpoint picker is asked.
pub(crate) fn hop(import: &Key, cluster: &str) -> String {
    format!("hop/{import}/{cluster}")
}

/// The internal listener of one exporting cluster of an import, whose Gateways are asked. It has another name than [`hop`]: a
/// cluster that changes its mode gets another listener with another table, and Envoy never has the filters of one mode with the
/// routes of the other.
pub(crate) fn hop_parent(import: &Key, cluster: &str) -> String {
    format!("hop/{import}/{cluster}/@parent")
}

/// The internal listener of a local pool; no cluster can be called `@pool`.
pub(crate) fn hop_pool(pool: &Key) -> String {
    format!("hop/{pool}/@pool")
}

pub(crate) fn service(key: &Key, port: u16) -> String {
    format!("svc/{key}/{port}")
}

pub(crate) fn pool(key: &Key) -> String {
    format!("pool/{key}")
}

/// The way to a pool through its [`hop_pool`].
pub(crate) fn hopped(key: &Key) -> String {
    format!("hopped/{key}")
}

pub(crate) fn epp(pool: &Key) -> String {
    format!("epp/{pool}")
}

pub(crate) fn import(key: &Key) -> String {
    format!("import/{key}")
}

pub(crate) fn epp_of(import: &Key, cluster: &str) -> String {
    format!("epp/{import}/{cluster}")
}

/// Endpoints that the EPP of one exporting cluster picks.
pub(crate) fn pods(import: &Key, cluster: &str) -> String {
    format!("pods/{import}/{cluster}")
}

/// Gateways of one exporting cluster.
pub(crate) fn parent(import: &Key, cluster: &str) -> String {
    format!("parent/{import}/{cluster}")
}

/// No cluster has this name, which makes the answer 500.
pub(crate) const INVALID: &str = "invalid-backend";

/// Whether the cluster of this name serves the backend.
pub(crate) fn is_of_backend(cluster: &str, backend: &Backend) -> bool {
    match backend {
        Backend::Service(key, port) => cluster == service(key, *port),
        Backend::Pool(key) => [pool(key), hopped(key), epp(key)]
            .iter()
            .any(|n| n == cluster),
        Backend::Import(key) => {
            cluster == import(key)
                || [epp_of(key, ""), pods(key, ""), parent(key, "")]
                    .iter()
                    .any(|prefix| cluster.starts_with(prefix))
        }
        Backend::Invalid => false,
    }
}
