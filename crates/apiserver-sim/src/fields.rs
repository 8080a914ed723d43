//! Sets of fields, as they stand in `managedFields`, and what an apply does to an object. Pure.
//!
//! The schema says which lists are maps by key (`k:{"name":"east"}`) and which are one value; without one every list is
//! one value, and every object is taken field by field.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

/// A set of fields: a tree of `f:name` and `k:{…}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The field itself is in the set, not only some below it.
    pub(crate) itself: bool,
    pub(crate) below: BTreeMap<String, Fields>,
}

/// What the schema says of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a>(Option<&'a Value>);

/// Where the entries of a list that is a map stand, by step; empty for any other value. Made once per list, so that no
/// walk over its entries looks for each of them again.
struct Places(BTreeMap<String, usize>);

// === impl Shape ===

impl<'a> Shape<'a> {
    pub(crate) const FREE: Self = Self(None);

    pub(crate) fn of(schema: &'a Value) -> Self {
        Self(Some(schema))
    }

    fn properties(self) -> Option<&'a Map<String, Value>> {
        self.0?.get("properties")?.as_object()
    }

    /// Of a field; none: the schema has no such field.
    pub(crate) fn field(self, name: &str) -> Option<Self> {
        let Some(schema) = self.0 else {
            return Some(Self::FREE);
        };
        if let Some(properties) = self.properties() {
            return properties.get(name).map(Self::of);
        }
        Some(
            schema
                .get("additionalProperties")
                .map_or(Self::FREE, Self::of),
        )
    }

    fn items(self) -> Self {
        self.0
            .and_then(|schema| schema.get("items"))
            .map_or(Self::FREE, Self::of)
    }

    /// Keys of a list that is a map.
    fn keys(self) -> Option<Vec<&'a str>> {
        let schema = self.0?;
        if schema.get("x-kubernetes-list-type")? != "map" {
            return None;
        }
        let keys = schema.get("x-kubernetes-list-map-keys")?.as_array()?;
        Some(keys.iter().filter_map(Value::as_str).collect())
    }

    fn at(self, step: &str) -> Self {
        match step.strip_prefix("f:") {
            Some(name) => self.field(name).unwrap_or(Self::FREE),
            None => self.items(),
        }
    }
}

// === impl Fields ===

impl Fields {
    /// All that a value says.
    pub(crate) fn of(value: &Value, shape: Shape<'_>) -> Self {
        let mut fields = Self::default();
        match value {
            Value::Object(object) if !object.is_empty() => {
                for (name, value) in object {
                    let shape = shape.field(name).unwrap_or(Shape::FREE);
                    fields
                        .below
                        .insert(format!("f:{name}"), Self::of(value, shape));
                }
            }
            Value::Array(items) if !items.is_empty() => match shape.keys() {
                Some(keys) => {
                    for item in items {
                        let mut inner = Self::of(item, shape.items());
                        inner.itself = true;
                        fields.below.insert(step_of(item, &keys), inner);
                    }
                }
                None => fields.itself = true,
            },
            _ => fields.itself = true,
        }
        fields
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.itself && self.below.values().all(Self::is_empty)
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let Some(object) = value.as_object() else {
            return Self::default();
        };
        let below: BTreeMap<_, _> = object
            .iter()
            .filter(|(step, _)| *step != ".")
            .map(|(step, inner)| (step.clone(), Self::from_json(inner)))
            .collect();
        Self {
            itself: below.is_empty() || object.contains_key("."),
            below,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.itself |= other.itself;
        for (step, inner) in &other.below {
            self.below.entry(step.clone()).or_default().add(inner);
        }
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.itself &= !other.itself;
        for (step, inner) in &other.below {
            if let Some(own) = self.below.get_mut(step) {
                own.subtract(inner);
            }
        }
        self.below.retain(|_, inner| !inner.is_empty());
    }

    /// Keeps `status` alone, or all but it.
    pub(crate) fn split(&mut self, status: bool) {
        self.below.retain(|step, _| {
            (step == "f:status") == status && step != "f:apiVersion" && step != "f:kind"
        });
        if let Some(meta) = self.below.get_mut("f:metadata") {
            // who an object is belongs to nobody
            meta.below.retain(|step, _| {
                [
                    "f:labels",
                    "f:annotations",
                    "f:finalizers",
                    "f:ownerReferences",
                ]
                .contains(&step.as_str())
            });
        }
        self.below.retain(|_, inner| !inner.is_empty());
    }
}

/// As in `managedFields`. What is sorted here is sorted as JSON text is: `.` before `f:` before `k:`.
impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.itself && !self.below.is_empty() {
            map.serialize_entry(".", &Map::new())?;
        }
        for (step, inner) in &self.below {
            if !inner.is_empty() {
                map.serialize_entry(step, inner)?;
            }
        }
        map.end()
    }
}

