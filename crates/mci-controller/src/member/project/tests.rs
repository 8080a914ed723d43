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

fn read(object: &ImportObject) -> Option<LiveImport> {
    import(object, &mk_ours(), &Interner::default()).expect("a status")
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
    read(&object).expect("a key")
}

fn mk_labels() -> Value {
    json!({MANAGED_BY: MANAGED_BY_CONTROLLER, CLUSTERSET: "default", CONTROLLER_INSTANCE: "one"})
}

#[test]
fn ours_bears_all_three_labels() {
    let mut labels = mk_labels();
    let ours = mk_import(&labels, &json!([]));
    assert_eq!(ours.claim, Claim::Ours);
    assert_eq!(ours.status.clusters.len(), 1);
    labels[CONTROLLER_INSTANCE] = json!("two");
    let theirs = mk_import(&labels, &json!([]));
    assert_eq!(theirs.claim, Claim::Foreign);
    assert!(theirs.status.clusters.is_empty(), "it is nothing to us");
    let some = json!({MANAGED_BY: "somebody"});
    assert_eq!(mk_import(&some, &json!([])).claim, Claim::Foreign);
}

#[test]
fn with_any_of_our_labels_missing_or_other_it_is_somebody_elses() {
    for label in [MANAGED_BY, CLUSTERSET, CONTROLLER_INSTANCE] {
        let mut labels = mk_labels();
        labels[label] = json!("another");
        assert_eq!(mk_import(&labels, &json!([])).claim, Claim::Foreign);
        labels.as_object_mut().expect("labels").remove(label);
        assert_eq!(mk_import(&labels, &json!([])).claim, Claim::Foreign);
        let alone = json!({label: mk_labels()[label]});
        assert_eq!(mk_import(&alone, &json!([])).claim, Claim::Foreign);
    }
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
    let live = mk_import(&mk_labels(), &managed);
    assert_eq!(*live.owned_entries, ["east"]);
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
    assert!(facts.export.is_requested());
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
fn an_annotation_longer_than_a_legal_one_is_ignored() {
    let long = format!("creds/{}", "x".repeat(10_000));
    let object: InferencePool = mk(json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"namespace": "ml", "name": "llm",
            "annotations": {crd::annotations::EXPORT: "ClusterSet", crd::annotations::HEALTH_SECRET: long}},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}]},
    }));
    let export = pool(object, &mk_ours()).expect("valid").export;
    let request = export.requested().expect("exported");
    assert_eq!(request.health.secret, None);
    assert_eq!(request.ignored, [crd::annotations::HEALTH_SECRET]);
}

fn long() -> String {
    "x".repeat(1 << 20)
}

fn mk_pool(change: impl FnOnce(&mut Value)) -> Option<PoolFacts> {
    let mut object = json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"namespace": "ml", "name": "llm", "uid": "u"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}}},
        "status": {"parents": [{"parentRef": {"name": "llm", "kind": IMPORT_KIND, "group": IMPORT_GROUP},
             "controllerName": MCI_CONTROLLER, "conditions": [{"type": "Exported", "status": "True",
             "reason": "Exported", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]},
    });
    change(&mut object);
    pool(mk(object), &mk_ours())
}

#[test]
fn a_pool_whose_reference_its_crd_would_refuse_is_unreadable() {
    let with = |field: &str, text: String| {
        mk_pool(|pool| pool["spec"]["endpointPickerRef"][field] = json!(text))
    };
    for (field, most) in [("name", 253), ("group", 253), ("kind", 63)] {
        assert!(with(field, "x".repeat(most)).is_some(), "{field}");
        assert_eq!(with(field, "x".repeat(most + 1)), None, "{field}");
    }
}

#[test]
fn little_is_kept_of_what_others_write_into_a_pool() {
    let facts = mk_pool(|pool| {
        pool["metadata"]["uid"] = json!(long());
        pool["spec"]["targetPorts"] = json!(vec![json!({"number": 1}); 1000]);
        let conditions = &mut pool["status"]["parents"][0]["conditions"];
        for field in ["type", "status", "reason", "message"] {
            conditions[0][field] = json!(long());
        }
        *conditions = json!(vec![conditions[0].clone(); 20]);
    });
    let facts = facts.expect("valid");
    assert_eq!(facts.uid, "");
    assert_eq!(facts.target_ports.len(), bounds::MAX_TARGET_PORTS);
    let kept = facts.exported.expect("our entry");
    assert_eq!(kept.len(), bounds::MAX_CONDITIONS);
    let size = |one: &crd::Condition| {
        one.type_.capacity()
            + one.status.capacity()
            + one.reason.capacity()
            + one.message.capacity()
    };
    assert!(kept.iter().map(size).sum::<usize>() < 20_000);
}

