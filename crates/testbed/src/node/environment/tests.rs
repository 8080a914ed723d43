use std::net::Ipv4Addr;

use k8s_openapi::ByteString;
use serde_json::json;

use super::*;

struct Objects;

impl Lookup for Objects {
    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        (name == "keys").then(|| {
            let data = BTreeMap::from([("token".to_owned(), ByteString(b"s3cret".to_vec()))]);
            Arc::new(Secret {
                data: Some(data),
                ..Secret::default()
            })
        })
    }

    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
        (name == "settings").then(|| {
            Arc::new(ConfigMap {
                data: Some(BTreeMap::from([("MODE".to_owned(), "fast".to_owned())])),
                ..ConfigMap::default()
            })
        })
    }
}

fn mk_pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "echo-1", "namespace": "ml", "uid": "u", "labels": {"app": "echo"}},
        "spec": {"containers": []},
    }))
    .unwrap()
}

fn mk_container(container: serde_json::Value) -> Container {
    serde_json::from_value(container).unwrap()
}

fn environment_of(
    container: serde_json::Value,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let container = mk_container(container);
    let pod = mk_pod();
    let facts = Facts {
        pod: &pod,
        pod_ip: Ipv4Addr::new(10, 1, 0, 2).into(),
        host_ip: Ipv4Addr::new(10, 1, 255, 2).into(),
        node_name: "east-node",
    };
    make_environment(
        &container,
        facts,
        &Objects,
        BTreeMap::from([("BASE".to_owned(), "b".to_owned())]),
    )
}

#[test]
fn fields_of_the_pod_reach_the_environment() {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let environment = environment_of(json!({"name": "c", "env": [
        field("NAME", "metadata.name"),
        field("IP", "status.podIP"),
        field("HOST", "status.hostIP"),
        field("NODE", "spec.nodeName"),
        field("APP", "metadata.labels['app']"),
    ]}))
    .unwrap();
    let values = ["NAME", "IP", "HOST", "NODE", "APP"].map(|name| environment[name].as_str());
    assert_eq!(
        values,
        ["echo-1", "10.1.0.2", "10.1.255.2", "east-node", "echo"]
    );
}

#[test]
fn secrets_and_config_maps_reach_the_environment() {
    let environment = environment_of(json!({"name": "c",
        "envFrom": [{"prefix": "SET_", "configMapRef": {"name": "settings"}}],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}],
    }))
    .unwrap();
    assert_eq!(environment["SET_MODE"], "fast");
    assert_eq!(environment["TOKEN"], "s3cret");
}

#[test]
fn a_missing_secret_is_an_error_unless_optional() {
    let variable = |name: &str, key: &str, optional: bool| {
        json!({"name": "c", "env": [{"name": "X", "valueFrom": {
            "secretKeyRef": {"name": name, "key": key, "optional": optional}}}]})
    };
    assert_eq!(
        environment_of(variable("none", "k", false)),
        Err(no_object("secret", "none"))
    );
    assert!(matches!(
        environment_of(variable("keys", "k", false)),
        Err(EnvironmentError::NoKey { .. })
    ));
    assert!(
        !environment_of(variable("none", "k", true))
            .unwrap()
            .contains_key("X")
    );
}

#[test]
fn later_variables_refer_to_earlier_ones() {
    let environment = environment_of(json!({"name": "c", "env": [
        {"name": "A", "value": "$(BASE)-a"},
        {"name": "B", "value": "$(A)/$(LATER)"},
        {"name": "LATER", "value": "x"},
    ]}))
    .unwrap();
    assert_eq!(environment["B"], "b-a/$(LATER)");
}

#[test]
fn expansion_follows_kubernetes_escapes() {
    let environment = BTreeMap::from([("V".to_owned(), "é".to_owned())]);
    for (text, expected) in [
        ("$(V)", "é"),
        ("a$(V)b$(V)", "aéb é".replace(' ', "").as_str()),
        ("$$(V)", "$(V)"),
        ("$V", "$V"),
        ("$(V", "$(V"),
        ("$(NONE)", "$(NONE)"),
        ("cost: 5$", "cost: 5$"),
    ] {
        assert_eq!(expand(text, &environment), expected, "{text}");
    }
}

#[test]
fn service_links_carry_a_url_in_the_port_variable() {
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "my-epp", "namespace": "ml"},
        "spec": {"clusterIP": "10.1.128.9", "ports": [{"name": "grpc", "port": 9002}]},
    }))
    .unwrap();
    let links = make_service_links([&service].into_iter());
    assert_eq!(links["MY_EPP_PORT"], "tcp://10.1.128.9:9002");
    assert_eq!(links["MY_EPP_SERVICE_PORT_GRPC"], "9002");
    assert_eq!(links["MY_EPP_PORT_9002_TCP_ADDR"], "10.1.128.9");
}
