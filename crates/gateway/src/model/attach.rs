//! Which routes are attached to which listeners, and why others are not.

use std::collections::BTreeMap;

use crate::world::{HttpRoute, Key, Listener, ParentRef, RoutesFrom, World};

use super::Hostname;
use super::gateways::{OurGateway, OurListener};
use super::refs::GATEWAY_GROUP;

/// One parentRef of a route that names a Gateway of ours.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub(crate) parent: ParentRef,
    pub(crate) gateway: Key,
    /// Per listener (its index) the hosts served there; or why none.
    pub(crate) listeners: Result<BTreeMap<usize, Vec<Host>>, NotAttached>,
}

/// A host that a route has at a listener.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host {
    /// What the host names of both have in common.
    pub(crate) served: Hostname,
    /// As the route names it: of several routes the one that names a host most precisely answers.
    pub(crate) named: Hostname,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAttached {
    #[error("the Gateway has no working listener with this sectionName and port")]
    NoMatchingParent,
    #[error("no listener allows HTTPRoutes of this namespace")]
    NotAllowedByListeners,
    #[error("no listener has a hostname in common with the route")]
    NoMatchingListenerHostname,
}

impl NotAttached {
    /// Stable: the reason of condition `Accepted`.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoMatchingParent => "NoMatchingParent",
            Self::NotAllowedByListeners => "NotAllowedByListeners",
            Self::NoMatchingListenerHostname => "NoMatchingListenerHostname",
        }
    }
}

/// `gateways` has those of ours that the route names.
pub(crate) fn attach(
    world: &World,
    gateways: &BTreeMap<Key, OurGateway<'_>>,
    route: &HttpRoute,
) -> Vec<Attachment> {
    let named = route.parents.iter().filter_map(|parent| {
        let key = gateway_of(parent, &route.key.namespace)?;
        Some((parent, gateways.get_key_value(&key)?))
    });
    named
        .map(|(parent, (key, gateway))| Attachment {
            parent: parent.clone(),
            gateway: key.clone(),
            listeners: listeners(world, gateway, route, parent),
        })
        .collect()
}

/// The Gateway that a route of this namespace names.
pub(super) fn gateway_of(parent: &ParentRef, namespace: &str) -> Option<Key> {
    let is_gateway = parent.group.as_deref().unwrap_or(GATEWAY_GROUP) == GATEWAY_GROUP
        && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway";
    let namespace = parent.namespace.as_deref().unwrap_or(namespace);
    is_gateway.then(|| Key::new(namespace, &parent.name))
}

fn listeners(
    world: &World,
    gateway: &OurGateway<'_>,
    route: &HttpRoute,
    parent: &ParentRef,
) -> Result<BTreeMap<usize, Vec<Host>>, NotAttached> {
    let named = |one: &OurListener<'_>| {
        one.problem.is_none()
            && parent
                .section
                .as_ref()
                .is_none_or(|s| *s == one.listener.name)
            && parent.port.is_none_or(|port| port == one.listener.port)
    };
    let home = &gateway.gateway.key.namespace;
    let all = gateway.listeners.iter().enumerate();
    let named: Vec<_> = all.filter(|(_, one)| named(one)).collect();
    if named.is_empty() {
        return Err(NotAttached::NoMatchingParent);
    }
    let allowing: Vec<_> = named
        .into_iter()
        .filter(|(_, one)| {
            one.serves_http_routes && allows(world, one.listener, home, &route.key.namespace)
        })
        .collect();
    if allowing.is_empty() {
        return Err(NotAttached::NotAllowedByListeners);
    }
    let attached: BTreeMap<usize, Vec<Host>> = allowing
        .into_iter()
        .map(|(index, one)| (index, common_hosts(&one.hostname, &route.hostnames)))
        .filter(|(_, hosts)| !hosts.is_empty())
        .collect();
    if attached.is_empty() {
        return Err(NotAttached::NoMatchingListenerHostname);
    }
    Ok(attached)
}

fn allows(world: &World, listener: &Listener, home: &str, namespace: &str) -> bool {
    match &listener.from {
        RoutesFrom::All => true,
        RoutesFrom::Same => home == namespace,
        RoutesFrom::Selector(selector) => world
            .namespaces
            .get(namespace)
            .is_some_and(|labels| selector.matches(labels)),
        RoutesFrom::None => false,
    }
}

fn common_hosts(listener: &Hostname, route: &[String]) -> Vec<Host> {
    let hosts = route.iter().map(|host| Hostname::parse(Some(host)));
    let any = route.is_empty().then_some(Hostname::Any);
    let hosts = hosts.chain(any).filter_map(|named| {
        let served = listener.intersect(&named)?;
        Some(Host { served, named })
    });
    hosts.collect()
}
