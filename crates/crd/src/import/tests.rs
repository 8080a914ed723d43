use serde_json::json;

use super::*;

#[test]
fn an_object_without_spec_and_status_decodes() {
    let import: InferencePoolImport =
        serde_json::from_value(json!({"metadata": {"name": "llm", "namespace": "ml"}}))
            .expect("decodes");
    assert!(import.clusters().is_empty());
    assert_eq!(import, InferencePoolImport::new("ml", "llm"));
}

#[test]
fn unknown_fields_are_ignored() {
    let import: InferencePoolImport = serde_json::from_value(json!({
        "apiVersion": API_VERSION, "kind": "InferencePoolImport",
        "metadata": {"name": "llm"},
        "spec": {"later": true},
        "status": {"later": 1, "clusters": [
            {"name": "east", "routingMode": "EndpointMode", "targetPortNumber": 8000, "later": []}
        ]}
    }))
    .expect("decodes");
    assert_eq!(import.clusters()[0].name, "east");
}

#[test]
fn a_single_service_object_decodes_as_a_list_of_one() {
    let picker: EndpointPicker = serde_json::from_value(json!({
        "name": "epp",
        "service": {"type": "LoadBalancer", "addresses": ["10.1.2.3"], "ports": [{"number": 9002}]}
    }))
    .expect("decodes");
    assert_eq!(picker.service.len(), 1);
    let written = serde_json::to_value(&picker).expect("encodes");
    assert!(
        written["service"].is_array(),
        "we write the list: {written}"
    );
}

#[test]
fn an_absent_endpoint_picker_is_not_written() {
    let entry: ImportedCluster = serde_json::from_value(
        json!({"name": "east", "routingMode": "ParentMode", "targetPortNumber": 1}),
    )
    .expect("decodes");
    let written = serde_json::to_value(&entry).expect("encodes");
    assert_eq!(
        written,
        json!({"name": "east", "routingMode": "ParentMode", "targetPortNumber": 1})
    );
}
