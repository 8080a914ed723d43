//! Comparing what was written to the letter, but for what may differ.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A condition, without its message and time.
#[must_use]
pub fn condition(type_: &str, status: &str, reason: &str, generation: Option<i64>) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "observedGeneration": generation})
}

/// Messages are for people and may be worded anew, and conditions are a map; everything else is compared to the letter.
#[must_use]
pub fn without_messages(value: &Value) -> Value {
    let mut value = value.clone();
    strip(&mut value, "message");
    sort_conditions(&mut value);
    value
}

fn sort_conditions(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(sort_conditions),
        Value::Array(items) => {
            items.iter_mut().for_each(sort_conditions);
            items.sort_by_key(|item| item["type"].as_str().map(str::to_owned));
        }
        _ => {}
    }
}

/// Takes this key out, wherever it stands.
pub fn strip(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) => {
            map.remove(key);
            map.values_mut().for_each(|inner| strip(inner, key));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| strip(inner, key)),
        _ => {}
    }
}

/// Whether both are equal.
///
/// # Errors
/// With both, where they are not.
pub fn same(what: &str, seen: &Value, expected: &Value) -> Result<()> {
    ensure!(
        seen == expected,
        "{what} differ\nseen:     {seen:#}\nexpected: {expected:#}"
    );
    Ok(())
}
