//! Writes and their outcomes.

use std::{fmt, time::Duration};

use bytes::Bytes;
use crd::Condition;

use crate::name::Key;
use moment::Moment;

/// The object of a write. Each object has one write in flight at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    Import(Key),
    /// Our entry in a pool's status.
    Pool(Key),
}

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) action: Action,
    /// Hash of the planned content of the object, times left out.
    pub(crate) content: u64,
    /// Resource version of the live object that the write was planned for; empty: there was none.
    pub(crate) base: String,
    /// Not sent before: the object is in conflict.
    pub(crate) not_before: Option<Moment>,
    /// The arrival of the event that led to it.
    pub(crate) since: Moment,
    /// Description of the change, for `--dry-run`.
    pub(crate) summary: Option<String>,
}

/// What to send.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Apply the status; first the object itself where it is new.
    Apply {
        create: bool,
        main: Bytes,
        status: Bytes,
    },
    /// A JSON Patch on the status that removes what others added.
    Patch(Bytes),
    /// Delete this very object in this very state.
    Delete {
        uid: String,
        resource_version: String,
    },
    /// Set our entry in a pool's status, or remove it.
    Pool(Option<Condition>),
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server has it.
    Done,
    /// The object was changed or deleted meanwhile: the watch will show it, and the plan follows.
    Superseded,
    /// To be tried again, after a backoff.
    Retry(Failure),
    /// The server asks for a pause of this length.
    Throttled(Option<Duration>),
    /// Refused, and would be refused again unless the content changes.
    Rejected,
}

/// Why a write is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Conflict,
    NotFound,
    /// Its namespace is missing or terminating.
    NamespaceGone,
    /// No answer within the deadline.
    Timeout,
    /// No connection, or it broke before the answer.
    Unconnected,
    /// A gateway in front of the server had no answer from it.
    GatewayTimeout,
    /// The credentials are not accepted (401).
    Unauthorised,
    /// The credentials do not suffice (403).
    Denied,
    Other,
}

// === impl Slot ===

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(key) => write!(f, "import {key}"),
            Self::Pool(key) => write!(f, "pool {key}"),
        }
    }
}

// === impl Action ===

impl Action {
    /// For a log line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Apply { create: true, .. } => "create",
            Self::Apply { create: false, .. } => "apply",
            Self::Patch(_) => "remove others' additions",
            Self::Delete { .. } => "delete",
            Self::Pool(_) => "set Exported",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::Superseded | Self::Retry(Failure::Conflict) => "conflict",
            Self::Retry(Failure::NotFound | Failure::NamespaceGone) => "not_found",
            Self::Retry(Failure::Timeout | Failure::GatewayTimeout) => "timeout",
            Self::Retry(Failure::Denied | Failure::Unauthorised) => "denied",
            Self::Retry(Failure::Unconnected | Failure::Other) => "error",
            Self::Throttled(_) => "throttled",
            Self::Rejected => "schema",
        }
    }
}
