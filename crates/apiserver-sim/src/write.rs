//! Writes, as the API server does them: server-side apply, patches, updates and deletions.

mod managed;
#[cfg(test)]
mod tests;
mod usual;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use self::managed::{Managed, Operation};
use crate::{
    fields::{self, Fields, Shape},
    kinds::{self, Kind},
    refusal::Refusal,
    schema,
    store::{Store, Stored},
};

/// Which object, and which part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) kind: &'static Kind,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) status: bool,
}

/// How a patch is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    Apply { force: bool },
    Json,
    Merge,
}

/// A write that worked: 201 where it created.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) created: bool,
    pub(crate) object: Arc<Stored>,
}

type Result<T> = std::result::Result<T, Refusal>;

/// Creates an object.
pub(crate) fn create(
    store: &mut Store,
    at: At<'_>,
    manager: &str,
    mut value: Value,
) -> Result<Written> {
    let name = match value.pointer("/metadata/name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => {
            let prefix = value
                .pointer("/metadata/generateName")
                .and_then(Value::as_str);
            format!("{}{}", prefix.unwrap_or("unnamed-"), store.version)
        }
    };
    let at = At { name: &name, ..at };
    may_create(store, at)?;
    if store.get(at.kind, at.namespace, at.name).is_some() {
        let message = format!("{} \"{name}\" already exists", at.kind.plural);
        return Err(Refusal::new(409, "AlreadyExists", message));
    }
    if at.kind.custom {
        remove(&mut value, "status");
    }
    name_it(&mut value, at);
    strip_server_fields(&mut value);
    let written = update_fields(store, at, manager, &json!({}), value)?;
    let object = put(store, at, written);
    Ok(Written {
        created: true,
        object,
    })
}

/// Replaces an object or its status, if it is still the one that was read.
pub(crate) fn update(
    store: &mut Store,
    at: At<'_>,
    manager: &str,
    value: Value,
) -> Result<Written> {
    let live = find(store, at)?;
    let before = live.value();
    let version = value
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str);
    if version.is_some_and(|version| !version.is_empty() && version != live.version.to_string()) {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Refusal::conflict(at.kind.plural, at.name, why));
    }
    let after = graft(&before, value, at.status);
    finish_update(store, at, manager, &before, after)
}

/// Changes an object as a patch says.
pub(crate) fn patch(
    store: &mut Store,
    at: At<'_>,
    manager: &str,
    type_: PatchType,
    body: &Bytes,
) -> Result<Written> {
    let usual = match type_ {
        PatchType::Apply { .. } if at.status => {
            schema_of(store, at.kind).and_then(|schema| usual::plain(body, &schema))
        }
        _ => None,
    };
    if let Some(plain) = &usual
        && let Some(written) = usual::replace(store, at, manager, plain)
    {
        return Ok(written);
    }
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::new(400, "BadRequest", error.to_string()))?;
    match type_ {
        PatchType::Apply { force } => {
            let written = apply(store, at, manager, force, value)?;
            if let Some(plain) = usual {
                usual::note(&written.object, manager, plain);
            }
            Ok(written)
        }
        PatchType::Json => {
            let live = find(store, at)?;
            let before = live.value();
            let patch: json_patch::Patch = serde_json::from_value(value)
                .map_err(|error| Refusal::new(400, "BadRequest", error.to_string()))?;
            let mut after = before.clone();
            json_patch::patch(&mut after, &patch).map_err(|error| {
                Refusal::new(
                    422,
                    "Invalid",
                    format!(
                        "the server rejected our request due to an error in our request: {error}"
                    ),
                )
            })?;
            let after = graft(&before, after, at.status);
            finish_update(store, at, manager, &before, after)
        }
        PatchType::Merge => {
            let live = find(store, at)?;
            let before = live.value();
            let mut after = before.clone();
            json_patch::merge(&mut after, &value);
            let after = graft(&before, after, at.status);
            finish_update(store, at, manager, &before, after)
        }
    }
}

/// Deletes an object, if it is the one that is meant.
pub(crate) fn delete(store: &mut Store, at: At<'_>, options: &Value) -> Result<Arc<Stored>> {
    let live = find(store, at)?;
    let wanted = |field: &str| {
        let wanted = options.get("preconditions")?.get(field)?.as_str()?;
        Some(wanted.to_owned())
    };
    let version = live.version.to_string();
    for (field, wanted, found) in [
        ("UID", wanted("uid"), &live.uid),
        ("ResourceVersion", wanted("resourceVersion"), &version),
    ] {
        if let Some(wanted) = wanted
            && wanted != *found
        {
            let why = format!(
                "Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
            );
            return Err(Refusal::conflict(at.kind.plural, at.name, &why));
        }
    }
    let gone = store.remove(at.kind, at.namespace, at.name);
    gone.ok_or_else(|| missing(at))
}