#[test]
fn a_message_that_was_cut_is_not_taken_for_ours() {
    let ours = "x".repeat(crd::conditions::MAX_MESSAGE_BYTES);
    let read = |message: String| {
        let facts = mk_pool(|pool| {
            pool["status"]["parents"][0]["conditions"][0]["message"] = json!(message);
        });
        facts.and_then(|facts| facts.exported).expect("our entry")
    };
    let wanted = read(ours.clone());
    assert_eq!(wanted[0].message, ours);
    for more in ["x", "\u{1f600}"] {
        let live = read(format!("{ours}{more}{}", long()));
        assert!(!crd::conditions::same(&live, &wanted), "{more}");
    }
}

#[test]
fn an_address_that_is_too_long_is_kept_as_a_bad_one() {
    let object: Service = mk(json!({"metadata": {"namespace": "ml", "name": "epp"},
        "spec": {"type": "LoadBalancer", "clusterIPs": vec![long(); 100],
            "ports": vec![json!({"port": 9002}); 2000]},
        "status": {"loadBalancer": {"ingress": vec![json!({"hostname": format!("a.{}", "b.".repeat(500_000))}); 20]}}}));
    let facts = service(object).expect("a key");
    assert_eq!(facts.cluster_ips.len(), bounds::MAX_CLUSTER_IPS);
    assert_eq!(facts.ports.len(), bounds::MAX_PORTS);
    assert_eq!(facts.ingress.len(), 20);
    for address in facts.cluster_ips.iter().chain(&facts.ingress) {
        assert!(address.capacity() < 300, "{}", address.capacity());
        assert!(!crate::name::is_subdomain(address), "{address}");
    }
    let many: Service = mk(
        json!({"metadata": {"namespace": "ml", "name": "epp"}, "status": {"loadBalancer":
        {"ingress": vec![json!({"ip": "192.0.2.1"}); 10_000]}}}),
    );
    let ingress = service(many).expect("a key").ingress;
    assert_eq!(ingress.len(), bounds::MAX_INGRESS);
    assert!(ingress.capacity() < 2 * bounds::MAX_INGRESS);
}

#[test]
fn a_slice_of_what_is_no_service_is_none_of_ours() {
    let with = |service: String, endpoints: usize| {
        slice(mk(json!({
            "metadata": {"namespace": "ml", "name": "epp-1", "labels": {SERVICE_NAME: service}},
            "addressType": "IPv6",
            "endpoints": (0..endpoints).map(|n| json!({"addresses": [format!("2001:db8::{n:x}")]})).collect::<Vec<_>>(),
        })))
    };
    assert_eq!(with(long(), 0), None);
    assert_eq!(with("a b".to_owned(), 0), None);
    let facts = with("epp".to_owned(), 5000).expect("of a Service");
    assert_eq!(facts.ready.len(), bounds::MAX_ENDPOINTS);
}

#[test]
fn a_namespace_that_none_can_be_is_not_kept() {
    let with = |name: String| namespace(mk(json!({"metadata": {"name": name}})));
    assert!(with("x".repeat(63)).is_some());
    assert_eq!(with("x".repeat(64)), None);
    assert_eq!(with("../x".to_owned()), None);
}

#[test]
fn an_imports_handles_are_bounded() {
    let entries: serde_json::Map<String, Value> = (0..500)
        .map(|n| format!("entry-{n}"))
        .chain([long()])
        .map(|name| (format!("k:{}", json!({"name": name})), json!({})))
        .collect();
    let object: ImportObject = mk(json!({
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "InferencePoolImport",
        "metadata": {"namespace": "ml", "name": "llm", "uid": long(), "resourceVersion": long(),
            "managedFields": [{"manager": MCI_CONTROLLER, "operation": "Apply",
                "fieldsV1": {"f:status": {"f:clusters": entries}}}]},
    }));
    let live = read(&object).expect("a key");
    assert_eq!((&*live.uid, &*live.resource_version), ("", ""));
    assert_eq!(live.owned_entries.len(), bounds::MAX_ENTRIES);
    assert!(live.owned_entries.iter().all(|name| name.len() < 20));
}

