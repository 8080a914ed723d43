//! Sends events into one cluster.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use lease::Claim;
use moment::{Clock, Moment};
use serde_json::Value;
use tokio::time::sleep_until;

use super::{
    Outbox,
    event::{make_event, make_recurrence},
    ledger::Letter,
};
use crate::{
    client::Direct,
    said,
    write::{
        Answer, Call, Caller,
        action::{Failure, Outcome},
    },
};

/// What a sender needs of its surroundings.
#[derive(Clone)]
pub(crate) struct SenderSettings {
    /// For log lines: the member's name, or `home`.
    pub(crate) cluster: String,
    /// Without it nothing is told: the leader tells. What waits may be told later: see [`Outbox::reopen`].
    pub(crate) claim: Claim,
    pub(crate) clock: Clock,
}

/// An outbox, and what else is sent where its letters go.
pub(crate) trait Postbox: Send + Sync {
    fn outbox(&self) -> &Outbox;

    /// When the server is free for letters: in the past if it is now.
    fn free_from(&self, now: Moment) -> Moment;

    /// The server asked for silence, by `Retry-After`: what else is sent waits as well.
    fn hush(&self, asked: Duration, now: Moment);
}

/// Tells one letter after the other.
struct Teller {
    settings: SenderSettings,
    /// Of our Lease, once it was needed.
    lease_uid: Option<String>,
    /// That we may not write events was said.
    complained: bool,
    /// The silence that the server asked for.
    asked: Option<Duration>,
}

/// Each of the calls that an event may take: up to three.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends what the outbox has, one after the other: events never crowd out writes. Ends only when dropped.
pub(crate) async fn run_sender(
    postbox: Arc<impl Postbox>,
    client: Direct,
    settings: SenderSettings,
) {
    let SenderSettings { claim, clock, .. } = settings.clone();
    let mut teller = Teller {
        settings,
        lease_uid: None,
        complained: false,
        asked: None,
    };
    loop {
        let tenure = claim.gained().await;
        postbox.outbox().reopen(tenure.since(), clock.now());
        let caller = Caller {
            client: client.clone(),
            timeout: CALL_TIMEOUT,
            tenure: tenure.clone(),
            clock,
        };
        tokio::select! {
            biased;
            // the call in flight is cancelled
            () = tenure.ended() => {}
            () = teller.deliver(&*postbox, &caller) => {}
        }
    }
}

// === impl Postbox ===

/// Nothing else is sent there that has a queue.
impl Postbox for Outbox {
    fn outbox(&self) -> &Outbox {
        self
    }

    fn free_from(&self, _now: Moment) -> Moment {
        Moment::START
    }

    fn hush(&self, _asked: Duration, _now: Moment) {}
}

// === impl Teller ===

impl Teller {
    /// Sends in one term of leading. Ends only when dropped.
    async fn deliver(&mut self, postbox: &impl Postbox, caller: &Caller) {
        let (outbox, clock) = (postbox.outbox(), caller.clock);
        loop {
            let now = clock.now();
            let free = postbox.free_from(now);
            if free <= now
                && let Some(letter) = outbox.take(now)
            {
                let outcome = self.tell(letter, caller).await.unwrap_or_else(|outcome| {
                    let member = &self.settings.cluster;
                    tracing::debug!(member, outcome = outcome.label(), "event not told");
                    outcome
                });
                outbox.finish(outcome, clock.now());
                if let Some(asked) = self.asked.take() {
                    postbox.hush(asked, clock.now());
                }
                continue;
            }
            match outbox.next_due() {
                None => outbox.rung().await,
                Some(due) => tokio::select! {
                    () = sleep_until(clock.instant(due.max(free))) => {}
                    // what is due may be minutes ahead of it
                    () = outbox.rung() => {}
                },
            }
        }
    }

    async fn tell(&mut self, mut letter: Letter, caller: &Caller) -> Result<Outcome, Outcome> {
        self.identify(&mut letter, caller).await?;
        let namespace = &letter.notice.regarding.namespace;
        if letter.count > 1 {
            let body = make_recurrence(&letter).to_string().into();
            let call = Call::patch_event(namespace, &letter.name, body);
            let answer = caller.call(call).await?;
            // it aged out: told anew, with its count
            if answer.status != StatusCode::NOT_FOUND {
                return Ok(self.judge(&letter, "patch", &answer));
            }
        }
        let body = serde_json::to_vec(&make_event(&letter)).map_err(|_| Outcome::Rejected)?;
        let call = Call::create_event(namespace, body.into());
        let answer = caller.call(call).await?;
        if answer.status == StatusCode::CONFLICT {
            // a controller before this one said the same of the same object
            return Ok(Outcome::Done);
        }
        Ok(self.judge(&letter, "create", &answer))
    }

    /// Fills in the uid of our Lease, without which `kubectl describe` does not find the event.
    async fn identify(&mut self, letter: &mut Letter, caller: &Caller) -> Result<(), Outcome> {
        let regarding = &letter.notice.regarding;
        if regarding.kind != "Lease" || !regarding.uid.is_empty() {
            return Ok(());
        }
        if self.lease_uid.is_none() {
            let call = Call::get_lease_metadata(&regarding.namespace, &regarding.name);
            let answer = caller.call(call).await?;
            if !answer.status.is_success() {
                return Err(self.judge(letter, "get lease", &answer));
            }
            let lease: Value =
                serde_json::from_slice(&answer.body).map_err(|_| Outcome::Retry(Failure::Other))?;
            let uid = lease.pointer("/metadata/uid").and_then(Value::as_str);
            self.lease_uid = uid.map(ToOwned::to_owned);
        }
        letter.notice.regarding.uid = self.lease_uid.clone().unwrap_or_default();
        Ok(())
    }

    /// What an answer means for the letter and for those after it. That we may not write is said once, for an operator.
    fn judge(&mut self, letter: &Letter, operation: &str, answer: &Answer) -> Outcome {
        let outcome = match answer.outcome() {
            Outcome::Done => return Outcome::Done,
            // an admission plugin that limits events alone says no time: only the server itself does (spec 4.5)
            Outcome::Throttled(Some(asked)) => {
                self.asked = Some(asked);
                Outcome::Throttled(Some(asked))
            }
            // with whatever failure it comes
            _ if answer.retry_after.is_some() => Outcome::Throttled(answer.retry_after),
            other => other,
        };
        let member = &self.settings.cluster;
        let reason = letter.notice.reason.name();
        let (status, error) = (answer.status.as_u16(), said::clipped(answer.message()));
        if outcome == Outcome::Retry(Failure::Denied) && !self.complained {
            self.complained = true;
            tracing::warn!(
                member,
                reason,
                operation,
                error,
                "may not write events: grant create and patch"
            );
        } else {
            tracing::debug!(member, reason, operation, status, error, "event not taken");
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
