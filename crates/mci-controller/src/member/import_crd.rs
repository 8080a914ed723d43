//! The import CRD of a member: which status fields it accepts (spec 3.1). Pure.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};

use crate::{
    index::flavour::{Flavour, ImportCrd},
    name::opaque,
};

/// Status fields of our CRD. Upstream's has one of them.
const STATUS_FIELDS: [&str; 4] = [
    "observedGeneration",
    "conditions",
    "controllers",
    "clusters",
];

/// Reads the CRD.
pub(crate) fn read(crd: &CustomResourceDefinition) -> ImportCrd {
    ImportCrd {
        flavour: flavour(crd),
        uid: opaque(crd.metadata.uid.clone()),
        generation: crd.metadata.generation.unwrap_or_default(),
    }
}

fn flavour(crd: &CustomResourceDefinition) -> Flavour {
    let conditions = crd
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let established = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True");
    if crd.metadata.deletion_timestamp.is_some() || !established {
        return Flavour::Absent;
    }
    let Some(fields) = status_fields(crd) else {
        return Flavour::Absent;
    };
    if STATUS_FIELDS
        .iter()
        .all(|field| fields.contains_key(*field))
    {
        if has_networks(fields) {
            Flavour::Superset
        } else {
            Flavour::Earlier
        }
    } else if fields.contains_key("controllers") {
        Flavour::Upstream
    } else {
        Flavour::Absent
    }
}

/// Whether entries have the networks of their pods: a write of an undeclared field is refused (K7).
fn has_networks(status: &BTreeMap<String, JSONSchemaProps>) -> bool {
    let entry = || {
        let items = status.get("clusters")?.items.as_ref()?;
        match items {
            JSONSchemaPropsOrArray::Schema(schema) => schema.properties.as_ref(),
            JSONSchemaPropsOrArray::Schemas(_) => None,
        }
    };
    entry().is_some_and(|fields| fields.contains_key("podCIDRs"))
}

/// Properties of the status in the version that we use; none if it is not served or has no status subresource.
fn status_fields(crd: &CustomResourceDefinition) -> Option<&BTreeMap<String, JSONSchemaProps>> {
    let versions = crd.spec.versions.iter();
    let version = versions
        .filter(|version| version.served)
        .find(|version| version.name == crd::import::VERSION)?;
    version.subresources.as_ref()?.status.as_ref()?;
    let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
    let status = schema.properties.as_ref()?.get("status")?;
    status.properties.as_ref()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// Our CRD as a server has it, changed.
    fn mk(change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
        let yaml = crd::crd_yaml().expect("our CRD");
        let mut crd: Value = serde_yaml::from_str(&yaml).expect("YAML");
        crd["metadata"]["uid"] = json!("u-1");
        crd["metadata"]["generation"] = json!(4);
        crd["status"] = json!({"conditions": [
            {"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]});
        change(&mut crd);
        serde_json::from_value(crd).expect("decodes")
    }

    fn status_of(crd: &mut Value) -> &mut serde_json::Map<String, Value> {
        let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        let status = crd.pointer_mut(pointer).and_then(Value::as_object_mut);
        status.expect("a status")
    }

    #[test]
    fn our_crd_has_all_fields() {
        let expected = ImportCrd {
            flavour: Flavour::Superset,
            uid: Some("u-1".to_owned()),
            generation: 4,
        };
        assert_eq!(read(&mk(|_| {})), expected);
    }

    #[test]
    fn the_crd_of_an_earlier_release_has_no_networks() {
        let earlier = mk(|crd| {
            let entry = status_of(crd)["clusters"]["items"]["properties"].as_object_mut();
            entry.expect("an entry").remove("podCIDRs");
        });
        assert_eq!(read(&earlier).flavour, Flavour::Earlier);
    }

    #[test]
    fn upstreams_crd_has_controllers_alone() {
        let upstream = mk(|crd| status_of(crd).retain(|field, _| field == "controllers"));
        assert_eq!(read(&upstream).flavour, Flavour::Upstream);
    }

    #[rstest]
    #[case::one_field("observedGeneration")]
    #[case::conditions("conditions")]
    #[case::clusters("clusters")]
    fn a_crd_that_lacks_a_field_of_ours_is_upstreams(#[case] field: &str) {
        let partial = mk(|crd| {
            status_of(crd).remove(field);
        });
        assert_eq!(read(&partial).flavour, Flavour::Upstream);
    }

    #[rstest]
    #[case::terminating(|crd: &mut Value| crd["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"))]
    #[case::not_established(|crd: &mut Value| crd["status"]["conditions"][1]["status"] = json!("False"))]
    #[case::new(|crd: &mut Value| crd["status"] = json!(null))]
    #[case::not_served(|crd: &mut Value| crd["spec"]["versions"][0]["served"] = json!(false))]
    #[case::other_version(|crd: &mut Value| crd["spec"]["versions"][0]["name"] = json!("v1"))]
    #[case::no_status(|crd: &mut Value| crd["spec"]["versions"][0]["subresources"] = json!({}))]
    #[case::no_schema(|crd: &mut Value| crd["spec"]["versions"][0]["schema"] = json!({}))]
    #[case::a_strangers(|crd: &mut Value| { status_of(crd).remove("controllers"); })]
    fn what_we_could_not_write_is_absent(#[case] change: fn(&mut Value)) {
        assert_eq!(read(&mk(change)).flavour, Flavour::Absent);
    }
}
