//! Whether the process lives, and whether it may get work.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use parking_lot::RwLock;

/// Liveness and readiness of a program, shared by its parts. Cheap to clone.
///
/// Ready when every part is, and not draining. Alive until [`fail`](Self::fail): then a restart is asked for.
#[derive(Clone, Debug)]
pub struct Health(Arc<RwLock<State>>);

#[derive(Debug)]
struct State {
    parts: BTreeMap<&'static str, bool>,
    draining: bool,
    failed: Option<String>,
}

// === impl Health ===

impl Health {
    /// Not ready until every named part has been set.
    pub fn new(parts: &[&'static str]) -> Self {
        Self(Arc::new(RwLock::new(State {
            parts: parts.iter().map(|part| (*part, false)).collect(),
            draining: false,
            failed: None,
        })))
    }

    /// Says of one part whether it is ready; a part not named before is added.
    pub fn set(&self, part: &'static str, ready: bool) {
        self.0.write().parts.insert(part, ready);
    }

    /// Not ready from now on, whatever the parts say.
    pub fn drain(&self) {
        self.0.write().draining = true;
    }

    /// Not alive from now on: something that cannot be mended inside this process has ended.
    pub fn fail(&self, reason: impl Into<String>) {
        self.0.write().failed.get_or_insert(reason.into());
    }

    /// Whether work may be sent here.
    pub fn is_ready(&self) -> bool {
        let state = self.0.read();
        !state.draining && state.failed.is_none() && state.parts.values().all(|ready| *ready)
    }

    /// Why a restart is needed, if one is.
    pub fn failure(&self) -> Option<String> {
        self.0.read().failed.clone()
    }

    /// One line per part, for a person: `inventory: ready`.
    pub fn report(&self) -> String {
        let state = self.0.read();
        let mut text = String::new();
        for (part, ready) in &state.parts {
            let word = if *ready { "ready" } else { "not ready" };
            // writing to a String cannot fail
            let _ = writeln!(text, "{part}: {word}");
        }
        if state.draining {
            text.push_str("draining\n");
        }
        if let Some(reason) = &state.failed {
            let _ = writeln!(text, "failed: {reason}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_needs_every_part() {
        let health = Health::new(&["lists", "lease"]);
        health.set("lists", true);
        assert!(!health.is_ready());
        health.set("lease", true);
        assert!(health.is_ready());
        health.set("lists", false);
        assert!(!health.is_ready());
        assert_eq!(health.report(), "lease: ready\nlists: not ready\n");
    }

    #[test]
    fn draining_ends_readiness_and_not_life() {
        let health = Health::new(&[]);
        assert!(health.is_ready());
        health.drain();
        assert!(!health.is_ready());
        assert_eq!(health.failure(), None);
    }

    #[test]
    fn the_first_failure_is_kept() {
        let health = Health::new(&[]);
        health.fail("writer ended");
        health.fail("index ended");
        assert_eq!(health.failure().as_deref(), Some("writer ended"));
        assert!(!health.is_ready());
    }
}
