//! The pages that explain: why prompts went where they went, and what is known of the workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use axum::{Json, Router, extract::State, routing::get};
use kv_router::{
    Candidate, Decision, Load, NoWorker, NotBooked, Overlap, Policy, Prompt, Scratch, Weights,
};
use moment::{Clock, Moment};
use processor_api::RouteRequest;
use serde::{Serialize, Serializer};

use crate::pool::{Pool, Rank, Table, Worker};

/// The last choices. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Routes(Arc<Ring>);

#[derive(Debug)]
struct Ring {
    records: Box<[ArcSwapOption<Record>]>,
    /// Choices so far.
    next: AtomicUsize,
}

/// One choice.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    #[serde(skip)]
    at: Moment,
    #[serde(skip)]
    number: usize,
    request_id: Option<String>,
    reservation_id: String,
    model: Option<String>,
    lora_name: Option<String>,
    has_cache_salt: bool,
    ids: u32,
    prompt_blocks: usize,
    worker: Option<Box<str>>,
    source: &'static str,
    overlap_blocks: u32,
    /// `yes`, or why not.
    booked: &'static str,
    took_us: f64,
    /// By cost.
    candidates: Vec<Considered>,
    /// Above the busy threshold.
    busy: Vec<Considered>,
    /// Candidates that are not shown.
    left_out: usize,
}

