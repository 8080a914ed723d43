//! Which Gateways are ours, and which of their listeners work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::parameters;
use crate::world::{Gateway, Key, Listener, World};

use super::certificates::{self, BadCertificate, Certificates};
use super::refs::GATEWAY_GROUP;
use super::{Hostname, Protocol, Settings, is_ours};

pub(crate) mod status;

/// Ports of every Envoy that listeners cannot have: its admin and its own readiness listener.
const RESERVED: [u16; 2] = [19_000, 19_001];

/// What a port tells its listeners apart by: others cannot share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// The Host header.
    Http,
    /// The server name of TLS.
    Tls,
    Udp,
    /// Nothing.
    Other,
}

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
    /// Where its protocol needs them.
    pub(crate) certificates: Option<Certificates>,
    /// Other listeners of its port with TLS that have some of its hosts.
    pub(crate) overlaps: Vec<&'a str>,
    /// HTTPRoute is among its kinds.
    pub(crate) serves_http_routes: bool,
    /// It names kinds that it cannot serve.
    pub(crate) odd_kinds: bool,
    /// Routes attached to it.
    pub(crate) attached: BTreeSet<Key>,
}

/// Why a listener serves nothing and no route is attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerProblem {
    UnsupportedProtocol,
    Passthrough,
    ClientCertificates,
    PortUnavailable,
    ProtocolConflict,
    HostnameConflict,
}

/// The Gateway, if it is of a class of ours.
pub(crate) fn our<'a>(world: &'a World, settings: &Settings, key: &Key) -> Option<OurGateway<'a>> {
    let gateway = world.gateways.get(key)?;
    let is_ours = is_ours(world, &settings.controller, &gateway.class);
    is_ours.then(|| examine(world, gateway))
}

fn examine<'a>(world: &'a World, gateway: &'a Gateway) -> OurGateway<'a> {
    let (drain_seconds, bad_parameters) = match parameters::of_gateway(world, gateway) {
        Ok(parameters) => (parameters.drain_seconds, None),
        Err(bad) => (parameters::DRAIN_SECONDS, Some(bad)),
    };
    let watched = certificates::named(world, gateway);
    let listeners: Vec<OurListener<'a>> = gateway
        .listeners
        .iter()
        .map(|listener| {
            let known = |kind: &&(String, String)| kind.0 == GATEWAY_GROUP && kind.1 == "HTTPRoute";
            let http = matches!(&*listener.protocol, "HTTP" | "HTTPS");
            let certificates = certificates::resolve(world, gateway, &watched, listener);
            OurListener {
                listener,
                hostname: Hostname::parse(listener.hostname.as_deref()),
                problem: problem(gateway, listener),
                overlaps: overlaps(gateway, listener),
                certificates,
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
    let layer = Layer::of(&listener.protocol);
    match &*listener.protocol {
        "HTTPS" if listener.tls.as_ref().is_some_and(|tls| tls.passthrough) => {
            return Some(ListenerProblem::Passthrough);
        }
        "HTTPS" if listener.checks_clients => return Some(ListenerProblem::ClientCertificates),
        "HTTP" | "HTTPS" => {}
        _ => return Some(ListenerProblem::UnsupportedProtocol),
    }
    let host = Hostname::parse(listener.hostname.as_deref());
    let mut same_host = false;
    for other in others_of_port(gateway, listener) {
        match Layer::of(&other.protocol) {
            // UDP has port numbers of its own.
            Layer::Udp => {}
            other_layer if other_layer != layer => return Some(ListenerProblem::ProtocolConflict),
            _ => same_host |= Hostname::parse(other.hostname.as_deref()) == host,
        }
    }
    if same_host {
        Some(ListenerProblem::HostnameConflict)
    } else if RESERVED.contains(&listener.port) {
        Some(ListenerProblem::PortUnavailable)
    } else {
        None
    }
}

fn others_of_port<'a>(
    gateway: &'a Gateway,
    listener: &'a Listener,
) -> impl Iterator<Item = &'a Listener> {
    let others = gateway.listeners.iter();
    others.filter(|other| other.name != listener.name && other.port == listener.port)
}

/// Names of the HTTPS listeners of the same port that share hosts with this one. A client may use a connection for each host
/// that the certificate has, whichever listener that belongs to.
fn overlaps<'a>(gateway: &'a Gateway, listener: &'a Listener) -> Vec<&'a str> {
    let host = Hostname::parse(listener.hostname.as_deref());
    let others = others_of_port(gateway, listener).filter(|other| {
        let both_https = listener.protocol == "HTTPS" && other.protocol == "HTTPS";
        let other_host = Hostname::parse(other.hostname.as_deref());
        both_https && other_host.intersect(&host).is_some()
    });
    others.map(|other| &*other.name).collect()
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
        self.bad_parameters.is_none() && self.is_served()
    }

    /// Whether its Envoys serve its listeners. Parameters that cannot be used concern how Envoys run, not what they serve: those
    /// that run serve on, and no others are made.
    pub(crate) fn is_served(&self) -> bool {
        !self.gateway.wants_addresses && self.listeners.iter().any(|one| one.problem.is_none())
    }
}

// === impl OurListener ===

impl OurListener<'_> {
    pub(crate) fn bad_certificate(&self) -> Option<&BadCertificate> {
        self.certificates.as_ref()?.bad.as_ref()
    }

    /// `None`: no connection can be served.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        if self.problem.is_some() {
            return None;
        }
        match &self.certificates {
            None => Some(Protocol::Http),
            Some(found) if found.usable.is_empty() => None,
            Some(found) => Some(Protocol::Https {
                hostname: self.hostname.clone(),
                certificates: found.usable.clone(),
            }),
        }
    }
}

// === impl Layer ===

impl Layer {
    fn of(protocol: &str) -> Self {
        match protocol {
            "HTTP" => Self::Http,
            "HTTPS" | "TLS" => Self::Tls,
            "UDP" => Self::Udp,
            _ => Self::Other,
        }
    }
}

// === impl ListenerProblem ===

impl ListenerProblem {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::UnsupportedProtocol => "UnsupportedProtocol",
            Self::Passthrough | Self::ClientCertificates => "UnsupportedValue",
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
            Self::UnsupportedProtocol => "only the protocols HTTP and HTTPS are supported",
            Self::Passthrough => {
                "tls.mode Passthrough is of protocol TLS, which is not supported: HTTPS needs Terminate"
            }
            Self::ClientCertificates => {
                "spec.tls.frontend asks for certificates of clients, which are not supported: it is not served without them"
            }
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
