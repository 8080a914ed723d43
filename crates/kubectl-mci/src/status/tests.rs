use serde_json::{Value, json};

use super::*;
use crate::{
    ignored::Ignored,
    output::{Format, Paint},
};

fn mk_pool(export: Option<&str>, exported: Option<(&str, &str, &str)>) -> InferencePool {
    let conditions = exported.map(|(status, reason, message)| {
        json!([{"parentRef": {"name": "default"}, "controllerName": "isthmus.dev/mci-controller",
            "conditions": [{"type": "Exported", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}])
    });
    let annotations = export.map_or(
        Value::Null,
        |value| json!({"inference.networking.x-k8s.io/export": value}),
    );
    serde_json::from_value(json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"name": "llama", "namespace": "llm", "annotations": annotations},
        "spec": {"selector": {"matchLabels": {}}, "targetPorts": []},
        "status": {"parents": conditions.unwrap_or_else(|| json!([]))},
    }))
    .expect("a pool")
}

fn mk_import(managed_by: &str, entries: &[(&str, &str, &str)]) -> InferencePoolImport {
    let clusters: Vec<Value> = entries
        .iter()
        .map(|(name, status, reason)| {
            json!({"name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000,
                "conditions": [{"type": "Ready", "status": status, "reason": reason, "message": "why",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "llama", "namespace": "llm",
            "labels": {"app.kubernetes.io/managed-by": managed_by}},
        "status": {"clusters": clusters},
    }))
    .expect("an import")
}

fn mk_seen(name: &str, pools: Vec<InferencePool>, imports: Vec<InferencePoolImport>) -> Seen {
    Seen {
        cluster: name.to_owned(),
        context: Some(name.to_owned()),
        facts: Ok(Facts {
            namespaces: Some(["llm".to_owned()].into()),
            pools: Ok(pools),
            imports: Ok(imports),
            ignored: Vec::new(),
        }),
    }
}

const OURS: &str = "isthmus-mci-controller";

fn exporting() -> Seen {
    let done = ("True", "Exported", "exported to 1/1");
    mk_seen(
        "east",
        vec![mk_pool(Some("ClusterSet"), Some(done))],
        vec![],
    )
}

/// Reasons of the holes, with the cluster that each is in and the one that it is about.
fn holes(seen: &[Seen]) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for pool in judge(seen).pools {
        for cell in pool.cells {
            for hole in cell.holes {
                found.push((
                    cell.cluster.clone(),
                    hole.from.unwrap_or_default(),
                    hole.reason,
                ));
            }
        }
    }
    found
}

fn one_hole(seen: &[Seen], cluster: &str, from: &str, reason: &str) {
    let expected = (cluster.to_owned(), from.to_owned(), reason.to_owned());
    assert_eq!(holes(seen), [expected]);
}

#[test]
fn what_is_exported_and_imported_has_no_hole() {
    let import = mk_import(OURS, &[("east", "True", "Ready")]);
    let seen = [exporting(), mk_seen("west", vec![], vec![import])];
    assert_eq!(holes(&seen), []);
    let text = text::render(&judge(&seen), Paint::Plain);
    assert_eq!(
        text,
        "POOL        EAST      WEST\nllm/llama   exports   imports 1/1\n"
    );
}

#[test]
fn a_cluster_without_the_crd_cannot_import() {
    let mut west = mk_seen("west", vec![], vec![]);
    west.facts.as_mut().expect("facts").imports = Err(unserved());
    one_hole(&[exporting(), west], "west", "east", "CRDAbsent");
}

#[test]
fn a_cluster_without_the_namespace_wants_no_import() {
    let mut west = mk_seen("west", vec![], vec![]);
    west.facts.as_mut().expect("facts").namespaces = Some(BTreeSet::new());
    one_hole(&[exporting(), west], "west", "east", "NamespaceMissing");
}

#[test]
fn an_import_that_is_not_there_yet_is_a_hole() {
    let west = mk_seen("west", vec![], vec![]);
    one_hole(&[exporting(), west], "west", "east", "NoImport");
}

#[test]
fn an_entry_that_is_not_ready_has_the_controllers_reason() {
    let import = mk_import(OURS, &[("east", "False", "NoReadyEndpoint")]);
    let west = mk_seen("west", vec![], vec![import]);
    one_hole(&[exporting(), west], "west", "east", "NoReadyEndpoint");
}

#[test]
fn an_import_of_somebody_else_is_a_conflict() {
    let west = mk_seen("west", vec![], vec![mk_import("helm", &[])]);
    one_hole(&[exporting(), west], "west", "east", "Conflict");
}

#[test]
fn an_entry_of_a_cluster_that_exports_no_more_was_not_withdrawn() {
    let import = mk_import(OURS, &[("east", "True", "Ready")]);
    let seen = [
        mk_seen("east", vec![mk_pool(None, None)], vec![]),
        mk_seen("west", vec![], vec![import]),
    ];
    one_hole(&seen, "west", "east", "NotWithdrawn");
}

#[test]
fn an_export_that_cannot_be_is_a_hole_of_its_own_cluster() {
    let refused = ("False", "NotSupported", "use ClusterSet");
    let east = mk_seen("east", vec![mk_pool(Some("Mars"), Some(refused))], vec![]);
    one_hole(
        &[east, mk_seen("west", vec![], vec![])],
        "east",
        "",
        "NotSupported",
    );
}

#[test]
fn what_an_exporter_sums_up_is_told_where_it_is_lacking_if_that_was_seen() {
    let partly = (
        "False",
        "PartiallyExported",
        "exported to 0/1: west Pending",
    );
    let east = || {
        mk_seen(
            "east",
            vec![mk_pool(Some("ClusterSet"), Some(partly))],
            vec![],
        )
    };
    let west = mk_seen("west", vec![], vec![]);
    one_hole(&[east(), west], "west", "east", "NoImport");
    one_hole(&[east()], "east", "", "PartiallyExported");
}

#[test]
fn a_cluster_that_cannot_be_seen_is_no_hole_and_its_problem_is_told() {
    let west = Seen {
        cluster: "west".to_owned(),
        context: None,
        facts: Err("west: no context".to_owned()),
    };
    let status = judge(&[exporting(), west]);
    let text = text::render(&status, Paint::Plain);
    assert_eq!(
        text,
        "POOL        EAST      WEST\nllm/llama   exports   ?\n\nnot seen: west: no context\n"
    );
    let json = Format::Json.render(&status, String::new).expect("JSON");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["clusters"][1]["problem"], "west: no context");
}

