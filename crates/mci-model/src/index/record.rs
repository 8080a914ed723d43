//! The cluster behind each name, stored beyond the life of one process.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The cluster behind a member's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Uid of its `kube-system` namespace.
    pub uid: String,
    /// The inventory object that named it, for people.
    pub source: String,
    /// When it was identified; none: it is not written yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen: Option<Timestamp>,
}
