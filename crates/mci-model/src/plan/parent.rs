//! The parents of an entry in ParentMode: the Gateways that lead to the pool in its own cluster (spec 4.1).
//!
//! The entry lists only those listeners of a Gateway to which a route to the pool attaches: any other would answer 404.
//! Where the routes are not known, it lists all HTTP and HTTPS listeners.

use std::collections::{BTreeMap, BTreeSet};

use crd::{
    Hostname, Listener, ListenerProtocol, Parent, ServiceEndpoints, ServicePort, ServiceType,
    conditions::{self, HOSTNAMES_KNOWN, LOOP_FREE, PROGRAMMED, Status},
};

use super::{
    address::{self, Rejection},
    import::join_names,
};
use crate::{
    index::{
        facts::{Admits, GatewayFacts, ListenerFacts, PoolFacts, Programmed, RouteFacts},
        member::Member,
    },
    name::Key,
    networks::Allowed,
};

/// Maximum number of parents in the CRD; beyond it, those that can be used stay.
const MAX_PARENTS: usize = 16;
/// Maximum number of addresses in the CRD.
const MAX_ADDRESSES: usize = 64;
/// Maximum number of listeners and of ports in the CRD.
const MAX_LISTENERS: usize = 16;
/// Maximum number of host names in the CRD.
const MAX_HOSTNAMES: usize = 16;
/// Longest name of a port in the CRD; a listener's may be longer.
const MAX_PORT_NAME: usize = 63;

