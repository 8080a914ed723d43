//! One object's lane: what waits for it, what is under way, what it was last told. Pure.

use std::{sync::Arc, time::Duration};

use super::{
    action::{Failure, Outcome, Work},
    stats::LaneStats,
};
use moment::Moment;
use watch::backoff;

/// At most one write waits and one is in flight.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) waiting: Option<Waiting>,
    pub(super) in_flight: Option<Arc<Work>>,
    pub(super) last_start: Option<Moment>,
    /// What was sent, on which version, and until when the same again is awaited from the watch, not sent twice.
    sent: Option<Sent>,
    /// Content that the server refuses for good.
    rejected: Option<u64>,
    /// Content of the last success, until when its echo may be on its way, and how often it had to be sent again:
    /// somebody keeps undoing it.
    settled: Option<u64>,
    echo_until: Moment,
    undone: u32,
    failures: u32,
    /// Of the last write, where it failed.
    last_error: Option<&'static str>,
    not_before: Moment,
}

#[derive(Debug)]
struct Sent {
    content: u64,
    base: String,
    until: Moment,
}

/// A write, and when it may go.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Apart from the lane, which is kept long after it.
    pub(super) work: Arc<Work>,
    pub(super) at: Moment,
}

/// Changes of one object within this are merged; the first goes at once.
const MERGE: Duration = Duration::from_millis(50);
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A namespace that is missing or going is for its watch to tell of, and the plan then takes the write back. Should the
/// watch have missed a namespace that came back at once, the write is tried now and then.
const NAMESPACE_MIN: Duration = Duration::from_secs(30);
const NAMESPACE_MAX: Duration = Duration::from_mins(5);
/// A write shows in the watch within this. Until then an older state of the object is no reason to write it again: a
/// creation, for one, shows first without its status.
const ECHO: Duration = Duration::from_millis(500);
/// A write that is still asked for on the version that it was decided on is sent again after this: what it made may have
/// gone before it showed. Ten times the longest echo, since one that is late by more is a watch about to begin anew.
const SENT: Duration = Duration::from_secs(5);
/// Whoever keeps undoing a write is answered ever more slowly.
const UNDONE_MIN: Duration = Duration::from_secs(1);
pub(super) const UNDONE_MAX: Duration = Duration::from_mins(5);
/// A quiet lane is forgotten, and with it that it was undone.
pub(super) const FORGET: Duration = Duration::from_mins(10);

// === impl Lane ===

impl Lane {
    /// Takes in what should be sent; the newest wins.
    pub(super) fn offer(&mut self, work: Work, now: Moment) {
        let same = |other: &Work| other.content == work.content && other.base == work.base;
        if self.rejected == Some(work.content) {
            return;
        }
        self.rejected = None;
        if self.waiting.as_ref().is_some_and(|one| same(&one.work)) {
            return;
        }
        if self.in_flight.as_deref().is_some_and(same) {
            self.waiting = None;
            return;
        }
        let sent = self.sent.as_ref();
        let sent = sent.filter(|sent| sent.content == work.content && sent.base == work.base);
        let echo_until = sent.map_or_else(Moment::default, |sent| sent.until);
        let merged = self.last_start.map_or(now, |start| start + MERGE);
        let undone = self.in_flight.is_none() && self.settled == Some(work.content);
        let mut at = now.max(merged).max(self.not_before).max(echo_until);
        if let Some(then) = work.not_before {
            at = at.max(then);
        } else if undone {
            at = at.max(now + self.undone_wait()).max(self.echo_until);
        }
        let work = Arc::new(work);
        self.waiting = Some(Waiting { work, at });
    }

    /// The live object is as planned.
    pub(super) fn withdraw(&mut self) {
        self.waiting = None;
        self.sent = None;
        self.rejected = None;
        self.last_error = None;
        self.failures = 0;
        self.not_before = Moment::default();
    }