fn apply(
    store: &mut Store,
    at: At<'_>,
    manager: &str,
    force: bool,
    mut applied: Value,
) -> Result<Written> {
    if manager.is_empty() {
        return Err(Refusal::new(
            400,
            "BadRequest",
            "fieldManager is required for apply patch",
        ));
    }
    let live = store.get(at.kind, at.namespace, at.name);
    if live.is_none() {
        if at.status {
            return Err(missing(at));
        }
        may_create(store, at)?;
    }
    let schema = schema_of(store, at.kind);
    let shape = schema.as_deref().map_or(Shape::FREE, Shape::of);
    if let Some(problem) = fields::undeclared(&applied, shape) {
        let Kind { kind, .. } = at.kind;
        let message = format!(
            "failed to create typed patch object ({}/{}; {}, Kind={kind}): {problem}",
            at.namespace,
            at.name,
            at.kind.api_version()
        );
        return Err(Refusal::new(500, "InternalError", message));
    }
    let mut wanted = Fields::of(&applied, shape);
    wanted.split(at.status);
    // the other part is not this request's to change
    if let Some(object) = applied.as_object_mut() {
        object.retain(|field, _| (field == "status") == at.status);
    }
    strip_server_fields(&mut applied);

    let before = live.as_ref().map_or_else(|| json!({}), |live| live.value());
    let mut managed = Managed::of(&before);
    let operation = Operation::Apply;
    let mut found = Vec::new();
    for entry in managed.others(manager, operation, at.status) {
        let clash = fields::conflicts(
            &wanted,
            &entry.fields,
            Some(&before),
            Some(&applied),
            shape,
            "",
            &mut found,
        );
        if force {
            entry.fields.subtract(&clash);
        }
    }
    if !force && !found.is_empty() {
        let message = format!(
            "Apply failed with {} conflicts: {}",
            found.len(),
            found.join(", ")
        );
        let refusal = Refusal::new(409, "Conflict", message);
        return Err(found.iter().fold(refusal, |refusal, path| {
            refusal.with_cause("FieldManagerConflict", path)
        }));
    }
    let mut after = before.clone();
    fields::merge(&mut after, &applied, shape);
    let previous = managed.fields(manager, operation, at.status);
    let others: Vec<Fields> = managed
        .others(manager, operation, at.status)
        .map(|entry| entry.fields.clone())
        .collect();
    let others: Vec<&Fields> = others.iter().collect();
    fields::prune(&mut after, &previous, Some(&wanted), &others, shape);
    fields::drop_empty_maps(&mut after, shape);
    name_it(&mut after, at);
    managed.set(manager, operation, at.status, wanted);
    let created = live.is_none();
    settle(store, at, &before, after, managed, created)
}

fn finish_update(
    store: &mut Store,
    at: At<'_>,
    manager: &str,
    before: &Value,
    after: Value,
) -> Result<Written> {
    let schema = schema_of(store, at.kind);
    let shape = schema.as_deref().map_or(Shape::FREE, Shape::of);
    let mut after = after;
    fields::drop_empty_maps(&mut after, shape);
    if !tracked(at.kind) {
        return settle(store, at, before, after, Managed::default(), false);
    }
    let after = update_fields(store, at, manager, before, after)?;
    let managed = Managed::of(&after);
    settle(store, at, before, after, managed, false)
}

/// Says in the managed fields what an update changed.
fn update_fields(
    store: &Store,
    at: At<'_>,
    manager: &str,
    before: &Value,
    mut after: Value,
) -> Result<Value> {
    if !tracked(at.kind) {
        return Ok(after);
    }
    let schema = schema_of(store, at.kind);
    let shape = schema.as_deref().map_or(Shape::FREE, Shape::of);
    check(&after, schema.as_deref())?;
    let (mut changed, gone) = fields::difference(before, &after, shape);
    changed.split(at.status);
    let mut managed = Managed::of(before);
    let operation = Operation::Update;
    for entry in managed.all() {
        entry.fields.subtract(&gone);
    }
    for entry in managed.others(manager, operation, at.status) {
        entry.fields.subtract(&changed);
    }
    let mut own = managed.fields(manager, operation, at.status);
    own.add(&changed);
    managed.set(manager, operation, at.status, own);
    managed.put(&mut after, at.kind, &store.now());
    Ok(after)
}

