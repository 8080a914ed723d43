//! Imports, from the API's types to the world's.

use std::collections::BTreeSet;

use crd::conditions::{ACCEPTED, PROGRAMMED, READY, find, is_false, is_true};
use crd::networks::{Cidr, MAX_POD_CIDRS, parse_pod_cidrs};

use crate::world::{
    ImportedCluster, InferencePoolImport, MetricsPort, RemoteListener, RemoteParent, RemotePicker,
    SecretRef,
};

pub(crate) fn import(object: &crd::InferencePoolImport) -> InferencePoolImport {
    InferencePoolImport {
        generation: object.metadata.generation.unwrap_or_default(),
        clusters: object.clusters().iter().map(imported_cluster).collect(),
    }
}

fn imported_cluster(entry: &crd::ImportedCluster) -> ImportedCluster {
    let ports: BTreeSet<u16> = entry.target_ports.iter().map(|p| p.number).collect();
    let target_ports = if ports.is_empty() {
        vec![entry.target_port_number]
    } else {
        ports.into_iter().collect()
    };
    let not_ready = is_false(&entry.conditions, READY)
        .then(|| find(&entry.conditions, READY).map(|ready| ready.reason.clone()))
        .flatten();
    ImportedCluster {
        name: entry.name.clone(),
        parent_mode: entry.routing_mode == crd::RoutingMode::ParentMode,
        target_ports,
        app_protocol: entry.app_protocol.clone(),
        picker: entry.endpoint_picker.as_ref().map(remote_picker),
        parents: entry.parents.iter().map(remote_parent).collect(),
        pod_cidrs: pod_cidrs(&entry.pod_cidrs),
        accepted: is_true(&entry.conditions, ACCEPTED),
        not_ready,
        drain_until: entry.drain_until.as_ref().map(|time| time.0.as_second()),
    }
}

/// The form of the networks is checked as the controller checks it, but not that they are of that cluster: a client
/// that may write the status of an import may write 10.0.0.0/8. Networks that are denied here are denied then as well.
fn pod_cidrs(texts: &[String]) -> Vec<Cidr> {
    let texts = texts.iter().take(MAX_POD_CIDRS);
    let networks: BTreeSet<Cidr> = texts
        .filter_map(|text| parse_pod_cidrs(text).ok())
        .flatten()
        .collect();
    networks.into_iter().collect()
}

fn remote_picker(picker: &crd::EndpointPicker) -> RemotePicker {
    let first = picker
        .service
        .iter()
        .find_map(|service| service.ports.first());
    let addresses = picker.service.iter().flat_map(|service| &service.addresses);
    RemotePicker {
        name: picker.name.clone(),
        endpoints: picker.endpoints.clone(),
        addresses: addresses.cloned().collect(),
        port: first.map(|port| port.number),
        app_protocol: first.and_then(|port| port.app_protocol.clone()),
        health_port: picker.health.as_ref().map(|health| health.port),
        metrics: picker.metrics.as_ref().map(|metrics| MetricsPort {
            port: metrics.port,
            secret: metrics.secret_ref.as_ref().map(|secret| SecretRef {
                namespace: secret.namespace.clone(),
                name: secret.name.clone().unwrap_or_default(),
            }),
        }),
        fail_open: picker.failure_mode == Some(crd::FailureMode::FailOpen),
    }
}

/// A parent whose listeners are not listed has those that its ports tell.
fn remote_parent(parent: &crd::Parent) -> RemoteParent {
    let listeners = parent.listeners.iter().map(|listener| RemoteListener {
        port: listener.port,
        https: listener.protocol == crd::ListenerProtocol::Https,
        hostname: listener.hostname.clone(),
    });
    let mut listeners: Vec<_> = listeners.collect();
    if listeners.is_empty() {
        let ports = parent.service.iter().flat_map(|service| &service.ports);
        listeners.extend(ports.filter_map(|port| {
            let https = match port.app_protocol.as_deref() {
                Some("https") => true,
                Some("http") => false,
                _ => return None,
            };
            Some(RemoteListener {
                port: port.number,
                https,
                hostname: None,
            })
        }));
    }
    let addresses = parent.service.iter().flat_map(|service| &service.addresses);
    RemoteParent {
        addresses: addresses.cloned().collect(),
        hostnames: parent.hostnames.clone(),
        listeners,
        unprogrammed: is_false(&parent.conditions, PROGRAMMED),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn project(entry: Value) -> ImportedCluster {
        let mut entry = entry;
        entry["name"] = "east".into();
        entry["targetPortNumber"] = 8000.into();
        imported_cluster(&serde_json::from_value(entry).unwrap())
    }

    #[test]
    fn parents_are_projected_with_what_is_false_of_them() {
        let parent = |listeners: Value, programmed: &str| {
            json!({
                "name": "gw", "namespace": "ns", "hostnames": ["a.example"], "listeners": listeners,
                "service": [{
                    "type": "LoadBalancer", "addresses": ["10.3.0.7"],
                    "ports": [{"number": 80, "appProtocol": "http"}, {"number": 443, "appProtocol": "https"}, {"number": 9}],
                }],
                "conditions": [{
                    "type": "Programmed", "status": programmed, "reason": "r", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            })
        };
        let listener =
            json!({"name": "l", "port": 8443, "protocol": "HTTPS", "hostname": "*.example"});
        let parents = [
            parent(json!([listener]), "Unknown"),
            parent(json!([]), "False"),
        ];
        let entry = project(json!({
            "routingMode": "ParentMode", "parents": parents, "drainUntil": "1970-01-01T00:01:00Z",
        }));
        assert!(entry.parent_mode);
        assert_eq!(entry.drain_until, Some(60));
        let mk = |port, https, hostname: Option<&str>| RemoteListener {
            port,
            https,
            hostname: hostname.map(Into::into),
        };
        let [one, other] = &entry.parents[..] else {
            panic!("{entry:?}");
        };
        assert_eq!(one.listeners, [mk(8443, true, Some("*.example"))]);
        assert_eq!(one.addresses, ["10.3.0.7"]);
        assert_eq!(one.hostnames, ["a.example"]);
        assert!(!one.unprogrammed);
        assert_eq!(other.listeners, [mk(80, false, None), mk(443, true, None)]);
        assert!(other.unprogrammed);
    }

    #[test]
    fn picker_has_its_failure_mode_and_where_its_load_is_read() {
        let entry = project(json!({
            "routingMode": "EndpointMode",
            "endpointPicker": {
                "name": "epp", "service": [], "failureMode": "FailOpen",
                "metrics": {"port": 9090, "secretRef": {"name": "token", "namespace": "other"}},
            },
        }));
        let picker = entry.picker.unwrap();
        assert!(picker.fail_open);
        let secret = SecretRef {
            namespace: Some("other".into()),
            name: "token".into(),
        };
        let metrics = MetricsPort {
            port: 9090,
            secret: Some(secret),
        };
        assert_eq!(picker.metrics, Some(metrics));
    }
}
