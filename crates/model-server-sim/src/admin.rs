//! `/admin`: what a test sets and sees of the simulator itself.

mod fake;
mod knobs;
mod log;
mod range;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json,
    extract::{Request, State},
    http::{StatusCode, Uri, request::Parts},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use xxhash_rust::xxh64::xxh64;

pub(crate) use self::knobs::{FACTOR_UNDER_LOAD, STD_DEV, TIME_SCALE};
use self::{fake::FakeClock, knobs::KnobBoard, log::RequestLog};
pub use self::{
    fake::{FakeValue, FakeValueError},
    knobs::{Cut, Fail, FakeMetrics, Knobs, LatencyKnobs},
};
use crate::{
    api::{ApiError, read_body},
    engine::{Latency, Moment, share},
    metrics::FakeValues,
    server::App,
};

/// 64 KiB: a hundred times the largest sensible configuration.
const CONFIG_BODY_LIMIT: usize = 64 * 1024;

/// 1 h: a hung request whose client never leaves ends then.
const LONGEST_HANG: Duration = Duration::from_hours(1);

/// Knobs and request log of one server.
#[derive(Debug)]
pub(crate) struct Admin {
    board: Mutex<KnobBoard>,
    /// The knobs in force; requests that hang wait for a change.
    knobs: watch::Sender<Knobs>,
    fake: Mutex<FakeClock>,
    /// The page of `/metrics` while it is frozen.
    frozen_page: Mutex<Option<String>>,
    start: Instant,
    log: Mutex<RequestLog>,
    seed: u64,
    /// Requests for which chance has decided whether they fail.
    draws: AtomicU64,
}

// === impl Admin ===

impl Admin {
    /// Starts with these knobs; `seed` decides which requests fail.
    pub(crate) fn new(knobs: Knobs, seed: u64) -> Self {
        Self {
            board: Mutex::new(KnobBoard::new(&knobs)),
            knobs: watch::Sender::new(knobs),
            fake: Mutex::new(FakeClock::default()),
            frozen_page: Mutex::new(None),
            start: Instant::now(),
            log: Mutex::new(RequestLog::default()),
            seed,
            draws: AtomicU64::new(0),
        }
    }

    /// The knobs in force.
    pub(crate) fn knobs(&self) -> Knobs {
        self.knobs.borrow().clone()
    }

    /// Keeps what a test may want to see of a request; gives back its number.
    pub(crate) fn record(&self, parts: &Parts, body: &[u8]) -> u64 {
        self.log.lock().push(parts, body, Timestamp::now())
    }

    /// Adds to a recorded request how much of its prompt the prefix cache held.
    pub(crate) fn record_cached(&self, number: u64, cached_tokens: u32) {
        self.log.lock().set_cached(number, cached_tokens);
    }

    /// Adds to a recorded request where the token ids of its prompt came from.
    pub(crate) fn record_tokens(
        &self,
        number: u64,
        source: &'static str,
        reason: Option<&'static str>,
        checksum: String,
    ) {
        self.log.lock().set_tokens(number, source, reason, checksum);
    }

    /// What `/metrics` tells now in place of the truth.
    pub(crate) fn fake_values(&self) -> FakeValues {
        self.fake.lock().values(self.now())
    }

    /// The page of `/metrics`: that of the moment when it was frozen, else `page`.
    pub(crate) fn page(&self, page: impl FnOnce() -> String) -> String {
        let frozen = self.knobs.borrow().metrics.frozen;
        let mut kept = self.frozen_page.lock();
        if frozen {
            return kept.get_or_insert_with(page).clone();
        }
        *kept = None;
        drop(kept);
        page()
    }

    /// After how many tokens a stream that begins now breaks off.
    pub(crate) fn cut_after(&self) -> Option<u32> {
        let cut = self.knobs.borrow().cut?;
        (self.draw() < cut.rate).then_some(cut.after_tokens)
    }

    /// Does to a request what the knobs say: lets it hang, resets, rejects or fails it.
    ///
    /// # Errors
    /// [`ApiError::ToldToReset`], [`ApiError::ToldToReject`] and [`ApiError::ToldToFail`].
    pub(crate) async fn disturb(&self) -> Result<(), ApiError> {
        let mut knobs = self.knobs.subscribe();
        // An error or the end of the hour means: hang no longer. The sender lives as long as `self`.
        let _ = timeout(LONGEST_HANG, knobs.wait_for(|knobs| !knobs.hang)).await;
        let knobs = self.knobs();
        if knobs.reset.is_some_and(|rate| self.draw() < rate) {
            return Err(ApiError::ToldToReset);
        }
        if knobs.reject {
            return Err(ApiError::ToldToReject);
        }
        match knobs.fail {
            Some(fail) if self.draw() < fail.rate => {
                // Validated when it was set.
                let status =
                    StatusCode::from_u16(fail.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Err(ApiError::ToldToFail(status))
            }
            _ => Ok(()),
        }
    }

    fn now(&self) -> Moment {
        Moment::new(self.start.elapsed())
    }

    /// Evenly spread over [0, 1); the same row of numbers for the same seed.
    fn draw(&self) -> f64 {
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        share(xxh64(&draw.to_le_bytes(), self.seed))
    }

    /// Changes the knobs as the patch says; gives back what holds now.
    fn patch(&self, patch: &Value, apply: impl FnOnce(&Knobs)) -> Result<Knobs, ApiError> {
        let mut board = self.board.lock();
        let knobs = board
            .patch(patch)
            .map_err(|error| ApiError::InvalidConfig(error.to_string()))?;
        apply(&knobs);
        self.fake.lock().set(&knobs.metrics, self.now());
        self.knobs.send_replace(knobs.clone());
        Ok(knobs)
    }
}

/// `GET /admin/config`
pub(crate) async fn get_config(State(app): State<Arc<App>>) -> Response {
    Json(app.admin.knobs()).into_response()
}

/// `POST /admin/config`: a JSON merge patch; `null` takes a change back.
pub(crate) async fn post_config(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = read_body(request.into_body(), CONFIG_BODY_LIMIT).await?;
    let patch = serde_json::from_slice(&body)
        .map_err(|error| ApiError::InvalidConfig(error.to_string()))?;
    let knobs = app.admin.patch(&patch, |knobs| {
        app.engine.set_latency(Latency::from(&knobs.latency));
    })?;
    // A page that is to be frozen is made now, not at the next scrape.
    app.admin.page(|| app.make_page());
    tracing::info!(?knobs, "configuration changed");
    Ok(Json(knobs).into_response())
}

/// `GET /admin/requests`: the last 1000, oldest first. With `?NAME=VALUE` only those with a header of that name and value,
/// so that a test that looks for one request does not pay for all.
pub(crate) async fn requests(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let log = app.admin.log.lock();
    let wanted = uri.query().and_then(|query| query.split_once('='));
    let entries = log.entries().iter();
    let entries = entries.filter(|entry| wanted.is_none_or(|(name, value)| entry.has(name, value)));
    Json(entries.collect::<Vec<_>>()).into_response()
}