/// The parents of a pool, as its entry lists them.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// First those that can be used, then by key.
    pub(super) parents: Vec<Parent>,
    /// Blocks `Accepted`: reason and message.
    pub(super) refused: Option<(&'static str, String)>,
    /// Blocks `Ready`.
    pub(super) unready: Option<(&'static str, String)>,
    pub(super) rejected: Vec<Rejection>,
    pub(super) truncated: bool,
}

/// One parent, and what was left out of it.
struct Described {
    parent: Parent,
    rejected: Vec<Rejection>,
    truncated: bool,
}

/// The hosts under which a Gateway leads to the pool.
enum Hosts {
    Unknown(&'static str),
    Any,
    Named(BTreeSet<Hostname>),
}

/// The Gateways that accepted the pool, as another cluster may use them.
pub(super) fn publish(member: &Member, pool: &PoolFacts) -> Published {
    let known = &member.parents;
    let routes = known.routes_to(&pool.key);
    let mut described: Vec<(bool, Described)> = Vec::new();
    let mut missing: Vec<String> = Vec::new();
    for key in &pool.parents {
        let gateway = known.gateways.items.get(key);
        if gateway.is_none() && known.gateways_listed() {
            missing.push(key.to_string());
            continue;
        }
        let one = describe(
            key,
            gateway,
            routes.as_deref(),
            pool,
            &member.origin.allowed,
        );
        let usable = conditions::is_true(&one.parent.conditions, PROGRAMMED);
        described.push((!usable, one));
    }
    // stable: by key within each half
    described.sort_by_key(|(unusable, _)| *unusable);
    let ready = described.first().is_some_and(|(unusable, _)| !unusable);

    let mut published = Published {
        truncated: described.len() > MAX_PARENTS,
        ..Published::default()
    };
    for (_, one) in described.into_iter().take(MAX_PARENTS) {
        published.rejected.extend(one.rejected);
        published.truncated |= one.truncated;
        published.parents.push(one.parent);
    }
    if ready {
        return published;
    }
    let mut addresses = published.parents.iter().flat_map(|parent| &parent.service);
    if !published.rejected.is_empty() && addresses.all(|service| service.addresses.is_empty()) {
        let message = "none of the Gateways has an address that another cluster could use";
        published.refused = Some(("InvalidAddress", message.to_owned()));
    }
    published.unready = Some(("ParentNotProgrammed", why_unready(&published, &missing)));
    published
}

fn why_unready(published: &Published, missing: &[String]) -> String {
    let states: Vec<String> = published
        .parents
        .iter()
        .map(|parent| {
            let condition = conditions::find(&parent.conditions, PROGRAMMED);
            let reason = condition.map_or("", |condition| condition.reason.as_str());
            format!("{}/{} {reason}", parent.namespace, parent.name)
        })
        .chain(missing.iter().map(|key| format!("{key} does not exist")))
        .collect();
    if states.is_empty() {
        return "no Gateway has accepted the pool: an HTTPRoute of a Gateway must lead to it"
            .to_owned();
    }
    let states = join_names(states.iter().map(String::as_str));
    format!("no Gateway of the pool is programmed and has an address: {states}")
}

/// Describes one Gateway; `gateway` is none where the cluster does not let us list Gateways.
fn describe(
    key: &Key,
    gateway: Option<&GatewayFacts>,
    routes: Option<&[&RouteFacts]>,
    pool: &PoolFacts,
    allowed: &Allowed,
) -> Described {
    let listeners = gateway.map_or(&[][..], |gateway| &gateway.listeners);
    let (listeners, hosts) = attached(key, listeners, routes, pool);
    let addresses = gateway.into_iter().flat_map(|gateway| &gateway.addresses);
    let (mut addresses, rejected) = address::sanitise(addresses.map(String::as_str), allowed);
    let ports = ports(&listeners);
    let mut truncated = addresses.len() > MAX_ADDRESSES || listeners.len() > MAX_LISTENERS;
    addresses.truncate(MAX_ADDRESSES);

    let generation = Some(pool.generation);
    let make = |type_, (status, reason, message): (Status, &str, String)| {
        conditions::make(type_, status, reason, message, generation)
    };
    let programmed = make(
        PROGRAMMED,
        programmed(gateway, addresses.is_empty(), ports.is_empty()),
    );
    let known = make(HOSTNAMES_KNOWN, hosts.known());
    let loop_free = make(LOOP_FREE, loop_free(key, routes, pool));
    let hostnames = match hosts {
        Hosts::Unknown(_) | Hosts::Any => Vec::new(),
        Hosts::Named(hosts) => {
            truncated |= hosts.len() > MAX_HOSTNAMES;
            // exact ones first: only those can be put into a request
            let hosts = hosts.iter().take(MAX_HOSTNAMES);
            hosts.map(ToString::to_string).collect()
        }
    };
    let listeners = listeners.into_iter().take(MAX_LISTENERS);
    Described {
        parent: Parent {
            name: key.name.to_string(),
            namespace: key.namespace.to_string(),
            service: vec![ServiceEndpoints {
                type_: ServiceType::LoadBalancer,
                addresses,
                ports,
            }],
            hostnames,
            listeners: listeners.map(make_listener).collect(),
            conditions: vec![programmed, known, loop_free],
        },
        rejected,
        truncated,
    }
}

/// The listeners that lead to the pool, and the hosts of their routes.
fn attached<'a>(
    gateway: &Key,
    listeners: &'a [ListenerFacts],
    routes: Option<&[&RouteFacts]>,
    pool: &PoolFacts,
) -> (Vec<&'a ListenerFacts>, Hosts) {
    let all = || listeners.iter().collect();
    let Some(routes) = routes else {
        let why = "the cluster serves no HTTPRoutes, or denies them to the controller";
        return (all(), Hosts::Unknown(why));
    };
    let to_pool = || (routes.iter()).filter(|route| route.pools.contains(&pool.key));
    let hosts_of = |listener: &'a ListenerFacts| {
        let common = to_pool().flat_map(|route| common_hosts(gateway, listener, route));
        let hosts: BTreeSet<Hostname> = common.collect();
        (!hosts.is_empty()).then_some((listener, hosts))
    };
    let found: Vec<(&ListenerFacts, BTreeSet<Hostname>)> =
        listeners.iter().filter_map(hosts_of).collect();
    if found.is_empty() {
        let why = "no HTTPRoute on a working listener of it leads to the pool";
        return (all(), Hosts::Unknown(why));
    }
    let any = |(_, hosts): &(_, BTreeSet<Hostname>)| hosts.contains(&Hostname::Any);
    if found.iter().all(any) {
        let listeners = found.into_iter().map(|(listener, _)| listener);
        return (listeners.collect(), Hosts::Any);
    }
    // a listener for any host also accepts those of the others
    let (listeners, hosts): (Vec<_>, Vec<BTreeSet<Hostname>>) = found.into_iter().unzip();
    let mut named: BTreeSet<Hostname> = hosts.into_iter().flatten().collect();
    named.remove(&Hostname::Any);
    (listeners, Hosts::Named(named))
}

