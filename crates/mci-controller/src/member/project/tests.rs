use serde_json::{Value, json};

use super::*;

fn mk_ours() -> Ours {
    Ours {
        clusterset: "default".to_owned(),
        instance: "one".to_owned(),
        controller_name: MCI_CONTROLLER.to_owned(),
    }
}

fn mk<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("decodes")
}

fn mk_import(labels: &Value, managed: &Value) -> LiveImport {
    let object = mk(json!({
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "InferencePoolImport",
        "metadata": {"namespace": "ml", "name": "llm", "uid": "u", "resourceVersion": "5",
            "generation": 1, "labels": labels, "managedFields": managed},
        "status": {"clusters": [
            {"name": "east", "routingMode": "EndpointMode", "targetPortNumber": 1, "unknown": 1,
             "endpointPicker": {"name": "epp", "service": {"type": "ClusterIP"}}}]},
    }));
    import(object, &mk_ours()).expect("a key")
}

#[test]
fn ours_bears_all_three_labels() {
    let mut labels = json!({MANAGED_BY: MANAGED_BY_CONTROLLER, CLUSTERSET: "default", CONTROLLER_INSTANCE: "one"});
    assert_eq!(mk_import(&labels, &json!([])).claim, Claim::Ours);
    labels[CONTROLLER_INSTANCE] = json!("two");
    assert_eq!(mk_import(&labels, &json!([])).claim, Claim::Foreign);
    let some = json!({MANAGED_BY: "somebody"});
    assert_eq!(mk_import(&some, &json!([])).claim, Claim::Foreign);
}

#[test]
fn an_unlabelled_import_is_unclaimed_unless_somebody_writes_its_status() {
    let labels = json!({"team": "a"});
    assert_eq!(mk_import(&labels, &json!([])).claim, Claim::Unclaimed);
    let by = |manager: &str, status: &Value| {
        json!([{"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": status}}])
    };
    let clusters = json!({"f:clusters": {}});
    let gateway = json!({"f:controllers": {"k:{\"name\":\"example.com/gw\"}": {}}});
    assert_eq!(
        mk_import(&labels, &by("user", &clusters)).claim,
        Claim::Foreign
    );
    assert_eq!(
        mk_import(&labels, &by("gateway", &gateway)).claim,
        Claim::Unclaimed
    );
    assert_eq!(
        mk_import(&labels, &by(MCI_CONTROLLER, &clusters)).claim,
        Claim::Unclaimed
    );
}

#[test]
fn our_entries_are_read_from_the_managed_fields() {
    let fields = json!({"f:status": {"f:clusters": {"k:{\"name\":\"east\"}": {".": {}}}}});
    let managed = json!([
        {"manager": MCI_CONTROLLER, "operation": "Apply", "fieldsV1": fields},
        {"manager": "kubectl-edit", "operation": "Update",
         "fieldsV1": {"f:status": {"f:clusters": {"k:{\"name\":\"intruder\"}": {}}}}},
    ]);
    let live = mk_import(&json!({}), &managed);
    assert_eq!(live.owned_entries, ["east"]);
    assert_eq!(
        live.status.clusters[0]
            .endpoint_picker
            .as_ref()
            .map(|epp| epp.service.len()),
        Some(1)
    );
}

#[test]
fn a_pool_keeps_only_what_decides() {
    let object: InferencePool = mk(json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"namespace": "ml", "name": "llm", "uid": "u", "generation": 4,
            "annotations": {crd::annotations::EXPORT: "ClusterSet", "secret.example.com/x": "y"}},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}, {"number": 8001}],
            "appProtocol": "http",
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}, "failureMode": "FailOpen"}},
        "status": {"parents": [
            {"parentRef": {"name": "gw"}, "controllerName": "example.com/gw"},
            {"parentRef": {"name": "llm", "kind": IMPORT_KIND, "group": IMPORT_GROUP},
             "controllerName": MCI_CONTROLLER, "conditions": []}]},
    }));
    let facts = pool(object, &mk_ours()).expect("valid");
    assert_eq!(facts.annotations.len(), 1);
    assert_eq!(facts.target_ports, [8000, 8001]);
    assert_eq!(facts.exported, Some(Vec::new()));
    let epp = facts.epp.expect("a reference");
    assert_eq!((epp.kind.as_str(), epp.port), ("Service", Some(9002)));
    assert_eq!(facts.app_protocol.as_deref(), Some("http"));
}

