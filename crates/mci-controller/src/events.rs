//! Kubernetes events, for users of a pool and for the operator at home, as `kubectl describe` shows them.
//!
//! ```text
//!  plan, overview ── Observations ──► Reported (reason → last event) ──► EventQueue ──► run_sender ──► API server
//! ```
//! One event per object and reason in five minutes. What is not reported, because it is too early or the queue is full, is
//! compared again whenever its object is observed, and reported if it still holds. An event that cannot be sent is
//! dropped, and none delays a write. Core `v1` events: `kubectl describe` shows the age of those alone.

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
pub(crate) type EventReason = &'static str;

pub(crate) mod reason {
    use super::EventReason;

    pub(crate) const EXPORTED: EventReason = "Exported";
    pub(crate) const PARTIALLY_EXPORTED: EventReason = "PartiallyExported";
    /// The EPP's Service is of a type that is never exported.
    pub(crate) const NOT_SUPPORTED: EventReason = "NotSupported";
    /// The inventory does not allow the member to export the pool's namespace.
    pub(crate) const NOT_ALLOWED: EventReason = "NotAllowed";
    /// The object at home that describes the member has a value that cannot be read.
    pub(crate) const INVALID_ANNOTATION: EventReason = "InvalidAnnotation";
    pub(crate) const INVALID_EXPORT_ANNOTATION: EventReason = "InvalidExportAnnotation";
    pub(crate) const NAMESPACE_MISSING: EventReason = "NamespaceMissing";
    pub(crate) const IMPORT_CONFLICT: EventReason = "ImportConflict";
    pub(crate) const CLUSTER_UNREACHABLE: EventReason = "ClusterUnreachable";
    pub(crate) const HEALTH_PORT_NOT_FOUND: EventReason = "HealthPortNotFound";
    pub(crate) const TOO_MANY_EXPORTERS: EventReason = "TooManyExporters";
    pub(crate) const POOL_STATUS_FULL: EventReason = "PoolStatusFull";
    pub(crate) const ADDRESS_REJECTED: EventReason = "AddressRejected";
    pub(crate) const ISOLATION_GUARD: EventReason = "IsolationGuard";

    /// Those of the condition `Exported`: one of them holds at a time.
    pub(crate) const EXPORTED_REASONS: [EventReason; 4] =
        [EXPORTED, PARTIALLY_EXPORTED, NOT_SUPPORTED, NOT_ALLOWED];
    /// The others are warnings. No port for health checks is usual, not wrong.
    pub(crate) const NORMAL: [EventReason; 3] = [EXPORTED, HEALTH_PORT_NOT_FOUND, "Active"];
}

/// Our Lease, for what concerns no object of the inventory. Its uid is looked up when it is needed.
pub(crate) fn lease(namespace: &str, clusterset: &str) -> ObjectReference {
    let name = mci_inventory::lease_name(clusterset);
    make_reference("coordination.k8s.io/v1", "Lease", [namespace, &name, ""])
}

/// The object at home that defines a member; none for a file or the home cluster itself.
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
