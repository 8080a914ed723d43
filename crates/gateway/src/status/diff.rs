//! Wanted against live status: what to write, or nothing. Times alone are no difference.

use std::net::IpAddr;

use crd::conditions::{self, Condition, OVERLAPPING_TLS_CONFIG, Status};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::model::{ClassStatus, Cond, GatewayStatus, ListenerStatus, ParentStatus, Truth};
use crate::world::ParentRef;

use super::{Target, Wanted};

/// A list of what others say of an object as well, each in entries of its own.
struct Entries {
    list: &'static str,
    reference: &'static str,
    /// Entries that the API allows.
    max: usize,
}

const PARENTS: Entries = Entries {
    list: "parents",
    reference: "parentRef",
    max: 32,
};

const ANCESTORS: Entries = Entries {
    list: "ancestors",
    reference: "ancestorRef",
    max: crd::selection_policy::MAX_ANCESTORS,
};

/// How to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Patch {
    /// Server-side apply of these fields, which are ours.
    Apply(Value),
    /// The whole status, for the version that was read: the list is atomic.
    Replace(Value),
}

/// Why nothing can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("status.{list} is full: {others} entries are of others, {max} are allowed")]
    Full {
        list: &'static str,
        others: usize,
        max: usize,
    },
}

/// What to write so that `live`, the object's `status`, says what is wanted.
pub(crate) fn diff(
    target: &Target,
    wanted: &Wanted,
    live: &Value,
    controller: &str,
    now: Timestamp,
) -> Result<Option<Patch>, StatusError> {
    match (target, wanted) {
        (_, Wanted::Class(class)) => Ok(diff_class(class, live, now).map(Patch::Apply)),
        (_, Wanted::Gateway(gateway)) => Ok(diff_gateway(gateway, live, now).map(Patch::Apply)),
        (Target::Import(_), Wanted::Parents(parents)) => {
            Ok(diff_import(parents, live, controller, now).map(Patch::Apply))
        }
        (_, Wanted::Parents(parents)) => {
            let entries = match target {
                Target::Policy(_) | Target::TlsPolicy(_) => &ANCESTORS,
                _ => &PARENTS,
            };
            Ok(diff_entries(entries, parents, live, controller, now)?.map(Patch::Replace))
        }
    }
}

fn diff_class(wanted: &ClassStatus, live: &Value, now: Timestamp) -> Option<Value> {
    let (conditions, changed) = merge(&wanted.conditions, live, now)?;
    let features: Vec<Value> = wanted
        .features
        .iter()
        .map(|f| json!({ "name": f }))
        .collect();
    let same_features = live.get("supportedFeatures") == Some(&Value::Array(features.clone()));
    (changed || !same_features)
        .then(|| json!({ "conditions": conditions, "supportedFeatures": features }))
}

fn diff_gateway(wanted: &GatewayStatus, live: &Value, now: Timestamp) -> Option<Value> {
    let (conditions, mut changed) = merge(&wanted.conditions, live, now)?;
    let live_listeners = list(live, "listeners");
    changed |= live_listeners.len() != wanted.listeners.len();
    let mut listeners = Vec::with_capacity(wanted.listeners.len());
    for listener in &wanted.listeners {
        let before = live_listeners
            .iter()
            .find(|one| one.get("name") == Some(&json!(listener.name)))
            .unwrap_or(&Value::Null);
        let (made, differs) = merge_listener(listener, before, now)?;
        changed |= differs;
        listeners.push(made);
    }
    let addresses: Vec<Value> = wanted.addresses.iter().map(|text| address(text)).collect();
    changed |= list(live, "addresses") != addresses;
    changed.then(
        || json!({ "addresses": addresses, "conditions": conditions, "listeners": listeners }),
    )
}

fn merge_listener(wanted: &ListenerStatus, live: &Value, now: Timestamp) -> Option<(Value, bool)> {
    let (conditions, mut changed) = merge(&wanted.conditions, live, now)?;
    // One that is there only while it is true goes with the list that lacks it.
    let has = |list: &[Value]| {
        let mut kinds = list.iter().map(|one| &one["type"]);
        kinds.any(|kind| kind == OVERLAPPING_TLS_CONFIG)
    };
    let is_wanted = wanted
        .conditions
        .iter()
        .any(|one| one.kind == OVERLAPPING_TLS_CONFIG);
    changed |= has(list(live, "conditions")) && !is_wanted;
    let kinds = if wanted.serves_http_routes {
        json!([{ "group": crd::annotations::GATEWAY_GROUP, "kind": "HTTPRoute" }])
    } else {
        json!([])
    };
    changed |= live.get("supportedKinds").unwrap_or(&json!([])) != &kinds;
    changed |= live.get("attachedRoutes") != Some(&json!(wanted.attached));
    let listener = json!({
        "name": wanted.name,
        "supportedKinds": kinds,
        "attachedRoutes": wanted.attached,
        "conditions": conditions,
    });
    Some((listener, changed))
}

