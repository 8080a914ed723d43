//! Whether a live status contains the planned one. Times are ignored, and so is what others add.

use crd::{
    Condition, EndpointPicker, ImportedCluster, Parent, PortRef, SecretReference,
    conditions::{self},
};

/// Whether a live entry contains the planned one.
pub(super) fn covers_entry(live: &ImportedCluster, planned: &ImportedCluster) -> bool {
    let ImportedCluster {
        name: _,
        routing_mode,
        target_port_number,
        target_ports,
        app_protocol,
        labels,
        drain_until,
        pod_cidrs,
        endpoint_picker,
        parents,
        conditions,
    } = planned;
    live.routing_mode == *routing_mode
        && live.target_port_number == *target_port_number
        && covers_list(&live.target_ports, target_ports)
        && covers_field(live.app_protocol.as_ref(), app_protocol.as_ref())
        && labels
            .iter()
            .all(|(name, value)| live.labels.get(name) == Some(value))
        && covers_field(live.drain_until.as_ref(), drain_until.as_ref())
        && covers_list(&live.pod_cidrs, pod_cidrs)
        && match (endpoint_picker, &live.endpoint_picker) {
            (None, _) => true,
            (Some(planned), Some(live)) => covers_picker(live, planned),
            (Some(_), None) => false,
        }
        && (parents.is_empty() || same_parents(&live.parents, parents))
        && covers_conditions(&live.conditions, conditions)
}

/// Whether a live entry that covers the planned one has nothing else.
pub(super) fn is_exact(live: &ImportedCluster, planned: &ImportedCluster) -> bool {
    live.target_ports == planned.target_ports
        && live.app_protocol == planned.app_protocol
        && live.labels == planned.labels
        && live.drain_until == planned.drain_until
        && live.pod_cidrs == planned.pod_cidrs
        && live.endpoint_picker == planned.endpoint_picker
        && same_parents(&live.parents, &planned.parents)
        && live.conditions.len() == planned.conditions.len()
}

/// Whether the live conditions include the planned ones.
pub(super) fn covers_conditions(live: &[Condition], planned: &[Condition]) -> bool {
    planned.iter().enumerate().all(|(at, wanted)| {
        // written by us, they are in our order
        let found = live
            .get(at)
            .filter(|found| found.type_ == wanted.type_)
            .or_else(|| conditions::find(live, &wanted.type_));
        found.is_some_and(|found| {
            conditions::same(std::slice::from_ref(found), std::slice::from_ref(wanted))
        })
    })
}

fn covers_picker(live: &EndpointPicker, planned: &EndpointPicker) -> bool {
    let EndpointPicker {
        name,
        service,
        health,
        metrics,
        failure_mode,
        endpoints,
    } = planned;
    live.name == *name
        && live.service == *service
        && covers_port(live.health.as_ref(), health.as_ref())
        && covers_port(live.metrics.as_ref(), metrics.as_ref())
        && covers_field(live.failure_mode.as_ref(), failure_mode.as_ref())
        && covers_list(&live.endpoints, endpoints)
}

fn covers_port(live: Option<&PortRef>, planned: Option<&PortRef>) -> bool {
    let covers_secret = |live: &SecretReference, planned: &SecretReference| {
        covers_field(live.name.as_ref(), planned.name.as_ref())
            && covers_field(live.namespace.as_ref(), planned.namespace.as_ref())
    };
    match (live, planned) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(live), Some(planned)) => {
            live.port == planned.port
                && match (&live.secret_ref, &planned.secret_ref) {
                    (_, None) => true,
                    (None, Some(_)) => false,
                    (Some(live), Some(planned)) => covers_secret(live, planned),
                }
        }
    }
}

fn covers_field<T: PartialEq>(live: Option<&T>, planned: Option<&T>) -> bool {
    planned.is_none() || live == planned
}

/// An empty list is not written at all.
fn covers_list<T: PartialEq>(live: &[T], planned: &[T]) -> bool {
    planned.is_empty() || live == planned
}

