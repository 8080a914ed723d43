//! Metrics of the model servers: one task per endpoint, one request in flight each.
//!
//! ```text
//!  members, plan ─► Scraper ─┬─► task: GET /metrics ─ frames ─► Scanner ─► Load of the endpoint
//!                            └─► task: …
//! ```
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use rand::RngExt;
use scheduling::{Endpoint, ScrapeFailure, Slot, Snapshot};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{Interval, MissedTickBehavior, interval_at, timeout},
};
use tracing::{Instrument, debug, debug_span};

use crate::{
    health::{Part, Readiness},
    metrics::Metrics,
};
use moment::Clock;

mod configured;
mod engine;
mod fetch;
mod lora;
mod names;
mod pace;
mod page;
mod plan;
mod sample;
mod scanner;
mod spec;

pub use configured::EnginesError;
pub use engine::EngineTable;
pub use plan::{Plan, Planner};
pub use scanner::Scanner;

use engine::Engine;
use fetch::Fetch;
use pace::Pace;
use page::{Page, PageError};

/// A page that takes longer says nothing about now.
const TIMEOUT: Duration = Duration::from_secs(1);

/// After this, readiness no longer waits for the first round.
const FIRST_ROUND: Duration = Duration::from_secs(1);

/// Keeps one scraping task per member.
#[derive(Debug)]
pub struct Scraper {
    /// Between two scrapes of one endpoint, unless the plan says otherwise.
    pub interval: Duration,
    /// Time.
    pub clock: Clock,
    /// Counts scrapes.
    pub metrics: Metrics,
    /// Told when the first round is done.
    pub readiness: Readiness,
    /// How endpoints are scraped; when it changes, all begin anew.
    pub plans: watch::Receiver<Plan>,
    /// Called after each page that was read: a request that waits may go on.
    pub on_scraped: OnScraped,
}

/// What is called after each page that was read. Cheap to clone.
#[derive(Clone)]
pub struct OnScraped(pub Arc<dyn Fn() + Send + Sync>);

/// What one endpoint's task needs.
struct Target {
    endpoint: Arc<Endpoint>,
    engine: Arc<Engine>,
    fetch: Arc<Fetch>,
    interval: Duration,
    clock: Clock,
    ok: Counter,
    unreachable: Counter,
    useless: Counter,
    on_scraped: OnScraped,
}

type Running = BTreeMap<Slot, (Arc<str>, AbortHandle)>;

// === impl OnScraped ===

impl fmt::Debug for OnScraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnScraped")
    }
}

// === impl Scraper ===

