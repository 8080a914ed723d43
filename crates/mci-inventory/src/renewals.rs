//! When credential plugins run again. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    kubeconfig::Credentials,
    listing::{Access, Refused},
    provider::ExecPlan,
};
use moment::Moment;
use watch::backoff;

/// The credentials of every profile that has a plan, by the profile's name.
#[derive(Debug, Default)]
pub(super) struct Renewals(BTreeMap<String, Renewal>);

/// A plugin to run now.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) profile: String,
    pub(super) plan: Arc<ExecPlan>,
    /// Distinguishes this run from the profile's others.
    pub(super) at: Moment,
    /// Cancelled when nobody wants the run any more: the profile is gone or has another plan.
    pub(super) unwanted: CancellationToken,
}

#[derive(Debug)]
struct Renewal {
    plan: Arc<ExecPlan>,
    fingerprint: u64,
    access: Access,
    next: Next,
    /// The run under way; dropped, it ends.
    run: Option<DropGuard>,
    /// When the last run began.
    started: Option<Moment>,
    /// Runs in a row that gave nothing, and credentials in a row that the server refused at once.
    failures: u32,
    /// Of these, the credentials.
    refusals: u32,
    issued: Option<Moment>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Run(Moment),
    /// Since then.
    Running(Moment),
    /// Nothing before the server refuses the credentials.
    Refusal,
}

/// Part of a credential's life after which it is renewed, as 4 of 5.
const RENEW_AT: (u32, u32) = (4, 5);
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_mins(5);
/// Credentials refused sooner than this after they were issued are no better than none: the next come later and later.
const TOO_SOON: Duration = Duration::from_mins(1);

// === impl Renewals ===

impl Renewals {
    /// The plans of all profiles. One that is new is run at once, one that changed as well unless a run began just now:
    /// whoever changes a profile again and again gets no more of the plugins' places than others. A run by the old plan
    /// ends; what it gave before stays in use meanwhile.
    pub(super) fn set(&mut self, plans: &BTreeMap<String, Arc<ExecPlan>>, now: Moment) {
        self.0.retain(|profile, _| plans.contains_key(profile));
        for (profile, plan) in plans {
            let fingerprint = plan.fingerprint();
            match self.0.get_mut(profile) {
                Some(known) if known.fingerprint == fingerprint => {}
                Some(known) => {
                    known.plan = plan.clone();
                    known.fingerprint = fingerprint;
                    known.run = None;
                    let spaced = known.started.map(|started| started + RETRY_MIN);
                    known.next = Next::Run(spaced.unwrap_or(now).max(now));
                    known.failures = 0;
                    known.refusals = 0;
                }
                None => {
                    let renewal = Renewal {
                        plan: plan.clone(),
                        fingerprint,
                        access: Access::Pending,
                        next: Next::Run(now),
                        run: None,
                        started: None,
                        failures: 0,
                        refusals: 0,
                        issued: None,
                    };
                    self.0.insert(profile.clone(), renewal);
                }
            }
        }
    }

    /// What is to be run now; it counts as running.
    pub(super) fn due(&mut self, now: Moment) -> Vec<Start> {
        let due = self.0.iter_mut().filter_map(|(profile, renewal)| {
            if !matches!(renewal.next, Next::Run(at) if at <= now) {
                return None;
            }
            let unwanted = CancellationToken::new();
            renewal.next = Next::Running(now);
            renewal.started = Some(now);
            renewal.run = Some(unwanted.clone().drop_guard());
            Some(Start {
                profile: profile.clone(),
                plan: renewal.plan.clone(),
                at: now,
                unwanted,
            })
        });
        due.collect()
    }

    /// When something is to be run next.
    pub(super) fn next(&self) -> Option<Moment> {
        let times = self.0.values().filter_map(|renewal| match renewal.next {
            Next::Run(at) => Some(at),
            Next::Running(_) | Next::Refusal => None,
        });
        times.min()
    }

    /// A plugin ended. Its answer counts only if it is the run that the profile waits for.
    pub(super) fn ended(
        &mut self,
        profile: &str,
        at: Moment,
        outcome: Result<(Credentials, Option<Duration>), Refused>,
        now: Moment,
        rng: &mut impl rand::Rng,
    ) {
        let Some(renewal) = self.0.get_mut(profile) else {
            return;
        };
        if renewal.next != Next::Running(at) {
            return;
        }
        renewal.run = None;
        match outcome {
            Ok((credentials, life)) => {
                // the last ones lived until now
                if renewal.issued.is_some() {
                    renewal.refusals = 0;
                }
                // what the plugin gave counts on only if the server refused it at once
                renewal.failures = renewal.refusals;
                renewal.access = Access::Ready(Box::new(credentials));
                renewal.issued = Some(now);
                renewal.next = life.map_or(Next::Refusal, |life| {
                    Next::Run(now + life * RENEW_AT.0 / RENEW_AT.1)
                });
            }
            Err(refused) => {
                renewal.failures = renewal.failures.saturating_add(1);
                renewal.next = Next::Run(now + renewal.wait(rng));
                let access = std::mem::replace(&mut renewal.access, Access::Pending);
                renewal.access = match access {
                    // what was issued before may still be good
                    Access::Ready(before) | Access::Kept(before, _) => {
                        Access::Kept(before, refused)
                    }
                    Access::Pending | Access::Refused(_) => Access::Refused(refused),
                };
            }
        }
    }

    /// The server refused the profile's credentials.
    pub(super) fn refused(&mut self, profile: &str, now: Moment, rng: &mut impl rand::Rng) {
        let Some(renewal) = self.0.get_mut(profile) else {
            return;
        };
        let Some(issued) = renewal.issued.take() else {
            // these were refused before, or there are none
            return;
        };
        let again = if now.since(issued) < TOO_SOON {
            renewal.refusals = renewal.refusals.saturating_add(1);
            renewal.failures = renewal.failures.saturating_add(1);
            now + renewal.wait(rng)
        } else {
            renewal.refusals = 0;
            renewal.failures = 0;
            now
        };
        renewal.next = match renewal.next {
            Next::Run(at) => Next::Run(at.min(again)),
            Next::Refusal => Next::Run(again),
            Next::Running(at) => Next::Running(at),
        };
    }

    pub(super) fn access(&self, profile: &str) -> Access {
        let renewal = self.0.get(profile);
        renewal.map_or(Access::Pending, |renewal| renewal.access.clone())
    }
}

// === impl Renewal ===

impl Renewal {
    fn wait(&self, rng: &mut impl rand::Rng) -> Duration {
        backoff(self.failures, RETRY_MIN, RETRY_MAX, rng)
    }
}

#[cfg(test)]
mod tests;
