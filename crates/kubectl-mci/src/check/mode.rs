//! Which pools other clusters reach by their endpoint picker. Pure.

use crd::{RoutingMode, inference_pool::InferencePool};
use kube::ResourceExt;
use mci_model::export::{Export, parse_export};

use crate::status::Seen;

/// The pools of a cluster that are exported in EndpointMode: by their annotation, else by what the controller does without
/// one (`default`), else as the imports of them have it.
pub(super) fn asked_by_picker<'a>(
    cluster: &str,
    seen: &'a [Seen],
    default: Option<RoutingMode>,
) -> Vec<&'a InferencePool> {
    let own = seen.iter().find(|one| one.cluster == cluster);
    let facts = own.and_then(|one| one.facts.as_ref().ok());
    let pools = facts
        .into_iter()
        .flat_map(|facts| facts.pools.iter().flatten());
    let asked = pools.filter(|pool| {
        let Export::Requested(request) = parse_export(pool.annotations()) else {
            return false;
        };
        let mode = request.mode.or(default);
        let mode = mode.or_else(|| imported_mode(cluster, pool, seen));
        mode != Some(RoutingMode::ParentMode)
    });
    asked.collect()
}

/// How some import has it.
fn imported_mode(cluster: &str, pool: &InferencePool, seen: &[Seen]) -> Option<RoutingMode> {
    let key = (pool.namespace(), pool.name_any());
    let facts = seen.iter().filter_map(|one| one.facts.as_ref().ok());
    let imports = facts.flat_map(|facts| facts.imports.iter().flatten());
    let mut imports = imports.filter(|import| (import.namespace(), import.name_any()) == key);
    imports.find_map(|import| {
        let mut entries = import.clusters().iter();
        let entry = entries.find(|entry| entry.name == cluster)?;
        Some(entry.routing_mode)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::status::Facts;

    const ENDPOINT: Option<RoutingMode> = Some(RoutingMode::EndpointMode);
    const PARENT: Option<RoutingMode> = Some(RoutingMode::ParentMode);

    fn mk_seen(annotation: Option<&str>, imported: &str) -> Vec<Seen> {
        let mut annotations = json!({"inference.networking.x-k8s.io/export": "ClusterSet"});
        if let Some(mode) = annotation {
            annotations["inference.networking.x-k8s.io/export-mode"] = mode.into();
        }
        let pool = json!([{
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
            "metadata": {"name": "llama", "namespace": "llm", "annotations": annotations},
            "spec": {"selector": {"matchLabels": {}}, "targetPorts": []},
        }]);
        let import = json!([{
            "metadata": {"name": "llama", "namespace": "llm"},
            "status": {"clusters": [{"name": "east", "routingMode": imported, "targetPortNumber": 8000}]},
        }]);
        let mk = |name: &str, pools, imports| Seen {
            cluster: name.to_owned(),
            context: None,
            facts: Ok(Facts {
                namespaces: None,
                pools: Ok(serde_json::from_value(pools).expect("pools")),
                imports: Ok(serde_json::from_value(imports).expect("imports")),
                ignored: Vec::new(),
            }),
        };
        vec![mk("east", pool, json!([])), mk("west", json!([]), import)]
    }

    #[rstest]
    #[case::by_annotation(Some("ParentMode"), ENDPOINT, "EndpointMode", 0)]
    #[case::the_annotation_goes_first(Some("EndpointMode"), PARENT, "ParentMode", 1)]
    #[case::by_the_controllers_default(None, PARENT, "EndpointMode", 0)]
    #[case::as_imports_have_it(None, None, "ParentMode", 0)]
    #[case::the_usual(None, None, "EndpointMode", 1)]
    fn a_picker_is_asked_in_endpoint_mode_alone(
        #[case] annotation: Option<&str>,
        #[case] default: Option<RoutingMode>,
        #[case] imported: &str,
        #[case] asked: usize,
    ) {
        let seen = mk_seen(annotation, imported);
        assert_eq!(asked_by_picker("east", &seen, default).len(), asked);
        assert_eq!(asked_by_picker("west", &seen, default).len(), 0);
    }
}
