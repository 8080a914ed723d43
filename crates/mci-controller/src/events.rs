//! Kubernetes events: what a user of a pool, or the operator at home, is told where `kubectl describe` looks.
//!
//! ```text
//!  plan ── Signs (old, new) ── derive ──► Notice ──► Outbox (per member: ledger, bound) ──► run_sender ──► API server
//! ```
//! They are for people: one that cannot be sent is lost, and none ever holds up a write: they wait as writes do where a
//! server asks for silence or does not answer, and count for nothing there. Only the silence that a server asks for by
//! `Retry-After` is for all that it is sent (spec 4.5), so that writes hear of it. Core `v1` events, since `kubectl
//! describe` shows the count and age of those alone.

mod derive;
mod event;
mod ledger;
mod members;
mod outbox;
mod pace;
mod send;
mod signs;
mod teller;

use jiff::Timestamp;

use crate::index::origin::{Source, SourceKind};

#[cfg(test)]
pub(crate) use self::outbox::tests::fill;
pub(crate) use self::{
    members::{HomeDesk, MemberTeller},
    outbox::Outbox,
    send::{Postbox, SenderSettings, run_sender},
    teller::{Audience, PoolTeller},
};

/// Something worth telling, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) regarding: Regarding,
    /// Tells apart what concerns one object for several reasons of the same name, such as members on our Lease.
    pub(crate) subject: String,
    pub(crate) reason: Reason,
    /// For people; at most [`MAX_NOTE`] bytes are sent.
    pub(crate) note: String,
    pub(crate) at: Timestamp,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Regarding {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `kubectl describe` finds events by it; empty: not known.
    pub(crate) uid: String,
}

/// Reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    Exported,
    PartiallyExported,
    /// The EPP's Service is of a type that is never exported.
    NotSupported,
    InvalidExportAnnotation,
    NamespaceMissing,
    ImportConflict,
    ClusterUnreachable,
    HealthPortNotFound,
    TooManyExporters,
    PoolStatusFull,
    AddressRejected,
    /// A member's new `Active` reason.
    Member(&'static str),
    IsolationGuard,
}

/// Reasons of events on pools.
#[cfg(test)]
pub(crate) const POOL_REASONS: [Reason; 11] = [
    Reason::Exported,
    Reason::PartiallyExported,
    Reason::NotSupported,
    Reason::InvalidExportAnnotation,
    Reason::NamespaceMissing,
    Reason::ImportConflict,
    Reason::ClusterUnreachable,
    Reason::HealthPortNotFound,
    Reason::TooManyExporters,
    Reason::PoolStatusFull,
    Reason::AddressRejected,
];

/// Longest note: what the API server takes.
const MAX_NOTE: usize = 1024;

// === impl Regarding ===

impl Regarding {
    /// Our Lease, for what concerns no object of the inventory. Its uid is looked up when it is needed.
    pub(crate) fn lease(namespace: &str, clusterset: &str) -> Self {
        Self {
            api_version: "coordination.k8s.io/v1",
            kind: "Lease",
            namespace: namespace.to_owned(),
            name: crate::home::lease_name(clusterset),
            uid: String::new(),
        }
    }

    /// The object at home that names a member; none where that is no object.
    pub(crate) fn source(source: &Source) -> Option<Self> {
        let api_version = match source.kind {
            SourceKind::Home | SourceKind::File => return None,
            SourceKind::Secret => "v1",
            SourceKind::ClusterProfile => "multicluster.x-k8s.io/v1alpha1",
        };
        Some(Self {
            api_version,
            kind: source.kind.name(),
            namespace: source.namespace.clone(),
            name: source.name.clone(),
            uid: source.uid.clone(),
        })
    }

    /// A pool in its own cluster.
    pub(crate) fn pool(key: &crate::name::Key, uid: &str) -> Self {
        Self {
            api_version: "inference.networking.k8s.io/v1",
            kind: crd::annotations::POOL_KIND,
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: uid.to_owned(),
        }
    }
}

// === impl Reason ===

impl Reason {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exported => "Exported",
            Self::PartiallyExported => "PartiallyExported",
            Self::NotSupported => "NotSupported",
            Self::InvalidExportAnnotation => "InvalidExportAnnotation",
            Self::NamespaceMissing => "NamespaceMissing",
            Self::ImportConflict => "ImportConflict",
            Self::ClusterUnreachable => "ClusterUnreachable",
            Self::HealthPortNotFound => "HealthPortNotFound",
            Self::TooManyExporters => "TooManyExporters",
            Self::PoolStatusFull => "PoolStatusFull",
            Self::AddressRejected => "AddressRejected",
            Self::Member(reason) => reason,
            Self::IsolationGuard => "IsolationGuard",
        }
    }

    /// Of reasons that tell how one thing stands, the newest is the last word; one of them stands for all.
    pub(crate) fn topic(self) -> Self {
        match self {
            Self::PartiallyExported | Self::NotSupported => Self::Exported,
            Self::Member(_) => Self::Member("Active"),
            Self::Exported
            | Self::InvalidExportAnnotation
            | Self::NamespaceMissing
            | Self::ImportConflict
            | Self::ClusterUnreachable
            | Self::HealthPortNotFound
            | Self::TooManyExporters
            | Self::PoolStatusFull
            | Self::AddressRejected
            | Self::IsolationGuard => self,
        }
    }

    /// `Normal` or `Warning`. No port for health checks is usual, not wrong.
    pub(crate) fn type_(self) -> &'static str {
        match self {
            Self::Exported | Self::HealthPortNotFound | Self::Member("Active") => "Normal",
            _ => "Warning",
        }
    }
}
