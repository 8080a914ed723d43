//! Gateways and HTTPRoutes: the parents of an exported pool, and the hosts under which they route to it.

use std::collections::BTreeSet;

use crd::{
    Condition, Hostname, ListenerProtocol,
    annotations::{GATEWAY_GROUP, IMPORT_GROUP, IMPORT_KIND, POOL_GROUP, POOL_KIND},
    conditions::{self, ACCEPTED, CONFLICTED, PROGRAMMED},
    gateway::{Gateway, GatewayStatus, GatewayStatusListeners},
    http_route::{HttpRoute, HttpRouteParentRefs, HttpRouteStatus, HttpRouteStatusParents},
    inference_pool::InferencePoolStatusParents,
};
use kube::Resource;
use serde::Deserialize;

use super::{bounds::few, key_of, port_number, slim::Slim, within};
use crate::{
    index::facts::{Admits, GatewayFacts, ListenerFacts, Programmed, RouteFacts, RouteParent},
    name::{Key, is_subdomain},
};

/// A Gateway, as far as we read it.
pub(in crate::member) type GatewayObject = Slim<Gateway, GatewaySpec, GatewayStatus>;
/// An HTTPRoute, as far as we read it.
pub(in crate::member) type RouteObject = Slim<HttpRoute, RouteSpec, HttpRouteStatus>;

