//! Kubernetes events: what users of a pool, or the operator at home, find where `kubectl describe` looks.
//!
//! ```text
//!  plan, overview ── Observations ──► Reported (reason → last event) ──► EventQueue ──► run_sender ──► API server
//! ```
//! One per object and reason in five minutes. What is not reported, since it comes too soon or the queue is full, is
//! compared again whenever its object is observed, and reported if it still stands. Events are for people: one that
//! cannot be sent is lost, and none holds up a write. Core `v1` events: `kubectl describe` shows the age of those alone.

mod home;
mod pools;
mod reported;
mod send;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    index::origin::{Source, SourceKind},
    name::Key,
};

pub(crate) use self::{
    home::HomeRecorder,
    pools::PoolRecorder,
    send::{EventQueue, run_sender},
};

/// Reason of an event: one of these, or of a member's `Active`.
pub(crate) type Reason = &'static str;

pub(crate) mod reason {
    use super::Reason;

    pub(crate) const EXPORTED: Reason = "Exported";
    pub(crate) const PARTIALLY_EXPORTED: Reason = "PartiallyExported";
    /// The EPP's Service is of a type that is never exported.
    pub(crate) const NOT_SUPPORTED: Reason = "NotSupported";
    pub(crate) const INVALID_EXPORT_ANNOTATION: Reason = "InvalidExportAnnotation";
    pub(crate) const NAMESPACE_MISSING: Reason = "NamespaceMissing";
    pub(crate) const IMPORT_CONFLICT: Reason = "ImportConflict";
    pub(crate) const CLUSTER_UNREACHABLE: Reason = "ClusterUnreachable";
    pub(crate) const HEALTH_PORT_NOT_FOUND: Reason = "HealthPortNotFound";
    pub(crate) const TOO_MANY_EXPORTERS: Reason = "TooManyExporters";
    pub(crate) const POOL_STATUS_FULL: Reason = "PoolStatusFull";
    pub(crate) const ADDRESS_REJECTED: Reason = "AddressRejected";
    pub(crate) const ISOLATION_GUARD: Reason = "IsolationGuard";

    /// Those of the condition `Exported`: one of them holds at a time.
    pub(crate) const VERDICTS: [Reason; 3] = [EXPORTED, PARTIALLY_EXPORTED, NOT_SUPPORTED];
    /// The others are warnings. No port for health checks is usual, not wrong.
    pub(crate) const NORMAL: [Reason; 3] = [EXPORTED, HEALTH_PORT_NOT_FOUND, "Active"];
}

/// Our Lease, for what concerns no object of the inventory. Its uid is looked up when it is needed.
pub(crate) fn lease(namespace: &str, clusterset: &str) -> ObjectReference {
    let name = crate::home::lease_name(clusterset);
    make_reference("coordination.k8s.io/v1", "Lease", [namespace, &name, ""])
}

/// The object at home that names a member; none where that is no object.
fn source(source: &Source) -> Option<ObjectReference> {
    let api_version = match source.kind {
        SourceKind::Home | SourceKind::File => return None,
        SourceKind::Secret => "v1",
        SourceKind::ClusterProfile => "multicluster.x-k8s.io/v1alpha1",
    };
    let place = [&*source.namespace, &*source.name, &*source.uid];
    Some(make_reference(api_version, source.kind.name(), place))
}

/// A pool in its own cluster.
fn pool(key: &Key, uid: &str) -> ObjectReference {
    let kind = crd::annotations::POOL_KIND;
    let place = [&*key.namespace, &*key.name, uid];
    make_reference("inference.networking.k8s.io/v1", kind, place)
}

fn make_reference(api_version: &str, kind: &str, place: [&str; 3]) -> ObjectReference {
    let text = |text: &str| Some(text.to_owned());
    let [namespace, name, uid] = place.map(text);
    ObjectReference {
        api_version: text(api_version),
        kind: text(kind),
        namespace,
        name,
        // `kubectl describe` finds events by it
        uid: uid.filter(|uid| !uid.is_empty()),
        ..ObjectReference::default()
    }
}
