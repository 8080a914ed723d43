//! The CRD of [`ClusterSelectionPolicy`](crate::selection_policy::ClusterSelectionPolicy).

use serde_json::{Value, json};

use super::{HEADER, Kind, of_type};
use crate::annotations::{OWN_BUNDLE_VERSION, OWN_BUNDLE_VERSION_VALUE};
use crate::selection_policy::{
    ClusterSelectionPolicySpec, ClusterSelectionPolicyStatus, GROUP, KIND, PLURAL, VERSION,
};

/// The CustomResourceDefinition of ClusterSelectionPolicy, as YAML.
///
/// # Errors
/// When the schema cannot be written as YAML, which is a bug in the types.
pub fn selection_policy_crd_yaml() -> Result<String, serde_yaml::Error> {
    Ok(format!("{HEADER}{}", serde_yaml::to_string(&crd())?))
}

fn crd() -> Value {
    let columns = json!([
        { "name": "Type", "type": "string", "jsonPath": ".spec.type" },
        { "name": "Accepted", "type": "string",
          "jsonPath": r#".status.ancestors[*].conditions[?(@.type=="Accepted")].reason"# },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    let schema = json!({
        "description": "How requests to imports of this namespace are shared among their exporting clusters.",
        "required": ["spec"],
        "properties": {
            "spec": spec(),
            "status": of_type::<ClusterSelectionPolicyStatus>(),
        },
    });
    let kind = Kind {
        group: GROUP,
        version: VERSION,
        name: KIND,
        plural: PLURAL,
        short_names: &["csp"],
        bundle: (OWN_BUNDLE_VERSION, OWN_BUNDLE_VERSION_VALUE),
    };
    let mut crd = kind.definition(columns, schema);
    crd["metadata"]["labels"] = json!({ "gateway.networking.k8s.io/policy": "Direct" });
    crd["spec"]["names"]["categories"] = json!(["gateway-api"]);
    crd
}

/// The derived schema with what it cannot say: defaults that are written into objects, and rules of more than one field.
fn spec() -> Value {
    let mut spec = of_type::<ClusterSelectionPolicySpec>();
    let properties = &mut spec["properties"];
    properties["type"]["default"] = json!("HealthBased");
    properties["localPool"]["default"] = json!("Exclude");
    properties["targetRefs"]["x-kubernetes-validations"] = json!([{
        "rule": "self.all(one, self.exists_one(other, other.name == one.name))",
        "message": "an import is named twice",
    }]);
    spec["x-kubernetes-validations"] = json!([{
        "rule": "self.type == 'ActivePassive' || !has(self.order) || size(self.order) == 0",
        "message": "order is for the type ActivePassive",
    }]);
    spec
}

#[cfg(test)]
mod tests {
    use super::super::tests::every_list_says_its_type;
    use super::*;

    const COMMITTED: &str =
        include_str!("../../../../config/crd/isthmus.dev_clusterselectionpolicies.yaml");

    #[test]
    fn committed_crd_is_what_the_types_say() {
        assert_eq!(
            selection_policy_crd_yaml().expect("a schema"),
            COMMITTED,
            "run `cargo xtask crds` and commit config/crd"
        );
    }

    #[test]
    fn schema_is_structural_and_only_the_targets_are_required() {
        let spec = spec();
        assert_eq!(spec["required"], json!(["targetRefs"]));
        every_list_says_its_type("spec", &spec);
        let text = spec.to_string();
        for word in ["anyOf", "oneOf", "null", "$ref", "$defs"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        // each number is bounded
        for group in ["metrics", "health"] {
            let fields = spec["properties"][group]["properties"]
                .as_object()
                .expect("fields");
            for (name, field) in fields {
                assert!(
                    field["minimum"].is_number() && field["maximum"].is_number(),
                    "{name}: {field}"
                );
            }
        }
    }
}
