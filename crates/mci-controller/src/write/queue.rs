//! The writes that are due for one member. Pure but for a lock and a notification.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    action::{Failure, Outcome, Slot, Work},
    breaker::Breaker,
    lane::Lane,
    limits::{InFlightLimit, Rate},
    stats::{LaneStats, QueueStats},
    throttle,
};
use moment::Moment;

/// The lanes of one member, and what wakes its writer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lanes: Mutex<Lanes>,
    notify: Notify,
}

/// One lane per object: bounded by the number of objects.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<Slot, Lane>,
    /// Lanes with waiting work and none in flight, by when they may go.
    due: BTreeSet<(Moment, Slot)>,
    in_flight: BTreeSet<Slot>,
    in_flight_limit: InFlightLimit,
    rate: Rate,
    breaker: Breaker,
    /// Nothing is sent before: the server asked for a pause.
    paused_until: Moment,
    pruned: Moment,
}

/// Period of the removal of quiet lanes: a tenth of [`FORGET`](super::lane::FORGET).
const PRUNE: Duration = Duration::from_mins(1);

// === impl Queue ===

impl Queue {
    pub(crate) fn offer(&self, slot: Slot, work: Work, now: Moment) {
        self.lanes.lock().offer(slot, work, now);
        self.notify.notify_one();
    }

    /// The live object is as planned: nothing to send.
    pub(crate) fn withdraw(&self, slot: &Slot) {
        self.lanes.lock().withdraw(slot);
    }

    pub(crate) fn take(&self, now: Moment) -> Option<(Slot, Arc<Work>)> {
        self.lanes.lock().take(now)
    }

    pub(crate) fn finish(&self, slot: &Slot, outcome: Outcome, now: Moment) {
        self.lanes
            .lock()
            .finish(slot, outcome, now, &mut rand::rng());
    }

    /// When [`Queue::take`] may return something; none: not before an offer, or before a write in flight ends.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.lanes.lock().next_due()
    }

    /// A writer starts: writes that an earlier one left in flight are due again.
    pub(crate) fn reopen(&self, now: Moment) {
        self.lanes.lock().reopen(now);
    }

    /// Removes quiet lanes, once per [`PRUNE`].
    pub(crate) fn prune(&self, now: Moment) {
        self.lanes.lock().prune(now);
    }

    pub(crate) fn stats(&self, now: Moment) -> QueueStats {
        self.lanes.lock().stats(now)
    }

    /// The state of the writes of one object.
    pub(crate) fn lane_stats(&self, slot: &Slot) -> LaneStats {
        let lanes = self.lanes.lock();
        let lane = lanes.lanes.get(slot);
        lane.map(Lane::stats).unwrap_or_default()
    }

    /// Whether a write is in flight that makes this object, and then fills it.
    pub(crate) fn is_creating(&self, slot: &Slot) -> bool {
        self.lanes
            .lock()
            .lanes
            .get(slot)
            .is_some_and(Lane::is_creating)
    }

    /// Whether something is in flight.
    pub(crate) fn has_in_flight(&self) -> bool {
        !self.lanes.lock().in_flight.is_empty()
    }

    /// Whether nothing waits and nothing is in flight.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let lanes = self.lanes.lock();
        lanes.in_flight.is_empty() && lanes.due.is_empty()
    }

    /// Nothing is sent before, events included: the server's `Retry-After`, the breaker and our own rate.
    pub(crate) fn not_before(&self) -> Moment {
        self.lanes.lock().not_before()
    }

    /// The server asked for a pause in its response to an event.
    pub(crate) fn pause(&self, asked: Duration, now: Moment) {
        self.lanes.lock().pause(Some(asked), now);
    }

    /// Waits for an offer.
    pub(crate) async fn offered(&self) {
        self.notify.notified().await;
    }
}

// === impl Lanes ===

impl Lanes {
    fn offer(&mut self, slot: Slot, work: Work, now: Moment) {
        self.change(&slot, |lane| lane.offer(work, now));
    }

