//! Status of a Gateway and its listeners.

use crd::conditions::{ACCEPTED, CONFLICTED, OVERLAPPING_TLS_CONFIG, PROGRAMMED, RESOLVED_REFS};

use crate::feedback::{Feedback, Infra, Refused, Rejection};
use crate::model::{Cond, GatewayStatus, ListenerStatus, Protocol, Truth};
use crate::world::part_key;

use super::{OurGateway, OurListener};

pub(crate) fn of(feedback: &Feedback, ours: &OurGateway<'_>) -> GatewayStatus {
    let gateway = ours.gateway;
    let infra = feedback.infra.get(&part_key(gateway));
    let infra = infra.cloned().unwrap_or_default();
    let rejections = feedback.rejections_of(&gateway.key);
    let listeners = ours
        .listeners
        .iter()
        .map(|one| listener(feedback, ours, one, &infra, rejections))
        .collect();
    GatewayStatus {
        addresses: infra.addresses.clone(),
        conditions: vec![
            accepted(ours),
            programmed(feedback, ours, &infra, rejections),
        ],
        listeners,
    }
}

fn accepted(ours: &OurGateway<'_>) -> Cond {
    let generation = ours.gateway.generation;
    let working = ours.listeners.iter().filter(|one| one.problem.is_none());
    let valid = working
        .clone()
        .filter(|one| one.bad_certificate().is_none());
    let (working, valid, all) = (working.count(), valid.count(), ours.listeners.len());
    let listeners = format!("{valid} of {all} listeners are valid: see their conditions");
    if let Some(problem) = &ours.bad_parameters {
        Cond::no(ACCEPTED, "InvalidParameters", problem.clone(), generation)
    } else if ours.gateway.wants_addresses {
        let message = "spec.addresses is not supported: leave it empty";
        Cond::no(ACCEPTED, "UnsupportedAddress", message, generation)
    } else if valid == all {
        Cond::yes(ACCEPTED, generation)
    } else if working > 0 {
        Cond::new(
            ACCEPTED,
            Truth::True,
            "ListenersNotValid",
            listeners,
            generation,
        )
    } else {
        Cond::no(ACCEPTED, "ListenersNotValid", listeners, generation)
    }
}

fn programmed(
    feedback: &Feedback,
    ours: &OurGateway<'_>,
    infra: &Infra,
    rejections: &[Rejection],
) -> Cond {
    let generation = ours.gateway.generation;
    let refusals = rejections.iter();
    let refusals = refusals.filter(|one| is_of_gateway(&one.of));
    let refused = refusals.clone().find(|one| !one.others_serve);
    let refused_by_some = refusals.into_iter().find(|one| one.others_serve);
    // what is to be mended goes before what is to be waited for
    let is_served = infra.available > 0 && !infra.addresses.is_empty();
    let failure = infra.failure.as_ref();
    let failure =
        failure.map(|failure| format!("pods of its Deployment cannot be made: {failure}"));
    let hindrance = failure.or_else(|| feedback.refused.get(&ours.gateway.key).cloned());
    if !ours.accepted() {
        let message = "the Gateway is not accepted";
        Cond::no(PROGRAMMED, "Invalid", message, generation)
    } else if let Some(taken) = feedback.taken.get(&ours.gateway.key) {
        Cond::no(PROGRAMMED, "Invalid", taken.clone(), generation)
    } else if let Some(refused) = refused {
        let message = format!("{}: {}", refused.name, refused.message);
        Cond::no(PROGRAMMED, "Invalid", message, generation)
    } else if let Some(hindrance) = hindrance.as_ref().filter(|_| !is_served) {
        Cond::no(PROGRAMMED, "Pending", hindrance.clone(), generation)
    } else if infra.addresses.is_empty() {
        let message = "its Service has no load balancer address yet";
        Cond::no(PROGRAMMED, "AddressNotAssigned", message, generation)
    } else if infra.available < 1 {
        let message = "no Envoy is available yet";
        Cond::no(PROGRAMMED, "Pending", message, generation)
    } else if let Some(hindrance) = hindrance {
        let message = format!("it is served as before: {hindrance}");
        Cond::new(PROGRAMMED, Truth::True, PROGRAMMED, message, generation)
    } else if let Some(refused) = refused_by_some {
        let message = format!(
            "other Envoys serve it: {}: {}",
            refused.name, refused.message
        );
        Cond::new(PROGRAMMED, Truth::True, PROGRAMMED, message, generation)
    } else {
        Cond::yes(PROGRAMMED, generation)
    }
}

