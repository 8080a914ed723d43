//! What a Gateway serves by the routes that are attached to it, and what routes and pools are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crd::conditions::{ACCEPTED, PARTIALLY_INVALID, PROGRAMMED, RESOLVED_REFS};

use crate::feedback::{Feedback, Refused};
use crate::select::Policy;
use crate::world::{HttpRoute, InferencePool, Key, World};

use super::attach::{Attachment, Host};
use super::gateways::OurGateway;
use super::refs::picker;
use super::rules::Rules;
use super::vhosts::{PortListener, make_chains};
use super::{
    Backend, Cond, GatewayModel, Import, ParentStatus, PortModel, Rule, Settings, TlsPolicies,
    Truth, backends, certificates, status,
};

/// Per listener of a Gateway: the rules attached, by host.
pub(super) type Attached = BTreeMap<usize, BTreeMap<Host, Vec<Arc<Rule>>>>;

/// Adds the rules of one route for these hosts, each of which it has once.
pub(super) fn note_rules<'h>(
    target: &mut BTreeMap<Host, Vec<Arc<Rule>>>,
    hosts: impl Iterator<Item = &'h Host>,
    rules: &[Arc<Rule>],
) {
    for host in hosts {
        let there = target.entry(host.clone()).or_default();
        there.extend(rules.iter().cloned());
    }
}

/// The backends that the rules name, and the pools of this cluster that imports among them include.
pub(super) fn used<'r>(
    rules: &'r Rules,
    policies: &'r BTreeMap<Key, Policy>,
) -> impl Iterator<Item = Backend> + 'r {
    rules.named.iter().flat_map(move |backend| {
        let local = match backend {
            Backend::Import(key) => {
                let policy = policies.get(key);
                policy
                    .is_some_and(|policy| policy.include_local)
                    .then(|| Backend::Pool(key.clone()))
            }
            Backend::Pool(_) | Backend::Service(..) | Backend::Invalid => None,
        };
        [Some(backend.clone()), local].into_iter().flatten()
    })
}

pub(super) fn make_model(
    tls: &TlsPolicies<'_>,
    settings: &Settings,
    imports: &BTreeMap<Key, Arc<Import>>,
    gateway: &OurGateway<'_>,
    mut attached: Attached,
) -> GatewayModel {
    let mut model = GatewayModel {
        key: gateway.gateway.key.clone(),
        uid: gateway.gateway.uid.clone(),
        ports: BTreeMap::new(),
        certificates: BTreeMap::new(),
        services: BTreeMap::new(),
        pools: BTreeMap::new(),
        imports: BTreeMap::new(),
    };
    // one that was accepted before ends to serve, and Envoys that are left give up its listeners
    let binds = gateway.binds.iter().filter(|_| gateway.is_served());
    for (port, bind) in binds {
        let listeners: Vec<PortListener> = gateway
            .listeners
            .iter()
            .enumerate()
            .filter(|(_, one)| one.problem.is_none() && one.listener.port == *port)
            .map(|(index, one)| PortListener {
                hostname: one.hostname.clone(),
                protocol: one.protocol(),
                routes: attached.remove(&index).unwrap_or_default(),
            })
            .collect();
        model.ports.insert(
            *port,
            PortModel {
                bind: *bind,
                drain: gateway.drain,
                chains: make_chains(&listeners),
            },
        );
    }
    let chains = model.ports.values().flat_map(|port| &port.chains);
    model.certificates = certificates::of_chains(tls.world(), chains);
    let named: BTreeSet<Backend> = model
        .rules()
        .flat_map(|rule| rule.action.backends())
        .map(|weighted| weighted.backend.clone())
        .collect();
    for backend in &named {
        backends::include(&mut model, tls, settings, imports, backend);
    }
    model
}

