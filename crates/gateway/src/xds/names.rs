//! Names of listeners, route tables, clusters and secrets: one place, since status and Envoy must mean the same.

use crate::feedback::Refused;
use crate::model::Protocol;
use crate::world::Key;

use super::Kind;

pub(crate) use crate::resource::certificate_name as certificate;

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

/// What is not served as it shall be while Envoy refuses the resource of this name.
pub(crate) fn refused(kind: Kind, name: &str) -> Refused {
    let parts: Vec<&str> = name.split('/').collect();
    let number = |text: &str| text.parse::<u16>().ok();
    let found = match (kind, &parts[..]) {
        (Kind::Secret, ["cert", namespace, name]) => {
            Some(Refused::Certificate(Key::new(*namespace, *name)))
        }
        (Kind::Listener, ["edge", port]) => number(port).map(Refused::Port),
        (Kind::Routes, ["edge", port, hostname @ ..]) => {
            let hostname = hostname.first().map(ToString::to_string);
            number(port).map(|port| Refused::Table { port, hostname })
        }
        (Kind::Listener | Kind::Routes, ["hop", namespace, name, "@pool"])
        | (Kind::Cluster | Kind::Endpoints, ["pool" | "hopped" | "epp", namespace, name]) => {
            Some(Refused::Pool(Key::new(*namespace, *name)))
        }
        (Kind::Listener | Kind::Routes, ["hop", namespace, name, ..]) => {
            Some(Refused::Import(Key::new(*namespace, *name)))
        }
        (Kind::Cluster | Kind::Endpoints, ["svc", namespace, name, port]) => {
            let key = Key::new(*namespace, *name);
            number(port).map(|port| Refused::Service(key, port))
        }
        (
            Kind::Cluster | Kind::Endpoints,
            ["import", namespace, name] | ["epp" | "pods" | "parent", namespace, name, _],
        ) => Some(Refused::Import(Key::new(*namespace, *name))),
        _ => None,
    };
    found.unwrap_or(Refused::Other)
}

#[cfg(test)]
mod tests {
    use crd::Hostname;

    use super::*;
    use crate::fixture::key;

    /// Each name that is made, and what its resource is for.
    #[test]
    fn names_say_what_is_refused() {
        let secure = Protocol::Https {
            hostname: Hostname::parse(Some("*.a.b")),
            certificates: Vec::new(),
        };
        let llm = key("llm");
        let (pool, import) = (Refused::Pool(llm.clone()), Refused::Import(llm.clone()));
        let of_table = |hostname: Option<&str>| Refused::Table {
            port: 443,
            hostname: hostname.map(ToOwned::to_owned),
        };
        let cases = [
            (Kind::Listener, edge(443), Refused::Port(443)),
            (Kind::Routes, table(443, &Protocol::Http), of_table(None)),
            (Kind::Routes, table(443, &secure), of_table(Some("*.a.b"))),
            (
                Kind::Secret,
                certificate(&llm),
                Refused::Certificate(llm.clone()),
            ),
            (
                Kind::Secret,
                crate::resource::authorities_name(&llm),
                Refused::Other,
            ),
            (
                Kind::Cluster,
                service(&llm, 80),
                Refused::Service(llm.clone(), 80),
            ),
            (Kind::Cluster, super::pool(&llm), pool.clone()),
            (Kind::Cluster, hopped(&llm), pool.clone()),
            (Kind::Endpoints, epp(&llm), pool.clone()),
            (Kind::Listener, hop_pool(&llm), pool.clone()),
            (Kind::Routes, hop_pool(&llm), pool),
            (Kind::Listener, hop(&llm, "east"), import.clone()),
            (Kind::Routes, hop_parent(&llm, "east"), import.clone()),
            (Kind::Cluster, super::import(&llm), import.clone()),
            (Kind::Cluster, epp_of(&llm, "east"), import.clone()),
            (Kind::Cluster, pods(&llm, "east"), import.clone()),
            (Kind::Endpoints, parent(&llm, "east"), import),
            (Kind::Cluster, INVALID.to_owned(), Refused::Other),
            (Kind::Listener, "edge/x".to_owned(), Refused::Other),
        ];
        for (kind, name, expected) in cases {
            assert_eq!(refused(kind, &name), expected, "{name}");
        }
    }
}