fn listener(
    feedback: &Feedback,
    ours: &OurGateway<'_>,
    one: &OurListener<'_>,
    infra: &Infra,
    rejections: &[Rejection],
) -> ListenerStatus {
    let generation = ours.gateway.generation;
    let conflict = one.problem.filter(|problem| problem.is_conflict());
    let accepted = match one.problem.filter(|problem| !problem.is_conflict()) {
        Some(problem) => Cond::no(ACCEPTED, problem.reason(), problem.message(), generation),
        None => Cond::yes(ACCEPTED, generation),
    };
    let conflicted = match conflict {
        Some(problem) => Cond::new(
            CONFLICTED,
            Truth::True,
            problem.reason(),
            problem.message(),
            generation,
        ),
        None => Cond::no(CONFLICTED, "NoConflicts", "", generation),
    };
    let resolved = if one.odd_kinds {
        let message = "allowedRoutes.kinds names kinds other than HTTPRoute";
        Cond::no(RESOLVED_REFS, "InvalidRouteKinds", message, generation)
    } else if let Some(bad) = one.bad_certificate() {
        Cond::no(RESOLVED_REFS, bad.reason(), bad.to_string(), generation)
    } else {
        Cond::yes(RESOLVED_REFS, generation)
    };
    let refusals = rejections
        .iter()
        .filter(|rejection| concerns(rejection, one));
    let refused = refusals.clone().find(|one| !one.others_serve);
    let refused_by_some = refusals.into_iter().find(|one| one.others_serve);
    let programmed = if let Some(refused) = refused {
        Cond::no(PROGRAMMED, "Invalid", refused.message.clone(), generation)
    } else if one.problem.is_some() || !one.serves_http_routes || !ours.accepted() {
        Cond::no(PROGRAMMED, "Invalid", "it cannot serve routes", generation)
    } else if one.protocol().is_none() {
        let bad = one.bad_certificate().map(ToString::to_string);
        let message = format!("it has no certificate: {}", bad.unwrap_or_default());
        Cond::no(PROGRAMMED, "Invalid", message, generation)
    } else if infra.available < 1 || infra.addresses.is_empty() {
        Cond::no(PROGRAMMED, "Pending", "no Envoy serves it yet", generation)
    } else if !infra.ports.contains(&one.listener.port) {
        let refused = feedback.refused.get(&ours.gateway.key);
        let refused = refused.map_or_else(String::new, |refused| format!(": {refused}"));
        let message = format!("the Service does not have its port yet{refused}");
        Cond::no(PROGRAMMED, "Pending", message, generation)
    } else if let Some(refused) = refused_by_some {
        let message = format!("other Envoys serve it: {}", refused.message);
        Cond::new(PROGRAMMED, Truth::True, PROGRAMMED, message, generation)
    } else {
        Cond::yes(PROGRAMMED, generation)
    };
    let mut conditions = vec![accepted, conflicted, resolved, programmed];
    if one.problem.is_none() && !one.overlaps.is_empty() {
        conditions.push(overlapping(one, generation));
    }
    ListenerStatus {
        name: one.listener.name.clone(),
        attached: i32::try_from(one.attached.len()).unwrap_or(i32::MAX),
        serves_http_routes: one.serves_http_routes,
        conditions,
    }
}

fn overlapping(one: &OurListener<'_>, generation: i64) -> Cond {
    let message = format!(
        "it shares hosts with {}: a request over a connection for another's host is answered 421",
        one.overlaps.join(", ")
    );
    let (kind, reason) = (OVERLAPPING_TLS_CONFIG, "OverlappingHostnames");
    Cond::new(kind, Truth::True, reason, message, generation)
}

/// Whether the Gateway as a whole is not as it is wanted while Envoy refuses this. What is for a backend is the concern of the
/// routes that lead to it.
fn is_of_gateway(refused: &Refused) -> bool {
    match refused {
        Refused::Port(_) | Refused::Table { .. } => true,
        Refused::Certificate(_)
        | Refused::Service(..)
        | Refused::Pool(_)
        | Refused::Import(_)
        | Refused::Other => false,
    }
}

/// Whether the listener is not as it is wanted while Envoy refuses this.
fn concerns(rejection: &Rejection, one: &OurListener<'_>) -> bool {
    match &rejection.of {
        Refused::Port(port) => *port == one.listener.port,
        Refused::Table { port, hostname } => {
            let own = one.protocol().map(|protocol| match protocol {
                Protocol::Http => None,
                Protocol::Https { hostname, .. } => Some(hostname.to_string()),
            });
            *port == one.listener.port && own.as_ref() == Some(hostname)
        }
        Refused::Certificate(secret) => {
            let mut used = one.certificates.iter().flat_map(|found| &found.usable);
            used.any(|used| used == secret)
        }
        Refused::Service(..) | Refused::Pool(_) | Refused::Import(_) | Refused::Other => false,
    }
}
