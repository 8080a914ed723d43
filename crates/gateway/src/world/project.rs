//! From the API's types to the world's. The one place that knows the generated types.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crd::networks::Cidr;
use crd::{gateway_class, inference_pool, reference_grant};
use foreign_text::{MAX_MESSAGE, clipped};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    GatewayClass, InferencePool, Key, Labels, ParametersRef, PickerRef, ReferenceGrant, Service,
    ServicePort, Slice,
};

mod gateways;
mod imports;
mod routes;

pub(crate) use gateways::gateway;
pub(crate) use imports::import;
pub(crate) use routes::{RawRoute, http_route};

pub(crate) fn key(meta: &ObjectMeta) -> Key {
    Key::new(
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

pub(crate) fn gateway_class(object: &gateway_class::GatewayClass) -> GatewayClass {
    let reference = object.spec.parameters_ref.as_ref();
    GatewayClass {
        generation: object.metadata.generation.unwrap_or_default(),
        controller: object.spec.controller_name.clone(),
        parameters: reference.map(|reference| ParametersRef {
            group: reference.group.clone(),
            kind: reference.kind.clone(),
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
        }),
    }
}

pub(crate) fn inference_pool(object: &inference_pool::InferencePool) -> InferencePool {
    use inference_pool::InferencePoolEndpointPickerRefFailureMode as FailureMode;
    let spec = &object.spec;
    let app_protocol = spec.app_protocol.as_ref().and_then(|protocol| {
        let json = serde_json::to_value(protocol).ok()?;
        json.as_str().map(ToOwned::to_owned)
    });
    let annotations = object.metadata.annotations.as_ref();
    let annotation = |name: &str| annotations.and_then(|all| all.get(name)).cloned();
    InferencePool {
        generation: object.metadata.generation.unwrap_or_default(),
        selector: spec.selector.match_labels.clone(),
        target_ports: spec.target_ports.iter().map(|p| port(p.number)).collect(),
        app_protocol,
        picker: spec.endpoint_picker_ref.as_ref().map(|picker| PickerRef {
            group: picker.group.clone().unwrap_or_default(),
            kind: picker.kind.clone().unwrap_or_else(|| "Service".to_owned()),
            name: picker.name.clone(),
            port: picker.port.as_ref().map(|p| port(p.number)),
            fail_open: picker.failure_mode == Some(FailureMode::FailOpen),
        }),
        health_port: annotation(crd::annotations::HEALTH_PORT),
        metrics_port: annotation(crd::annotations::METRICS_PORT),
        metrics_secret: annotation(crd::annotations::METRICS_SECRET)
            .filter(|name| !name.is_empty()),
    }
}

/// The ranges from which Services of this cluster get their addresses.
pub(crate) fn service_cidr(object: &ServiceCIDR) -> Vec<Cidr> {
    let cidrs = object.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
    let cidrs = cidrs.into_iter().flatten();
    cidrs.filter_map(|text| text.parse().ok()).collect()
}

/// The addresses of a node, and the ranges of its pods; addresses that are names are left out.
pub(crate) fn node(object: &core::Node) -> Vec<Cidr> {
    let ranges = object
        .spec
        .as_ref()
        .and_then(|spec| spec.pod_cidrs.as_ref());
    let ranges = ranges.into_iter().flatten();
    let ranges = ranges.filter_map(|text| text.parse::<Cidr>().ok());
    let status = object.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_ref());
    let addresses = addresses.into_iter().flatten();
    let addresses = addresses.filter_map(|one| one.address.parse::<IpAddr>().ok());
    addresses.map(Cidr::host).chain(ranges).collect()
}

pub(crate) fn reference_grant(object: &reference_grant::ReferenceGrant) -> ReferenceGrant {
    let (from, to) = (object.spec.from.iter(), object.spec.to.iter());
    ReferenceGrant {
        from: from
            .map(|one| (one.group.clone(), one.kind.clone(), one.namespace.clone()))
            .collect(),
        to: to
            .map(|one| (one.group.clone(), one.kind.clone(), one.name.clone()))
            .collect(),
    }
}

pub(crate) fn service(object: &core::Service) -> Service {
    let spec = object.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref());
    let ports = ports.into_iter().flatten().map(|one| ServicePort {
        name: one.name.clone().unwrap_or_default(),
        port: port(one.port),
        app_protocol: one.app_protocol.clone(),
        tcp: one
            .protocol
            .as_deref()
            .is_none_or(|protocol| protocol == "TCP"),
    });
    Service {
        external_name: spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName"),
        balanced: balanced(object)
            .filter_map(|one| one.ip.as_ref()?.parse().ok())
            .map(Cidr::host)
            .collect(),
        ports: ports.collect(),
    }
}

