//! The import's CRD: its schema, and whether a value keeps to it.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use crate::{hand::Flavour, kinds::IMPORTS};

/// The import's CRD as `cargo xtask crds` writes it.
pub(crate) fn import_crd() -> Value {
    static CRD: OnceLock<Value> = OnceLock::new();
    let read = || {
        let yaml = crd::crd_yaml().unwrap_or_default();
        let mut crd: Value = serde_yaml::from_str(&yaml).unwrap_or_default();
        crd["status"] = established(&IMPORTS);
        crd
    };
    CRD.get_or_init(read).clone()
}

/// The same name with upstream's shape: `controllers` alone.
pub(crate) fn upstream_import_crd() -> Value {
    let mut crd = import_crd();
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    if let Some(fields) = crd.pointer_mut(status).and_then(Value::as_object_mut) {
        fields.retain(|name, _| name == "controllers");
    }
    crd
}

/// Any other CRD: enough to be found.
pub(crate) fn plain_crd(kind: &crate::Kind) -> Value {
    json!({
        "metadata": {"name": kind.crd_name()},
        "spec": {
            "group": kind.group, "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [{"name": kind.version, "served": true, "storage": true}],
        },
        "status": established(kind),
    })
}

/// The status of a CRD that is served.
fn established(kind: &crate::Kind) -> Value {
    let condition = |type_: &str, reason: &str| {
        json!({"type": type_, "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({
        "acceptedNames": {"kind": kind.kind, "plural": kind.plural},
        "storedVersions": [kind.version],
        "conditions": [condition("NamesAccepted", "NoConflicts"), condition("Established", "InitialNamesAccepted")],
    })
}

/// The schema of imports in one shape: one value for all servers of the process.
pub(crate) fn of_imports(flavour: Flavour) -> Option<Arc<Value>> {
    static OURS: OnceLock<Option<Arc<Value>>> = OnceLock::new();
    static UPSTREAMS: OnceLock<Option<Arc<Value>>> = OnceLock::new();
    let read = |crd: Value| of_crd(&crd).cloned().map(Arc::new);
    match flavour {
        Flavour::Superset => OURS.get_or_init(|| read(import_crd())).clone(),
        Flavour::Upstream => UPSTREAMS
            .get_or_init(|| read(upstream_import_crd()))
            .clone(),
    }
}

/// The schema of a CRD's only version.
pub(crate) fn of_crd(crd: &Value) -> Option<&Value> {
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
}

/// Fields of the import's status that a CRD knows.
pub(crate) fn import_fields(crd: &Value) -> Option<Vec<String>> {
    let name = crd.pointer("/metadata/name").and_then(Value::as_str);
    if name != Some(&IMPORTS.crd_name()) {
        return None;
    }
    let status = of_crd(crd)?.pointer("/properties/status/properties")?;
    Some(status.as_object()?.keys().cloned().collect())
}

/// The first rule of the schema that a value breaks: its path, and what is wrong. Patterns and formats are not looked at.
pub(crate) fn broken_rule(value: &Value, schema: &Value) -> Option<String> {
    let number = |rule: &str| schema.get(rule).and_then(Value::as_u64);
    let size = |count: usize, low: &str, high: &str| {
        let count = count as u64;
        let short = number(low).is_some_and(|low| count < low);
        let long = number(high).is_some_and(|high| count > high);
        (short || long).then(|| format!(": {count} is not between {low} and {high}"))
    };
    let wrong_type = match schema.get("type").and_then(Value::as_str) {
        Some("object") => !value.is_object(),
        Some("array") => !value.is_array(),
        Some("string") => !value.is_string(),
        Some("integer") => !value.is_i64() && !value.is_u64(),
        Some("boolean") => !value.is_boolean(),
        _ => false,
    };
    if wrong_type {
        return Some(format!(": must be of type {}", schema["type"]));
    }
    if let Some(Value::Array(allowed)) = schema.get("enum")
        && !allowed.contains(value)
    {
        return Some(format!(": unsupported value {value}"));
    }
    match value {
        Value::Object(object) => {
            let required = schema.get("required").and_then(Value::as_array);
            let missing = required.into_iter().flatten().filter_map(Value::as_str);
            let missing = missing.into_iter().find(|name| !object.contains_key(*name));
            if let Some(name) = missing {
                return Some(format!(".{name}: required value"));
            }
            let fields = object.iter().find_map(|(name, value)| {
                let inner = schema.get("properties").and_then(|all| all.get(name));
                let inner = inner.or_else(|| schema.get("additionalProperties"))?;
                let broken = broken_rule(value, inner)?;
                Some(format!(".{name}{broken}"))
            });
            size(object.len(), "minProperties", "maxProperties").or(fields)
        }
        Value::Array(items) => {
            let inner = schema.get("items");
            let broken = items.iter().enumerate().find_map(|(at, item)| {
                let broken = broken_rule(item, inner?)?;
                Some(format!("[{at}]{broken}"))
            });
            size(items.len(), "minItems", "maxItems").or(broken)
        }
        Value::String(text) => size(text.chars().count(), "minLength", "maxLength"),
        Value::Number(value) => {
            let bound = |rule: &str| schema.get(rule).and_then(Value::as_i64);
            let value = value.as_i64()?;
            let low = bound("minimum").is_some_and(|low| value < low);
            let high = bound("maximum").is_some_and(|high| value > high);
            (low || high).then(|| format!(": {value} is out of range"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_the_schema_are_found() {
        let crd = import_crd();
        let schema = of_crd(&crd).expect("a schema");
        let entry = json!({"name": "a", "routingMode": "EndpointMode", "targetPortNumber": 8000});
        let broken = |key: &str, value: Value| {
            let mut entry = entry.clone();
            entry[key] = value;
            broken_rule(&json!({"status": {"clusters": [entry]}}), schema)
        };
        assert_eq!(broken("name", json!("b")), None);
        assert!(broken("routingMode", json!("Direct")).is_some());
        assert!(broken("targetPortNumber", json!(0)).is_some());
        assert!(broken("targetPortNumber", json!(65536)).is_some());
        assert!(broken("targetPorts", json!(vec![json!({"number": 1}); 9])).is_some());
        assert!(broken("name", json!("x".repeat(254))).is_some());
        let condition = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(broken_rule(&condition, schema).is_some());
    }

    #[test]
    fn upstreams_crd_knows_controllers_alone() {
        assert_eq!(
            import_fields(&upstream_import_crd()),
            Some(vec!["controllers".to_owned()])
        );
        let ours = import_fields(&import_crd()).expect("ours");
        assert_eq!(ours.len(), crate::store::ALL_IMPORT_FIELDS);
    }
}
