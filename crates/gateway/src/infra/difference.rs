//! Whether an object is as it is wanted.

use serde_json::{Value, json};

use crate::parameters::resources::is_same_amount;

/// A hash of the whole object that was asked for. A comparison of fields finds what is missing or another; what was asked for
/// once and is no more, this one. Applied again, the API server takes away the fields that were ours alone.
pub(super) const HASH: &str = "isthmus.dev/wanted-hash";

/// Fields of a container whose values are amounts of resources.
const AMOUNTS: [&str; 2] = ["requests", "limits"];

/// Adds the hash, over an annotation of that name.
pub(super) fn mark(wanted: &mut Value) {
    let hash = xxhash_rust::xxh3::xxh3_64(wanted.to_string().as_bytes());
    wanted["metadata"]["annotations"][HASH] = json!(format!("{hash:016x}"));
}

/// Whether `live` has all that `wanted` says; the server adds defaults and other fields.
pub(crate) fn is_applied(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().all(|(key, value)| {
            let there = live.get(key).unwrap_or(&Value::Null);
            if AMOUNTS.contains(&&**key) {
                are_same_amounts(value, there)
            } else {
                is_applied(value, there)
            }
        }),
        // what is empty the server leaves out
        (Value::Object(wanted), Value::Null) => wanted.is_empty(),
        (Value::Array(wanted), Value::Null) => wanted.is_empty(),
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.len() == live.len()
                && wanted
                    .iter()
                    .zip(live)
                    .all(|(wanted, live)| is_applied(wanted, live))
        }
        _ => wanted == live,
    }
}

/// Of each resource that is wanted.
fn are_same_amounts(wanted: &Value, live: &Value) -> bool {
    let mut wanted = wanted.as_object().into_iter().flatten();
    wanted.all(|(resource, wanted)| {
        let live = live.get(resource).and_then(Value::as_str);
        let wanted = wanted.as_str().zip(live);
        wanted.is_some_and(|(wanted, live)| is_same_amount(wanted, live))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// What the API server makes of an object that was applied.
    fn mk_live(body: Value) -> Value {
        let mut live = json!({ "metadata": {}, "spec": body });
        mark(&mut live);
        live
    }

    /// Wanted now, and what became of the same or of what was wanted before.
    #[rstest]
    #[case::same(json!({"a": {"b": 1}}), json!({"a": {"b": 1}}), true)]
    #[case::other(json!({"a": {"b": 2}}), json!({"a": {"b": 1}}), false)]
    #[case::new(json!({"a": 1, "b": 2}), json!({"a": 1}), false)]
    #[case::field_taken_away(json!({"a": 1}), json!({"a": 1, "b": 2}), false)]
    #[case::entry_taken_away(json!({"map": {}}), json!({"map": {"b": "2"}}), false)]
    #[case::list_taken_away(json!({}), json!({"list": [1]}), false)]
    fn what_is_not_wanted_any_more_is_a_difference(
        #[case] now: Value,
        #[case] before: Value,
        #[case] applied: bool,
    ) {
        assert_eq!(is_applied(&mk_live(now), &mk_live(before)), applied);
    }

    /// Wanted, and what the API server or another writer made of it.
    #[rstest]
    #[case::defaults(json!({"a": {"b": 1}, "l": [{"x": 1}]}), json!({"a": {"b": 1, "c": 2}, "l": [{"x": 1, "y": 2}], "z": 0}), true)]
    #[case::empty_left_out(json!({"map": {}, "list": []}), json!({}), true)]
    #[case::class_by_a_webhook(json!({"type": "LoadBalancer"}), json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/nlb"}), true)]
    #[case::tolerations_by_a_webhook(json!({"containers": []}), json!({"containers": [], "tolerations": [{"key": "a"}]}), true)]
    #[case::amount(json!({"requests": {"cpu": "1.5"}}), json!({"requests": {"cpu": "1500m"}}), true)]
    #[case::other_amount(json!({"requests": {"cpu": "1.5"}}), json!({"requests": {"cpu": "1600m"}}), false)]
    #[case::scaled(json!({"replicas": 2}), json!({"replicas": 3}), false)]
    #[case::longer(json!({"l": [{"x": 1}]}), json!({"l": [{"x": 1}, {"x": 2}]}), false)]
    fn what_others_add_is_no_difference_and_what_they_change_is(
        #[case] wanted: Value,
        #[case] made: Value,
        #[case] applied: bool,
    ) {
        let wanted = mk_live(wanted);
        let mut live = wanted.clone();
        live["spec"] = made;
        live["metadata"]["annotations"]["example.com/theirs"] = json!("x");
        assert_eq!(is_applied(&wanted, &live), applied);
    }
}