fn balanced(object: &core::Service) -> impl Iterator<Item = &core::LoadBalancerIngress> {
    let status = object.status.as_ref();
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    ingress.into_iter().flatten()
}

/// Where clients reach a Service of ours.
pub(crate) fn service_addresses(object: &core::Service) -> Vec<String> {
    let spec = object.spec.as_ref();
    let kind = spec.and_then(|spec| spec.type_.as_deref());
    if kind == Some("LoadBalancer") {
        return balanced(object)
            .filter_map(|one| one.ip.clone().or_else(|| one.hostname.clone()))
            .collect();
    }
    let ips = spec
        .and_then(|spec| spec.cluster_ips.clone())
        .unwrap_or_default();
    ips.into_iter().filter(|ip| ip != "None").collect()
}

/// Where clients reach it there.
pub(crate) fn service_ports(object: &core::Service) -> BTreeSet<u16> {
    let ports = object.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    ports
        .into_iter()
        .flatten()
        .map(|one| port(one.port))
        .collect()
}

/// None where it belongs to no Service.
pub(crate) fn slice(object: &EndpointSlice) -> Option<Slice> {
    let labels = object.metadata.labels.as_ref()?;
    let service = labels.get("kubernetes.io/service-name")?;
    let ports = object.ports.iter().flatten().filter_map(|one| {
        let number = one.port.map(port)?;
        Some((one.name.clone().unwrap_or_default(), number))
    });
    let that = |hold: fn(&EndpointConditions) -> bool| -> Vec<IpAddr> {
        let unset = EndpointConditions::default();
        let found = object
            .endpoints
            .iter()
            .filter(|endpoint| hold(endpoint.conditions.as_ref().unwrap_or(&unset)));
        // All addresses of one endpoint are the same host.
        let first = found.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok());
        first.collect()
    };
    // Where it is unset, an endpoint is ready, serves and does not terminate.
    let ready = that(|conditions| conditions.ready.unwrap_or(true));
    let terminating = that(|conditions| {
        conditions.ready == Some(false)
            && conditions.serving.unwrap_or(true)
            && conditions.terminating == Some(true)
    });
    Some(Slice {
        service: Key::new(
            object.metadata.namespace.clone().unwrap_or_default(),
            service,
        ),
        ports: ports.collect(),
        ready,
        terminating,
    })
}

/// The pod's IP, where it is ready and stays.
pub(crate) fn ready_pod(object: &core::Pod) -> Option<IpAddr> {
    if object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = object.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let mut ready = conditions.filter(|one| one.type_ == "Ready" && one.status == "True");
    ready.next()?;
    status.pod_ip.as_ref()?.parse().ok()
}

pub(crate) fn available(object: &Deployment) -> i32 {
    let status = object.status.as_ref();
    status
        .and_then(|status| status.available_replicas)
        .unwrap_or(0)
}

/// Why its pods cannot be made, such as for Pod Security admission or a quota.
pub(crate) fn replica_failure(object: &Deployment) -> Option<String> {
    let conditions = object.status.as_ref()?.conditions.iter().flatten();
    let mut failures = conditions.filter(|one| one.type_ == "ReplicaFailure");
    let failure = failures.find(|one| one.status == "True")?;
    let message = failure.message.clone().unwrap_or_default();
    Some(clipped(message, MAX_MESSAGE))
}

