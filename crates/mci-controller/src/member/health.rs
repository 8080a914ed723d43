//! The health of a session: whether a member is in contact, from probes and watches. A pure state machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::index::{member::Fault, update::Kind};
use moment::Moment;

/// A result of a probe or watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthEvent {
    ProbeOk,
    ProbeFailed(Fault),
    /// The list of a kind is complete, or the server does not serve the kind.
    Settled(Kind),
    /// The watch of a kind works, or works again.
    Working(Kind),
    /// We may not list or watch the kind (403); it is retried.
    Denied {
        kind: Kind,
        /// As with a failure.
        relists: bool,
    },
    /// The credentials are not accepted (401).
    Unauthorised,
    /// The server belongs to another cluster.
    OtherCluster,
    /// The list or watch of a kind failed and is retried.
    Failing {
        kind: Kind,
        fault: Fault,
        /// The retry starts with a list, and settles the kind; else success may stay unknown for long.
        relists: bool,
    },
}

/// A change of the member's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    Live,
    Suspect,
    Lost(Fault),
    /// The credentials are not accepted.
    Unauthorised,
    /// Another cluster answers.
    OtherCluster,
}

/// The health of one session.
#[derive(Debug, Default)]
pub(super) struct SessionHealth {
    settled: BTreeSet<Kind>,
    failing: BTreeMap<Kind, Failures>,
    /// Kinds hidden from us: when the server last denied them, and whether the retry starts with a list.
    denied: BTreeMap<Kind, (Moment, bool)>,
    failed_probes: u32,
    live: bool,
}

/// Failures of one kind since it last worked.
#[derive(Debug)]
struct Failures {
    first: Moment,
    last: Moment,
    count: u32,
    fault: Fault,
    relists: bool,
}

/// Failed probes in a row that end a session.
const MAX_FAILED_PROBES: u32 = 2;
/// A watch may fail for this long while probes pass.
const MAX_WATCH_FAILURE: Duration = Duration::from_secs(15);
/// The longest wait between two tries of a watch. One that has not failed again by then was resumed: for a quiet kind
/// there is no other evidence of that.
const FORGIVEN_AFTER: Duration = Duration::from_secs(30);

// === impl SessionHealth ===

impl SessionHealth {
    /// Applies an event; returns the change of health, if any.
    pub(super) fn on(&mut self, event: HealthEvent, now: Moment) -> Option<HealthChange> {
        match event {
            HealthEvent::ProbeOk => {
                self.denied
                    .retain(|_, (last, relists)| *relists || now.since(*last) <= FORGIVEN_AFTER);
                let was_suspect = std::mem::take(&mut self.failed_probes) > 0;
                if let Some(fault) = self.broken_watch(now) {
                    return Some(HealthChange::Lost(fault));
                }
                (was_suspect && self.live).then_some(HealthChange::Live)
            }
            HealthEvent::ProbeFailed(fault) => {
                self.failed_probes += 1;
                if self.failed_probes >= MAX_FAILED_PROBES {
                    Some(HealthChange::Lost(fault))
                } else {
                    self.live.then_some(HealthChange::Suspect)
                }
            }
            HealthEvent::Settled(kind) => {
                self.failing.remove(&kind);
                self.denied.remove(&kind);
                self.settle(kind)
            }
            HealthEvent::Working(kind) => {
                self.failing.remove(&kind);
                self.denied.remove(&kind);
                None
            }
            HealthEvent::Denied { kind, relists } => {
                self.failing.remove(&kind);
                let before = self.denied.insert(kind, (now, relists));
                if before.is_some_and(|(_, relists)| relists) {
                    self.denied.insert(kind, (now, true));
                }
                // a hidden kind is not waited for
                self.settle(kind)
            }
            HealthEvent::Unauthorised => Some(HealthChange::Unauthorised),
            HealthEvent::OtherCluster => Some(HealthChange::OtherCluster),
            HealthEvent::Failing {
                kind,
                fault,
                relists,
            } => {
                let earlier = self.failing.remove(&kind);
                let known = earlier.filter(|failures| !failures.is_over(now));
                let failures = Failures {
                    first: known.as_ref().map_or(now, |failures| failures.first),
                    last: now,
                    count: known.as_ref().map_or(0, |failures| failures.count) + 1,
                    fault,
                    relists: relists || known.is_some_and(|failures| failures.relists),
                };
                self.failing.insert(kind, failures);
                None
            }
        }
    }

    fn settle(&mut self, kind: Kind) -> Option<HealthChange> {
        self.settled.insert(kind);
        let complete = self.settled.len() == Kind::ALL.len();
        if complete && !self.live {
            self.live = true;
            return Some(HealthChange::Live);
        }
        None
    }

    /// The kinds that are hidden from us.
    pub(super) fn denied(&self) -> BTreeSet<Kind> {
        self.denied.keys().copied().collect()
    }

    /// Whether the session has been live.
    pub(super) fn was_live(&self) -> bool {
        self.live
    }

    /// The fault of a watch that is broken: one failure is tolerated, since the retry may succeed.
    fn broken_watch(&self, now: Moment) -> Option<Fault> {
        self.failing
            .values()
            .find(|failures| {
                failures.count > 1
                    && now.since(failures.first) >= MAX_WATCH_FAILURE
                    && !failures.is_over(now)
            })
            .map(|failures| failures.fault)
    }
}

