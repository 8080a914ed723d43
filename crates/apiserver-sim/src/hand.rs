//! What a user of the cluster, or its operator, does by hand: objects, namespaces, CRDs.

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    kinds::{self, CRDS, IMPORTS, Kind, NAMESPACES},
    schema,
    server::Server,
    watching::Ending,
    write::{self, At},
};

/// Which shape an import CRD has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Ours: all fields.
    Superset,
    /// `controllers` alone.
    Upstream,
}

/// Who makes these changes, among the managers of fields.
const HAND: &str = "kubectl-edit";

// === impl Server ===

impl Server {
    /// An object as it is now.
    pub fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.shared.store.lock().get(kind, namespace, name);
        object.map(|object| object.value())
    }

    /// All objects of a kind.
    pub fn list(&self, kind: &'static Kind) -> Vec<Value> {
        let objects: Vec<_> = self.shared.store.lock().objects(kind).cloned().collect();
        objects.iter().map(|object| object.value()).collect()
    }

    /// Names of all objects of a kind, as `namespace/name`, with their JSON text: cheaper than [`Server::list`].
    pub fn texts(&self, kind: &'static Kind) -> Vec<(String, bytes::Bytes)> {
        let store = self.shared.store.lock();
        let objects = store.objects(kind);
        objects
            .map(|object| {
                (
                    format!("{}/{}", object.namespace, object.name),
                    object.json(),
                )
            })
            .collect()
    }

    /// When an object became as it is now.
    pub fn changed_at(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Instant> {
        let object = self.shared.store.lock().get(kind, namespace, name)?;
        Some(object.at)
    }

    /// An object's JSON text, and when it became so.
    pub fn text(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
    ) -> Option<(Instant, bytes::Bytes)> {
        let object = self.shared.store.lock().get(kind, namespace, name)?;
        Some((object.at, object.json()))
    }

    /// How many objects of a kind there are.
    pub fn len(&self, kind: &'static Kind) -> usize {
        self.shared.store.lock().objects(kind).count()
    }

    /// Rings with each change of a kind.
    pub fn bell(&self, kind: &'static Kind) -> watch::Receiver<u64> {
        self.shared.store.lock().bell(kind)
    }

    /// Stores an object as it comes, status included, without any check.
    pub fn put(&self, kind: &'static Kind, mut value: Value) {
        let mut store = self.shared.store.lock();
        let text = |pointer: &str| {
            value
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let live = store.get(kind, &text("/metadata/namespace"), &text("/metadata/name"));
        if let Some(live) = live {
            let live = live.value();
            for field in ["uid", "creationTimestamp", "generation"] {
                if value.pointer(&format!("/metadata/{field}")).is_none()
                    && let Some(kept) = live.pointer(&format!("/metadata/{field}"))
                {
                    value["metadata"][field] = kept.clone();
                }
            }
        }
        store.put(kind, value);
    }

    /// Changes an object by hand, status included; whether there was one. Of an import the changed fields become those
    /// of another manager; a changed spec is a new generation.
    pub fn edit(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> bool {
        let mut store = self.shared.store.lock();
        let Some(live) = store.get(kind, namespace, name) else {
            return false;
        };
        let mut value = live.value();
        change(&mut value);
        for status in [false, true] {
            let at = At {
                kind,
                namespace,
                name,
                status,
            };
            if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove("resourceVersion");
            }
            if write::update(&mut store, at, HAND, value.clone()).is_err() {
                return false;
            }
        }
        true
    }

    /// Deletes an object; whether there was one.
    pub fn delete(&self, kind: &'static Kind, namespace: &str, name: &str) -> bool {
        self.shared
            .store
            .lock()
            .remove(kind, namespace, name)
            .is_some()
    }

    /// A namespace begins to end: nothing can be created in it any more.
    pub fn terminate_namespace(&self, name: &str) {
        let now = self.shared.store.lock().now();
        if let Some(mut namespace) = self.get(&NAMESPACES, "", name) {
            namespace["metadata"]["deletionTimestamp"] = now.into();
            namespace["status"] = json!({"phase": "Terminating"});
            self.put(&NAMESPACES, namespace);
        }
    }

    /// A namespace goes, and all in it before.
    pub fn delete_namespace(&self, name: &str) {
        let mut store = self.shared.store.lock();
        for kind in kinds::ALL.iter().filter(|kind| kind.namespaced) {
            let names: Vec<String> = store
                .objects(kind)
                .filter(|object| object.namespace == name)
                .map(|object| object.name.clone())
                .collect();
            for object in names {
                store.remove(kind, name, &object);
            }
        }
        store.remove(&NAMESPACES, "", name);
    }

    /// Installs a CRD that is not the import's; one that was deleted comes with a new uid.
    pub fn install_crd(&self, kind: &'static Kind) {
        self.put(&CRDS, schema::plain_crd(kind));
        self.shared.store.lock().compact(kind);
    }

    /// Installs the import's CRD, or puts one shape over the other: imports stay, and their watches end (K6).
    pub fn install_import_crd(&self, flavour: Flavour) {
        let crd = match flavour {
            Flavour::Superset => schema::import_crd(),
            Flavour::Upstream => schema::upstream_import_crd(),
        };
        {
            let mut store = self.shared.store.lock();
            store.import_fields = schema::import_fields(&crd);
            store.import_schema = schema::of_imports(flavour);
        }
        self.put(&CRDS, crd);
        // the API server begins a new cache with each shape: older versions are too old for it
        self.shared.store.lock().compact(&IMPORTS);
        self.end_watches(&IMPORTS, Ending::Quiet);
    }

    /// A CRD begins to end.
    pub fn terminate_crd(&self, kind: &'static Kind) {
        let now = self.shared.store.lock().now();
        if let Some(mut crd) = self.get(&CRDS, "", &kind.crd_name()) {
            crd["metadata"]["deletionTimestamp"] = now.into();
            self.put(&CRDS, crd);
        }
    }

    /// A CRD goes: first each object is told as deleted, then the kind is unknown, then watches end (K8).
    pub fn delete_crd(&self, kind: &'static Kind) {
        {
            let mut store = self.shared.store.lock();
            let objects: Vec<_> = store.objects(kind).cloned().collect();
            for object in objects {
                store.remove(kind, &object.namespace, &object.name);
            }
            store.remove(&CRDS, "", &kind.crd_name());
            if *kind == IMPORTS {
                store.import_fields = None;
                store.import_schema = None;
            }
        }
        self.end_watches(kind, Ending::Quiet);
    }
}
