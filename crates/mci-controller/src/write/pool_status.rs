//! Our entry in a pool's `status.parents`. The list is atomic and gateways share it, so it is edited in the raw object
//! and put back under its resource version (spec 4.6). Pure.

use crd::{
    Condition,
    annotations::{IMPORT_GROUP, IMPORT_KIND},
    conditions,
};
use jiff::Timestamp;
use serde_json::{Value, json};

/// As many parents as the CRD admits.
pub(crate) const MAX_PARENTS: usize = 32;

/// The result of a merge.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Merge {
    /// The pool has the entry already.
    Same,
    /// The pool to be written.
    Changed(Value),
    /// No place for one more parent.
    Full,
}

/// Sets our entry, or removes it; everything else stays as it is, in its order.
pub(crate) fn merge_pool_status(
    mut pool: Value,
    controller_name: &str,
    wanted: Option<&Condition>,
    now: Timestamp,
) -> Merge {
    let (name, namespace) = (
        pool.pointer("/metadata/name").cloned().unwrap_or_default(),
        pool.pointer("/metadata/namespace")
            .cloned()
            .unwrap_or_default(),
    );
    let mut parents = match pool.pointer_mut("/status/parents") {
        Some(Value::Array(parents)) => std::mem::take(parents),
        _ => Vec::new(),
    };
    let place = parents
        .iter()
        .position(|parent| is_ours(parent, controller_name));
    match (wanted, place) {
        (None, None) => return Merge::Same,
        (None, Some(place)) => {
            parents.remove(place);
        }
        (Some(wanted), place) => {
            let live: Vec<Condition> = place
                .and_then(|place| parents.get(place)?.get("conditions"))
                .and_then(|value| serde_json::from_value(value.clone()).ok())
                .unwrap_or_default();
            if conditions::same(&live, std::slice::from_ref(wanted)) {
                return Merge::Same;
            }
            let entry = json!({
                "parentRef": {
                    "group": IMPORT_GROUP,
                    "kind": IMPORT_KIND,
                    "namespace": namespace,
                    "name": name,
                },
                "controllerName": controller_name,
                "conditions": conditions::stamp(vec![wanted.clone()], &live, now),
            });
            let full = parents.len() >= MAX_PARENTS;
            match place.and_then(|place| parents.get_mut(place)) {
                Some(ours) => *ours = entry,
                None if full => return Merge::Full,
                None => parents.push(entry),
            }
        }
    }
    if let Some(object) = pool.as_object_mut() {
        let status = object.entry("status").or_insert_with(|| json!({}));
        if !status.is_object() {
            *status = json!({});
        }
        if let Some(status) = status.as_object_mut() {
            status.insert("parents".to_owned(), Value::Array(parents));
        }
    }
    Merge::Changed(pool)
}

/// An import as a parent, written by this controller.
pub(crate) fn is_ours(parent: &Value, controller_name: &str) -> bool {
    let text = |pointer: &str| parent.pointer(pointer).and_then(Value::as_str);
    text("/controllerName") == Some(controller_name)
        && text("/parentRef/kind") == Some(IMPORT_KIND)
        && text("/parentRef/group") == Some(IMPORT_GROUP)
}

#[cfg(test)]
mod tests {
    use crd::annotations::MCI_CONTROLLER;

    use super::*;

    fn mk_condition(reason: &str) -> Condition {
        let status = conditions::Status::from(reason == "Exported");
        conditions::make(conditions::EXPORTED, status, reason, "text", Some(2))
    }

    fn mk_time(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn merge(pool: Value, wanted: Option<&Condition>, now: i64) -> Merge {
        merge_pool_status(pool, MCI_CONTROLLER, wanted, mk_time(now))
    }

    fn mk_pool() -> Value {
        json!({
            "metadata": {"name": "llm", "namespace": "ml", "resourceVersion": "7"},
            "spec": {"future": true},
            "status": {"parents": [
                {"parentRef": {"name": "gw"}, "controllerName": "example.com/gateway", "odd": 1, "conditions": []},
            ], "other": 5},
        })
    }

    fn changed(merge: Merge) -> Value {
        match merge {
            Merge::Changed(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn others_entries_and_unknown_fields_stay() {
        let merged = changed(merge(mk_pool(), Some(&mk_condition("Exported")), 5));
        let parents = merged["status"]["parents"].as_array().expect("a list");
        assert_eq!(parents.len(), 2);
        assert_eq!(parents[0], mk_pool()["status"]["parents"][0]);
        assert_eq!(parents[1]["parentRef"]["namespace"], "ml");
        assert_eq!(parents[1]["parentRef"]["name"], "llm");
        assert_eq!(parents[1]["conditions"][0]["reason"], "Exported");
        assert_eq!(merged["status"]["other"], 5);
        assert_eq!(merged["metadata"]["resourceVersion"], "7");
        let removed = changed(merge(merged, None, 6));
        assert_eq!(removed, mk_pool());
    }

    #[test]
    fn the_same_entry_again_is_no_change() {
        let merged = changed(merge(mk_pool(), Some(&mk_condition("Exported")), 5));
        let again = merge(merged.clone(), Some(&mk_condition("Exported")), 9);
        assert_eq!(again, Merge::Same);
        assert_eq!(merge(mk_pool(), None, 9), Merge::Same);
        let other = changed(merge(merged, Some(&mk_condition("NamespaceMissing")), 9));
        assert_eq!(other["status"]["parents"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn a_pool_without_status_gets_one() {
        let bare = json!({"metadata": {"name": "llm", "namespace": "ml"}});
        let merged = changed(merge(bare, Some(&mk_condition("Exported")), 5));
        assert_eq!(
            merged["status"]["parents"].as_array().map(Vec::len),
            Some(1)
        );
    }

    #[test]
    fn a_full_list_is_left_alone() {
        let mut pool = mk_pool();
        let parent = pool["status"]["parents"][0].clone();
        pool["status"]["parents"] = Value::Array(vec![parent; MAX_PARENTS]);
        assert_eq!(merge(pool, Some(&mk_condition("Exported")), 5), Merge::Full);
    }
}
