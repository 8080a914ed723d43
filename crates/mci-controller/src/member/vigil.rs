//! Whether a member is in contact, from probes and watches. A pure state machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::index::{member::Fault, update::Kind};
use moment::Moment;

/// What happened in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    ProbeOk,
    ProbeFailed(Fault),
    /// A kind has completed its list, or the server does not serve it.
    Settled(Kind),
    /// A kind's watch works, or works again.
    Working(Kind),
    /// We may not list or watch the kind (403); it is tried again.
    Denied {
        kind: Kind,
        /// As with a failure.
        relists: bool,
    },
    /// The credentials are not accepted (401).
    Unauthorised,
    /// The server is that of another cluster.
    OtherCluster,
    /// A kind's list or watch failed and is tried again.
    Failing {
        kind: Kind,
        fault: Fault,
        /// The retry begins with a list, and settles the kind; else success may not show for long.
        relists: bool,
    },
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Live,
    Suspect,
    Lost(Fault),
    /// The credentials are not accepted.
    Unauthorised,
    /// Another cluster answers.
    OtherCluster,
}

/// The state of one session.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    settled: BTreeSet<Kind>,
    failing: BTreeMap<Kind, Failures>,
    /// Hidden from us: when the server last said so, and whether a list will show that it is over.
    denied: BTreeMap<Kind, (Moment, bool)>,
    failed_probes: u32,
    live: bool,
}

/// Failures of one kind since it last gave a sign of life.
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
/// The longest wait between two tries of a watch. One that has not failed again by then was resumed: on a quiet kind
/// that shows in no other way.
const FORGIVEN_AFTER: Duration = Duration::from_secs(30);

// === impl Vigil ===

