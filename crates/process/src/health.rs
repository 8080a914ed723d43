//! Whether the process lives, and whether it may get work.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use moment::{Clock, Moment};
use parking_lot::RwLock;

/// Liveness and readiness of a program, shared by its parts. Cheap to clone.
///
/// Ready when every part is, and not draining. Alive until [`fail`](Self::fail), and while every loop that is
/// [watched](Self::watch) goes round: else a restart is asked for.
#[derive(Clone, Debug)]
pub struct Health(Arc<RwLock<State>>);

#[derive(Debug)]
struct State {
    parts: BTreeMap<&'static str, bool>,
    notes: BTreeMap<&'static str, String>,
    draining: bool,
    failed: Option<String>,
    loops: BTreeMap<&'static str, Watched>,
    clock: Clock,
}

/// Kept by a loop, which beats once in each round. Dropping it, with all clones, ends the watch: a task that ends is for
/// its owner to notice.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// Milliseconds on the clock of its [`Health`].
    last: Arc<AtomicU64>,
    clock: Clock,
}

#[derive(Debug)]
struct Watched {
    last: std::sync::Weak<AtomicU64>,
    limit: Duration,
}

// === impl Health ===

impl Health {
    /// Not ready until every named part has been set.
    pub fn new(parts: &[&'static str]) -> Self {
        Self(Arc::new(RwLock::new(State {
            parts: parts.iter().map(|part| (*part, false)).collect(),
            notes: BTreeMap::new(),
            draining: false,
            failed: None,
            loops: BTreeMap::new(),
            clock: Clock::start(),
        })))
    }

    /// Watches a loop: one that has not beaten for `limit` is stuck. A loop of the same name that was watched before is
    /// watched no longer.
    pub fn watch(&self, name: &'static str, limit: Duration) -> Pulse {
        let mut state = self.0.write();
        let pulse = Pulse {
            last: Arc::default(),
            clock: state.clock,
        };
        pulse.beat();
        let last = Arc::downgrade(&pulse.last);
        state.loops.insert(name, Watched { last, limit });
        pulse
    }

    /// Says of one part whether it is ready; a part not named before is added.
    pub fn set(&self, part: &'static str, ready: bool) {
        self.0.write().parts.insert(part, ready);
    }

    /// What a person is to know of one part, ready or not; empty: nothing.
    pub fn note(&self, part: &'static str, note: impl Into<String>) {
        self.0.write().notes.insert(part, note.into());
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

    /// Why a restart is needed, if one is: what ended, or which loops are stuck.
    pub fn failure(&self) -> Option<String> {
        let state = self.0.read();
        if let Some(reason) = &state.failed {
            return Some(reason.clone());
        }
        let now = state.clock.now();
        let mut stuck = Vec::new();
        for (name, Watched { last, limit }) in &state.loops {
            let age = last.upgrade().map(|last| age(&last, now));
            if let Some(age) = age.filter(|age| age > limit) {
                stuck.push(format!(
                    "{name} has not gone round for {} s: its limit is {} s",
                    age.as_secs(),
                    limit.as_secs()
                ));
            }
        }
        (!stuck.is_empty()).then(|| stuck.join("; "))
    }

    /// Names of the loops that are watched and have not ended.
    pub fn watched(&self) -> Vec<&'static str> {
        let state = self.0.read();
        let alive = state
            .loops
            .iter()
            .filter(|(_, one)| one.last.strong_count() > 0);
        alive.map(|(name, _)| *name).collect()
    }

    /// One line per part, for a person: `inventory: ready`, with the part's note.
    pub fn report(&self) -> String {
        let state = self.0.read();
        let mut text = String::new();
        for (part, ready) in &state.parts {
            let word = if *ready { "ready" } else { "not ready" };
            let note = state.notes.get(part).filter(|note| !note.is_empty());
            // writing to a String cannot fail
            let _ = match note {
                Some(note) => writeln!(text, "{part}: {word} ({note})"),
                None => writeln!(text, "{part}: {word}"),
            };
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

// === impl Pulse ===

impl Pulse {
    /// The loop went round.
    pub fn beat(&self) {
        let now = self.clock.now().since_start().as_millis();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}

fn age(last: &AtomicU64, now: Moment) -> Duration {
    now.since(Moment::from_millis(last.load(Ordering::Relaxed)))
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
    fn a_note_is_beside_its_part_until_it_is_taken_back() {
        let health = Health::new(&["models"]);
        health.note("models", "failed: b");
        assert_eq!(health.report(), "models: not ready (failed: b)\n");
        health.note("models", "");
        assert_eq!(health.report(), "models: not ready\n");
    }

    #[test]
    fn draining_ends_readiness_and_not_life() {
        let health = Health::new(&[]);
        assert!(health.is_ready());
        health.drain();
        assert!(!health.is_ready());
        assert_eq!(health.failure(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_stops_is_named() {
        let health = Health::new(&[]);
        let limit = Duration::from_secs(10);
        let world = health.watch("world", limit);
        let lease = health.watch("lease", limit);
        tokio::time::advance(Duration::from_secs(8)).await;
        lease.beat();
        assert_eq!(health.failure(), None);
        tokio::time::advance(Duration::from_secs(4)).await;
        let failure = health.failure().expect("stuck");
        assert!(
            failure.starts_with("world has not gone round for 12 s"),
            "{failure}"
        );
        assert!(!failure.contains("lease"), "{failure}");
        world.beat();
        assert_eq!(health.failure(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_ended_is_not_watched() {
        let health = Health::new(&[]);
        let pulse = health.watch("inventory", Duration::from_secs(10));
        assert_eq!(health.watched(), ["inventory"]);
        drop(pulse);
        assert!(health.watched().is_empty());
        tokio::time::advance(Duration::from_mins(1)).await;
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