/// Stores what changed; what did not keeps its version (K4).
fn settle(
    store: &mut Store,
    at: At<'_>,
    before: &Value,
    mut after: Value,
    managed: Managed,
    created: bool,
) -> Result<Written> {
    if tracked(at.kind) {
        let schema = schema_of(store, at.kind);
        check(&after, schema.as_deref())?;
        let unchanged = !created && same(before, &after) && Managed::of(before) == managed;
        if unchanged && let Some(object) = store.get(at.kind, at.namespace, at.name) {
            return Ok(Written { created, object });
        }
        managed.put(&mut after, at.kind, &store.now());
    } else if before == &after
        && let Some(object) = store.get(at.kind, at.namespace, at.name)
    {
        return Ok(Written { created, object });
    }
    if before.get("spec") != after.get("spec") && !created {
        let generation = before
            .pointer("/metadata/generation")
            .and_then(Value::as_i64);
        after["metadata"]["generation"] = json!(generation.unwrap_or(1) + 1);
    }
    let object = put(store, at, after);
    Ok(Written { created, object })
}

fn put(store: &mut Store, at: At<'_>, value: Value) -> Arc<Stored> {
    store.put(at.kind, value)
}

fn check(value: &Value, schema: Option<&Value>) -> Result<()> {
    let broken = schema.and_then(|schema| schema::broken_rule(value, schema));
    match broken {
        Some(rule) => Err(Refusal::new(422, "Invalid", rule)),
        None => Ok(()),
    }
}

/// The new object: of an update on the status only the status counts, of any other all but it.
fn graft(before: &Value, value: Value, status: bool) -> Value {
    let mut after = if status {
        before.clone()
    } else {
        value.clone()
    };
    let source = if status { &value } else { before };
    match source.get("status").cloned() {
        Some(found) => after["status"] = found,
        None => remove(&mut after, "status"),
    }
    for field in [
        "uid",
        "creationTimestamp",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        match before.pointer(&format!("/metadata/{field}")).cloned() {
            Some(kept) => after["metadata"][field] = kept,
            None => {
                if let Some(meta) = after.get_mut("metadata") {
                    remove(meta, field);
                }
            }
        }
    }
    after
}

fn find(store: &Store, at: At<'_>) -> Result<Arc<Stored>> {
    store
        .get(at.kind, at.namespace, at.name)
        .ok_or_else(|| missing(at))
}

fn missing(at: At<'_>) -> Refusal {
    Refusal::not_found(at.kind.plural, at.kind.group, at.name)
}

/// A namespace must be there and stay (K9).
fn may_create(store: &Store, at: At<'_>) -> Result<()> {
    if !at.kind.namespaced {
        return Ok(());
    }
    let Some(namespace) = store.get(&kinds::NAMESPACES, "", at.namespace) else {
        return Err(Refusal::not_found("namespaces", "", at.namespace));
    };
    let leaving = namespace
        .value()
        .pointer("/metadata/deletionTimestamp")
        .is_some();
    if leaving {
        let message = format!(
            "{} \"{}\" is forbidden: unable to create new content in namespace {} because it is being terminated",
            at.kind.plural, at.name, at.namespace
        );
        return Err(Refusal::new(403, "Forbidden", message)
            .with_cause("NamespaceTerminating", "metadata.namespace"));
    }
    Ok(())
}

/// Whether managed fields are kept: for imports alone, since nobody reads those of others.
fn tracked(kind: &'static Kind) -> bool {
    *kind == kinds::IMPORTS
}

fn schema_of(store: &Store, kind: &'static Kind) -> Option<Arc<Value>> {
    if tracked(kind) {
        store.import_schema.clone()
    } else {
        None
    }
}

fn name_it(value: &mut Value, at: At<'_>) {
    value["metadata"]["name"] = at.name.into();
    if at.kind.namespaced {
        value["metadata"]["namespace"] = at.namespace.into();
    }
}

fn strip_server_fields(value: &mut Value) {
    if let Some(meta) = value.get_mut("metadata") {
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "managedFields",
            "deletionTimestamp",
        ] {
            remove(meta, field);
        }
    }
}

/// Whether two objects differ in nothing but what every write touches.
fn same(one: &Value, other: &Value) -> bool {
    fn rest(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
        let fields = value.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| *name != "metadata");
        let meta = value.get("metadata").and_then(Value::as_object);
        let meta = meta.into_iter().flatten().filter(|(name, _)| {
            !["managedFields", "resourceVersion", "generation"].contains(&name.as_str())
        });
        fields.chain(meta)
    }
    rest(one).eq(rest(other))
}

fn remove(value: &mut Value, field: &str) {
    if let Some(object) = value.as_object_mut() {
        object.remove(field);
    }
}