// === impl Failures ===

impl Failures {
    /// Whether the watch was resumed without an event. A list always ends with one.
    fn is_over(&self, now: Moment) -> bool {
        !self.relists && now.since(self.last) > FORGIVEN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Fault = Fault::ConnectionLost;

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    const fn failing(kind: Kind, fault: Fault, relists: bool) -> HealthEvent {
        HealthEvent::Failing {
            kind,
            fault,
            relists,
        }
    }

    #[test]
    fn one_cut_watch_of_a_quiet_kind_is_no_loss() {
        let mut health = mk_live();
        for hour in 0..3 {
            health.on(failing(Kind::Pools, LOST, false), at(hour * 3600));
            for seconds in [5, 15, 29, 40, 100] {
                let change = health.on(HealthEvent::ProbeOk, at(hour * 3600 + seconds));
                assert_eq!(change, None);
            }
        }
    }

    #[test]
    fn a_list_that_fails_again_is_a_loss_however_long_it_hung() {
        let mut health = mk_live();
        health.on(failing(Kind::Pools, LOST, false), at(0));
        health.on(failing(Kind::Pools, LOST, true), at(1));
        assert_eq!(health.on(HealthEvent::ProbeOk, at(10)), None);
        health.on(failing(Kind::Pools, LOST, true), at(51));
        assert_eq!(
            health.on(HealthEvent::ProbeOk, at(52)),
            Some(HealthChange::Lost(Fault::ConnectionLost))
        );
    }

    fn mk_live() -> SessionHealth {
        let mut health = SessionHealth::default();
        let changes: Vec<_> = Kind::ALL
            .iter()
            .map(|kind| health.on(HealthEvent::Settled(*kind), at(0)))
            .collect();
        assert_eq!(changes.last(), Some(&Some(HealthChange::Live)));
        assert!(changes[..4].iter().all(Option::is_none));
        health
    }

    #[test]
    fn live_needs_every_list() {
        let mut health = mk_live();
        assert_eq!(
            health.on(HealthEvent::Settled(Kind::Pools), at(1)),
            None,
            "reported once"
        );
        assert_eq!(health.on(HealthEvent::ProbeOk, at(5)), None);
    }

    #[test]
    fn one_failed_probe_is_a_suspicion_and_two_are_a_loss() {
        let mut health = mk_live();
        assert_eq!(
            health.on(HealthEvent::ProbeFailed(LOST), at(5)),
            Some(HealthChange::Suspect)
        );
        assert_eq!(
            health.on(HealthEvent::ProbeOk, at(10)),
            Some(HealthChange::Live)
        );
        assert_eq!(
            health.on(HealthEvent::ProbeFailed(LOST), at(15)),
            Some(HealthChange::Suspect)
        );
        let change = health.on(HealthEvent::ProbeFailed(Fault::AuthFailed), at(20));
        assert_eq!(change, Some(HealthChange::Lost(Fault::AuthFailed)));
    }

    #[test]
    fn a_watch_that_keeps_failing_is_a_loss_although_probes_pass() {
        let mut health = mk_live();
        let denied = failing(Kind::Services, Fault::AuthFailed, true);
        health.on(denied, at(0));
        health.on(denied, at(10));
        assert_eq!(health.on(HealthEvent::ProbeOk, at(14)), None);
        assert_eq!(
            health.on(HealthEvent::ProbeOk, at(15)),
            Some(HealthChange::Lost(Fault::AuthFailed))
        );
    }

    #[test]
    fn a_hidden_kind_is_not_waited_for_and_is_no_loss() {
        let mut health = SessionHealth::default();
        let hidden = |relists| HealthEvent::Denied {
            kind: Kind::Pools,
            relists,
        };
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Pools) {
            assert_eq!(health.on(HealthEvent::Settled(kind), at(0)), None);
        }
        assert_eq!(health.on(hidden(true), at(1)), Some(HealthChange::Live));
        for second in (5..200).step_by(5) {
            assert_eq!(health.on(hidden(true), at(second)), None);
            assert_eq!(health.on(HealthEvent::ProbeOk, at(second)), None);
        }
        assert_eq!(health.denied(), BTreeSet::from([Kind::Pools]));
        health.on(HealthEvent::Settled(Kind::Pools), at(300));
        assert_eq!(health.denied(), BTreeSet::new());
        // a watch that is admitted again without an event
        health.on(hidden(false), at(400));
        health.on(HealthEvent::ProbeOk, at(420));
        assert_eq!(health.denied(), BTreeSet::from([Kind::Pools]));
        health.on(HealthEvent::ProbeOk, at(431));
        assert_eq!(health.denied(), BTreeSet::new());
    }

    #[test]
    fn a_watch_that_works_again_is_forgiven() {
        let mut health = mk_live();
        health.on(failing(Kind::Pools, LOST, false), at(0));
        health.on(HealthEvent::Working(Kind::Pools), at(5));
        health.on(failing(Kind::Pools, LOST, false), at(10));
        assert_eq!(health.on(HealthEvent::ProbeOk, at(20)), None);
    }
}