fn address(text: &str) -> Value {
    let kind = match text.parse::<IpAddr>() {
        Ok(_) => "IPAddress",
        Err(_) => "Hostname",
    };
    json!({ "type": kind, "value": text })
}

/// Only `parents` of our own entry is ours.
fn diff_import(
    wanted: &[ParentStatus],
    live: &Value,
    controller: &str,
    now: Timestamp,
) -> Option<Value> {
    let own = list(live, "controllers")
        .iter()
        .find(|entry| entry.get("name") == Some(&json!(controller)));
    let before = own.map_or(&[][..], |own| list(own, "parents"));
    let (parents, changed) = merge_own(&PARENTS, wanted, before, controller, now)?;
    match (changed, parents.is_empty()) {
        (false, _) => None,
        // Applying nothing gives up what we had.
        (true, true) => Some(json!({})),
        (true, false) => Some(json!({
            "controllers": [{ "name": controller, "parents": parents }],
        })),
    }
}

/// The whole status with our entries as wanted and the others untouched, in their order.
fn diff_entries(
    entries: &Entries,
    wanted: &[ParentStatus],
    live: &Value,
    controller: &str,
    now: Timestamp,
) -> Result<Option<Value>, StatusError> {
    let is_ours = |entry: &&Value| entry.get("controllerName") == Some(&json!(controller));
    let all = list(live, entries.list);
    let before: Vec<Value> = all.iter().filter(is_ours).cloned().collect();
    let of_others = all.len() - before.len();
    // A full list of ancestors has those of ours that fit.
    let fitting = entries.max.saturating_sub(of_others).min(wanted.len());
    let wanted = match entries.list {
        "ancestors" if fitting > 0 => wanted.get(..fitting).unwrap_or(wanted),
        _ => wanted,
    };
    let Some((own, true)) = merge_own(entries, wanted, &before, controller, now) else {
        return Ok(None);
    };
    let others: Vec<Value> = all
        .iter()
        .filter(|entry| !is_ours(entry))
        .cloned()
        .collect();
    if others.len() + own.len() > entries.max {
        return Err(StatusError::Full {
            list: entries.list,
            others: others.len(),
            max: entries.max,
        });
    }
    let mut status = live.as_object().cloned().unwrap_or_default();
    let all = others.into_iter().chain(own).collect();
    status.insert(entries.list.into(), Value::Array(all));
    Ok(Some(Value::Object(status)))
}

/// Our entries, and whether they differ from those before.
fn merge_own(
    entries: &Entries,
    wanted: &[ParentStatus],
    before: &[Value],
    controller: &str,
    now: Timestamp,
) -> Option<(Vec<Value>, bool)> {
    let mut changed = wanted.len() != before.len();
    let mut own = Vec::with_capacity(wanted.len());
    for parent in wanted {
        let reference = parent_ref(&parent.parent);
        let live = before
            .iter()
            .find(|entry| entry.get(entries.reference) == Some(&reference));
        let (conditions, differs) = merge(&parent.conditions, live.unwrap_or(&Value::Null), now)?;
        // Conditions that are not wanted any more are a difference in a list that is ours.
        let count = live.map_or(0, |live| list(live, "conditions").len());
        changed |= differs || count != conditions.len();
        own.push(json!({
            entries.reference: reference,
            "controllerName": controller,
            "conditions": conditions,
        }));
    }
    Some((own, changed))
}

fn parent_ref(parent: &ParentRef) -> Value {
    let mut json = Map::new();
    let texts = [
        ("group", &parent.group),
        ("kind", &parent.kind),
        ("namespace", &parent.namespace),
        ("sectionName", &parent.section),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            json.insert(name.into(), text.as_str().into());
        }
    }
    json.insert("name".into(), parent.name.as_str().into());
    if let Some(port) = parent.port {
        json.insert("port".into(), port.into());
    }
    Value::Object(json)
}

/// The wanted conditions with times, and whether they say something new. None where a newer
/// generation is reported already: what we know is stale.
fn merge(wanted: &[Cond], holder: &Value, now: Timestamp) -> Option<(Vec<Condition>, bool)> {
    let live: Vec<Condition> = list(holder, "conditions")
        .iter()
        .filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect();
    let wanted: Vec<Condition> = wanted.iter().map(make).collect();
    let is_stale = wanted.iter().any(|one| {
        let before = conditions::find(&live, &one.type_);
        before.is_some_and(|before| before.observed_generation > one.observed_generation)
    });
    if is_stale {
        return None;
    }
    let changed = wanted.iter().any(|one| {
        let before = conditions::find(&live, &one.type_).cloned();
        !conditions::same(before.as_slice(), std::slice::from_ref(one))
    });
    Some((conditions::stamp(wanted, &live, now), changed))
}

fn make(cond: &Cond) -> Condition {
    let status = match cond.status {
        Truth::True => Status::True,
        Truth::False => Status::False,
    };
    let message = cond.message.clone();
    conditions::make(
        cond.kind,
        status,
        &cond.reason,
        message,
        Some(cond.generation),
    )
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value
        .get(field)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}
