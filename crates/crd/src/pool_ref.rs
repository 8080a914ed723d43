//! The reference with which objects of the endpoint picker name their pool.

use serde::{Deserialize, Serialize};

/// Groups under which an InferencePool is named. The kinds' own schemas fill in one of the last two where the author names
/// none, so all three mean the pool of that name.
const GROUPS: [&str; 4] = [
    "",
    "inference.networking.k8s.io",
    "inference.networking.x-k8s.io",
    "llm-d.ai",
];

/// A pool of the same namespace.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct PoolRef {
    /// See [`PoolRef::names`].
    #[serde(default)]
    pub group: Option<String>,
    /// Absent: InferencePool.
    #[serde(default)]
    pub kind: Option<String>,
    /// Of the pool.
    pub name: String,
}

// === impl PoolRef ===

impl PoolRef {
    /// Whether it names the InferencePool of this name, by any group that InferencePools have had.
    #[must_use]
    pub fn names(&self, pool: &str) -> bool {
        let group = self.group.as_deref().unwrap_or_default();
        let kind = self.kind.as_deref().unwrap_or_default();
        self.name == pool && GROUPS.contains(&group) && matches!(kind, "" | "InferencePool")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pool_is_named_by_each_group_it_has_had_and_by_none() {
        let names = |value: Value| {
            let pool_ref: PoolRef = serde_json::from_value(value).expect("a reference");
            pool_ref.names("llm")
        };
        assert!(names(json!({"name": "llm"})));
        for group in GROUPS {
            let full = json!({"name": "llm", "kind": "InferencePool", "group": group});
            assert!(names(full), "{group:?}");
        }
        for other in [
            json!({"name": "other"}),
            json!({"name": "llm", "kind": "Service"}),
            json!({"name": "llm", "group": "example.com"}),
        ] {
            assert!(!names(other.clone()), "{other}");
        }
    }
}
