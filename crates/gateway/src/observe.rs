//! Observations of the clusters of imports: probes of their health, and scrapes of their metrics.
//!
//! One task for each cluster and kind of observation. What it sees goes to the control loop as a fact; nothing here decides
//! anything. Whom to observe is the control loop's word as well, and only addresses that other clusters may name are dialled.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rand::RngExt;
use tls::Trust;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::metrics::ObserveMetrics;
use crate::select::{ClusterId, Fact};

mod dial;
mod page;
mod places;
mod probe;
mod resolve;
mod scrape;

pub(crate) use dial::Targets;
pub(crate) use probe::{Authorities, Method, Probe, SignedBy};
pub(crate) use scrape::Scrape;

use places::Places;
use resolve::Resolver;

/// Facts that wait for the control loop: each is some bytes, and more than these are a loop that hangs.
pub(crate) const FACTS: usize = 1024;

/// Probes at once, with up to 8 connections each. One of a dead network takes its whole time.
const PROBES: usize = 256;

/// Scrapes at once.
const SCRAPES: usize = 64;

/// Part of these places that the imports of one namespace may have: whoever makes imports there decides how many hosts are
/// dialled, and how long each of them takes.
const NAMESPACE_PART: usize = 4;

/// Time between two scrapes of a cluster, and how long one may take.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
const SCRAPE_TIME: Duration = Duration::from_millis(800);

/// What is observed of one cluster. Another one replaces its task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Job {
    Probe(Probe),
    Scrape(Scrape),
}

/// One of each for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Probe,
    Scrape,
}

/// All that is to be observed.
pub(crate) type Jobs = BTreeMap<(ClusterId, Kind), Job>;

/// Owns the tasks.
pub(crate) struct Observers {
    tasks: JoinSet<()>,
    running: BTreeMap<(ClusterId, Kind), (Job, AbortHandle)>,
    shared: Arc<Shared>,
}

struct Shared {
    facts: mpsc::Sender<Fact>,
    metrics: ObserveMetrics,
    probes: Places,
    scrapes: Places,
    /// The CAs of the system, read when they are needed first.
    system: LazyLock<Trust>,
    resolver: Resolver,
}

// === impl Observers ===

impl Observers {
    pub(crate) fn new(facts: mpsc::Sender<Fact>, metrics: ObserveMetrics) -> Self {
        Self {
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            shared: Arc::new(Shared {
                facts,
                metrics,
                probes: Places::new(PROBES),
                scrapes: Places::new(SCRAPES),
                system: LazyLock::new(Trust::system),
                resolver: Resolver::system(),
            }),
        }
    }

    /// Observes exactly these from now on. Those that are the same go on.
    pub(crate) fn sync(&mut self, mut wanted: Jobs) {
        self.running.retain(|id, (job, task)| {
            let stays = wanted.get(id) == Some(job);
            if stays {
                wanted.remove(id);
            } else {
                task.abort();
            }
            stays
        });
        for (id, job) in wanted {
            let task = run(Arc::clone(&self.shared), id.0.clone(), job.clone());
            let task = self.tasks.spawn(task);
            self.running.insert(id, (job, task));
        }
    }

    /// Comes back only if a task ended by itself, which none does while the control loop lives.
    pub(crate) async fn ended(&mut self) {
        loop {
            match self.tasks.join_next().await {
                Some(Err(error)) if error.is_cancelled() => {} // ended by `sync`
                Some(_) => return,
                None => std::future::pending().await,
            }
        }
    }
}

/// The observations of one cluster, until the control loop is gone.
async fn run(shared: Arc<Shared>, cluster: ClusterId, mut job: Job) {
    let interval = job.interval();
    // Those that begin together do not stay together.
    let mut due = Instant::now() + interval.mul_f64(rand::rng().random_range(0.0..1.0));
    loop {
        sleep_until(due).await;
        let Some(fact) = job.observe(&shared, &cluster).await else {
            return;
        };
        if shared.facts.send(fact).await.is_err() {
            return;
        }
        due = (due + watch::jittered(interval)).max(Instant::now());
    }
}

// === impl Job ===

impl Job {
    fn interval(&self) -> Duration {
        match self {
            Self::Probe(probe) => probe.interval,
            Self::Scrape(_) => SCRAPE_INTERVAL,
        }
    }

    /// `None`: the program ends.
    async fn observe(&mut self, shared: &Shared, cluster: &ClusterId) -> Option<Fact> {
        let places = match self {
            Self::Probe(_) => &shared.probes,
            Self::Scrape(_) => &shared.scrapes,
        };
        let _place = places.take(&cluster.import.namespace).await?;
        let cluster = cluster.clone();
        Some(match self {
            Self::Probe(probe) => {
                let limit = probe.timeout;
                let result = probe.run(&shared.system, &shared.resolver);
                let result = timeout(limit, result).await;
                let result = result.unwrap_or(Err("no answer in time"));
                shared.metrics.probed(result.is_ok());
                Fact::Probed { cluster, result }
            }
            Self::Scrape(scrape) => {
                let reading = scrape.run(&cluster.import.name, SCRAPE_TIME, &shared.resolver);
                let result = timeout(SCRAPE_TIME, reading).await;
                let result = result.unwrap_or(Err("no answer in time"));
                shared.metrics.scraped(result.is_ok());
                Fact::Scraped { cluster, result }
            }
        })
    }
}

#[cfg(test)]
mod tests;
