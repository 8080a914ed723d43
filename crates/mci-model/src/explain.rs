//! Why each member has or lacks an entry of a pool, as the controller answers it and as people read it.

mod text;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::text::render;

/// The explanation of one key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub key: String,
    /// Members that have the pool, or an entry.
    pub exporters: Vec<Exporter>,
    /// Members as places for the import.
    pub importers: Vec<Importer>,
    /// The rules that were applied, in order.
    pub trace: Vec<Rule>,
}

/// A member that has the pool, or an entry in the others' imports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exporter {
    /// Name of the member.
    pub cluster: String,
    /// `EndpointMode` or `ParentMode`; absent where it does not ask for an export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Its entry as importers should have it; absent where they should have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Value>,
    /// Why it is exported, kept or gone.
    pub evidence: String,
    /// The pool's condition `Exported` as it should be; absent where the pool asks for no export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exported: Option<Exported>,
}

/// The condition `Exported` of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// In CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A member as a place for the import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Importer {
    /// Name of the member.
    pub cluster: String,
    /// How its import stands.
    pub state: State,
    /// Why.
    pub reason: String,
    /// Its import CRD; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavour: Option<String>,
    /// Whether a write waits or is in flight.
    pub queued: bool,
    /// How the last write ended, where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// The state of an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Its live import is as planned; or it has none, as planned.
    Applied,
    /// A write is due.
    Pending,
    /// Nothing is written there.
    Skipped,
}

/// A rule, its outcome, and the members or details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Name of the rule.
    pub rule: String,
    /// What it came to.
    pub outcome: String,
    /// The members that it holds for, or more of it.
    pub detail: String,
}

// === impl State ===

impl State {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "Applied",
            Self::Pending => "Pending",
            Self::Skipped => "Skipped",
        }
    }
}

// === impl Rule ===

impl Rule {
    /// All three as they are shown.
    pub fn new(rule: &str, outcome: &str, detail: impl Into<String>) -> Self {
        Self {
            rule: rule.to_owned(),
            outcome: outcome.to_owned(),
            detail: detail.into(),
        }
    }
}
