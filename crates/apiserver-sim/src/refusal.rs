//! Failures as Kubernetes words them.

use bytes::Bytes;
use serde_json::{Value, json};

/// An answer that is not a success.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Value,
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: json!({}),
        }
    }

    pub(crate) fn not_found(plural: &str, group: &str, name: &str) -> Self {
        Self {
            details: json!({"kind": plural, "group": group, "name": name}),
            ..Self::new(404, "NotFound", format!("{plural} \"{name}\" not found"))
        }
    }

    pub(crate) fn conflict(plural: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}");
        Self {
            details: json!({"kind": plural, "name": name}),
            ..Self::new(409, "Conflict", message)
        }
    }

    pub(crate) fn with_cause(mut self, reason: &str, field: &str) -> Self {
        let causes = self
            .details
            .as_object_mut()
            .map(|details| details.entry("causes").or_insert_with(|| json!([])));
        if let Some(Value::Array(causes)) = causes {
            causes.push(json!({"reason": reason, "field": field, "message": self.message}));
        }
        self
    }

    pub(crate) fn status(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "details": self.details, "code": self.code,
        })
    }

    pub(crate) fn body(&self) -> Bytes {
        self.status().to_string().into()
    }
}