pub(super) fn parent_status(
    world: &World,
    feedback: &Feedback,
    policies: &BTreeMap<Key, Policy>,
    route: &HttpRoute,
    rules: &Rules,
    one: &Attachment,
) -> ParentStatus {
    let generation = route.generation;
    let accepted = match &one.listeners {
        Err(why) => Cond::no(ACCEPTED, why.reason(), why.to_string(), generation),
        Ok(_) if !rules.any_supported && !rules.unsupported.is_empty() => {
            let message = rules.unsupported.join("; ");
            Cond::no(ACCEPTED, "UnsupportedValue", message, generation)
        }
        Ok(_) => Cond::yes(ACCEPTED, generation),
    };
    let partly = rules.any_supported && !rules.unsupported.is_empty() && one.listeners.is_ok();
    let resolved = match (&rules.bad_ref, without_crd(world, rules)) {
        (Some(bad), _) => Cond::no(RESOLVED_REFS, bad.reason(), bad.to_string(), generation),
        (None, Some(message)) => {
            let reason = "CRDMissing";
            Cond::new(RESOLVED_REFS, Truth::True, reason, message, generation)
        }
        (None, None) => Cond::yes(RESOLVED_REFS, generation),
    };
    let mut conditions = vec![accepted, resolved];
    if partly {
        let message = rules.unsupported.join("; ");
        let reason = "UnsupportedValue";
        let invalid = Cond::new(PARTIALLY_INVALID, Truth::True, reason, message, generation);
        conditions.push(invalid);
    }
    if let Some(message) = rejected(feedback, policies, rules, &one.gateway) {
        conditions.push(Cond::no(PROGRAMMED, "ProxyRejected", message, generation));
    }
    ParentStatus {
        parent: one.parent.clone(),
        conditions,
    }
}

/// Says that a backend of the route is used as it was before its CRD vanished.
fn without_crd(world: &World, rules: &Rules) -> Option<String> {
    let mut kept = rules.named.iter().filter_map(|backend| {
        let (kind, key) = match backend {
            Backend::Pool(key) => ("InferencePool", key),
            Backend::Import(key) => ("InferencePoolImport", key),
            Backend::Service(..) | Backend::Invalid => return None,
        };
        world.kept.get(&(kind, key.clone()))
    });
    let (kind, key) = kept.next()?;
    Some(format!(
        "{kind} {key} went with its CRD: requests go on as before, for at most 10 minutes"
    ))
}

/// What Envoys of the Gateway say against a backend that the route uses, where none does without saying it.
fn rejected(
    feedback: &Feedback,
    policies: &BTreeMap<Key, Policy>,
    rules: &Rules,
    gateway: &Key,
) -> Option<String> {
    let rejections = feedback.rejections_of(gateway).iter();
    let mut hits = rejections.filter(|one| {
        !one.others_serve && used(rules, policies).any(|backend| is_of_backend(&one.of, &backend))
    });
    hits.next()
        .map(|one| format!("{}: {}", one.name, one.message))
}

fn is_of_backend(refused: &Refused, backend: &Backend) -> bool {
    match (refused, backend) {
        (Refused::Service(key, port), Backend::Service(used, used_port)) => {
            (key, port) == (used, used_port)
        }
        (Refused::Pool(key), Backend::Pool(used))
        | (Refused::Import(key), Backend::Import(used)) => key == used,
        _ => false,
    }
}

/// At each Gateway with routes to the pool: whether such a route is accepted.
pub(super) fn pool_status(
    tls: &TlsPolicies<'_>,
    settings: &Settings,
    key: &Key,
    pool: &InferencePool,
    users: &BTreeMap<Key, bool>,
) -> Vec<ParentStatus> {
    let world = tls.world();
    let generation = pool.generation;
    let bad_selector = world.bad_selectors.get(key);
    let resolved = match picker(world, key, pool) {
        _ if bad_selector.is_some() => Cond::no(
            RESOLVED_REFS,
            "InvalidSelector",
            format!(
                "spec.selector is refused, so it has no pods: {}",
                bad_selector.map_or("", |text| text)
            ),
            generation,
        ),
        Some(Err(bad)) => Cond::no(
            RESOLVED_REFS,
            "InvalidExtensionRef",
            bad.to_string(),
            generation,
        ),
        Some(Ok((service, _, port))) => {
            match backends::epp_security(tls, settings, &service, port) {
                Ok(_) => Cond::yes(RESOLVED_REFS, generation),
                Err(why) => {
                    let message = format!("the endpoint picker is not connected to: {why}");
                    Cond::no(RESOLVED_REFS, "InvalidExtensionRef", message, generation)
                }
            }
        }
        None => Cond::yes(RESOLVED_REFS, generation),
    };
    let parents = users.iter().map(|(gateway, route_accepted)| {
        let accepted = if pool.picker.is_none() {
            let message = "spec.endpointPickerRef is missing: requests get 503";
            Cond::no(ACCEPTED, "EndpointPickerRefMissing", message, generation)
        } else {
            status::of_route(*route_accepted, generation)
        };
        ParentStatus {
            parent: status::gateway_ref(gateway),
            conditions: vec![accepted, resolved.clone()],
        }
    });
    parents.collect()
}