pub(crate) fn labels(meta: &ObjectMeta) -> Labels {
    meta.labels.clone().unwrap_or_default()
}

/// The schema keeps ports within 1 to 65535; what is not becomes 0, which nothing has.
fn port(number: i32) -> u16 {
    u16::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::Endpoints;

    #[test]
    fn only_a_failure_that_holds_says_why_there_are_no_pods() {
        let failure = |status: &str| {
            let conditions = json!([
                {"type": "Progressing", "status": "True", "message": "progress"},
                {"type": "ReplicaFailure", "status": status, "message": "forbidden"},
            ]);
            let object = json!({"metadata": {}, "status": {"conditions": conditions}});
            replica_failure(&serde_json::from_value(object).unwrap())
        };
        assert_eq!(failure("True").as_deref(), Some("forbidden"));
        assert_eq!(failure("False"), None);
    }

    /// `[number of the last byte, ready, serving, terminating]` of each endpoint; null is an unset condition.
    fn mk_slice(ports: Value, endpoints: Value) -> EndpointSlice {
        let endpoints = endpoints.as_array().unwrap().iter().map(|of| {
            json!({
                "addresses": [format!("10.1.0.{}", of[0])],
                "conditions": {"ready": of[1], "serving": of[2], "terminating": of[3]},
            })
        });
        let object = json!({
            "metadata": {"namespace": "ns", "labels": {"kubernetes.io/service-name": "epp"}},
            "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>(), "ports": ports,
        });
        serde_json::from_value(object).unwrap()
    }

    #[rstest]
    #[case::one_slice(
        &[(json!([{"name": "grpc", "port": 9002}]), json!([[2, false, true, true], [4, true, true, false]]))],
        &["10.1.0.4:9002"])]
    #[case::terminating_beside_a_ready_one_of_another_slice(
        &[(json!([{"name": "grpc", "port": 9002}]), json!([[2, false, true, true]])),
          (json!([{"name": "grpc", "port": 9002}]), json!([[4, null, null, null]]))],
        &["10.1.0.4:9002"])]
    #[case::none_ready_in_any_slice(
        &[(json!([{"name": "grpc", "port": 9002}]), json!([[2, false, true, true], [3, false, false, true]])),
          (json!([{"name": "grpc", "port": 9002}]), json!([[5, false, false, false], [6, false, null, true]]))],
        &["10.1.0.2:9002", "10.1.0.6:9002"])]
    #[case::ready_ones_have_other_ports_only(
        &[(json!([{"name": "grpc", "port": 9002}]), json!([[2, false, true, true]])),
          (json!([{"name": "health", "port": 9003}]), json!([[4, true, true, false]]))],
        &["10.1.0.2:9002"])]
    #[case::one_name_and_two_numbers(
        &[(json!([{"name": "grpc", "port": 9002}]), json!([[2, true, true, false]])),
          (json!([{"name": "grpc", "port": 9102}]), json!([[4, true, true, false]]))],
        &["10.1.0.2:9002", "10.1.0.4:9102"])]
    #[case::without_a_port(
        &[(json!(null), json!([[2, true, true, false]])),
          (json!([{"name": "grpc", "port": null}]), json!([[3, true, true, false]])),
          (json!([{"name": "grpc", "port": 9002}]), json!([[4, false, true, true]]))],
        &["10.1.0.4:9002"])]
    fn slices_of_a_service_are_judged_together_for_each_port(
        #[case] slices: &[(Value, Value)],
        #[case] used: &[&str],
    ) {
        let service = Key::new("ns", "epp");
        let mut endpoints = Endpoints::default();
        for (number, (ports, of)) in slices.iter().enumerate() {
            let name = Key::new("ns", format!("epp-{number}"));
            let found = slice(&mk_slice(ports.clone(), of.clone())).unwrap();
            endpoints.slices.insert(name.clone(), found);
            let names = endpoints.by_service.entry(service.clone()).or_default();
            names.insert(name);
        }
        let found = endpoints.of_service(&service, "grpc");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, used);
    }
}
