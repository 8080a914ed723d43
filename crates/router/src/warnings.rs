//! What is likely to be wrong with a setup that works all the same. Each is said once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use kv_router::Seq;
use tracing::warn;

/// Watches decisions and streams of events for what nobody would else notice.
#[derive(Debug)]
pub(crate) struct Warnings {
    follows_events: bool,
    /// Some event came.
    has_events: AtomicBool,
    decisions: AtomicU64,
    /// Since a prompt was last found cached.
    without: AtomicU32,
    /// Of them, prompts that begin as one before did.
    repeated: AtomicU32,
    /// First blocks of prompts, by their remainder.
    firsts: Box<[AtomicU64]>,
    said: [AtomicBool; 2],
}

/// A decision, as far as warnings go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The prompt's first block, if it has a full one.
    pub(crate) first: Option<Seq>,
    /// A candidate has some of it, by its events.
    pub(crate) exact: bool,
    /// The chosen worker has some of it, by whatever is known.
    pub(crate) overlap: bool,
}

/// What is likely to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warning {
    /// No engine publishes anything.
    NoEvents,
    /// Prompts repeat, and no engine has ever any of them.
    NoOverlap,
}

/// Decisions before the first event is missed.
const WITHOUT_EVENTS: u64 = 100;
/// Decisions before an overlap is missed.
const WITHOUT_OVERLAP: u32 = 1000;
/// Of them, those that repeat a beginning: a tenth, so that chance does not warn.
const REPEATED: u32 = 100;
/// First blocks that are remembered: more than prompts begin with in that time.
const FIRSTS: usize = 4096;

// === impl Warnings ===

impl Warnings {
    pub(crate) fn new(follows_events: bool) -> Self {
        Self {
            follows_events,
            has_events: AtomicBool::new(false),
            decisions: AtomicU64::new(0),
            without: AtomicU32::new(0),
            repeated: AtomicU32::new(0),
            firsts: (0..FIRSTS).map(|_| AtomicU64::new(0)).collect(),
            said: Default::default(),
        }
    }

    /// A prompt was sent to a worker.
    pub(crate) fn decided(&self, seen: Seen) {
        match self.watch(seen) {
            Some(Warning::NoEvents) => warn!(
                decisions = WITHOUT_EVENTS,
                "no worker published a KV event: caches are predicted from what was sent; start engines with KV events on --kv-event-port, or set --kv-events off"
            ),
            Some(Warning::NoOverlap) => warn!(
                decisions = WITHOUT_OVERLAP,
                "prompts repeat and no worker ever has any of them: do ids, adapters and salts here equal those of the engines, and do these cache prefixes?"
            ),
            _ => {}
        }
    }

    /// A worker published events.
    pub(crate) fn events(&self) {
        if !self.has_events.load(Relaxed) {
            self.has_events.store(true, Relaxed);
        }
    }

    fn watch(&self, seen: Seen) -> Option<Warning> {
        let decisions = self.decisions.fetch_add(1, Relaxed) + 1;
        let has_events = self.has_events.load(Relaxed);
        if self.follows_events
            && !has_events
            && decisions >= WITHOUT_EVENTS
            && self.is_first(Warning::NoEvents)
        {
            return Some(Warning::NoEvents);
        }
        // Predictions hide that events and prompts have different names.
        let is_found = if has_events { seen.exact } else { seen.overlap };
        if is_found {
            self.without.store(0, Relaxed);
            self.repeated.store(0, Relaxed);
            return None;
        }
        let without = self.without.fetch_add(1, Relaxed) + 1;
        let is_known = seen.first.is_some_and(|first| self.is_known(first));
        let repeated = self.repeated.fetch_add(u32::from(is_known), Relaxed) + u32::from(is_known);
        let is_odd = without >= WITHOUT_OVERLAP && repeated >= REPEATED;
        (is_odd && self.is_first(Warning::NoOverlap)).then_some(Warning::NoOverlap)
    }

    /// Whether a prompt before began so; this one counts from now on.
    fn is_known(&self, first: Seq) -> bool {
        let name = first.get();
        let at = usize::try_from(name % FIRSTS as u64).unwrap_or(0);
        let place = self.firsts.get(at);
        place.is_some_and(|place| place.swap(name, Relaxed) == name)
    }

    fn is_first(&self, warning: Warning) -> bool {
        let said = self.said.get(warning as usize);
        said.is_some_and(|said| !said.swap(true, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_seen(first: u64) -> Seen {
        Seen {
            first: Some(Seq::from_u64(first + 1)),
            ..Seen::default()
        }
    }

    /// The decisions, from 1, after which there was a warning.
    fn warned(warnings: &Warnings, seen: impl Iterator<Item = Seen>) -> Vec<(usize, Warning)> {
        let all = seen.map(|seen| warnings.watch(seen)).enumerate();
        all.filter_map(|(at, it)| Some((at + 1, it?))).collect()
    }

    #[test]
    fn after_a_hundred_prompts_without_an_event_that_is_said_once() {
        let warnings = Warnings::new(true);
        let said = warned(&warnings, (0..900).map(mk_seen));
        assert_eq!(said, [(100, Warning::NoEvents)]);
    }

    #[test]
    fn with_an_event_or_without_following_them_none_is_missed() {
        let off = Warnings::new(false);
        assert_eq!(warned(&off, (0..900).map(mk_seen)), []);
        let on = Warnings::new(true);
        on.events();
        assert_eq!(warned(&on, (0..900).map(mk_seen)), []);
    }

    #[test]
    fn prompts_that_repeat_and_are_never_cached_are_said_once() {
        let warnings = Warnings::new(true);
        warnings.events();
        let predicted = |at: u64| Seen {
            overlap: true,
            ..mk_seen(at % 50)
        };
        let said = warned(&warnings, (0..3000).map(predicted));
        assert_eq!(said, [(1000, Warning::NoOverlap)]);
    }

    #[test]
    fn prompts_that_do_not_repeat_and_prompts_that_are_cached_are_in_order() {
        let warnings = Warnings::new(true);
        warnings.events();
        assert_eq!(warned(&warnings, (0..3000).map(mk_seen)), []);
        let cached_at_times = |at: u64| Seen {
            exact: at.is_multiple_of(900),
            ..mk_seen(at % 50)
        };
        assert_eq!(warned(&warnings, (0..3000).map(cached_at_times)), []);
    }
}
