//! What is sent: made once for all that are to say the same.

use std::sync::Arc;

use bytes::Bytes;
use crd::{
    InferencePoolImport, InferencePoolImportStatus,
    annotations::{CLUSTERSET, CONTROLLER_INSTANCE, MANAGED_BY, MANAGED_BY_CONTROLLER},
    import::API_VERSION,
};
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    index::{facts::LiveImport, flavour::ImportCrd},
    name::Key,
    plan::{PlannedImport, Policy},
    write::action::Action,
};

/// A body per content: importers that read the same share it.
#[derive(Default)]
pub(super) struct Bodies {
    /// By address of the plan: one per audience and key.
    made: Vec<(Arc<PlannedImport>, Bytes, u64)>,
    main: Option<Bytes>,
}

// === impl Bodies ===

impl Bodies {
    /// The serialised status, made once per plan, and the hash of what it says without times.
    pub(super) fn status(
        &mut self,
        key: &Key,
        planned: &Arc<PlannedImport>,
        stamp: impl FnOnce() -> InferencePoolImportStatus,
    ) -> (Bytes, u64) {
        let mut made = self.made.iter();
        let known = made.find(|(known, _, _)| Arc::ptr_eq(known, planned));
        if let Some((_, body, content)) = known {
            return (body.clone(), *content);
        }
        let bare = serde_json::to_vec(&planned.status).unwrap_or_default();
        let content = xxh3_64(&bare);
        let mut object = InferencePoolImport::new(&key.namespace, &key.name);
        object.status = Some(stamp());
        let body = Bytes::from(serde_json::to_vec(&object).unwrap_or_default());
        self.made.push((planned.clone(), body.clone(), content));
        (body, content)
    }

    /// The object itself, with our labels.
    pub(super) fn main(&mut self, key: &Key, policy: &Policy) -> Bytes {
        let main = self.main.get_or_insert_with(|| main_body(key, policy));
        main.clone()
    }
}

/// What a write says, under the CRD that it was made for: refused under one, it may be taken under the next.
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
        "kind": crd::annotations::IMPORT_KIND,
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
