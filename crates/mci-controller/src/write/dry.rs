//! Describes the change that a write would make, for `--dry-run`. Pure.

use crd::Condition;
use serde_json::{Value, json};

use super::action::Action;
use crate::{index::entry::ImportStatus, text::clipped};

/// Differences listed for one write; the rest is counted.
const MAX_DIFFERENCES: usize = 20;
/// Longest value that is shown, in characters.
const MAX_VALUE: usize = 200;

/// The change to an import whose last seen status is `live`.
pub(crate) fn describe_import(live: Option<&ImportStatus>, action: &Action) -> String {
    match action {
        Action::Apply { status, .. } => {
            let body: Value = serde_json::from_slice(status).unwrap_or_default();
            let planned = body.get("status").cloned().unwrap_or_default();
            let live = live.map_or(Value::Null, |live| json!(live));
            differences(&live, &planned)
        }
        Action::Patch(patch) => format!("patch {}", String::from_utf8_lossy(patch)),
        Action::Delete { uid, .. } => format!("delete the import with uid {uid}"),
        Action::Pool(_) => String::new(),
    }
}

/// The change to our entry in a pool's status.
pub(crate) fn describe_pool(live: Option<&[Condition]>, wanted: Option<&Condition>) -> String {
    let live = live.map_or(Value::Null, |live| json!({"conditions": live}));
    match wanted {
        Some(wanted) => differences(&live, &json!({"conditions": [wanted]})),
        None => "remove the entry".to_owned(),
    }
}

fn differences(live: &Value, planned: &Value) -> String {
    let mut lines = Vec::new();
    compare("", live, planned, &mut lines);
    let more = lines.len().saturating_sub(MAX_DIFFERENCES);
    lines.truncate(MAX_DIFFERENCES);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.join("; ")
}

/// Collects the differences between the planned and the live value. Times are ignored, and so are fields that only the
/// live value has, but not items of its lists.
fn compare(path: &str, live: &Value, planned: &Value, lines: &mut Vec<String>) {
    match (live, planned) {
        (Value::Object(_) | Value::Null, Value::Object(fields)) => {
            for (name, planned) in fields
                .iter()
                .filter(|(name, _)| *name != "lastTransitionTime")
            {
                let live = live.get(name).unwrap_or(&Value::Null);
                let dot = if path.is_empty() { "" } else { "." };
                compare(&format!("{path}{dot}{name}"), live, planned, lines);
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(items))
            if items.iter().all(|item| item_name(item).is_some()) =>
        {
            let empty = Vec::new();
            let lives = live.as_array().unwrap_or(&empty);
            for planned in items {
                let name = item_name(planned).unwrap_or_default();
                let live = lives.iter().find(|one| item_name(one) == Some(name));
                let (path, live) = (format!("{path}[{name}]"), live.unwrap_or(&Value::Null));
                compare(&path, live, planned, lines);
            }
            let is_planned = |name: &str| items.iter().any(|one| item_name(one) == Some(name));
            let live_names = lives.iter().filter_map(item_name);
            let removed = live_names.filter(|name| !is_planned(name));
            lines.extend(removed.map(|name| format!("{path}[{name}]: removed")));
        }
        _ if live == planned => {}
        _ => lines.push(format!("{path}: {} -> {}", shown(live), shown(planned))),
    }
}

/// The name of a list's item, or its type: what map lists are keyed by.
fn item_name(item: &Value) -> Option<&str> {
    item.get("name")
        .or_else(|| item.get("type"))
        .and_then(Value::as_str)
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    };
    match clipped(&text, MAX_VALUE) {
        start if start.len() < text.len() => format!("{start}..."),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(live: Value, planned: Value) -> String {
        differences(&live, &planned)
    }

    #[test]
    fn only_differences_are_listed() {
        let live = json!({"clusters": [
            {"name": "a", "routingMode": "EndpointMode", "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            {"name": "gone"},
        ]});
        let planned = json!({"clusters": [
            {"name": "a", "routingMode": "EndpointMode", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-02-02T00:00:00Z"}]},
            {"name": "b", "targetPortNumber": 8000},
        ]});
        let text = difference(live, planned);
        let expected = [
            "clusters[a].conditions[Ready].status: \"False\" -> \"True\"",
            "clusters[b].name: none -> \"b\"",
            "clusters[b].targetPortNumber: none -> 8000",
            "clusters[gone]: removed",
        ];
        assert_eq!(text, expected.join("; "));
    }

    #[test]
    fn much_is_cut_short() {
        let planned = json!({"clusters": (0..100).map(|n| json!({"name": format!("c{n}")})).collect::<Vec<_>>()});
        let text = difference(Value::Null, planned);
        assert!(text.ends_with("and 80 more"), "{text}");
        let text = difference(json!({"a": "x"}), json!({"a": "y".repeat(1000)}));
        assert!(text.len() < 300, "{text}");
    }

    #[test]
    fn equal_statuses_differ_in_nothing() {
        let status = json!({"clusters": [{"name": "a"}], "conditions": [{"type": "Ready"}], "observedGeneration": 1});
        assert_eq!(difference(status.clone(), status), "");
    }
}
