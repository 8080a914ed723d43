//! What is known of an endpoint's load: its own metrics, and the requests we sent since.
//!
//! A scrape is a look into the past. Between two scrapes our own picks are the only news, so they are
//! counted on top at the moment of the pick; otherwise every request of one scrape interval would go
//! to the same, seemingly idle, endpoint.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::endpoint::Endpoint;
use moment::Moment;

/// 3 scrapes in a row without any answer: one lost packet must not empty a pool, and at the default
/// interval three still fit in well under a second when the connection is refused.
const SUSPECT_AFTER: u32 = 3;

/// Load of one endpoint. Written by its scraper and by guards, read by every pick.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    picks: AtomicU64,
    scrape: Mutex<LastScrape>,
}

/// Counts one request as in flight at an endpoint, from the pick until this is dropped.
#[derive(Debug)]
#[must_use = "dropping the guard ends the request's count"]
pub struct InFlight {
    endpoint: Arc<Endpoint>,
}

/// What one metrics page said. A value the page lacks leaves the last known one in place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scraped {
    /// Requests in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests being run.
    pub running: Option<f64>,
    /// Used share of the KV cache, 0 to 1.
    pub kv: Option<f64>,
}

/// Taken when a scrape is sent: picks after it may be missing from the page it brings.
#[derive(Clone, Copy, Debug)]
pub struct ScrapeStart {
    at: Moment,
    picks: u64,
}

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

/// How much a [`LoadView`] can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quality {
    /// Scraped a moment ago.
    Fresh,
    /// From an older scrape, still used.
    Stale,
    /// Never scraped or too long ago: the mean of the others stands in.
    Unknown,
    /// Several scrapes in a row got no answer at all: avoided while another candidate is left.
    Suspect,
}

/// One consistent reading of a [`Load`], before the unknown parts are filled in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Last scraped values, unless they are too old; `(waiting, running, kv)`.
    pub scraped: Option<(f64, f64, f64)>,
    /// Requests of ours that the scraped values may not contain.
    pub unscraped: u32,
    /// All requests of ours in flight.
    pub in_flight: u32,
    /// Trust in the above.
    pub quality: Quality,
}

/// Load as the scorers see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadView {
    /// Waiting requests, our own unscraped ones included; never negative.
    pub waiting: f64,
    /// Running requests.
    pub running: f64,
    /// Used share of the KV cache, 0 to 1.
    pub kv: f64,
    /// Requests of ours in flight.
    pub in_flight: u32,
    /// Trust in the above.
    pub quality: Quality,
}

#[derive(Debug, Default)]
struct LastScrape {
    /// Absent until a page had at least one of the values.
    at: Option<Moment>,
    picks_before: u64,
    waiting: f64,
    running: f64,
    kv: f64,
    unreachable_in_a_row: u32,
}

// === impl Load ===

impl Load {
    /// To be called when a scrape is about to be sent.
    pub fn scrape_starts(&self, now: Moment) -> ScrapeStart {
        ScrapeStart {
            at: now,
            picks: self.picks.load(Ordering::Acquire),
        }
    }

    /// Takes the values of a page.
    ///
    /// # Errors
    /// A page without any known value is noted as [`ScrapeFailure::Useless`], and that is returned.
    pub fn scraped(&self, start: ScrapeStart, page: Scraped) -> Result<(), ScrapeFailure> {
        if page == Scraped::default() {
            self.scrape_failed(ScrapeFailure::Useless);
            return Err(ScrapeFailure::Useless);
        }
        let mut last = self.scrape.lock();
        last.at = Some(start.at);
        last.picks_before = start.picks;
        last.waiting = page.waiting.unwrap_or(last.waiting);
        last.running = page.running.unwrap_or(last.running);
        last.kv = page.kv.unwrap_or(last.kv);
        last.unreachable_in_a_row = 0;
        Ok(())
    }

    /// Notes a failed scrape; the last values stay and age.
    pub fn scrape_failed(&self, failure: ScrapeFailure) {
        let mut last = self.scrape.lock();
        match failure {
            ScrapeFailure::Unreachable => {
                last.unreachable_in_a_row = last.unreachable_in_a_row.saturating_add(1);
            }
            // A useless page ends the row, but only a good one clears the suspicion.
            ScrapeFailure::Useless if last.unreachable_in_a_row < SUSPECT_AFTER => {
                last.unreachable_in_a_row = 0;
            }
            ScrapeFailure::Useless => {}
        }
    }

    /// Requests of ours in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Requests ever sent here.
    pub fn picks(&self) -> u64 {
        self.picks.load(Ordering::Acquire)
    }

    /// Everything known at `now`.
    pub fn read(&self, now: Moment, freshness: Freshness) -> Reading {
        let in_flight = self.in_flight();
        let last = self.scrape.lock();
        let age = last.at.map(|at| now.since(at));
        let (scraped, by_age) = match age {
            Some(age) if age <= freshness.fresh_for => (true, Quality::Fresh),
            Some(age) if age <= freshness.stale_for => (true, Quality::Stale),
            Some(_) | None => (false, Quality::Unknown),
        };
        let since =
            u32::try_from(self.picks().saturating_sub(last.picks_before)).unwrap_or(u32::MAX);
        Reading {
            scraped: scraped.then_some((last.waiting, last.running, last.kv)),
            unscraped: since.min(in_flight),
            in_flight,
            quality: if last.unreachable_in_a_row >= SUSPECT_AFTER {
                Quality::Suspect
            } else {
                by_age
            },
        }
    }

    fn add(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.picks.fetch_add(1, Ordering::AcqRel);
    }

    fn release(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

// === impl InFlight ===

impl InFlight {
    /// Counts a new request at `endpoint` from now on.
    pub fn at(endpoint: Arc<Endpoint>) -> Self {
        endpoint.load().add();
        Self { endpoint }
    }

    /// Where the request is counted.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The request turned out to be served elsewhere.
    pub fn move_to(&mut self, endpoint: Arc<Endpoint>) {
        if !Arc::ptr_eq(&self.endpoint, &endpoint) {
            *self = Self::at(endpoint);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.load().release();
    }
}

// === impl LoadView ===

impl LoadView {
    /// Fills what `reading` lacks from `mean`, the mean `(waiting, running, kv)` of the candidates that
    /// are known; zeros where none is.
    pub fn new(reading: Reading, mean: (f64, f64, f64)) -> Self {
        let Reading {
            scraped,
            unscraped,
            in_flight,
            quality,
        } = reading;
        let ((waiting, running, kv), own) = match scraped {
            Some(values) => (values, unscraped),
            None => (mean, in_flight),
        };
        Self {
            waiting: waiting + f64::from(own),
            running,
            kv,
            in_flight,
            quality,
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