/// Values that both sides own and on which they differ: paths, for people, and the set of them.
pub(crate) fn conflicts(
    wanted: &Fields,
    others: &Fields,
    live: Option<&Value>,
    applied: Option<&Value>,
    shape: Shape<'_>,
    path: &str,
    found: &mut Vec<String>,
) -> Fields {
    let mut set = Fields::default();
    if wanted.itself && others.itself && wanted.below.is_empty() && live != applied {
        set.itself = true;
        found.push(path.to_owned());
    }
    if others.below.is_empty() {
        return set;
    }
    let places = [live, applied].map(|value| Places::of(value, shape));
    for (step, wanted) in &wanted.below {
        if let Some(others) = others.below.get(step) {
            let (live, applied) = (
                live.and_then(|value| places[0].child(value, step)),
                applied.and_then(|value| places[1].child(value, step)),
            );
            let name = step.strip_prefix("f:").unwrap_or(step);
            let path = format!("{path}.{name}");
            let inner = conflicts(wanted, others, live, applied, shape.at(step), &path, found);
            if !inner.is_empty() {
                set.below.insert(step.clone(), inner);
            }
        }
    }
    set
}

/// Lays a value over the live one.
pub(crate) fn merge(live: &mut Value, applied: &Value, shape: Shape<'_>) {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) => {
            for (name, value) in applied {
                let shape = shape.field(name).unwrap_or(Shape::FREE);
                match live.get_mut(name) {
                    Some(old) => merge(old, value, shape),
                    None => {
                        live.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(live), Value::Array(applied)) => match shape.keys() {
            Some(keys) => *live = merged(std::mem::take(live), applied, &keys, shape.items()),
            None => live.clone_from(applied),
        },
        (live, applied) => *live = applied.clone(),
    }
}

/// A list that is a map, with another laid over it: entries of both in the order of the applied one, those of the live
/// one alone before the entry that they stood before, as the API server orders them.
fn merged(live: Vec<Value>, applied: &[Value], keys: &[&str], shape: Shape<'_>) -> Vec<Value> {
    let wanted: Vec<String> = applied.iter().map(|one| step_of(one, keys)).collect();
    let asked: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let steps: Vec<String> = live.iter().map(|one| step_of(one, keys)).collect();
    let mut old: BTreeMap<&str, Value> = steps.iter().map(String::as_str).zip(live).collect();
    let mut left = steps.iter().map(String::as_str).peekable();
    let mut all = Vec::with_capacity(applied.len());
    for (at, (value, step)) in applied.iter().zip(&wanted).enumerate() {
        let mut shared = wanted.iter().skip(at);
        let shared = shared.find(|step| old.contains_key(step.as_str()));
        // an entry of both that is not next has its place elsewhere
        while let Some(one) = left.next_if(|one| Some(*one) != shared.map(String::as_str)) {
            if !asked.contains(one) {
                all.extend(old.remove(one));
            }
        }
        left.next_if_eq(&step.as_str());
        all.push(match old.remove(step.as_str()) {
            Some(mut entry) => {
                merge(&mut entry, value, shape);
                entry
            }
            None => value.clone(),
        });
    }
    all.extend(left.filter_map(|one| old.remove(one)));
    all
}

/// Takes away what was owned before, is not asked for now, and is nobody else's (K3).
pub(crate) fn prune(
    live: &mut Value,
    before: &Fields,
    now: Option<&Fields>,
    others: &[&Fields],
    shape: Shape<'_>,
) {
    let places = Places::of(Some(live), shape);
    let mut gone = BTreeSet::new();
    for (step, before) in &before.below {
        let now = now.and_then(|now| now.below.get(step));
        let others: Vec<&Fields> = others
            .iter()
            .filter_map(|one| one.below.get(step))
            .collect();
        let shared = others.iter().any(|one| !one.is_empty());
        if now.is_none() && !shared {
            gone.insert(step.as_str());
        } else if let Some(inner) = places.child_mut(live, step) {
            prune(inner, before, now, &others, shape.at(step));
            let hollow = match inner {
                Value::Object(object) => object.is_empty(),
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            if hollow && !before.below.is_empty() {
                gone.insert(step.as_str());
            }
        }
    }
    places.remove(live, &gone);
}

/// What an update changed or added, and what it took away.
pub(crate) fn difference(before: &Value, after: &Value, shape: Shape<'_>) -> (Fields, Fields) {
    let mut changed = Fields::default();
    let all = Fields::of(after, shape);
    collect_changed(&all, Some(before), after, shape, &mut changed);
    let mut gone = Fields::of(before, shape);
    gone.subtract(&all);
    (changed, gone)
}

fn collect_changed(
    all: &Fields,
    before: Option<&Value>,
    after: &Value,
    shape: Shape<'_>,
    changed: &mut Fields,
) {
    if all.itself {
        changed.itself = before.is_none() || (all.below.is_empty() && before != Some(after));
    }
    let places = [before, Some(after)].map(|value| Places::of(value, shape));
    for (step, inner) in &all.below {
        if let Some(after) = places[1].child(after, step) {
            let before = before.and_then(|before| places[0].child(before, step));
            let mut set = Fields::default();
            collect_changed(inner, before, after, shape.at(step), &mut set);
            if !set.is_empty() {
                changed.below.insert(step.clone(), set);
            }
        }
    }
}

/// Lists that are maps read back absent when empty (K5).
pub(crate) fn drop_empty_maps(value: &mut Value, shape: Shape<'_>) {
    match value {
        Value::Object(object) => {
            object.retain(|name, value| {
                let shape = shape.field(name).unwrap_or(Shape::FREE);
                drop_empty_maps(value, shape);
                !(shape.keys().is_some() && value.as_array().is_some_and(Vec::is_empty))
            });
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| drop_empty_maps(item, shape.items())),
        _ => {}
    }
}

/// The first field that the schema does not have, or the first key that stands twice: its path, and what is wrong.
pub(crate) fn undeclared(value: &Value, shape: Shape<'_>) -> Option<String> {
    match value {
        Value::Object(object) => object.iter().find_map(|(name, value)| {
            let problem = match shape.field(name) {
                Some(shape) => undeclared(value, shape)?,
                None => ": field not declared in schema".to_owned(),
            };
            Some(format!(".{name}{problem}"))
        }),
        Value::Array(items) => {
            let twice = shape.keys().and_then(|keys| {
                let mut seen = BTreeSet::new();
                let mut steps = items.iter().map(|item| step_of(item, &keys));
                steps.find(|step| !seen.insert(step.clone()))
            });
            if let Some(step) = twice {
                return Some(format!(": duplicate entries for key {step}"));
            }
            items
                .iter()
                .find_map(|item| undeclared(item, shape.items()))
        }
        _ => None,
    }
}

fn step_of(item: &Value, keys: &[&str]) -> String {
    let missing = Value::Null;
    let key: BTreeMap<&str, &Value> = keys
        .iter()
        .map(|&key| (key, item.get(key).unwrap_or(&missing)))
        .collect();
    // strings and numbers are written without fail
    format!("k:{}", serde_json::to_string(&key).unwrap_or_default())
}

// === impl Places ===

impl Places {
    fn of(value: Option<&Value>, shape: Shape<'_>) -> Self {
        let items = value.and_then(Value::as_array).zip(shape.keys());
        let places = items.into_iter().flat_map(|(items, keys)| {
            let steps = items.iter().map(move |item| step_of(item, &keys));
            steps.enumerate().map(|(at, step)| (step, at))
        });
        Self(places.collect())
    }

    fn child<'a>(&self, value: &'a Value, step: &str) -> Option<&'a Value> {
        match step.strip_prefix("f:") {
            Some(name) => value.get(name),
            None => value.get(*self.0.get(step)?),
        }
    }

    fn child_mut<'a>(&self, value: &'a mut Value, step: &str) -> Option<&'a mut Value> {
        match step.strip_prefix("f:") {
            Some(name) => value.get_mut(name),
            None => value.get_mut(*self.0.get(step)?),
        }
    }

    fn remove(&self, value: &mut Value, steps: &BTreeSet<&str>) {
        match value {
            Value::Object(object) => {
                for name in steps.iter().filter_map(|step| step.strip_prefix("f:")) {
                    object.remove(name);
                }
            }
            Value::Array(items) if !steps.is_empty() => {
                let gone: BTreeSet<usize> = steps
                    .iter()
                    .filter_map(|step| self.0.get(*step).copied())
                    .collect();
                let mut at = 0..;
                items.retain(|_| at.next().is_some_and(|at| !gone.contains(&at)));
            }
            _ => {}
        }
    }
}
