//! Which Gateways are ours, and which of their listeners work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::infra::parameters;
use crate::world::{Gateway, Key, Listener, World};

use super::refs::GATEWAY_GROUP;
use super::{Hostname, Settings, is_ours};

pub(crate) mod status;

/// Ports of every Envoy that listeners cannot have: its admin and its own readiness listener.
const RESERVED: [u16; 2] = [19_000, 19_001];

/// A Gateway of ours with what is found about it.
#[derive(Clone, Debug)]
pub(crate) struct OurGateway<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) listeners: Vec<OurListener<'a>>,
    /// Why its parameters cannot be used.
    pub(crate) bad_parameters: Option<String>,
    pub(crate) drain: Duration,
    /// Bound port by listener port.
    pub(crate) binds: BTreeMap<u16, u16>,
}

#[derive(Clone, Debug)]
pub(crate) struct OurListener<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) hostname: Hostname,
    pub(crate) problem: Option<ListenerProblem>,
    /// HTTPRoute is among its kinds.
    pub(crate) serves_http_routes: bool,
    /// It names kinds that it cannot serve.
    pub(crate) odd_kinds: bool,
    /// Routes attached to it.
    pub(crate) attached: BTreeSet<Key>,
}

/// Why a listener serves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerProblem {
    UnsupportedProtocol,
    PortUnavailable,
    ProtocolConflict,
    HostnameConflict,
}

pub(crate) fn ours<'a>(world: &'a World, settings: &Settings) -> BTreeMap<Key, OurGateway<'a>> {
    world
        .gateways
        .iter()
        .filter(|(_, gateway)| is_ours(world, settings, &gateway.class))
        .map(|(key, gateway)| (key.clone(), examine(world, gateway)))
        .collect()
}

fn examine<'a>(world: &'a World, gateway: &'a Gateway) -> OurGateway<'a> {
    let (drain_seconds, bad_parameters) = match parameters::of_gateway(world, gateway) {
        Ok(parameters) => (parameters.drain_seconds, None),
        Err(bad) => (0, Some(bad)),
    };
    let listeners: Vec<OurListener<'a>> = gateway
        .listeners
        .iter()
        .map(|listener| {
            let known = |kind: &&(String, String)| kind.0 == GATEWAY_GROUP && kind.1 == "HTTPRoute";
            let http = listener.protocol == "HTTP";
            OurListener {
                listener,
                hostname: Hostname::parse(listener.hostname.as_deref()),
                problem: problem(gateway, listener),
                serves_http_routes: http
                    && (listener.kinds.is_empty() || listener.kinds.iter().any(|k| known(&k))),
                odd_kinds: http && !listener.kinds.iter().all(|k| known(&k)),
                attached: BTreeSet::new(),
            }
        })
        .collect();
    let working = listeners
        .iter()
        .filter(|one| one.problem.is_none())
        .map(|one| one.listener.port);
    let binds = bind_ports(working);
    OurGateway {
        gateway,
        listeners,
        bad_parameters,
        drain: Duration::from_secs(drain_seconds.into()),
        binds,
    }
}

fn problem(gateway: &Gateway, listener: &Listener) -> Option<ListenerProblem> {
    if listener.protocol != "HTTP" {
        return Some(ListenerProblem::UnsupportedProtocol);
    }
    let host = Hostname::parse(listener.hostname.as_deref());
    let others = gateway
        .listeners
        .iter()
        .filter(|other| other.name != listener.name && other.port == listener.port);
    let mut same_host = false;
    for other in others {
        // UDP has port numbers of its own.
        if other.protocol != "HTTP" && other.protocol != "UDP" {
            return Some(ListenerProblem::ProtocolConflict);
        }
        same_host |= other.protocol == "HTTP" && Hostname::parse(other.hostname.as_deref()) == host;
    }
    if same_host {
        Some(ListenerProblem::HostnameConflict)
    } else if RESERVED.contains(&listener.port) {
        Some(ListenerProblem::PortUnavailable)
    } else {
        None
    }
}

/// What Envoy binds for each port: as an unprivileged process not those below 1024, which become
/// port + 10000, or + 20000 and so on where another listener has that.
pub(crate) fn bind_ports(ports: impl Iterator<Item = u16>) -> BTreeMap<u16, u16> {
    let ports: BTreeSet<u16> = ports.collect();
    let mut taken: BTreeSet<u16> = ports.iter().copied().filter(|p| *p >= 1024).collect();
    taken.extend(RESERVED);
    let mut binds = BTreeMap::new();
    for port in ports {
        let bind = if port >= 1024 {
            Some(port)
        } else {
            // 6 steps of 10000 stay below 65536 for every port below 1024; 1023 listeners at
            // most 64 of a Gateway cannot take them all.
            (1..=6)
                .map(|step| port + step * 10_000)
                .find(|candidate| !taken.contains(candidate))
        };
        if let Some(bind) = bind {
            taken.insert(bind);
            binds.insert(port, bind);
        }
    }
    binds
}

impl OurGateway<'_> {
    pub(crate) fn accepted(&self) -> bool {
        self.bad_parameters.is_none()
            && !self.gateway.wants_addresses
            && self.listeners.iter().any(|one| one.problem.is_none())
    }
}

impl ListenerProblem {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::UnsupportedProtocol => "UnsupportedProtocol",
            Self::PortUnavailable => "PortUnavailable",
            Self::ProtocolConflict => "ProtocolConflict",
            Self::HostnameConflict => "HostnameConflict",
        }
    }

    pub(crate) fn is_conflict(self) -> bool {
        matches!(self, Self::ProtocolConflict | Self::HostnameConflict)
    }

    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::UnsupportedProtocol => "only protocol HTTP is supported so far",
            Self::PortUnavailable => "ports 19000 and 19001 are Envoy's own: choose another",
            Self::ProtocolConflict => "another listener has this port with another protocol",
            Self::HostnameConflict => "another listener has this port and hostname",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileged_ports_move_up_to_a_free_one() {
        let binds = bind_ports([80, 443, 10_080, 8080].into_iter());
        let expected = [(80, 20_080), (443, 10_443), (10_080, 10_080), (8080, 8080)];
        assert_eq!(binds, expected.into_iter().collect());
    }
}
