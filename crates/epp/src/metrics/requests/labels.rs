//! What requests are counted under: names that clients choose, of bounded length.

use std::sync::Arc;

use smallvec::SmallVec;

/// Bytes of one such value: names of models are far shorter, a body may be 64 MiB.
pub(super) const MAX_VALUE: usize = 256;
/// Stands for a value longer than [`MAX_VALUE`], for all values of a request that finds no place in the table, and for
/// a status that HTTP does not have.
pub(super) const OTHER: &str = "other";
/// Stands for the model of a request whose body is not read, or whose model is refused.
const UNKNOWN: &str = "unknown";
/// The flow of requests that name none.
const DEFAULT_FLOW: &str = "default-flow";

/// What a request is counted under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels<'a> {
    /// As the client named it. Absent: it is not known, or refused.
    pub model: Option<&'a str>,
    /// As the server is asked for it.
    pub target: Option<&'a str>,
    /// As the client named it.
    pub fairness_id: Option<&'a str>,
    /// Of the request's objective.
    pub priority: i32,
}

/// Values of the labels.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) model: ModelNames,
    pub(super) fairness_id: Arc<str>,
    pub(super) priority: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ModelNames {
    pub(super) model: Arc<str>,
    pub(super) target: Arc<str>,
}

// === impl Labels ===

impl Labels<'_> {
    pub(super) fn bounded(self) -> Self {
        Self {
            model: self.model.map(bounded),
            target: self.target.map(bounded),
            fairness_id: self.fairness_id.map(bounded),
            priority: self.priority,
        }
    }

    fn values(&self) -> [&str; 3] {
        [
            self.model.unwrap_or(UNKNOWN),
            self.target.unwrap_or(UNKNOWN),
            self.fairness_id.unwrap_or(DEFAULT_FLOW),
        ]
    }

    /// The same for the same labels only: each value begins with its length.
    pub(super) fn key(&self) -> SmallVec<[u8; 128]> {
        let mut key = SmallVec::new();
        for value in self.values() {
            key.extend_from_slice(&value.len().to_le_bytes());
            key.extend_from_slice(value.as_bytes());
        }
        key.extend_from_slice(&self.priority.to_le_bytes());
        key
    }

    pub(super) fn names(&self) -> Names {
        let [model, target, fairness_id] = self.values();
        let name: Arc<str> = model.into();
        let target = if target == model {
            Arc::clone(&name)
        } else {
            target.into()
        };
        Names {
            model: ModelNames {
                model: name,
                target,
            },
            fairness_id: fairness_id.into(),
            priority: self.priority.to_string().into(),
        }
    }
}

/// `value`, or [`OTHER`] when it is too long to be kept.
fn bounded(value: &str) -> &str {
    if value.len() > MAX_VALUE {
        OTHER
    } else {
        value
    }
}

// === impl Names ===

impl Names {
    pub(super) fn other() -> Self {
        let other: Arc<str> = OTHER.into();
        Self {
            model: ModelNames {
                model: Arc::clone(&other),
                target: Arc::clone(&other),
            },
            fairness_id: Arc::clone(&other),
            priority: other,
        }
    }
}
