//! Flow control: the requests that wait while the pool is saturated.
//!
//! ```text
//!  request ─ enqueue ─► band by priority ─► flow by fairness id ─┬─ next ──► the caller picks for it
//!             │ Full                                             ├─ expire ► its time is over
//!             ▼                                                  ├─ cancel ► its client is gone
//!            429                                                 └─ drain ─► the program ends
//! ```
//!
//! The [`Controller`] holds no request, only a [`Ticket`] for each and what its order depends on; it knows
//! neither endpoints nor how saturation is measured. Each ticket leaves it exactly once, by one of the
//! four ways above. Per ticket every call costs the logarithm of what waits; only [`Controller::set_regime`]
//! and [`Controller::reconfigure`], which no request causes, look at everything that waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use moment::Moment;

use self::{
    budget::Budget,
    order::{Bands, Place},
    usage::Counts,
};

mod budget;
mod config;
mod order;
mod usage;

pub use budget::Regime;
pub use config::{BandConfig, Config, Fairness, Ordering};
pub use usage::{FlowUsage, Usage};

/// The saturation from which on nothing is dispatched.
const SATURATED: f64 = 1.0;

/// The queue of one pool.
#[derive(Debug)]
pub struct Controller {
    config: Config,
    regime: Regime,
    /// At one request per nanosecond 64 bits last 584 years.
    next_ticket: u64,
    requests: BTreeMap<Ticket, Request>,
    counts: Counts,
    /// Of the requests those that can be dispatched.
    bands: Bands,
    /// When the time of each of these is over, where it ends.
    due: BTreeSet<(Moment, Ticket)>,
    /// The requests whose time is over, until [`Controller::expire`] reports them.
    overdue: BTreeSet<(Moment, Ticket)>,
}

/// A request that asks to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The band; a higher one goes first, always.
    pub priority: i32,
    /// The flow within the band.
    pub fairness_id: Arc<str>,
    /// What it holds in memory while it waits.
    pub bytes: u64,
    /// The longest its client wants to wait for a busy pool. It shortens [`Config::default_ttl`] and never
    /// lengthens it; zero is no wish. [`Ordering::Edf`] orders by the result.
    pub ttl: Option<Duration>,
}

/// Names one request from its enqueuing on; never used for another. Lower ones came earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A request whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The request.
    pub ticket: Ticket,
    /// The regime in which its time was over: 429 or 503.
    pub regime: Regime,
}

/// No room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The band holds as many requests as it may.
    #[error(
        "{limit} requests of priority {priority} wait already: retry later, or raise maxRequests of the band"
    )]
    BandRequests {
        /// The band.
        priority: i32,
        /// Its cap.
        limit: u64,
    },
    /// The request would exceed the bytes of its band.
    #[error(
        "requests of priority {priority} may hold {limit} bytes while they wait: retry later, or raise maxBytes of the band"
    )]
    BandBytes {
        /// The band.
        priority: i32,
        /// Its cap.
        limit: u64,
    },
    /// All bands together hold as many requests as they may.
    #[error("{limit} requests wait already: retry later, or raise flowControl.maxRequests")]
    Requests {
        /// The cap.
        limit: u64,
    },
    /// The request would exceed the bytes of all bands together.
    #[error(
        "requests may hold {limit} bytes while they wait: retry later, or raise flowControl.maxBytes"
    )]
    Bytes {
        /// The cap.
        limit: u64,
    },
}

#[derive(Debug)]
struct Request {
    priority: i32,
    fairness_id: Arc<str>,
    bytes: u64,
    enqueued: Moment,
    budget: Budget,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// It can be dispatched until then; `None`: without end.
    Waiting { due: Option<Moment> },
    /// Its time was over then, in that regime.
    Overdue { due: Moment, regime: Regime },
}

// === impl Controller ===

impl Controller {
    /// An empty queue of a pool that is now in `regime`.
    pub fn new(config: Config, regime: Regime) -> Self {
        Self {
            config,
            regime,
            next_ticket: 0,
            requests: BTreeMap::new(),
            counts: Counts::default(),
            bands: Bands::default(),
            due: BTreeSet::new(),
            overdue: BTreeSet::new(),
        }
    }

    /// Lets a request wait from `now` on. Where nothing waits and the pool has room, the following
    /// [`Controller::next`] returns it at once.
    ///
    /// # Errors
    /// [`Full`] if a cap in requests or bytes, of its band or of all bands, has no room for it.
    pub fn enqueue(&mut self, request: Waiting, now: Moment) -> Result<Ticket, Full> {
        let Waiting {
            priority,
            fairness_id,
            bytes,
            ttl,
        } = request;
        self.counts
            .add(&self.config, priority, &fairness_id, bytes)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let budget = Budget::new(&self.config, ttl);
        let due = budget.due(now, self.regime, now);
        let request = Request {
            priority,
            fairness_id,
            bytes,
            enqueued: now,
            budget,
            state: State::Waiting { due },
        };
        self.bands.insert(&self.config, request.place(ticket));
        self.due.extend(due.map(|due| (due, ticket)));
        self.requests.insert(ticket, request);
        Ok(ticket)
    }

