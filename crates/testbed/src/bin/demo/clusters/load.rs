//! Clients that send requests while something happens, and what became of these requests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeBounds;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;
use testbed::{Answer, Requests, isthmus};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::show::{Pods, cluster_of, counted};

/// Number of clients, and the least time between two requests of each: 80 requests a second, each of which takes some 50 ms.
const CLIENTS: usize = 4;
const PACE: Duration = Duration::from_millis(50);
/// Requests of one client at most, in 100 s or more. Each scene ends before.
const MOST: usize = 2_000;
/// The response header that the route of `config/samples/front.yaml` adds.
pub(crate) const THROUGH: &str = "x-answered-through";

/// Clients of one gateway, and the requests that they have sent so far.
pub(crate) struct Load<'a> {
    requests: &'a Requests,
    pods: &'a Pods,
    sent: RefCell<Vec<Sent>>,
    is_over: Cell<bool>,
}

/// A request that has ended.
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) ended: Instant,
    /// What answered it; the error is what failed.
    outcome: Result<Answered, String>,
}

struct Answered {
    cluster: String,
    /// By way of a Gateway of that cluster.
    is_through: bool,
}

/// Requests of some time, counted.
#[derive(Default)]
pub(crate) struct Tally {
    /// Requests that each cluster answered.
    pub(crate) answered: BTreeMap<String, usize>,
    /// Those of them that came by way of a Gateway of that cluster.
    pub(crate) through: usize,
    failed: Vec<String>,
}

// === impl Load ===

impl<'a> Load<'a> {
    pub(crate) fn new(requests: &'a Requests, pods: &'a Pods) -> Self {
        Self {
            requests,
            pods,
            sent: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// Sends requests until this has happened, and waits until all of them have ended.
    pub(crate) async fn during<T>(&self, happens: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        let clients = join_all((0..CLIENTS).map(|client| self.send(client)));
        let events = async {
            let outcome = happens().await;
            self.is_over.set(true);
            outcome
        };
        let (_, outcome) = tokio::join!(clients, events);
        outcome
    }

    /// What became of the requests that were sent in this time, as far as they have ended.
    pub(crate) fn tally(&self, time: impl RangeBounds<Instant>) -> Tally {
        self.tally_of(|sent| time.contains(&sent.at))
    }

    /// What became of these requests.
    pub(crate) fn tally_of(&self, counts: impl Fn(&Sent) -> bool) -> Tally {
        let mut tally = Tally::default();
        let sent = self.sent.borrow();
        for sent in sent.iter().filter(|sent| counts(sent)) {
            match &sent.outcome {
                Ok(answered) => {
                    *tally.answered.entry(answered.cluster.clone()).or_default() += 1;
                    tally.through += usize::from(answered.is_through);
                }
                Err(problem) => tally.failed.push(problem.clone()),
            }
        }
        tally
    }

    async fn send(&self, client: usize) {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for nth in 0..MOST {
            pace.tick().await;
            if self.is_over.get() {
                return;
            }
            let at = Instant::now();
            // each prompt differs: a known one is sent to where it is cached
            let text = format!("client {client}, request {nth}");
            let answer = self.requests.chat(isthmus::POOL, &text).await;
            let outcome = match answer {
                Ok(answer) if answer.status == 200 => Ok(Answered::new(&answer, self.pods)),
                Ok(answer) => Err(format!("{}: {}", answer.status, answer.text())),
                Err(error) => Err(error.to_string()),
            };
            let ended = Instant::now();
            self.sent.borrow_mut().push(Sent { at, ended, outcome });
        }
    }
}

// === impl Answered ===

impl Answered {
    fn new(answer: &Answer, pods: &Pods) -> Self {
        Self {
            cluster: cluster_of(pods, answer.pod().unwrap_or("-")).to_owned(),
            is_through: answer.headers.contains_key(THROUGH),
        }
    }
}

// === impl Tally ===

impl Tally {
    /// Requests that a cluster answered.
    pub(crate) fn of(&self, cluster: &str) -> usize {
        self.answered.get(cluster).copied().unwrap_or(0)
    }

    /// Fails where a request failed, or where there was none.
    pub(crate) fn all_answered(&self, when: &str) -> Result<()> {
        ensure!(!self.answered.is_empty(), "no request was answered {when}");
        let failed = self.failed.len();
        ensure!(failed == 0, "{failed} requests failed {when}: {self}");
        Ok(())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed.len();
        let sent = self.answered.values().sum::<usize>() + failed;
        write!(f, "{sent} requests, {failed} failed")?;
        if !self.answered.is_empty() {
            write!(f, ": {}", counted(&self.answered))?;
        }
        match self.failed.first() {
            Some(first) => write!(f, " (the first failure: {first})"),
            None => Ok(()),
        }
    }
}