/// A worker that was considered.
#[derive(Clone, Debug, Serialize)]
struct Considered {
    worker: Box<str>,
    dp_rank: u8,
    /// Blocks by its events.
    exact: Places,
    /// Blocks by all that is known.
    overlap: Places,
    /// Blocks of the prompt that its other requests have.
    active_blocks: u32,
    load: Work,
    cost: f64,
    terms: Terms,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Places {
    gpu: u32,
    host: u32,
    disk: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Work {
    prefill_tokens: u64,
    decode_blocks: u64,
    requests: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Terms {
    prefill: f64,
    decode: f64,
    requests: f64,
}

#[derive(Debug, Serialize)]
struct RoutesPage {
    block_size: usize,
    weights: WeightsShown,
    temperature: f64,
    busy_tokens: Option<u64>,
    /// The last first.
    routes: Vec<Shown>,
}

#[derive(Debug, Serialize)]
struct WeightsShown {
    overlap_credit: f64,
    prefill: f64,
    decode: f64,
    request_tokens: f64,
    overlap_decay: f64,
}

#[derive(Debug, Serialize)]
struct Shown {
    seconds_ago: f64,
    #[serde(flatten, serialize_with = "of_record")]
    record: Arc<Record>,
}

#[derive(Debug, Serialize)]
struct WorkersPage {
    bookings: usize,
    workers: Vec<WorkerShown>,
}

#[derive(Debug, Serialize)]
struct WorkerShown {
    worker: Box<str>,
    worker_address: Box<str>,
    dp_rank: u8,
    /// Of its stream of events.
    state: &'static str,
    reason: Option<String>,
    /// Of the last message.
    sequence: Option<u64>,
    /// How late that was, by the clocks of both.
    lag_ms: u64,
    blocks: usize,
    load: Option<Work>,
}

/// What the pages show.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) pool: Arc<Pool>,
    pub(crate) policy: Policy,
    pub(crate) routes: Routes,
    pub(crate) clock: Clock,
}

/// Choices that are kept.
const RECORDS: usize = 256;

/// Candidates of one choice that are kept: 256 times as many take 60 MB.
const MAX_SHOWN: usize = 1024;

/// Bytes of a text that a client chose.
const MAX_TEXT: usize = 128;

/// Where events are not followed.
pub(crate) const OFF: &str = "off";

// === impl Routes ===

impl Routes {
    /// Without one.
    pub fn new() -> Self {
        let records = (0..RECORDS).map(|_| ArcSwapOption::empty());
        Self(Arc::new(Ring {
            records: records.collect(),
            next: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn add(&self, mut record: Record) {
        record.number = self.0.next.fetch_add(1, Relaxed);
        if let Some(place) = self.0.records.get(record.number % RECORDS) {
            place.store(Some(Arc::new(record)));
        }
    }

    /// The last first.
    fn all(&self) -> Vec<Arc<Record>> {
        let records = self.0.records.iter();
        let mut all: Vec<_> = records.filter_map(ArcSwapOption::load_full).collect();
        all.sort_by_key(|record| std::cmp::Reverse(record.number));
        all
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Record ===

impl Record {
    pub(crate) fn new(
        request: &RouteRequest<'_>,
        prompt: &Prompt<'_>,
        decided: &Result<Decision, NoWorker>,
        scratch: &Scratch,
        table: &Table,
        now: Moment,
    ) -> Self {
        let shown = |all: &[Candidate]| -> Vec<Considered> {
            let shown = all.iter().take(MAX_SHOWN);
            shown.filter_map(|it| Considered::new(it, table)).collect()
        };
        let mut candidates = shown(&scratch.candidates);
        candidates.sort_by(|one, other| one.cost.total_cmp(&other.cost));
        let busy = shown(&scratch.busy);
        let all = scratch.candidates.len() + scratch.busy.len();
        let left_out = all.saturating_sub(candidates.len() + busy.len());
        let decision = decided.as_ref();
        Self {
            at: now,
            number: 0,
            request_id: request.request_id.as_deref().map(shortened),
            reservation_id: prompt.id.to_owned(),
            model: request.model.as_deref().map(shortened),
            lora_name: request.lora_name.as_deref().map(shortened),
            has_cache_salt: request.cache_salt.as_ref().is_some_and(|it| !it.is_empty()),
            ids: prompt.ids,
            prompt_blocks: prompt.chain.len(),
            worker: decision
                .ok()
                .and_then(|it| table.of(it.worker))
                .map(|it| it.name.clone()),
            source: decision.map_or_else(|why| why.reason(), |it| it.source.name()),
            overlap_blocks: decision.map_or(0, |it| it.overlap.blocks()),
            booked: match decision.map(|it| it.booked) {
                Ok(Ok(())) => "yes",
                Ok(Err(why)) => not_booked(why),
                Err(_) => "no",
            },
            took_us: 0.0,
            candidates,
            busy,
            left_out,
        }
    }

    pub(crate) fn took(mut self, took: Duration) -> Self {
        self.took_us = took.as_secs_f64() * 1e6;
        self
    }
}

// === impl Considered ===

impl Considered {
    fn new(candidate: &Candidate, table: &Table) -> Option<Self> {
        let Candidate {
            slot,
            exact,
            overlap,
            view,
            terms,
        } = *candidate;
        let worker = table.of(slot)?;
        Some(Self {
            worker: worker.name.clone(),
            dp_rank: worker.rank(slot)?.number,
            exact: exact.into(),
            overlap: overlap.into(),
            active_blocks: view.active,
            load: view.load.into(),
            cost: terms.sum(),
            terms: Terms {
                prefill: terms.prefill,
                decode: terms.decode,
                requests: terms.requests,
            },
        })
    }
}

impl From<Overlap> for Places {
    fn from(overlap: Overlap) -> Self {
        let Overlap { gpu, host, disk } = overlap;
        Self { gpu, host, disk }
    }
}

impl From<Load> for Work {
    fn from(load: Load) -> Self {
        let Load {
            prefill_tokens,
            decode_blocks,
            requests,
        } = load;
        Self {
            prefill_tokens,
            decode_blocks,
            requests,
        }
    }
}

// === impl Pages ===

impl Pages {
    /// `/debug/routes` and `/debug/workers`.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/debug/routes", get(routes))
            .route("/debug/workers", get(workers))
            .with_state(self)
    }

    fn routes(&self) -> RoutesPage {
        let Policy {
            weights,
            temperature,
            busy_tokens,
        } = self.policy;
        let Weights {
            overlap_credit,
            prefill,
            decode,
            request_tokens,
            overlap_decay,
            is_clamped: _,
        } = weights;
        let now = self.clock.now();
        let shown = |record: Arc<Record>| Shown {
            seconds_ago: now.since(record.at).as_secs_f64(),
            record,
        };
        RoutesPage {
            block_size: self.pool.workers.index.block_size(),
            weights: WeightsShown {
                overlap_credit,
                prefill,
                decode,
                request_tokens,
                overlap_decay,
            },
            temperature,
            busy_tokens,
            routes: self.routes.all().into_iter().map(shown).collect(),
        }
    }

    fn workers(&self) -> WorkersPage {
        let (table, loads, now) = (
            self.pool.table(),
            &self.pool.workers.loads,
            self.clock.now(),
        );
        let shown = |worker: &Worker, rank: &Rank| WorkerShown {
            worker: worker.name.clone(),
            worker_address: worker.destination.clone(),
            dp_rank: rank.number,
            state: rank.events.state().map_or(OFF, |state| state.name()),
            reason: rank.events.reason(),
            sequence: rank.events.sequence(),
            lag_ms: rank.events.lag_ms.load(Relaxed),
            blocks: rank.events.blocks.load(Relaxed),
            load: loads.of(rank.slot, now).map(Work::from),
        };
        let ranks = table.workers().iter().flat_map(|worker| {
            let ranks = worker.ranks.iter();
            ranks.map(|rank| shown(worker, rank))
        });
        WorkersPage {
            bookings: loads.bookings(),
            workers: ranks.collect(),
        }
    }
}

async fn routes(State(pages): State<Pages>) -> Json<RoutesPage> {
    Json(pages.routes())
}

async fn workers(State(pages): State<Pages>) -> Json<WorkersPage> {
    Json(pages.workers())
}

/// Why a prompt was not booked, as pages and metrics have it.
pub(crate) fn not_booked(why: NotBooked) -> &'static str {
    match why {
        NotBooked::Ended => "ended",
        NotBooked::Duplicate => "duplicate",
        NotBooked::Full => "full",
        NotBooked::Gone => "gone",
    }
}

fn of_record<S: Serializer>(record: &Record, serializer: S) -> Result<S::Ok, S::Error> {
    record.serialize(serializer)
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