/// The list is atomic: it is one value, whose conditions have times.
fn same_parents(live: &[Parent], planned: &[Parent]) -> bool {
    live.len() == planned.len()
        && live.iter().zip(planned).all(|(live, planned)| {
            let Parent {
                name,
                namespace,
                service,
                hostnames,
                listeners,
                conditions,
            } = planned;
            live.name == *name
                && live.namespace == *namespace
                && live.service == *service
                && live.hostnames == *hostnames
                && live.listeners == *listeners
                && conditions::same(&live.conditions, conditions)
        })
}

#[cfg(test)]
mod tests {
    use crd::RoutingMode;
    use serde_json::json;

    use super::*;

    fn mk() -> ImportedCluster {
        serde_json::from_value(json!({
            "name": "a", "routingMode": "EndpointMode", "targetPortNumber": 8000,
            "targetPorts": [{"number": 8000}], "labels": {"region": "eu"},
            "endpointPicker": {"name": "epp", "service": [{"type": "LoadBalancer", "addresses": ["192.0.2.1"]}],
                "health": {"port": 9003}, "failureMode": "FailOpen"},
            "parents": [{"name": "gw", "namespace": "infra", "service": [{"type": "LoadBalancer"}],
                "conditions": [mk_condition("Programmed", 1)]}],
            "conditions": [mk_condition("Accepted", 1), mk_condition("Ready", 1)],
        }))
        .expect("an entry")
    }

    fn mk_condition(type_: &str, second: i64) -> serde_json::Value {
        json!({"type": type_, "status": "True", "reason": "Good", "message": "", "observedGeneration": 1,
            "lastTransitionTime": format!("2026-01-01T00:00:0{second}Z")})
    }

    #[test]
    fn times_and_order_of_conditions_do_not_count() {
        let planned = mk();
        let mut live = mk();
        for condition in live
            .conditions
            .iter_mut()
            .chain(&mut live.parents[0].conditions)
        {
            condition.last_transition_time.0 += jiff::SignedDuration::from_secs(5);
        }
        live.conditions.reverse();
        assert!(covers_entry(&live, &planned) && is_exact(&live, &planned));
    }

    #[test]
    fn additions_are_covered_and_not_exact() {
        let planned = mk();
        let additions: [fn(&mut ImportedCluster); 4] = [
            |live| {
                live.labels.insert("x".to_owned(), "y".to_owned());
            },
            |live| live.app_protocol = Some("http".to_owned()),
            |live| {
                let picker = live.endpoint_picker.as_mut().expect("a picker");
                picker.endpoints = vec!["10.0.0.1".to_owned()];
            },
            |live| {
                let mut more = live.conditions[0].clone();
                more.type_ = "More".to_owned();
                live.conditions.push(more);
            },
        ];
        for add in additions {
            let mut live = mk();
            add(&mut live);
            assert!(covers_entry(&live, &planned), "{live:?}");
            assert!(!is_exact(&live, &planned), "{live:?}");
        }
    }

    #[test]
    fn changes_are_not_covered() {
        let planned = mk();
        let changes: [fn(&mut ImportedCluster); 9] = [
            |live| live.routing_mode = RoutingMode::ParentMode,
            |live| live.target_port_number = 1,
            |live| live.target_ports.clear(),
            |live| live.labels.clear(),
            |live| live.endpoint_picker = None,
            |live| live.endpoint_picker.as_mut().expect("a picker").health = None,
            |live| {
                live.endpoint_picker.as_mut().expect("a picker").service[0]
                    .addresses
                    .clear();
            },
            |live| live.parents[0].hostnames = vec!["x".to_owned()],
            |live| live.conditions[1].reason = "Bad".to_owned(),
        ];
        for change in changes {
            let mut live = mk();
            change(&mut live);
            assert!(!covers_entry(&live, &planned), "{live:?}");
        }
    }
}
