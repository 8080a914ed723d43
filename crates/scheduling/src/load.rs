//! What is known of an endpoint's load: its own metrics, and the requests we sent since.
//!
//! A scrape is a look into the past. Between two scrapes our own picks are the only news, so they are
//! counted on top at the moment of the pick; otherwise every request of one scrape interval would go
//! to the same, seemingly idle, endpoint. A request that a gateway far away was answered for arrives
//! later still: it counts until a scrape began after its arrival.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use moment::Moment;
use parking_lot::Mutex;

use crate::endpoint::Endpoint;

mod booking;

pub use booking::Booking;

/// 3 scrapes in a row without any answer: one lost packet must not empty a pool, and at the default
/// interval three still fit in well under a second when the connection is refused.
const SUSPECT_AFTER: u32 = 3;

/// Picks of one endpoint that wait to be seen by a scrape: 80,000 a second at the default interval. Past it the oldest
/// counts as seen.
const MAX_UNSEEN: usize = 4096;

/// Seconds by which two texts of one process' start may differ.
pub const SAME_START: f64 = 2.0;

/// No request is longer on its way than this.
pub const MAX_TRANSIT: Duration = Duration::from_secs(1);

/// Load of one endpoint. Written by its scraper and by bookings, read by every pick without a lock.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    /// Uncached prompt tokens of requests whose response has not begun.
    tokens: AtomicU64,
    /// What the same requests were charged by the LLM filter.
    prefill: AtomicU64,
    picks: AtomicU64,
    /// Length of `unseen`.
    unseen_count: AtomicU32,
    unseen: Mutex<VecDeque<Unseen>>,
    scrape: ArcSwap<Scrape>,
    unreachable_in_a_row: AtomicU32,
}

/// What one metrics page said. A value the page lacks leaves the last known one in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scraped {
    /// Requests in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests being run.
    pub running: Option<f64>,
    /// Used share of the KV cache, 0 to 1.
    pub kv: Option<f64>,
    /// LoRA adapters.
    pub lora: PageLora,
    /// The KV cache's layout.
    pub cache: Option<CacheLayout>,
    /// When the engine's process started, in seconds since 1970: another value is another process.
    pub started: Option<f64>,
}

/// The LoRA adapters that a page reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PageLora {
    /// The page reports nothing about adapters.
    #[default]
    Absent,
    /// The page reports the same adapters as the page before.
    Unchanged,
    /// The page reports these adapters.
    Now(Lora),
}

/// The LoRA adapters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    /// Loaded, with requests being run.
    pub running: Vec<Box<str>>,
    /// With requests that wait for them.
    pub waiting: Vec<Box<str>>,
    /// How many can be loaded at once.
    pub max: u32,
}

/// The layout of an engine's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Tokens of one block.
    pub block_tokens: u32,
    /// Blocks there are.
    pub blocks: u32,
}

/// Taken when a scrape is sent: requests that arrive after it may be missing from the page it brings.
#[derive(Clone, Copy, Debug)]
pub struct ScrapeStart(Moment);

/// Why a scrape brought no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeFailure {
    /// Refused, reset or timed out: the server may be gone.
    Unreachable,
    /// An error status or an unusable page: the server lives, its metrics do not.
    Useless,
}

/// How long the values of a scrape count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Up to this age values are [`Quality::Fresh`].
    pub fresh_for: Duration,
    /// Up to this age they are [`Quality::Stale`], beyond it [`Quality::Unknown`].
    pub stale_for: Duration,
}

/// How much a value can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quality {
    /// Scraped a moment ago.
    Fresh,
    /// From an older scrape, still used.
    Stale,
    /// Never scraped or too long ago: the mean of the others stands in.
    #[default]
    Unknown,
    /// Several scrapes in a row got no answer at all: avoided while another candidate is left.
    Suspect,
}

/// One reading of a [`Load`], before the unknown parts are filled in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Last scraped values, each unless it is too old.
    pub scraped: Values<Option<f64>>,
    /// Requests of ours that the scraped values may not contain.
    pub unseen: u32,
    /// All requests of ours in flight.
    pub in_flight: u32,
    /// Uncached prompt tokens of those whose response has not begun.
    pub tokens: u64,
    /// Unfinished prefill, as the LLM filter charges it.
    pub prefill: u64,
    /// Trust in the queue's length, on which most decisions stand.
    pub quality: Quality,
    /// How often the engine's process was seen to be another one.
    pub restarts: u32,
}

