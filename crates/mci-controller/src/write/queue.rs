//! The writes that one member is due. Pure but for a lock and a bell around it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::Notify;

use super::{
    action::{Outcome, Slot, Work},
    stats::QueueStats,
};
use moment::Moment;

/// The lanes of one member and the bell for its writer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lanes: Mutex<Lanes>,
    bell: Notify,
}

/// One lane per object, at most one waiting write in each: bound is the number of objects.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<Slot, Lane>,
    /// Lanes with waiting work and none in flight, by when they may go.
    due: BTreeSet<(Moment, Slot)>,
    in_flight: usize,
    /// Nothing is sent before: the server asked for it.
    silent_until: Moment,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: Option<Waiting>,
    in_flight: Option<Work>,
    /// What was sent, on which version, and until when the same again is awaited from the watch, not sent twice.
    sent: Option<Sent>,
    /// Content that the server refuses for good.
    rejected: Option<u64>,
    last_start: Option<Moment>,
    /// Content of the last success, until when its echo may be on its way, and how often it had to be sent again:
    /// somebody keeps undoing it.
    settled: Option<u64>,
    echo_until: Moment,
    undone: u32,
    failures: u32,
    not_before: Moment,
}

#[derive(Debug)]
struct Sent {
    content: u64,
    base: String,
    until: Moment,
}

#[derive(Debug)]
struct Waiting {
    work: Work,
    at: Moment,
}

/// Writes in flight per member.
const MAX_IN_FLIGHT: usize = 32;
/// Changes of one object within this are merged; the first goes at once.
const MERGE: Duration = Duration::from_millis(50);
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A write shows in the watch within this. Until then an older state of the object is no reason to write it again: a
/// creation, for one, shows first without its status.
const ECHO: Duration = Duration::from_millis(500);
/// A write that is still asked for on the version that it was decided on is sent again after this: what it made may have
/// gone before it showed. Ten times the longest echo, since one that is late by more is a watch about to begin anew.
const SENT: Duration = Duration::from_secs(5);
/// Whoever keeps undoing a write is answered ever more slowly.
const UNDONE_MIN: Duration = Duration::from_secs(1);
const UNDONE_MAX: Duration = Duration::from_mins(5);
/// Wait without `Retry-After`.
const THROTTLE: Duration = Duration::from_secs(1);
/// A `Retry-After` past this is not obeyed to the letter: a hostile server must not silence us for ever.
const THROTTLE_MAX: Duration = Duration::from_mins(5);
/// A quiet lane is forgotten, and with it that it was undone.
const FORGET: Duration = Duration::from_mins(10);

// === impl Queue ===

impl Queue {
    pub(crate) fn offer(&self, slot: Slot, work: Work, now: Moment) {
        self.lanes.lock().offer(slot, work, now);
        self.bell.notify_one();
    }

    /// The live object is as planned: nothing to send.
    pub(crate) fn withdraw(&self, slot: &Slot) {
        self.lanes.lock().withdraw(slot);
    }

    pub(crate) fn take(&self, now: Moment) -> Option<(Slot, Work)> {
        self.lanes.lock().take(now)
    }

    pub(crate) fn finish(&self, slot: &Slot, outcome: Outcome, now: Moment) {
        self.lanes
            .lock()
            .finish(slot, outcome, now, &mut rand::rng());
    }

    /// When [`Queue::take`] may have something; none: not before the bell.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.lanes.lock().next_due()
    }

    /// A writer begins: what an earlier one left in flight is to be sent again.
    pub(crate) fn reopen(&self, now: Moment) {
        self.lanes.lock().reopen(now);
    }

    /// Forgets quiet lanes.
    pub(crate) fn prune(&self, now: Moment) {
        self.lanes.lock().prune(now);
    }

    pub(crate) fn stats(&self, now: Moment) -> QueueStats {
        self.lanes.lock().stats(now)
    }

    /// Whether something is in flight.
    pub(crate) fn is_flying(&self) -> bool {
        self.lanes.lock().in_flight > 0
    }

    /// Whether nothing waits and nothing is in flight.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let lanes = self.lanes.lock();
        lanes.in_flight == 0 && lanes.due.is_empty()
    }

    /// Rings when something was offered.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

// === impl Lanes ===

impl Lanes {
    fn offer(&mut self, slot: Slot, work: Work, now: Moment) {
        let lane = self.lanes.entry(slot.clone()).or_default();
        let same = |other: &Work| other.content == work.content && other.base == work.base;
        if lane.rejected == Some(work.content) {
            return;
        }
        lane.rejected = None;
        if lane
            .waiting
            .as_ref()
            .is_some_and(|waiting| same(&waiting.work))
        {
            return;
        }
        if lane.in_flight.as_ref().is_some_and(same) {
            self.cancel(&slot);
            return;
        }
        let sent = lane.sent.as_ref();
        let sent = sent.filter(|sent| sent.content == work.content && sent.base == work.base);
        let echo_until = sent.map_or_else(Moment::default, |sent| sent.until);
        let merged = lane.last_start.map_or(now, |start| start + MERGE);
        let undone = lane.in_flight.is_none() && lane.settled == Some(work.content);
        let mut at = now.max(merged).max(lane.not_before).max(echo_until);
        if undone {
            at = at.max(now + lane.undone_wait()).max(lane.echo_until);
        }
        if let Some(old) = lane.waiting.take() {
            self.due.remove(&(old.at, slot.clone()));
        }
        lane.waiting = Some(Waiting { work, at });
        if lane.in_flight.is_none() {
            self.due.insert((at, slot));
        }
    }

