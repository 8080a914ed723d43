//! Gateways and their listeners.

use crd::gateway;

use super::super::{
    CertificateRef, Gateway, LabelExpression, LabelSelector, Listener, ListenerTls, ParametersRef,
    RoutesFrom,
};
use super::{key, port};

pub(crate) fn gateway(object: &gateway::Gateway) -> Gateway {
    let spec = &object.spec;
    let infrastructure = spec.infrastructure.clone();
    let (labels, annotations, reference) = match infrastructure {
        Some(i) => (i.labels, i.annotations, i.parameters_ref),
        None => (None, None, None),
    };
    Gateway {
        key: key(&object.metadata),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        deleting: object.metadata.deletion_timestamp.is_some(),
        class: spec.gateway_class_name.clone(),
        listeners: spec
            .listeners
            .iter()
            .map(|one| listener(one, spec.tls.as_ref()))
            .collect(),
        wants_addresses: spec.addresses.iter().flatten().any(is_certain),
        labels: labels.unwrap_or_default(),
        annotations: annotations.unwrap_or_default(),
        parameters: reference.map(|reference| ParametersRef {
            group: reference.group,
            kind: reference.kind,
            namespace: None,
            name: reference.name,
        }),
    }
}

/// Without a value it asks for any address of its type, which a Gateway has anyway.
fn is_certain(address: &gateway::GatewayAddresses) -> bool {
    let is_ip = address
        .r#type
        .as_deref()
        .is_none_or(|kind| kind == "IPAddress");
    !is_ip
        || address
            .value
            .as_deref()
            .is_some_and(|value| !value.is_empty())
}

fn listener(one: &gateway::GatewayListeners, of_gateway: Option<&gateway::GatewayTls>) -> Listener {
    use gateway::GatewayListenersAllowedRoutesNamespacesFrom as From;
    let allowed = one.allowed_routes.as_ref();
    let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
    let from = match namespaces.and_then(|namespaces| namespaces.from.as_ref()) {
        None | Some(From::Same) => RoutesFrom::Same,
        Some(From::All) => RoutesFrom::All,
        Some(From::Selector) => {
            let selector = namespaces.and_then(|namespaces| namespaces.selector.as_ref());
            // A selector that is not there selects nothing.
            selector.map_or(RoutesFrom::None, |s| {
                RoutesFrom::Selector(label_selector(s))
            })
        }
    };
    let kinds = allowed.and_then(|allowed| allowed.kinds.as_ref());
    let kinds = kinds.into_iter().flatten().map(|kind| {
        let group = kind.group.clone();
        let group = group.unwrap_or_else(|| crd::annotations::GATEWAY_GROUP.to_owned());
        (group, kind.kind.clone())
    });
    Listener {
        name: one.name.clone(),
        port: port(one.port),
        protocol: one.protocol.clone(),
        hostname: one.hostname.clone(),
        tls: one.tls.as_ref().map(listener_tls),
        checks_clients: checks_clients(of_gateway, one.port),
        from,
        kinds: kinds.collect(),
    }
}

fn listener_tls(tls: &gateway::GatewayListenersTls) -> ListenerTls {
    let refs = tls.certificate_refs.iter().flatten();
    ListenerTls {
        passthrough: tls.mode == Some(gateway::GatewayListenersTlsMode::Passthrough),
        certificates: refs
            .map(|one| CertificateRef {
                group: one.group.clone().unwrap_or_default(),
                kind: one.kind.clone().unwrap_or_else(|| "Secret".to_owned()),
                namespace: one.namespace.clone(),
                name: one.name.clone(),
            })
            .collect(),
    }
}

/// What the Gateway says of a port goes before what it says of all.
fn checks_clients(tls: Option<&gateway::GatewayTls>, port: i32) -> bool {
    let Some(frontend) = tls.and_then(|tls| tls.frontend.as_ref()) else {
        return false;
    };
    let mut of_ports = frontend.per_port.iter().flatten();
    match of_ports.find(|one| one.port == port) {
        Some(one) => one.tls.validation.is_some(),
        None => frontend.default.validation.is_some(),
    }
}

fn label_selector(
    selector: &gateway::GatewayListenersAllowedRoutesNamespacesSelector,
) -> LabelSelector {
    let expressions = selector.match_expressions.iter().flatten();
    LabelSelector {
        labels: selector.match_labels.clone().unwrap_or_default(),
        expressions: expressions
            .map(|one| LabelExpression {
                key: one.key.clone(),
                operator: one.operator.clone(),
                values: one.values.iter().flatten().cloned().collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mk_gateway(spec: &Value) -> Gateway {
        let mut object = json!({"metadata": {"namespace": "ns", "name": "gw"}, "spec": spec});
        object["spec"]["gatewayClassName"] = "isthmus".into();
        gateway(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn certificates_have_the_defaults_of_the_api() {
        let tls = json!({"mode": "Terminate", "certificateRefs": [{"name": "a"}, {
            "group": "example.com", "kind": "Other", "namespace": "far", "name": "b",
        }]});
        let listener = json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls});
        let found = mk_gateway(&json!({"listeners": [listener]}));
        let tls = found.listeners[0].tls.as_ref().unwrap();
        let texts = tls.certificates.iter().map(|one| {
            let namespace = one.namespace.as_deref().unwrap_or("-");
            format!("{}/{} {namespace}/{}", one.group, one.kind, one.name)
        });
        let texts: Vec<_> = texts.collect();
        assert_eq!(texts, ["/Secret -/a", "example.com/Other far/b"]);
        assert!(!tls.passthrough);
    }

    #[test]
    fn address_without_a_value_is_any() {
        let wants = |addresses: Value| {
            let spec = json!({"listeners": [], "addresses": addresses});
            mk_gateway(&spec).wants_addresses
        };
        assert!(!wants(json!([])));
        assert!(!wants(json!([{"type": "IPAddress"}, {}, {"value": ""}])));
        assert!(wants(json!([{"type": "IPAddress"}, {"value": "10.0.0.1"}])));
        assert!(wants(json!([{"type": "Hostname"}])));
        assert!(wants(json!([{"type": "example.com/own"}])));
    }

    #[test]
    fn what_a_gateway_says_of_a_port_goes_before_what_it_says_of_all() {
        let validation = json!({"validation": {"caCertificateRefs": []}});
        let mut spec = json!({"listeners": [
            {"name": "a", "port": 443, "protocol": "HTTPS"},
            {"name": "b", "port": 8443, "protocol": "HTTPS"},
        ]});
        let checks = |spec: &Value| {
            let found = mk_gateway(spec);
            let checks = found.listeners.iter().map(|one| one.checks_clients);
            checks.collect::<Vec<_>>()
        };
        assert_eq!(checks(&spec), [false, false]);
        spec["tls"] = json!({"frontend": {"default": validation}});
        assert_eq!(checks(&spec), [true, true]);
        spec["tls"] =
            json!({"frontend": {"default": validation, "perPort": [{"port": 443, "tls": {}}]}});
        assert_eq!(checks(&spec), [false, true]);
        spec["tls"] =
            json!({"frontend": {"default": {}, "perPort": [{"port": 443, "tls": validation}]}});
        assert_eq!(checks(&spec), [true, false]);
    }
}