#[test]
fn what_the_imports_crd_would_refuse_is_not_read() {
    let long = |length: usize| "x".repeat(length);
    let port = |excess: usize| {
        json!({"port": 9002, "name": long(63 + excess), "protocol": long(16 + excess),
            "appProtocol": long(253 + excess)})
    };
    let object: Service = mk(json!({"metadata": {"namespace": "ml", "name": "epp"},
        "spec": {"ports": [port(0), port(1)]}}));
    let ports = service(object).expect("a key").ports;
    assert_eq!(ports[0].name.len(), 63);
    assert!(ports[0].protocol.is_some() && ports[0].app_protocol.is_some());
    let bare = PortFacts {
        name: String::new(),
        number: 9002,
        protocol: None,
        app_protocol: None,
    };
    assert_eq!(ports[1], bare);
}

#[test]
fn services_are_read_by_type() {
    let headless: Service = mk(json!({"metadata": {"namespace": "ml", "name": "epp"},
        "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 9002}]}}));
    let facts = service(headless).expect("a key");
    assert!(facts.headless && facts.cluster_ips.is_empty());
    let balanced: Service = mk(json!({"metadata": {"namespace": "ml", "name": "epp"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}]}}}));
    let facts = service(balanced).expect("a key");
    assert_eq!(facts.ingress, ["192.0.2.1", "lb.example.com"]);
    assert_eq!(facts.cluster_ips, ["10.0.0.1", "fd00::1"]);
}

#[test]
fn only_ready_endpoints_count() {
    let object: EndpointSlice = mk(json!({
        "metadata": {"namespace": "ml", "name": "epp-1", "labels": {SERVICE_NAME: "epp"}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.0.0.3"]},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.1"], "conditions": {"ready": false}}],
        "ports": [{"name": "grpc", "port": 9002}],
    }));
    let facts = slice(object).expect("of a Service");
    let ready: Vec<String> = facts.ready.iter().map(ToString::to_string).collect();
    assert_eq!(ready, ["10.0.0.2", "10.0.0.3"]);
}

#[test]
fn names_that_would_leave_their_url_do_not_enter() {
    let object: Service = mk(json!({"metadata": {"namespace": "ml", "name": "../x"}}));
    assert_eq!(service(object), None);
}

#[test]
fn a_generation_that_the_imports_crd_would_refuse_is_read_as_none() {
    let object: InferencePool = mk(json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"namespace": "ml", "name": "llm", "generation": -1},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}]},
    }));
    assert_eq!(pool(object, &mk_ours()).expect("valid").generation, 0);
}

#[test]
fn an_annotation_is_kept_no_longer_than_a_legal_one_and_stays_illegal() {
    let long = format!("creds/{}", "x".repeat(10_000));
    let object: InferencePool = mk(json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"namespace": "ml", "name": "llm",
            "annotations": {crd::annotations::EXPORT: "ClusterSet", crd::annotations::HEALTH_SECRET: long}},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}]},
    }));
    let kept = pool(object, &mk_ours()).expect("valid").annotations;
    assert_eq!(kept[crd::annotations::HEALTH_SECRET].len(), MAX_ANNOTATION);
    let crate::plan::export::Export::Requested(request) = crate::plan::export::parse_export(&kept)
    else {
        panic!("not exported");
    };
    assert_eq!(request.ignored, [crd::annotations::HEALTH_SECRET]);
}