    /// Whether [`Lane::withdraw`] would change nothing.
    pub(super) fn is_calm(&self) -> bool {
        self.waiting.is_none()
            && self.sent.is_none()
            && self.rejected.is_none()
            && self.last_error.is_none()
            && self.failures == 0
            && self.not_before == Moment::default()
    }

    /// Begins the waiting write.
    pub(super) fn begin(&mut self, now: Moment) -> Option<Arc<Work>> {
        let work = self.waiting.take()?.work;
        if self.settled == Some(work.content) {
            self.undone = self.undone.saturating_add(1);
        } else {
            self.undone = 0;
        }
        self.in_flight = Some(Arc::clone(&work));
        self.last_start = Some(now);
        Some(work)
    }

    /// The write in flight ended like this.
    pub(super) fn finish(&mut self, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        let Some(work) = self.in_flight.take() else {
            return;
        };
        let content = work.content;
        let mut again = None;
        self.sent = None;
        let failed = !matches!(outcome, Outcome::Done | Outcome::Superseded);
        self.last_error = failed.then(|| outcome.label());
        match outcome {
            Outcome::Done => {
                self.failures = 0;
                self.not_before = Moment::default();
                self.settled = Some(content);
                self.echo_until = now + ECHO;
                self.sent = Some(Sent {
                    content,
                    base: work.base.clone(),
                    until: now + SENT.max(self.undone_wait()),
                });
            }
            Outcome::Superseded => {}
            Outcome::Rejected => self.rejected = Some(content),
            Outcome::Retry(failure) => {
                let (min, max) = match failure {
                    Failure::NamespaceGone => (NAMESPACE_MIN, NAMESPACE_MAX),
                    _ => (BACKOFF_MIN, BACKOFF_MAX),
                };
                self.failures = self.failures.saturating_add(1);
                self.not_before = now + backoff(self.failures, min, max, rng);
                again = Some(work);
            }
            // the whole member is silent for a while
            Outcome::Throttled(_) => again = Some(work),
        }
        // what was offered meanwhile is newer; if it says what has just been sent, the echo should cancel it
        if let Some(waiting) = &mut self.waiting
            && outcome == Outcome::Done
            && waiting.work.content == content
        {
            waiting.at = waiting.at.max(self.echo_until);
        }
        if self.waiting.is_none()
            && let Some(work) = again
        {
            let at = self.not_before.max(now);
            self.waiting = Some(Waiting { work, at });
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.at = waiting.at.max(self.not_before);
        }
    }

    pub(super) fn stats(&self) -> LaneStats {
        LaneStats {
            queued: self.waiting.is_some() || self.in_flight.is_some(),
            last_error: self.last_error,
        }
    }

    /// Nobody will say how the write in flight ended: it is due again.
    pub(super) fn reopen(&mut self, now: Moment) {
        let work = self.in_flight.take();
        self.sent = None;
        if self.waiting.is_none() {
            self.waiting = work.map(|work| Waiting { work, at: now });
        }
    }

    /// When the event arrived that the oldest write here is for.
    pub(super) fn oldest(&self) -> Option<Moment> {
        let waiting = self.waiting.as_ref().map(|waiting| waiting.work.since);
        let flying = self.in_flight.as_ref().map(|work| work.since);
        waiting.into_iter().chain(flying).min()
    }

    /// Nothing has happened for so long that it may be forgotten.
    pub(super) fn is_quiet(&self, now: Moment) -> bool {
        let quiet = self
            .last_start
            .is_none_or(|start| now.since(start) >= FORGET);
        self.waiting.is_none() && self.in_flight.is_none() && quiet
    }

    /// How long a write waits that undoes what somebody undid: twice not at all, for so often it is an edit.
    fn undone_wait(&self) -> Duration {
        match self.undone {
            0 | 1 => Duration::ZERO,
            n => UNDONE_MIN
                .saturating_mul(1_u32.checked_shl(n - 2).unwrap_or(u32::MAX))
                .min(UNDONE_MAX),
        }
    }
}