/// A list that failed because the API server does not serve the required version of the kind.
fn unserved() -> Unlisted {
    Unlisted {
        is_served: false,
        problem: "east: its inferencepools could not be listed".to_owned(),
    }
}

fn forbidden() -> Unlisted {
    Unlisted {
        is_served: true,
        problem: "west: cannot list: forbidden".to_owned(),
    }
}

#[test]
fn pools_that_could_not_be_listed_are_not_gone() {
    for unlisted in [unserved(), forbidden()] {
        let mut east = mk_seen("east", vec![], vec![]);
        east.facts.as_mut().expect("facts").pools = Err(unlisted.clone());
        let import = mk_import(OURS, &[("east", "True", "Ready")]);
        let seen = [east.clone(), mk_seen("west", vec![], vec![import])];
        assert_eq!(holes(&seen), []);
        let text = text::render(&judge(&seen), Paint::Plain);
        let expected = format!(
            "POOL        EAST   WEST\nllm/llama   ?      imports 1/1\n\nnot seen: {}\n",
            unlisted.problem
        );
        assert_eq!(text, expected);
        let alone = text::render(&judge(&[east]), Paint::Plain);
        assert!(!alone.contains("No cluster exports"), "{alone}");
        assert!(alone.contains(&unlisted.problem), "{alone}");
    }
}

#[test]
fn imports_that_could_not_be_listed_are_not_missing() {
    let mut west = mk_seen("west", vec![], vec![]);
    west.facts.as_mut().expect("facts").imports = Err(forbidden());
    let seen = [exporting(), west];
    assert_eq!(holes(&seen), []);
    let text = text::render(&judge(&seen), Paint::Plain);
    assert!(text.contains("llm/llama   exports   ?\n"), "{text}");
}

#[test]
fn annotations_without_effect_are_reported_also_of_a_pool_that_is_not_exported() {
    let mut pool = mk_pool(None, None);
    let typo = ("inference.networking.x-k8s.io/exprot", "ClusterSet");
    let annotations = [typo].map(|(key, value)| (key.to_owned(), value.to_owned()));
    pool.metadata.annotations = Some(annotations.into());
    let mut import = mk_import(OURS, &[]);
    let export = ("inference.networking.x-k8s.io/export", "ClusterSet");
    let annotations = [export].map(|(key, value)| (key.to_owned(), value.to_owned()));
    import.metadata.annotations = Some(annotations.into());
    let mut west = mk_seen("west", vec![], vec![import]);
    west.facts.as_mut().expect("facts").ignored = vec![Ignored {
        cluster: "west".to_owned(),
        kind: "Namespace",
        namespace: String::new(),
        name: "llm".to_owned(),
        message: "annotation a/b has no effect".to_owned(),
    }];
    let status = judge(&[mk_seen("east", vec![pool], vec![]), west]);
    let text = text::render(&status, Paint::Plain);
    for expected in [
        "ignored: InferencePool llm/llama in east: annotation inference.networking.x-k8s.io/exprot has no effect",
        "ignored: InferencePoolImport llm/llama in west: annotation inference.networking.x-k8s.io/export has no effect",
        "ignored: Namespace llm in west: annotation a/b has no effect",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(status.ignored.len(), 3);
}

/// An import with the condition that a Gateway reports for it.
fn mk_used(controller: &str, status: &str, reason: &str) -> InferencePoolImport {
    let mut import = mk_import(OURS, &[("east", "True", "Ready")]);
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({"type": type_, "status": status, "reason": reason,
            "message": "east HostnameUnknown", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let controllers = json!([{"name": controller, "parents": [{
        "parentRef": {"name": "inference"}, "controllerName": controller,
        "conditions": [
            condition("Accepted", "True", "Accepted"),
            condition("Programmed", status, reason),
        ],
    }]}]);
    let status = import.status.as_mut().expect("a status");
    status.controllers = serde_json::from_value(controllers).expect("controllers");
    import
}

#[test]
fn a_gateway_that_cannot_use_an_import_is_a_hole() {
    for (controller, gateway) in [
        ("isthmus.dev/gateway", "llm/inference"),
        ("example.com/other", "llm/inference of example.com/other"),
    ] {
        let import = mk_used(controller, "False", "NoUsableCluster");
        let seen = [exporting(), mk_seen("west", vec![], vec![import])];
        one_hole(&seen, "west", "", "NoUsableCluster");
        let text = text::render(&judge(&seen), Paint::Plain);
        assert!(text.contains("exports   imports 1/1!\n"), "{text}");
        let message = format!("Gateway {gateway}: east HostnameUnknown");
        assert!(text.contains(&message), "{text}");
    }
    let import = mk_used("isthmus.dev/gateway", "True", "Programmed");
    let seen = [exporting(), mk_seen("west", vec![], vec![import.clone()])];
    assert_eq!(holes(&seen), []);
    let views = gateways("west", &import);
    assert_eq!(views[0].programmed.as_deref(), Some("True"));
}