impl Scraper {
    /// Scrapes the members, as they come and go, until the sender of `members` is dropped. `None` in
    /// `members`: not known yet.
    ///
    /// # Errors
    /// When a task ended, which only a bug can make it do.
    pub async fn run(
        mut self,
        mut members: watch::Receiver<Option<Arc<Snapshot>>>,
    ) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut running = Running::new();
        // Nothing is sent: it closes when every task of the first round dropped its end.
        let (first, mut first_round) = mpsc::channel::<()>(1);
        let Ok(snapshot) = members
            .wait_for(Option::is_some)
            .await
            .map(|known| known.clone())
        else {
            return Ok(());
        };
        let mut plan = self.plans.borrow_and_update().clone();
        self.follow(
            &plan,
            &snapshot.unwrap_or_default(),
            &mut running,
            &mut tasks,
            Some(&first),
        );
        drop(first);
        // Slow metrics must not keep a pool from serving.
        let _ = timeout(FIRST_ROUND, first_round.recv()).await;
        self.readiness.set(Part::Metrics, true);
        loop {
            tokio::select! {
                changed = members.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let snapshot = members.borrow_and_update().clone().unwrap_or_default();
                    self.follow(&plan, &snapshot, &mut running, &mut tasks, None);
                }
                Ok(()) = self.plans.changed() => {
                    plan = self.plans.borrow_and_update().clone();
                    for (_, handle) in std::mem::take(&mut running).values() {
                        handle.abort();
                    }
                    let snapshot = members.borrow().clone().unwrap_or_default();
                    self.follow(&plan, &snapshot, &mut running, &mut tasks, None);
                }
                Some(ended) = tasks.join_next() => match ended {
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => anyhow::bail!("a scraping task died: {error}"),
                    Ok(()) => anyhow::bail!("a scraping task ended"),
                }
            }
        }
    }

    fn follow(
        &self,
        plan: &Plan,
        snapshot: &Snapshot,
        running: &mut Running,
        tasks: &mut JoinSet<()>,
        first: Option<&mpsc::Sender<()>>,
    ) {
        let mut gone = std::mem::take(running);
        for member in snapshot.members() {
            let endpoint = &member.endpoint;
            let engine = plan.engine_of(member);
            let kept = match gone.remove(&endpoint.slot()) {
                Some((same, handle)) if same == engine => Some(handle),
                Some((_, former)) => {
                    former.abort(); // it reads another engine's names
                    None
                }
                None => None,
            };
            let handle = kept.unwrap_or_else(|| {
                let target = self.target(plan, endpoint, &engine);
                let span = debug_span!("scrape", endpoint = %endpoint.id());
                tasks.spawn(target.run(first.cloned()).instrument(span))
            });
            running.insert(endpoint.slot(), (engine, handle));
        }
        for (_, handle) in gone.values() {
            handle.abort();
        }
    }

    fn target(&self, plan: &Plan, endpoint: &Arc<Endpoint>, engine: &str) -> Target {
        Target {
            endpoint: Arc::clone(endpoint),
            engine: Arc::clone(plan.engines.engine(engine)),
            fetch: Arc::clone(&plan.fetch),
            interval: plan.interval.unwrap_or(self.interval),
            clock: self.clock,
            ok: self.metrics.scrapes("ok"),
            unreachable: self.metrics.scrapes("unreachable"),
            useless: self.metrics.scrapes("useless"),
            on_scraped: self.on_scraped.clone(),
        }
    }
}

// === impl Target ===

impl Target {
    async fn run(self, mut first: Option<mpsc::Sender<()>>) {
        let mut page = Page::new(self.endpoint.address(), Arc::clone(&self.fetch));
        let mut scanner = Scanner::new(Arc::clone(&self.engine));
        let mut pace = Pace::new(self.interval);
        // Spread over the interval: scrapes that all start at once make picks wait.
        let phase = self.interval.mul_f64(rand::rng().random());
        let mut ticks = ticks_of(self.clock, self.interval, phase);
        loop {
            if first.is_none() {
                ticks.tick().await;
            }
            let result = self.scrape(&mut page, &mut scanner).await;
            first = None;
            if let Some(interval) = pace.scraped(result.is_ok()) {
                debug!(?interval, "scraping at another pace");
                ticks = ticks_of(self.clock, interval, interval);
            }
        }
    }

    /// One scrape, and its place in the load and in the counters.
    async fn scrape(&self, page: &mut Page, scanner: &mut Scanner) -> Result<(), ScrapeFailure> {
        let load = self.endpoint.load();
        let start = load.scrape_starts(self.clock.now());
        scanner.begin(Timestamp::now().as_second() as f64);
        let result = timeout(TIMEOUT, page.read(scanner))
            .await
            .unwrap_or(Err(PageError::Timeout));
        let noted = match result {
            Ok(()) => load.scraped(start, scanner.finish()),
            Err(error) => {
                debug!(%error, reason = error.reason(), "scrape failed");
                load.scrape_failed(error.failure());
                Err(error.failure())
            }
        };
        if noted.is_err() {
            scanner.reset();
        }
        let counter = match noted {
            Ok(()) => {
                (self.on_scraped.0)();
                &self.ok
            }
            Err(ScrapeFailure::Unreachable) => &self.unreachable,
            Err(ScrapeFailure::Useless) => &self.useless,
        };
        counter.inc();
        noted
    }
}

/// Ticks each `interval`, the first time after `phase`. Ticks that were missed are left out and the phase stays: the ticks of
/// many endpoints that a pause made due at once are spread again after it.
fn ticks_of(clock: Clock, interval: Duration, phase: Duration) -> Interval {
    let start = clock.instant(clock.now().plus(phase));
    let mut ticks = interval_at(start, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
