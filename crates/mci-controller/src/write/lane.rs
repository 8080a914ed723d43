//! The lane of one object: the waiting write, the write in flight and the outcome of the last one. Pure.

use std::{sync::Arc, time::Duration};

use super::{
    action::{Action, Failure, Outcome, Work},
    stats::LaneStats,
};
use moment::Moment;
use watch::backoff;

/// At most one write waits and one is in flight.
#[derive(Debug, Default)]
pub(super) struct Lane {
    waiting: Option<Waiting>,
    in_flight: Option<Flight>,
    pub(super) last_start: Option<Moment>,
    last: LastOutcome,
}

/// A write that waits, and since when.
#[derive(Debug)]
struct Waiting {
    /// Apart from the lane, which is kept long after it.
    work: Arc<Work>,
    since: Moment,
}

/// A write in flight.
#[derive(Debug)]
struct Flight {
    work: Arc<Work>,
    /// It is not asked for any more: the object is as planned, or nothing may be written.
    is_withdrawn: bool,
}

/// The outcome of the last write, until the object is as planned.
#[derive(Debug, Default)]
enum LastOutcome {
    /// The next write need not wait.
    #[default]
    Over,
    /// The server accepted it; the watch has not shown it yet.
    Done {
        content: u64,
        base: String,
        at: Moment,
        /// How often the same write was accepted before without being shown.
        repeats: u32,
    },
    Failed {
        /// Metric label.
        error: &'static str,
        /// Consecutive failures, throttled ones left out.
        failures: u32,
        not_before: Moment,
    },
    /// The server refuses this content for good.
    Rejected { content: u64 },
}

/// Changes of one object within this time are merged; the first is sent at once.
const MERGE: Duration = Duration::from_millis(50);
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The namespace watch reports a namespace that is missing or terminating, and the plan then withdraws the write. The
/// write is still retried, in case the watch missed a namespace that was recreated at once.
const NAMESPACE_MIN: Duration = Duration::from_secs(30);
const NAMESPACE_MAX: Duration = Duration::from_mins(5);
/// The watch shows a write within this time. Until then an older state of the object is no reason to repeat the write:
/// a new object, for example, is first shown without its status.
const ECHO: Duration = Duration::from_millis(500);
/// A write that is still planned for the same version is repeated after this time: its result may have been deleted
/// before the watch showed it. Ten times [`ECHO`], since a watch that is later than that is about to be relisted.
const SENT: Duration = Duration::from_secs(5);
/// Where the server accepts a write and never shows it, both waits double each time, up to this.
pub(super) const REPEAT_MAX: Duration = Duration::from_mins(5);
/// A quiet lane is removed after this, and with it the record of what the server refused.
pub(super) const FORGET: Duration = Duration::from_mins(10);

// === impl Lane ===

impl Lane {
    /// Replaces the waiting write with this one, unless the same is in flight or was refused.
    pub(super) fn offer(&mut self, work: Work, now: Moment) {
        let same = |other: &Work| other.content == work.content && other.base == work.base;
        if let LastOutcome::Rejected { content } = self.last {
            if content == work.content {
                self.waiting = None;
                return;
            }
            self.last = LastOutcome::Failed {
                error: Outcome::Rejected.label(),
                failures: 0,
                not_before: now,
            };
        }
        let is_under_way = |flight: &Flight| same(&flight.work) && !flight.is_withdrawn;
        if self.in_flight.as_ref().is_some_and(is_under_way) {
            self.waiting = None;
        } else if !self.waiting.as_ref().is_some_and(|one| same(&one.work)) {
            let work = Arc::new(work);
            self.waiting = Some(Waiting { work, since: now });
        }
    }

    /// Nothing is asked for any more: the object is as planned, or may not be written.
    pub(super) fn withdraw(&mut self) {
        self.waiting = None;
        self.last = LastOutcome::Over;
        if let Some(flight) = &mut self.in_flight {
            flight.is_withdrawn = true;
        }
    }

    /// Whether [`Lane::withdraw`] would change nothing.
    pub(super) fn is_settled(&self) -> bool {
        let is_withdrawn = self
            .in_flight
            .as_ref()
            .is_none_or(|flight| flight.is_withdrawn);
        self.waiting.is_none() && matches!(self.last, LastOutcome::Over) && is_withdrawn
    }

    /// Whether a write is in flight that makes the object and then fills it, and is still asked for: one that is not is not
    /// sent again when it fails.
    pub(super) fn is_creating(&self) -> bool {
        let flight = self.in_flight.as_ref();
        let flight = flight.filter(|flight| !flight.is_withdrawn);
        let action = flight.map(|flight| &flight.work.action);
        matches!(action, Some(Action::Apply { create: true, .. }))
    }

