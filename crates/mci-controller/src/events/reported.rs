//! The events last reported for one object: one per reason in five minutes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use xxhash_rust::xxh3::xxh3_64;

use super::{EventQueue, EventReason, send::QueuedEvent};
use moment::Moment;

/// All that holds for an object now, by reason.
#[derive(Debug, Default)]
pub(super) struct Observations(BTreeMap<EventReason, (Items, String)>);

/// The subjects of an observation, such as members, hashed: one more is reported, one less is not.
type Items = BTreeSet<u64>;

/// The last event of each reason.
#[derive(Debug, Default)]
pub(super) struct Reported(BTreeMap<EventReason, LastEvent>);

#[derive(Debug, Default)]
struct LastEvent {
    /// What was reported and still holds; empty: it is over.
    items: Items,
    /// When this process reported it.
    at: Option<Moment>,
}

/// The same reason of the same object is reported once in this time (spec 7).
pub(super) const INTERVAL: Duration = Duration::from_mins(5);

// === impl Observations ===

impl Observations {
    /// Adds to the observation with this reason.
    pub(super) fn add<'a>(
        &mut self,
        reason: EventReason,
        about: impl IntoIterator<Item = &'a str>,
        text: &str,
    ) {
        let (items, note) = self.0.entry(reason).or_default();
        items.extend(about.into_iter().map(|item| xxh3_64(item.as_bytes())));
        if !note.is_empty() {
            note.push_str("; ");
        }
        note.push_str(text);
    }
}

// === impl Reported ===

impl Reported {
    /// Compares the observations with what was reported, and reports what is new. A reason that `is_known` was reported by
    /// another controller. Without a queue, since another leads, nothing is reported and all stays new.
    pub(super) fn observe(
        &mut self,
        regarding: &ObjectReference,
        observed: Observations,
        is_known: impl Fn(EventReason) -> bool,
        queue: Option<&EventQueue>,
        time: (Moment, Timestamp),
    ) {
        let (now, _) = time;
        for (reason, last) in &mut self.0 {
            let stands = observed.0.get(reason);
            last.items
                .retain(|item| stands.is_some_and(|(items, _)| items.contains(item)));
        }
        let is_recent = |last: &LastEvent| last.at.is_some_and(|at| now < at + INTERVAL);
        for (reason, (items, note)) in observed.0 {
            let last = self.0.entry(reason).or_default();
            if is_known(reason) {
                last.items = items;
            } else if !items.is_subset(&last.items) && !is_recent(last) {
                let report = QueuedEvent::new(regarding, reason, &note, time);
                if queue.is_some_and(|queue| queue.offer(report)) {
                    let at = Some(now);
                    *last = LastEvent { items, at };
                }
            }
        }
        self.0
            .retain(|_, last| !last.items.is_empty() || is_recent(last));
    }

    /// Whether nothing holds, and nothing was reported within [`INTERVAL`].
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