#[test]
fn an_import_keeps_no_more_than_its_crd_admits() {
    let list = |what: &str, count: usize| -> Vec<Value> {
        let names = (0..count).map(|n| json!({"name": format!("{what}-{n}"), "routingMode": "EndpointMode", "targetPortNumber": 1}));
        names.collect()
    };
    let mk_status = |entries: usize, controllers: usize, names: usize| {
        let mut all = list("other", controllers);
        all.push(json!({"name": mk_ours().controller_name, "exportingClusters": list("a", names)}));
        json!({"clusters": list("a", entries), "controllers": all})
    };
    let read = |status: &Value| {
        let object: ImportObject = mk(json!({
            "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "InferencePoolImport",
            "metadata": {"namespace": "ml", "name": "llm"}, "status": status,
        }));
        read(&object).expect("a key").status
    };
    let endless = read(&mk_status(300, 100, 2000));
    let legal = read(&mk_status(256, 7, 1024));
    assert_eq!(endless.clusters, legal.clusters);
    assert_eq!(endless.clusters.len(), 256);
    assert_eq!(endless.controllers, legal.controllers);
    let ours = |status: &ImportStatus| {
        let mut all = status.controllers.iter();
        let ours = all.find(|one| one.name == mk_ours().controller_name);
        ours.map(|one| one.exporting_clusters.len())
    };
    assert_eq!(ours(&endless), Some(1024));
    assert_eq!(ours(&legal), Some(1024));
    // it is the digest of what is kept
    assert_eq!(endless.digest(), legal.digest());
    assert!(endless.digest().is_some());
}

#[test]
fn an_import_with_a_status_that_is_none_is_not_read_as_empty() {
    let object = |status: Value| -> ImportObject {
        mk(json!({"metadata": {"namespace": "ml", "name": "llm"}, "status": status}))
    };
    let interner = Interner::default();
    assert!(import(&object(json!({"clusters": 1})), &mk_ours(), &interner).is_err());
    assert!(import(&object(json!(null)), &mk_ours(), &interner).is_ok());
}

#[test]
fn of_an_import_only_what_we_write_is_kept() {
    let time = "2026-01-01T00:00:00Z";
    let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Good", "message": "of a gateway", "lastTransitionTime": time});
    let object: ImportObject = mk(json!({
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "InferencePoolImport",
        "metadata": {"namespace": "ml", "name": "llm"},
        "status": {
            "conditions": [condition("Programmed"), condition("Ready")],
            "controllers": [
                {"name": "example.com/gateway", "conditions": [condition("Ready")]},
                {"name": mk_ours().controller_name, "conditions": [condition("Ready")],
                    "parents": [{"parentRef": {"name": "gw"}}]},
            ],
        },
    }));
    let status = read(&object).expect("a key").status;
    let kept = status.conditions.iter();
    let conditions: Vec<_> = kept
        .map(|one| (one.type_.as_str(), one.message.as_str()))
        .collect();
    assert_eq!(conditions, [("Programmed", ""), ("Ready", "of a gateway")]);
    let [ours] = status.controllers.as_slice() else {
        panic!("{:?}", status.controllers);
    };
    assert_eq!(ours.name, mk_ours().controller_name);
    assert!(ours.parents.is_empty());
    assert_eq!(ours.conditions.len(), 1);
}

#[test]
fn endpoints_that_serve_while_they_terminate_are_told_apart() {
    let object: EndpointSlice = mk(json!({
        "metadata": {"namespace": "ml", "name": "epp-x", "labels": {SERVICE_NAME: "epp"}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.1.0.6"], "conditions": {"ready": false, "terminating": true}},
            {"addresses": ["10.1.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.1.0.3"], "conditions": {"ready": false, "serving": false, "terminating": true}},
            {"addresses": ["10.1.0.5"], "conditions": {"ready": false, "serving": false}},
            {"addresses": ["10.1.0.4"], "conditions": {"ready": true}}],
    }));
    let facts = slice(object).expect("a slice of a Service");
    let texts =
        |all: &[std::net::IpAddr]| -> Vec<String> { all.iter().map(ToString::to_string).collect() };
    assert_eq!(texts(&facts.ready), ["10.1.0.4"]);
    assert_eq!(texts(&facts.terminating), ["10.1.0.2", "10.1.0.6"]);
}