/// The hosts that a listener passes to a route; none where the route does not attach to it.
fn common_hosts(gateway: &Key, listener: &ListenerFacts, route: &RouteFacts) -> Vec<Hostname> {
    let admitted = match listener.admits {
        Admits::AnyNamespace => true,
        Admits::SameNamespace => route.key.namespace == gateway.namespace,
        Admits::Nobody => false,
    };
    let meant = route.parents.iter().any(|parent| {
        let section = parent.section.as_ref();
        parent.gateway == *gateway
            && section.is_none_or(|section| *section == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    });
    if !admitted || !meant {
        return Vec::new();
    }
    let hosts = route.hostnames.iter();
    hosts
        .filter_map(|host| listener.hostname.intersect(host))
        .collect()
}

/// Each port once; a port of one listener bears its name.
fn ports(listeners: &[&ListenerFacts]) -> Vec<ServicePort> {
    let mut by_port: BTreeMap<u16, Vec<&ListenerFacts>> = BTreeMap::new();
    for listener in listeners {
        by_port.entry(listener.port).or_default().push(listener);
    }
    let ports = by_port.into_iter().take(MAX_LISTENERS);
    ports
        .map(|(number, listeners)| {
            let name = match listeners.as_slice() {
                [one] if one.name.len() <= MAX_PORT_NAME => Some(one.name.clone()),
                _ => None,
            };
            let encrypted = listeners
                .iter()
                .any(|listener| listener.protocol == ListenerProtocol::Https);
            ServicePort {
                number,
                name,
                protocol: Some("TCP".to_owned()),
                app_protocol: Some(if encrypted { "https" } else { "http" }.to_owned()),
            }
        })
        .collect()
}

fn make_listener(listener: &ListenerFacts) -> Listener {
    let hostname = Some(&listener.hostname).filter(|hostname| **hostname != Hostname::Any);
    Listener {
        name: listener.name.clone(),
        port: listener.port,
        protocol: listener.protocol,
        hostname: hostname.map(ToString::to_string),
    }
}

fn programmed(
    gateway: Option<&GatewayFacts>,
    no_address: bool,
    no_port: bool,
) -> (Status, &'static str, String) {
    let state = |status, reason, message: &str| (status, reason, message.to_owned());
    let Some(gateway) = gateway else {
        let message = "the cluster serves no Gateways, or denies them to the controller";
        return state(Status::False, "NotProgrammed", message);
    };
    match gateway.programmed {
        Programmed::No => state(
            Status::False,
            "NotProgrammed",
            "the Gateway does not say that its data plane is programmed",
        ),
        Programmed::NoAddress => state(
            Status::False,
            "AddressNotAssigned",
            "the Gateway waits for an address",
        ),
        Programmed::Yes if no_address => state(
            Status::False,
            "AddressNotAssigned",
            "the Gateway has no address that another cluster could use",
        ),
        Programmed::Yes if no_port => state(
            Status::False,
            "NotProgrammed",
            "the Gateway has no working listener for HTTP or HTTPS",
        ),
        Programmed::Yes => state(
            Status::True,
            "Programmed",
            "the Gateway is programmed and has an address",
        ),
    }
}

/// Whether requests that come through this Gateway could leave the cluster again by the pool's own import.
fn loop_free(
    gateway: &Key,
    routes: Option<&[&RouteFacts]>,
    pool: &PoolFacts,
) -> (Status, &'static str, String) {
    let Some(routes) = routes else {
        let message = "whether a route on it leads to the import of the pool cannot be told";
        return (Status::Unknown, "RoutesUnknown", message.to_owned());
    };
    let looping = routes.iter().filter(|route| {
        route.imports.contains(&pool.key) && route.parents.iter().any(|one| one.gateway == *gateway)
    });
    // of several, always the same
    match looping.min_by(|a, b| a.key.text().cmp(&b.key.text())) {
        None => {
            let message = "no HTTPRoute on it leads to the import of the pool";
            (Status::True, "NoLoop", message.to_owned())
        }
        Some(route) => {
            let message = format!(
                "HTTPRoute {} on it also leads to the import of the pool: requests may come back",
                route.key
            );
            (Status::False, "LoopRisk", message)
        }
    }
}

/// Removes the host names of a parent, and sets its condition.
pub(super) fn shed_hostnames(parent: &mut Parent) {
    if parent.hostnames.is_empty() {
        return;
    }
    parent.hostnames.clear();
    let known = parent.conditions.iter_mut();
    for condition in known.filter(|condition| condition.type_ == HOSTNAMES_KNOWN) {
        *condition = conditions::make(
            HOSTNAMES_KNOWN,
            Status::False,
            "Truncated",
            "the entry was too large: the host names are left out",
            condition.observed_generation,
        );
    }
}

// === impl Hosts ===

impl Hosts {
    fn known(&self) -> (Status, &'static str, String) {
        match self {
            Self::Unknown(why) => (Status::False, "RoutesUnknown", (*why).to_owned()),
            Self::Any => (
                Status::True,
                "AnyHostname",
                "its routes take any host to the pool".to_owned(),
            ),
            Self::Named(_) => (
                Status::True,
                "HostnamesKnown",
                "its routes take these hosts to the pool".to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