#[derive(Clone, Debug, Default, Deserialize)]
pub(in crate::member) struct GatewaySpec {
    #[serde(default)]
    listeners: Vec<RawListener>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawListener {
    name: String,
    port: i32,
    protocol: String,
    hostname: Option<String>,
    allowed_routes: Option<AllowedRoutes>,
}

#[derive(Clone, Debug, Deserialize)]
struct AllowedRoutes {
    #[serde(default)]
    kinds: Vec<RouteKind>,
    namespaces: Option<RouteNamespaces>,
}

#[derive(Clone, Debug, Deserialize)]
struct RouteKind {
    group: Option<String>,
    kind: String,
}

#[derive(Clone, Debug, Deserialize)]
struct RouteNamespaces {
    from: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::member) struct RouteSpec {
    #[serde(default)]
    parent_refs: Vec<HttpRouteParentRefs>,
    #[serde(default)]
    hostnames: Vec<String>,
    #[serde(default)]
    rules: Vec<RouteRule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouteRule {
    #[serde(default)]
    backend_refs: Vec<BackendRef>,
}

#[derive(Clone, Debug, Deserialize)]
struct BackendRef {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    weight: Option<i32>,
}

const GATEWAY_KIND: &str = "Gateway";
const ROUTE_KIND: &str = "HTTPRoute";
/// Reasons of `Programmed` by which a Gateway wants an address.
const WANTS_ADDRESS: [&str; 2] = ["AddressNotAssigned", "AddressNotUsable"];

/// What the CRDs of the pool, the Gateway and the route admit; a server that admits more is not followed.
const MAX_POOL_PARENTS: usize = 32;
const MAX_ROUTE_PARENTS: usize = 32;
const MAX_LISTENERS: usize = 64;
const MAX_ADDRESSES: usize = 16;
const MAX_HOSTNAMES: usize = 16;
/// 16 rules of 16 references.
const MAX_TARGETS: usize = 256;
/// An address is an IP or a host name, and so long is a host name with its `*.`, too.
const MAX_ADDRESS: usize = 253;

/// The Gateways among a pool's parents that accepted it. Other kinds are imports, and the placeholder `Status`.
pub(super) fn accepting_gateways(
    parents: &[InferencePoolStatusParents],
    namespace: &str,
) -> Vec<Key> {
    let accepting = parents.iter().filter_map(|parent| {
        let reference = &parent.parent_ref;
        let conditions = parent.conditions.as_deref().unwrap_or_default();
        let gateway = is_gateway(reference.group.as_deref(), reference.kind.as_deref());
        if !gateway || !conditions::is_true(conditions, ACCEPTED) {
            return None;
        }
        let namespace = reference.namespace.as_deref().unwrap_or(namespace);
        Key::checked(namespace, &reference.name)
    });
    let mut keys: Vec<Key> = accepting.take(MAX_POOL_PARENTS).collect();
    // in the order of the entry
    keys.sort_unstable_by(|a, b| a.text().cmp(&b.text()));
    keys.dedup();
    keys
}

/// A Gateway.
pub(in crate::member) fn gateway(object: GatewayObject) -> Option<GatewayFacts> {
    let key = key_of(object.meta())?;
    let (conditions, addresses, listeners) = match object.status {
        Some(status) => (status.conditions, status.addresses, status.listeners),
        None => (None, None, None),
    };
    let seen = listeners.unwrap_or_default();
    let addresses = addresses
        .unwrap_or_default()
        .into_iter()
        .filter(|address| {
            matches!(
                address.r#type.as_deref(),
                None | Some("IPAddress" | "Hostname")
            )
        })
        .filter_map(|address| within(Some(address.value), MAX_ADDRESS));
    let listeners = object.spec.listeners.into_iter();
    Some(GatewayFacts {
        key,
        programmed: programmed(&conditions.unwrap_or_default()),
        addresses: few(addresses, MAX_ADDRESSES),
        listeners: few(
            listeners.filter_map(|one| listener(one, &seen)),
            MAX_LISTENERS,
        ),
    })
}

fn programmed(conditions: &[Condition]) -> Programmed {
    let refused = conditions::is_false(conditions, ACCEPTED);
    match conditions::find(conditions, PROGRAMMED) {
        Some(_) if !refused && conditions::is_true(conditions, PROGRAMMED) => Programmed::Yes,
        Some(condition) if WANTS_ADDRESS.contains(&condition.reason.as_str()) => {
            Programmed::NoAddress
        }
        _ => Programmed::No,
    }
}

/// A listener for HTTP or HTTPS, unless a condition in its status shows that it does not work.
fn listener(one: RawListener, seen: &[GatewayStatusListeners]) -> Option<ListenerFacts> {
    let protocol = match one.protocol.as_str() {
        "HTTP" => ListenerProtocol::Http,
        "HTTPS" => ListenerProtocol::Https,
        _ => return None,
    };
    let status = seen.iter().find(|status| status.name == one.name);
    let broken = status.is_some_and(|status| {
        conditions::is_false(&status.conditions, ACCEPTED)
            || conditions::is_false(&status.conditions, PROGRAMMED)
            || conditions::is_true(&status.conditions, CONFLICTED)
    });
    if broken || !is_subdomain(&one.name) {
        return None;
    }
    let hostname = match one.hostname.as_deref() {
        None | Some("") => Hostname::Any,
        Some(text) => hostname(text)?,
    };
    let allowed = one.allowed_routes.as_ref();
    let kinds = allowed.map_or(&[][..], |allowed| &allowed.kinds);
    let for_routes = kinds.is_empty()
        || kinds.iter().any(|kind| {
            kind.group.as_deref().unwrap_or(GATEWAY_GROUP) == GATEWAY_GROUP
                && kind.kind == ROUTE_KIND
        });
    let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
    let from = namespaces.and_then(|namespaces| namespaces.from.as_deref());
    let admits = match from {
        _ if !for_routes => Admits::Nobody,
        None | Some("Same") => Admits::SameNamespace,
        Some("All" | "Selector") => Admits::AnyNamespace,
        Some(_) => Admits::Nobody,
    };
    Some(ListenerFacts {
        name: one.name,
        port: port_number(one.port)?,
        protocol,
        hostname,
        admits,
    })
}

/// An HTTPRoute. One without pools or imports is kept empty: it may have had some before.
pub(in crate::member) fn route(object: RouteObject) -> Option<RouteFacts> {
    let key = key_of(object.meta())?;
    let seen = object.status.map_or_else(Vec::new, |status| status.parents);
    let parents: Vec<RouteParent> = object
        .spec
        .parent_refs
        .iter()
        .filter_map(|parent| accepted_parent(parent, &seen, &key))
        .take(MAX_ROUTE_PARENTS)
        .collect();
    let named = object.spec.hostnames;
    let hostnames: Vec<Hostname> = if named.is_empty() {
        vec![Hostname::Any]
    } else {
        let valid = named.iter().filter_map(|text| hostname(text));
        valid.take(MAX_HOSTNAMES).collect()
    };
    let mut pools = BTreeSet::new();
    let mut imports = BTreeSet::new();
    if !parents.is_empty() && !hostnames.is_empty() {
        let targets = object.spec.rules.iter().flat_map(|rule| &rule.backend_refs);
        for target in targets.take(MAX_TARGETS) {
            pools.extend(target_in(target, POOL_GROUP, POOL_KIND, &key));
            imports.extend(target_in(target, IMPORT_GROUP, IMPORT_KIND, &key));
        }
    }
    Some(RouteFacts {
        key,
        parents,
        hostnames,
        pools,
        imports,
    })
}

/// The Gateway behind a parentRef, if it accepted the route according to the status.
fn accepted_parent(
    parent: &HttpRouteParentRefs,
    seen: &[HttpRouteStatusParents],
    route: &Key,
) -> Option<RouteParent> {
    if !is_gateway(parent.group.as_deref(), parent.kind.as_deref()) {
        return None;
    }
    let namespace = parent.namespace.as_deref().unwrap_or(&route.namespace);
    let accepted = seen.iter().any(|status| {
        let found = &status.parent_ref;
        is_gateway(found.group.as_deref(), found.kind.as_deref())
            && found.namespace.as_deref().unwrap_or(&route.namespace) == namespace
            && found.name == parent.name
            && found.section_name == parent.section_name
            && found.port == parent.port
            && conditions::is_true(&status.conditions, ACCEPTED)
    });
    if !accepted {
        return None;
    }
    let section = parent.section_name.as_deref();
    if section.is_some_and(|name| !is_subdomain(name)) {
        return None;
    }
    Some(RouteParent {
        gateway: Key::checked(namespace, &parent.name)?,
        section: section.map(str::to_owned),
        port: match parent.port {
            None => None,
            Some(port) => Some(port_number(port)?),
        },
    })
}

/// The object of this kind that a reference sends requests to. Weight 0 sends none.
fn target_in(target: &BackendRef, group: &str, kind: &str, route: &Key) -> Option<Key> {
    let meant = target.group.as_deref() == Some(group) && target.kind.as_deref() == Some(kind);
    if !meant || target.weight == Some(0) {
        return None;
    }
    let namespace = target.namespace.as_deref().unwrap_or(&route.namespace);
    Key::checked(namespace, &target.name)
}

/// A host as Gateway API admits it: an RFC 1123 name, with or without `*.` before it.
fn hostname(text: &str) -> Option<Hostname> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let fits = text.len() <= MAX_ADDRESS && is_subdomain(name);
    fits.then(|| Hostname::parse(Some(text)))
}

/// Whether a parentRef with this group and kind means a Gateway, which is also the default.
fn is_gateway(group: Option<&str>, kind: Option<&str>) -> bool {
    group.unwrap_or(GATEWAY_GROUP) == GATEWAY_GROUP && kind.unwrap_or(GATEWAY_KIND) == GATEWAY_KIND
}

#[cfg(test)]
mod tests;