impl Vigil {
    /// Takes in a sign; returns what changes by it.
    pub(super) fn on(&mut self, sign: Sign, now: Moment) -> Option<Verdict> {
        match sign {
            Sign::ProbeOk => {
                self.denied
                    .retain(|_, (last, relists)| *relists || now.since(*last) <= FORGIVEN_AFTER);
                let was_suspect = std::mem::take(&mut self.failed_probes) > 0;
                if let Some(fault) = self.broken_watch(now) {
                    return Some(Verdict::Lost(fault));
                }
                (was_suspect && self.live).then_some(Verdict::Live)
            }
            Sign::ProbeFailed(fault) => {
                self.failed_probes += 1;
                if self.failed_probes >= MAX_FAILED_PROBES {
                    Some(Verdict::Lost(fault))
                } else {
                    self.live.then_some(Verdict::Suspect)
                }
            }
            Sign::Settled(kind) => {
                self.failing.remove(&kind);
                self.denied.remove(&kind);
                self.settle(kind)
            }
            Sign::Working(kind) => {
                self.failing.remove(&kind);
                self.denied.remove(&kind);
                None
            }
            Sign::Denied { kind, relists } => {
                self.failing.remove(&kind);
                let before = self.denied.insert(kind, (now, relists));
                if before.is_some_and(|(_, relists)| relists) {
                    self.denied.insert(kind, (now, true));
                }
                // there is nothing to wait for
                self.settle(kind)
            }
            Sign::Unauthorised => Some(Verdict::Unauthorised),
            Sign::OtherCluster => Some(Verdict::OtherCluster),
            Sign::Failing {
                kind,
                fault,
                relists,
            } => {
                let known = self.failing.remove(&kind);
                let known = known.filter(|failures| !failures.is_over(now));
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

    fn settle(&mut self, kind: Kind) -> Option<Verdict> {
        self.settled.insert(kind);
        let complete = self.settled.len() == Kind::ALL.len();
        if complete && !self.live {
            self.live = true;
            return Some(Verdict::Live);
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

    /// One failure is none: it takes a second one to tell that the retry did not help.
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
    /// Whether the watch was resumed without a word. A list never is.
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

    const fn failing(kind: Kind, fault: Fault, relists: bool) -> Sign {
        Sign::Failing {
            kind,
            fault,
            relists,
        }
    }

    #[test]
    fn one_cut_watch_of_a_quiet_kind_is_no_loss() {
        let mut vigil = mk_live();
        for hour in 0..3 {
            vigil.on(failing(Kind::Pools, LOST, false), at(hour * 3600));
            for seconds in [5, 15, 29, 40, 100] {
                let verdict = vigil.on(Sign::ProbeOk, at(hour * 3600 + seconds));
                assert_eq!(verdict, None);
            }
        }
    }

    #[test]
    fn a_list_that_fails_again_is_a_loss_however_long_it_hung() {
        let mut vigil = mk_live();
        vigil.on(failing(Kind::Pools, LOST, false), at(0));
        vigil.on(failing(Kind::Pools, LOST, true), at(1));
        assert_eq!(vigil.on(Sign::ProbeOk, at(10)), None);
        vigil.on(failing(Kind::Pools, LOST, true), at(51));
        assert_eq!(
            vigil.on(Sign::ProbeOk, at(52)),
            Some(Verdict::Lost(Fault::ConnectionLost))
        );
    }

    fn mk_live() -> Vigil {
        let mut vigil = Vigil::default();
        let verdicts: Vec<_> = Kind::ALL
            .iter()
            .map(|kind| vigil.on(Sign::Settled(*kind), at(0)))
            .collect();
        assert_eq!(verdicts.last(), Some(&Some(Verdict::Live)));
        assert!(verdicts[..4].iter().all(Option::is_none));
        vigil
    }

    #[test]
    fn live_needs_every_list() {
        let mut vigil = mk_live();
        assert_eq!(
            vigil.on(Sign::Settled(Kind::Pools), at(1)),
            None,
            "told once"
        );
        assert_eq!(vigil.on(Sign::ProbeOk, at(5)), None);
    }

    #[test]
    fn one_failed_probe_is_a_suspicion_and_two_are_a_loss() {
        let mut vigil = mk_live();
        assert_eq!(
            vigil.on(Sign::ProbeFailed(LOST), at(5)),
            Some(Verdict::Suspect)
        );
        assert_eq!(vigil.on(Sign::ProbeOk, at(10)), Some(Verdict::Live));
        assert_eq!(
            vigil.on(Sign::ProbeFailed(LOST), at(15)),
            Some(Verdict::Suspect)
        );
        let verdict = vigil.on(Sign::ProbeFailed(Fault::AuthFailed), at(20));
        assert_eq!(verdict, Some(Verdict::Lost(Fault::AuthFailed)));
    }

    #[test]
    fn a_watch_that_keeps_failing_is_a_loss_although_probes_pass() {
        let mut vigil = mk_live();
        let denied = failing(Kind::Services, Fault::AuthFailed, true);
        vigil.on(denied, at(0));
        vigil.on(denied, at(10));
        assert_eq!(vigil.on(Sign::ProbeOk, at(14)), None);
        assert_eq!(
            vigil.on(Sign::ProbeOk, at(15)),
            Some(Verdict::Lost(Fault::AuthFailed))
        );
    }

    #[test]
    fn a_hidden_kind_is_no_reason_to_wait_or_to_be_lost() {
        let mut vigil = Vigil::default();
        let hidden = |relists| Sign::Denied {
            kind: Kind::Pools,
            relists,
        };
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Pools) {
            assert_eq!(vigil.on(Sign::Settled(kind), at(0)), None);
        }
        assert_eq!(vigil.on(hidden(true), at(1)), Some(Verdict::Live));
        for second in (5..200).step_by(5) {
            assert_eq!(vigil.on(hidden(true), at(second)), None);
            assert_eq!(vigil.on(Sign::ProbeOk, at(second)), None);
        }
        assert_eq!(vigil.denied(), BTreeSet::from([Kind::Pools]));
        vigil.on(Sign::Settled(Kind::Pools), at(300));
        assert_eq!(vigil.denied(), BTreeSet::new());
        // a watch that is let in again without a word
        vigil.on(hidden(false), at(400));
        vigil.on(Sign::ProbeOk, at(420));
        assert_eq!(vigil.denied(), BTreeSet::from([Kind::Pools]));
        vigil.on(Sign::ProbeOk, at(431));
        assert_eq!(vigil.denied(), BTreeSet::new());
    }

    #[test]
    fn a_watch_that_works_again_is_forgiven() {
        let mut vigil = mk_live();
        vigil.on(failing(Kind::Pools, LOST, false), at(0));
        vigil.on(Sign::Working(Kind::Pools), at(5));
        vigil.on(failing(Kind::Pools, LOST, false), at(10));
        assert_eq!(vigil.on(Sign::ProbeOk, at(20)), None);
    }
}