/// The three values of a page that scores are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values<T> {
    /// Waiting requests.
    pub waiting: T,
    /// Running requests.
    pub running: T,
    /// Used share of the KV cache, 0 to 1.
    pub kv: T,
}

/// A pick whose request may not have been at its server when the last scrape began.
#[derive(Debug)]
struct Unseen {
    arrival: Moment,
    adapter: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
struct Scrape {
    values: Values<Dated>,
    /// The adapters, with the time of the last page that reported them.
    lora: Option<(Arc<Lora>, Moment)>,
    cache: Option<CacheLayout>,
    started: Option<f64>,
    restarts: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Dated {
    value: f64,
    /// Absent until a page had it.
    at: Option<Moment>,
}

// === impl Load ===

impl Load {
    /// To be called when a scrape is about to be sent.
    pub fn scrape_starts(&self, now: Moment) -> ScrapeStart {
        ScrapeStart(now)
    }

    /// Takes the values of a page. One writer at a time: the endpoint's scraper.
    ///
    /// # Errors
    /// A page without any known value is noted as [`ScrapeFailure::Useless`], and that is returned.
    pub fn scraped(&self, start: ScrapeStart, page: Scraped) -> Result<(), ScrapeFailure> {
        let Scraped {
            waiting,
            running,
            kv,
            lora,
            cache,
            started,
        } = page;
        if waiting.is_none() && running.is_none() && kv.is_none() {
            self.scrape_failed(ScrapeFailure::Useless);
            return Err(ScrapeFailure::Useless);
        }
        if waiting.is_some() {
            let mut unseen = self.unseen.lock();
            unseen.retain(|pick| pick.arrival >= start.0);
            self.count_unseen(&unseen);
        }
        let last = self.scrape.load();
        let other = |now: f64| {
            last.started
                .is_some_and(|was| (was - now).abs() > SAME_START)
        };
        let other_process = started.is_some_and(other);
        let dated = |value: Option<f64>, last: Dated| match value {
            Some(value) => Dated {
                value,
                at: Some(start.0),
            },
            None => last,
        };
        let Values {
            waiting: last_waiting,
            running: last_running,
            kv: last_kv,
        } = last.values;
        let told = last.lora.as_ref();
        let lora = match lora {
            PageLora::Now(lora) => {
                let same = told.filter(|(told, _)| **told == lora);
                Some(same.map_or_else(|| Arc::new(lora.clone()), |(told, _)| Arc::clone(told)))
            }
            PageLora::Unchanged => told.map(|(told, _)| Arc::clone(told)),
            PageLora::Absent => None,
        };
        let lora = match lora {
            Some(lora) => Some((lora, start.0)),
            // adapters of a former process are not loaded in the new one
            None => last.lora.clone().filter(|_| !other_process),
        };
        self.scrape.store(Arc::new(Scrape {
            values: Values {
                waiting: dated(waiting, last_waiting),
                running: dated(running, last_running),
                kv: dated(kv, last_kv),
            },
            lora,
            cache: cache.or(last.cache),
            started: started.or(last.started),
            restarts: last.restarts.wrapping_add(other_process.into()),
        }));
        self.unreachable_in_a_row.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Notes a failed scrape; the last values stay and age.
    pub fn scrape_failed(&self, failure: ScrapeFailure) {
        let before = self.unreachable_in_a_row.load(Ordering::Relaxed);
        let after = match failure {
            ScrapeFailure::Unreachable => before.saturating_add(1),
            // The server answered: it may be one whose metrics nobody can read, and serve well.
            ScrapeFailure::Useless => 0,
        };
        self.unreachable_in_a_row.store(after, Ordering::Relaxed);
    }

    /// Requests of ours in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Unfinished prefill, in the unit of what [`Booking::charged`] was given.
    pub fn prefill(&self) -> u64 {
        self.prefill.load(Ordering::Acquire)
    }

    /// Requests ever sent here.
    pub fn picks(&self) -> u64 {
        self.picks.load(Ordering::Acquire)
    }

    /// LoRA adapters by the last page that named them, unless that is too long ago.
    pub fn lora(&self, now: Moment, freshness: Freshness) -> Option<Arc<Lora>> {
        let scrape = self.scrape.load();
        let (lora, at) = scrape.lora.as_ref()?;
        let is_known = freshness.quality(Some(now.since(*at))) < Quality::Unknown;
        is_known.then(|| Arc::clone(lora))
    }

    /// The KV cache's layout by the last page that told it.
    pub fn cache(&self) -> Option<CacheLayout> {
        self.scrape.load().cache
    }

    /// How often the engine's process was seen to be another one: what was cached before is gone.
    pub fn restarts(&self) -> u32 {
        self.scrape.load().restarts
    }

    /// Adds the adapters of picks that no scrape has seen to `adapters`, each once.
    pub(crate) fn unseen_adapters(&self, adapters: &mut Vec<Arc<str>>) {
        for pick in self.unseen.lock().iter() {
            if let Some(adapter) = &pick.adapter
                && !adapters.contains(adapter)
            {
                adapters.push(Arc::clone(adapter));
            }
        }
    }

    /// Everything known at `now`.
    pub fn read(&self, now: Moment, freshness: Freshness) -> Reading {
        let in_flight = self.in_flight();
        let scrape = self.scrape.load();
        let value = |dated: Dated| {
            let quality = freshness.quality(dated.at.map(|at| now.since(at)));
            (quality < Quality::Unknown).then_some(dated.value)
        };
        let Values {
            waiting,
            running,
            kv,
        } = scrape.values;
        let quality = if self.unreachable_in_a_row.load(Ordering::Relaxed) >= SUSPECT_AFTER {
            Quality::Suspect
        } else {
            freshness.quality(waiting.at.map(|at| now.since(at)))
        };
        Reading {
            scraped: Values {
                waiting: value(waiting),
                running: value(running),
                kv: value(kv),
            },
            unseen: self.unseen_count.load(Ordering::Acquire).min(in_flight),
            in_flight,
            tokens: self.tokens.load(Ordering::Acquire),
            prefill: self.prefill(),
            quality,
            restarts: scrape.restarts,
        }
    }

    fn add(&self, tokens: u32, arrival: Moment, adapter: Option<Arc<str>>) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.tokens.fetch_add(tokens.into(), Ordering::AcqRel);
        self.picks.fetch_add(1, Ordering::AcqRel);
        let mut unseen = self.unseen.lock();
        // No more can be unseen than are in flight: where no page tells the queue, none is ever seen.
        let most = usize::try_from(self.in_flight()).unwrap_or(usize::MAX);
        while unseen.len() >= most.clamp(1, MAX_UNSEEN) {
            unseen.pop_front();
        }
        unseen.push_back(Unseen { arrival, adapter });
        self.count_unseen(&unseen);
    }

