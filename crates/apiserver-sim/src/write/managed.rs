//! `metadata.managedFields`: who owns which fields.

use serde_json::{Value, json};

use crate::{fields::Fields, kinds::Kind};

/// How fields came to be owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// What one manager owns by one operation on one part.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    manager: String,
    operation: Operation,
    status: bool,
    time: String,
    pub(super) fields: Fields,
}

/// All owners of an object. Equal if they own the same, whenever they took it.
#[derive(Clone, Debug, Default)]
pub(super) struct Managed(Vec<Entry>);

// === impl Managed ===

impl Managed {
    pub(super) fn of(object: &Value) -> Self {
        let entries = object
            .pointer("/metadata/managedFields")
            .and_then(Value::as_array);
        let text = |entry: &Value, field: &str| {
            entry
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let entries = entries.into_iter().flatten().map(|entry| Entry {
            manager: text(entry, "manager"),
            operation: if entry.get("operation").is_some_and(|one| one == "Apply") {
                Operation::Apply
            } else {
                Operation::Update
            },
            status: entry.get("subresource").is_some_and(|one| one == "status"),
            time: text(entry, "time"),
            fields: entry
                .get("fieldsV1")
                .map(Fields::from_json)
                .unwrap_or_default(),
        });
        Self(entries.collect())
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.0.iter_mut()
    }

    pub(super) fn others<'a>(
        &'a mut self,
        manager: &'a str,
        operation: Operation,
        status: bool,
    ) -> impl Iterator<Item = &'a mut Entry> {
        self.0
            .iter_mut()
            .filter(move |entry| !entry.is(manager, operation, status))
    }

    pub(super) fn fields(&self, manager: &str, operation: Operation, status: bool) -> Fields {
        let own = self
            .0
            .iter()
            .find(|entry| entry.is(manager, operation, status));
        own.map(|entry| entry.fields.clone()).unwrap_or_default()
    }

    pub(super) fn set(
        &mut self,
        manager: &str,
        operation: Operation,
        status: bool,
        fields: Fields,
    ) {
        let own = self
            .0
            .iter_mut()
            .find(|entry| entry.is(manager, operation, status));
        match own {
            Some(entry) if entry.fields == fields => {}
            Some(entry) => {
                entry.fields = fields;
                entry.time.clear();
            }
            None => self.0.push(Entry {
                manager: manager.to_owned(),
                operation,
                status,
                time: String::new(),
                fields,
            }),
        }
        self.0.retain(|entry| !entry.fields.is_empty());
    }

    /// Writes the owners into the object; who changed something did so now.
    pub(super) fn put(&self, object: &mut Value, kind: &'static Kind, now: &str) {
        let entries: Vec<Value> = self
            .0
            .iter()
            .filter(|entry| !entry.fields.is_empty())
            .map(|entry| entry.to_json(kind, now))
            .collect();
        object["metadata"]["managedFields"] = Value::Array(entries);
    }
}

impl PartialEq for Managed {
    fn eq(&self, other: &Self) -> bool {
        let same =
            |a: &Entry, b: &Entry| b.is(&a.manager, a.operation, a.status) && a.fields == b.fields;
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| same(a, b))
    }
}

// === impl Entry ===

impl Entry {
    fn is(&self, manager: &str, operation: Operation, status: bool) -> bool {
        self.manager == manager && self.operation == operation && self.status == status
    }

    fn to_json(&self, kind: &'static Kind, now: &str) -> Value {
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        let time = if self.time.is_empty() {
            now
        } else {
            &self.time
        };
        let mut entry = json!({
            "manager": self.manager, "operation": operation, "apiVersion": kind.api_version(),
            "time": time, "fieldsType": "FieldsV1", "fieldsV1": self.fields,
        });
        if self.status {
            entry["subresource"] = "status".into();
        }
        entry
    }
}