    fn withdraw(&mut self, slot: &Slot) {
        // most calls find nothing to withdraw
        if self.lanes.get(slot).is_some_and(|lane| !lane.is_settled()) {
            self.change(slot, Lane::withdraw);
        }
    }

    fn take(&mut self, now: Moment) -> Option<(Slot, Arc<Work>)> {
        if !self.has_room() || now < self.not_before() {
            return None;
        }
        let (at, slot) = self.due.first()?.clone();
        if at > now {
            return None;
        }
        let mut work = None;
        self.change(&slot, |lane| work = lane.begin(now));
        let work = work?;
        self.in_flight.insert(slot.clone());
        self.rate.take(now);
        Some((slot, work))
    }

    fn finish(&mut self, slot: &Slot, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        if !self.in_flight.remove(slot) {
            return;
        }
        let mut began = None;
        self.change(slot, |lane| {
            began = lane.last_start;
            lane.finish(outcome, now, rng);
        });
        let began = began.unwrap_or(now);
        match outcome {
            Outcome::Retry(Failure::Timeout | Failure::Unconnected) => {
                self.breaker.unanswered(began, now, rng);
            }
            _ => self.breaker.answered(),
        }
        match outcome {
            Outcome::Done | Outcome::Superseded | Outcome::Rejected => {
                self.in_flight_limit.succeeded();
            }
            Outcome::Retry(Failure::Timeout | Failure::GatewayTimeout) => {
                self.in_flight_limit.overloaded(began, now);
            }
            Outcome::Throttled(wait) => {
                self.in_flight_limit.overloaded(began, now);
                self.pause(wait, now);
            }
            Outcome::Retry(_) => {}
        }
    }

    /// The server asked for a pause. That alone is no limit on the writes in flight.
    fn pause(&mut self, asked: Option<Duration>, now: Moment) {
        self.paused_until = self.paused_until.max(now + throttle(asked));
    }

    fn next_due(&self) -> Option<Moment> {
        if !self.has_room() {
            return None;
        }
        let (at, _) = self.due.first()?;
        Some((*at).max(self.not_before()))
    }

    fn reopen(&mut self, now: Moment) {
        for slot in std::mem::take(&mut self.in_flight) {
            self.change(&slot, |lane| lane.reopen(now));
        }
        self.breaker.try_now(now);
    }

    fn prune(&mut self, now: Moment) {
        if now.since(self.pruned) >= PRUNE {
            self.pruned = now;
            self.lanes.retain(|_, lane| !lane.is_quiet(now));
        }
    }

    fn stats(&self, now: Moment) -> QueueStats {
        let waiting = self.due.iter().map(|(_, slot)| slot);
        let lanes = waiting.chain(&self.in_flight);
        let oldest = lanes
            .filter_map(|slot| self.lanes.get(slot)?.oldest())
            .min();
        QueueStats {
            keys: self.due.len(),
            oldest: oldest.map_or(Duration::ZERO, |since| now.since(since)),
            in_flight: self.in_flight.len(),
            limit: self.in_flight_limit.get(),
            breaker_open: self.breaker.is_open(),
        }
    }

    fn has_room(&self) -> bool {
        let limit = self.in_flight_limit.get();
        self.in_flight.len() < self.breaker.limit().map_or(limit, |one| one.min(limit))
    }

    /// The latest of the server's `Retry-After`, the breaker and our own rate.
    fn not_before(&self) -> Moment {
        self.paused_until
            .max(self.breaker.not_before())
            .max(self.rate.next())
    }

    /// Changes a lane, and its place among those that are due.
    fn change(&mut self, slot: &Slot, change: impl FnOnce(&mut Lane)) {
        let lane = self.lanes.entry(slot.clone()).or_default();
        let before = lane.due();
        change(lane);
        let after = lane.due();
        if before != after {
            if let Some(at) = before {
                self.due.remove(&(at, slot.clone()));
            }
            if let Some(at) = after {
                self.due.insert((at, slot.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
