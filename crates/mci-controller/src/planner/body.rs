//! The bodies of writes, made once for all importers with the same content.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use crd::{
    annotations::{
        CLUSTERSET, CONTROLLER_INSTANCE, IMPORT_KIND, MANAGED_BY, MANAGED_BY_CONTROLLER,
    },
    import::API_VERSION,
};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    index::{
        entry::{Entry, ImportStatus},
        facts::LiveImport,
        flavour::ImportCrd,
    },
    name::Key,
    plan::{
        PlannedImport, Policy,
        ledger::{Ledger, LiveStatuses},
    },
    write::action::Action,
};

/// One body per content: importers with the same content share it.
#[derive(Default)]
pub(super) struct Bodies {
    /// One per audience.
    made: Vec<(Arc<PlannedImport>, Bytes)>,
    /// Entries as they are sent, by where they are.
    entries: BTreeMap<usize, (Entry, Box<RawValue>)>,
    main: Option<Bytes>,
}

/// An import as its status is sent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Name<'a>,
    status: ImportStatus<&'a RawValue>,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

// === impl Bodies ===

impl Bodies {
    /// The serialised status, made once per plan, and each of its entries once per key.
    pub(super) fn status<'a>(
        &mut self,
        key: &Key,
        planned: &Arc<PlannedImport>,
        ledger: &mut Ledger,
        live: &LiveStatuses<'a, impl FnOnce() -> Vec<&'a ImportStatus>>,
        wall: Timestamp,
    ) -> Bytes {
        let mut made = self.made.iter();
        if let Some((_, body)) = made.find(|(known, _)| Arc::ptr_eq(known, planned)) {
            return body.clone();
        }
        let entries = &planned.status.clusters;
        for entry in entries {
            self.entries.entry(entry.address()).or_insert_with(|| {
                let stamped = ledger.stamp_entry(key, entry, live, wall);
                (entry.clone(), to_raw_value(&stamped).unwrap_or_default())
            });
        }
        let texts = entries.iter();
        let texts = texts.filter_map(|entry| self.entries.get(&entry.address()));
        let mut status = ledger.stamp_top(key, planned, live, wall);
        status.clusters = texts.map(|(_, text)| &**text).collect();
        let body = StatusBody {
            api_version: API_VERSION,
            kind: IMPORT_KIND,
            metadata: Name {
                namespace: &key.namespace,
                name: &key.name,
            },
            status,
        };
        let body = Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
        self.made.push((planned.clone(), body.clone()));
        body
    }

    /// The object itself, with our labels.
    pub(super) fn main(&mut self, key: &Key, policy: &Policy) -> Bytes {
        let main = self.main.get_or_insert_with(|| main_body(key, policy));
        main.clone()
    }
}

/// Hash of a write's content and of the CRD that it was made for: a write refused under one may be accepted by the next.
pub(super) fn content_under(crd: Option<&ImportCrd>, content: u64) -> u64 {
    let Some(ImportCrd {
        uid, generation, ..
    }) = crd
    else {
        return content;
    };
    let uid = uid.as_deref().unwrap_or_default();
    content ^ xxh3_64(format!("{uid} {generation}").as_bytes())
}

fn main_body(key: &Key, policy: &Policy) -> Bytes {
    let object = json!({
        "apiVersion": API_VERSION,
        "kind": IMPORT_KIND,
        "metadata": {
            "namespace": *key.namespace,
            "name": *key.name,
            "labels": {
                MANAGED_BY: MANAGED_BY_CONTROLLER,
                CLUSTERSET: policy.clusterset,
                CONTROLLER_INSTANCE: policy.instance,
            },
        },
    });
    object.to_string().into()
}

/// Deletes the object as it was seen.
pub(super) fn delete(live: &LiveImport) -> Action {
    Action::Delete {
        uid: live.uid.clone(),
        resource_version: live.resource_version.clone(),
    }
}

/// A patch that holds only for the object as it was seen: positions shift otherwise.
pub(super) fn remove_foreign(live: &LiveImport, pointers: &[String]) -> Bytes {
    let mut patch = vec![json!({
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": live.resource_version,
    })];
    let removals = pointers.iter();
    patch.extend(removals.map(|path| json!({"op": "remove", "path": path})));
    json!(patch).to_string().into()
}

#[cfg(test)]
mod tests {
    use std::cell::LazyCell;

    use serde_json::Value;

    use super::*;
    use crate::{
        fixtures::*,
        index::{flavour::Flavour, update::Update},
        plan::{ImportPlan, desired_for},
    };
    use moment::Moment;

    #[test]
    fn a_body_is_the_import_with_its_times_and_each_entry_is_made_once() {
        let key = mk_key("llm");
        let mut world = mk_world(&["a", "b", "c", "d"]);
        for name in ["a", "b"] {
            export(&mut world, name, "llm");
        }
        let upstream = Update::ImportCrd(mk_import_crd(Flavour::Upstream));
        world.update(&mk_name("d"), upstream, Moment::START);
        let none = Update::Imports(crate::index::update::Change::Listed(Vec::new()));
        world.update(&mk_name("d"), none, Moment::START);
        let plan = desired_for(&world, &mk_policy(), &key, Moment::START);
        let wall = Timestamp::from_second(1_000_000).expect("in range");
        let live = LazyCell::new(Vec::new);
        let (mut bodies, mut ledger) = (Bodies::default(), Ledger::default());
        for (name, import) in &plan.imports {
            let ImportPlan::Present(planned) = import else {
                panic!("{name} imports nothing");
            };
            let body = bodies.status(&key, planned, &mut ledger, &live, wall);
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            let status = Ledger::default().stamp(&key, planned, &[], wall);
            let whole = json!({
                "apiVersion": API_VERSION,
                "kind": IMPORT_KIND,
                "metadata": {"namespace": *key.namespace, "name": *key.name},
                "status": status,
            });
            assert_eq!(body, whole, "{name}");
        }
        assert_eq!(plan.imports.len(), 4);
        assert_eq!(bodies.entries.len(), 2);
    }
}