    fn count_unseen(&self, unseen: &VecDeque<Unseen>) {
        let count = u32::try_from(unseen.len()).unwrap_or(u32::MAX);
        self.unseen_count.store(count, Ordering::Release);
    }
}

// === impl Reading ===

impl Reading {
    /// What scorers see: what is lacking is filled from `mean`, the means of the candidates that have the value.
    /// `(waiting, running, kv)`, the first with our own requests on top that the engine does not show yet.
    pub fn filled(&self, mean: Values<f64>) -> Values<f64> {
        let Values {
            waiting,
            running,
            kv,
        } = self.scraped;
        let waiting = match waiting {
            Some(waiting) => waiting + f64::from(self.unseen),
            None => mean.waiting + f64::from(self.in_flight),
        };
        Values {
            waiting,
            running: running.unwrap_or(mean.running),
            kv: kv.unwrap_or(mean.kv),
        }
    }
}

// === impl Quality ===

impl Quality {
    /// All values, best first.
    pub const ALL: [Self; 4] = [Self::Fresh, Self::Stale, Self::Unknown, Self::Suspect];

    /// Label of metrics and debug output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
            Self::Suspect => "suspect",
        }
    }
}

// === impl Freshness ===

impl Freshness {
    fn quality(self, age: Option<Duration>) -> Quality {
        match age {
            Some(age) if age <= self.fresh_for => Quality::Fresh,
            Some(age) if age <= self.stale_for => Quality::Stale,
            Some(_) | None => Quality::Unknown,
        }
    }
}

impl Default for Freshness {
    /// 2 s and 10 s: forty and two hundred scrapes at the default interval.
    fn default() -> Self {
        Self {
            fresh_for: Duration::from_secs(2),
            stale_for: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests;