    fn withdraw(&mut self, slot: &Slot) {
        self.cancel(slot);
        if let Some(lane) = self.lanes.get_mut(slot) {
            lane.sent = None;
            lane.rejected = None;
            lane.failures = 0;
            lane.not_before = Moment::default();
        }
    }

    fn cancel(&mut self, slot: &Slot) {
        if let Some(lane) = self.lanes.get_mut(slot)
            && let Some(waiting) = lane.waiting.take()
        {
            self.due.remove(&(waiting.at, slot.clone()));
        }
    }

    fn take(&mut self, now: Moment) -> Option<(Slot, Work)> {
        if self.in_flight >= MAX_IN_FLIGHT || now < self.silent_until {
            return None;
        }
        let (at, slot) = self.due.first()?.clone();
        if at > now {
            return None;
        }
        self.due.pop_first();
        let lane = self.lanes.get_mut(&slot)?;
        let work = lane.waiting.take()?.work;
        if lane.settled == Some(work.content) {
            lane.undone = lane.undone.saturating_add(1);
        } else {
            lane.undone = 0;
        }
        lane.in_flight = Some(work.clone());
        lane.last_start = Some(now);
        self.in_flight += 1;
        Some((slot, work))
    }

    fn finish(&mut self, slot: &Slot, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        let Some(lane) = self.lanes.get_mut(slot) else {
            return;
        };
        let Some(work) = lane.in_flight.take() else {
            return;
        };
        self.in_flight = self.in_flight.saturating_sub(1);
        let content = work.content;
        let mut again = None;
        match outcome {
            Outcome::Done => {
                lane.failures = 0;
                lane.not_before = Moment::default();
                lane.settled = Some(work.content);
                lane.echo_until = now + ECHO;
                lane.sent = Some(Sent {
                    content: work.content,
                    base: work.base.clone(),
                    until: now + SENT.max(lane.undone_wait()),
                });
            }
            Outcome::Superseded => lane.sent = None,
            Outcome::Rejected => {
                lane.sent = None;
                lane.rejected = Some(work.content);
            }
            Outcome::Retry(_) => {
                lane.failures = lane.failures.saturating_add(1);
                lane.not_before = now + backoff(lane.failures, BACKOFF_MIN, BACKOFF_MAX, rng);
                lane.sent = None;
                again = Some(work);
            }
            Outcome::Throttled(wait) => {
                let wait = wait.unwrap_or(THROTTLE).clamp(THROTTLE, THROTTLE_MAX);
                self.silent_until = self.silent_until.max(now + wait);
                lane.sent = None;
                again = Some(work);
            }
        }
        // what was offered meanwhile is newer; if it says what has just been sent, the echo should cancel it
        if let Some(waiting) = &mut lane.waiting
            && outcome == Outcome::Done
            && waiting.work.content == content
        {
            waiting.at = waiting.at.max(lane.echo_until);
        }
        if lane.waiting.is_none()
            && let Some(work) = again
        {
            let at = lane.not_before.max(now);
            lane.waiting = Some(Waiting { work, at });
        }
        if let Some(waiting) = &mut lane.waiting {
            waiting.at = waiting.at.max(lane.not_before);
            self.due.insert((waiting.at, slot.clone()));
        }
    }

    fn next_due(&self) -> Option<Moment> {
        if self.in_flight >= MAX_IN_FLIGHT {
            return None;
        }
        let (at, _) = self.due.first()?;
        Some((*at).max(self.silent_until))
    }

    fn reopen(&mut self, now: Moment) {
        let flying: Vec<Slot> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.in_flight.is_some())
            .map(|(slot, _)| slot.clone())
            .collect();
        for slot in flying {
            if let Some(lane) = self.lanes.get_mut(&slot) {
                let work = lane.in_flight.take();
                lane.sent = None;
                if lane.waiting.is_none() {
                    lane.waiting = work.map(|work| Waiting { work, at: now });
                }
                if let Some(waiting) = &lane.waiting {
                    self.due.insert((waiting.at, slot));
                }
            }
        }
        self.in_flight = 0;
        self.silent_until = Moment::default();
    }

    fn prune(&mut self, now: Moment) {
        self.lanes.retain(|_, lane| {
            let quiet = lane
                .last_start
                .is_none_or(|start| now.since(start) >= FORGET);
            lane.waiting.is_some() || lane.in_flight.is_some() || !quiet
        });
    }

    fn stats(&self, now: Moment) -> QueueStats {
        let waiting = self.lanes.values();
        let waiting = waiting.filter_map(|lane| lane.waiting.as_ref());
        let oldest = waiting.map(|waiting| waiting.work.since).min();
        QueueStats {
            keys: self.due.len(),
            oldest: oldest.map(|since| now.since(since)).unwrap_or_default(),
            in_flight: self.in_flight,
            limit: MAX_IN_FLIGHT,
            breaker_open: false,
        }
    }
}

// === impl Lane ===

impl Lane {
    /// How long a write waits that undoes what somebody undid: the first not at all.
    fn undone_wait(&self) -> Duration {
        match self.undone {
            0 => Duration::ZERO,
            n => UNDONE_MIN
                .saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX))
                .min(UNDONE_MAX),
        }
    }
}

/// Full jitter over a span that doubles with each failure in a row.
pub(crate) fn backoff(
    failures: u32,
    min: Duration,
    max: Duration,
    rng: &mut impl rand::Rng,
) -> Duration {
    let span = min
        .saturating_mul(1_u32.checked_shl(failures.min(16)).unwrap_or(u32::MAX))
        .min(max);
    min.max(span.mul_f64(rng.random::<f64>()))
}

#[cfg(test)]
mod tests;