    /// Takes one request to be dispatched; none where `saturation` is 1 or more (or not a number), or
    /// nothing waits. The caller picks for it, which raises the saturation, and then asks again.
    ///
    /// A request whose time is over at `now` is not dispatched, also where nobody asked
    /// [`Controller::expire`] for it yet.
    pub fn next(&mut self, now: Moment, saturation: f64) -> Option<Ticket> {
        self.advance(now);
        let free = saturation < SATURATED;
        let ticket = free.then(|| self.bands.pop()).flatten()?;
        let request = self.requests.remove(&ticket)?;
        self.forget(ticket, &request);
        Some(ticket)
    }

    /// The client of a request is gone. False: the request left before, by any way, and the caller knows.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some(request) = self.requests.remove(&ticket) else {
            return false;
        };
        self.bands.remove(request.place(ticket));
        self.forget(ticket, &request);
        true
    }

    /// Takes all requests whose time is over at `now`, the earliest first. Until then they hold their
    /// place and their bytes, for so does the caller.
    pub fn expire(&mut self, now: Moment) -> Vec<Expired> {
        self.advance(now);
        let mut expired = Vec::with_capacity(self.overdue.len());
        while let Some((_, ticket)) = self.overdue.pop_first() {
            let Some(request) = self.requests.remove(&ticket) else {
                continue;
            };
            self.forget(ticket, &request);
            if let State::Overdue { regime, .. } = request.state {
                expired.push(Expired { ticket, regime });
            }
        }
        expired
    }

    /// When [`Controller::expire`] has something to return next; past if it has already. It changes with
    /// any call.
    pub fn deadline(&self) -> Option<Moment> {
        // What is overdue was due before everything that is not.
        let first = self.overdue.first().or_else(|| self.due.first());
        first.map(|(due, _)| *due)
    }

    /// The pool lost its last endpoint at `now`, or has one again. Where that is a change, all that wait
    /// begin their time anew, within the longer of both times since they came. That looks at each of them:
    /// half a millisecond for 5000.
    pub fn set_regime(&mut self, regime: Regime, now: Moment) {
        if self.regime == regime {
            return;
        }
        self.advance(now);
        self.regime = regime;
        let Self {
            requests, due: all, ..
        } = self;
        let dues = requests.iter_mut().filter_map(|(ticket, request)| {
            let State::Waiting { due } = &mut request.state else {
                return None;
            };
            *due = request.budget.due(request.enqueued, regime, now);
            due.map(|due| (due, *ticket))
        });
        *all = dues.collect();
    }

    /// The regime, as set last.
    pub fn regime(&self) -> Regime {
        self.regime
    }

    /// Goes on under another config. Nobody who waits is refused or waits for less than was configured
    /// when he came; lower caps and other times count for those who come. Other policies count at once.
    pub fn reconfigure(&mut self, config: Config) {
        let moved = self.bands.take_outdated(&config);
        for ticket in moved {
            if let Some(request) = self.requests.get(&ticket) {
                self.bands.insert(&config, request.place(ticket));
            }
        }
        self.config = config;
    }

    /// Takes everything that is left, those whose time is over included, in the order they came.
    pub fn drain(&mut self) -> Vec<Ticket> {
        self.counts = Counts::default();
        self.bands = Bands::default();
        self.due.clear();
        self.overdue.clear();
        mem::take(&mut self.requests).into_keys().collect()
    }

    /// What waits in total.
    pub fn usage(&self) -> Usage {
        self.counts.total()
    }

    /// What waits in each band that holds a request, by priority, the highest first.
    pub fn bands(&self) -> impl Iterator<Item = (i32, Usage)> {
        self.counts.bands()
    }

    /// What waits in each flow that holds a request: by priority, the highest first, then by id. At most
    /// as many as requests wait.
    pub fn flows(&self) -> impl Iterator<Item = FlowUsage<'_>> {
        self.counts.flows()
    }

    /// From here on nothing can be dispatched whose time is over at `now`.
    fn advance(&mut self, now: Moment) {
        while let Some(&(due, ticket)) = self.due.first()
            && due <= now
        {
            self.due.pop_first();
            if let Some(request) = self.requests.get_mut(&ticket) {
                let regime = self.regime;
                request.state = State::Overdue { due, regime };
                self.bands.remove(request.place(ticket));
                self.overdue.insert((due, ticket));
            }
        }
    }

    /// Gives free what a request held that is no longer in `requests` and `bands`.
    fn forget(&mut self, ticket: Ticket, request: &Request) {
        match request.state {
            State::Waiting { due: Some(due) } => self.due.remove(&(due, ticket)),
            State::Waiting { due: None } => true,
            State::Overdue { due, .. } => self.overdue.remove(&(due, ticket)),
        };
        let Request {
            priority,
            fairness_id,
            bytes,
            ..
        } = request;
        self.counts.remove(*priority, fairness_id, *bytes);
    }
}

// === impl Request ===

impl Request {
    fn place(&self, ticket: Ticket) -> Place<'_> {
        Place {
            ticket,
            priority: self.priority,
            fairness_id: &self.fairness_id,
            deadline: self.budget.deadline(self.enqueued),
        }
    }
}

#[cfg(test)]
mod tests;