    /// When the next write may begin; none: nothing waits, or one is in flight.
    pub(super) fn due(&self) -> Option<Moment> {
        let waiting = self.waiting.as_ref()?;
        let Waiting { work, since } = waiting;
        let merged = self.last_start.map(|start| start + MERGE);
        let others = [merged, work.not_before, self.last.holds_until(work)];
        let due = others.into_iter().flatten().fold(*since, Moment::max);
        self.in_flight.is_none().then_some(due)
    }

    /// Begins the waiting write.
    pub(super) fn begin(&mut self, now: Moment) -> Option<Arc<Work>> {
        let work = self.waiting.take()?.work;
        self.in_flight = Some(Flight {
            work: Arc::clone(&work),
            is_withdrawn: false,
        });
        self.last_start = Some(now);
        Some(work)
    }

    /// The write in flight ended like this.
    pub(super) fn finish(&mut self, outcome: Outcome, now: Moment, rng: &mut impl rand::Rng) {
        let Some(Flight { work, is_withdrawn }) = self.in_flight.take() else {
            return;
        };
        let failures = match self.last {
            LastOutcome::Failed { failures, .. } => failures,
            LastOutcome::Over | LastOutcome::Done { .. } | LastOutcome::Rejected { .. } => 0,
        };
        let failed = |failures, not_before| LastOutcome::Failed {
            error: outcome.label(),
            failures,
            not_before,
        };
        if is_withdrawn {
            // sent again it would undo a newer plan
            self.last = LastOutcome::Over;
            return;
        }
        let content = work.content;
        self.last = match outcome {
            Outcome::Done => LastOutcome::Done {
                content,
                base: work.base.clone(),
                at: now,
                repeats: self.last.repeats_of(&work),
            },
            Outcome::Superseded => LastOutcome::Over,
            Outcome::Rejected => LastOutcome::Rejected { content },
            Outcome::Retry(failure) => {
                let (min, max) = match failure {
                    Failure::NamespaceGone => (NAMESPACE_MIN, NAMESPACE_MAX),
                    _ => (BACKOFF_MIN, BACKOFF_MAX),
                };
                let failures = failures.saturating_add(1);
                failed(failures, now + backoff(failures, min, max, rng))
            }
            // the pause is that of the whole queue
            Outcome::Throttled(_) => failed(failures, now),
        };
        // a write offered meanwhile is newer
        if matches!(self.last, LastOutcome::Failed { .. }) && self.waiting.is_none() {
            self.waiting = Some(Waiting { work, since: now });
        }
    }

    pub(super) fn stats(&self) -> LaneStats {
        LaneStats {
            queued: self.waiting.is_some() || self.in_flight.is_some(),
            last_error: match self.last {
                LastOutcome::Over | LastOutcome::Done { .. } => None,
                LastOutcome::Failed { error, .. } => Some(error),
                LastOutcome::Rejected { .. } => Some(Outcome::Rejected.label()),
            },
        }
    }

    /// The outcome of the write in flight will never be known: it is due again.
    pub(super) fn reopen(&mut self, now: Moment) {
        let flight = self.in_flight.take().filter(|flight| !flight.is_withdrawn);
        self.last_start = None;
        if self.waiting.is_none() {
            self.waiting = flight.map(|Flight { work, .. }| Waiting { work, since: now });
        }
    }

    /// The arrival of the event behind the oldest write of this lane.
    pub(super) fn oldest(&self) -> Option<Moment> {
        let waiting = self.waiting.as_ref().map(|waiting| waiting.work.since);
        let in_flight = self.in_flight.as_ref().map(|flight| flight.work.since);
        waiting.into_iter().chain(in_flight).min()
    }

    /// Nothing has happened for [`FORGET`].
    pub(super) fn is_quiet(&self, now: Moment) -> bool {
        let quiet = self
            .last_start
            .is_none_or(|start| now.since(start) >= FORGET);
        self.waiting.is_none() && self.in_flight.is_none() && quiet
    }
}

// === impl Last ===

impl LastOutcome {
    /// How long this write waits because of the last one.
    fn holds_until(&self, work: &Work) -> Option<Moment> {
        match self {
            Self::Done {
                content,
                base,
                at,
                repeats,
            } if *content == work.content => {
                let echo = if *base == work.base { SENT } else { ECHO };
                let doubled = 1_u32.checked_shl(*repeats).unwrap_or(u32::MAX);
                Some(*at + echo.saturating_mul(doubled).min(REPEAT_MAX))
            }
            Self::Failed { not_before, .. } => Some(*not_before),
            Self::Over | Self::Done { .. } | Self::Rejected { .. } => None,
        }
    }

    /// How often the same write was accepted before and has not been shown since.
    fn repeats_of(&self, work: &Work) -> u32 {
        match self {
            Self::Done {
                content, repeats, ..
            } if *content == work.content => repeats.saturating_add(1),
            _ => 0,
        }
    }
}
