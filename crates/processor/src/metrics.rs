//! What the Processor counts.

mod page;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use histogram::{Histogram, Shape, Single};
use processor_api::{Degraded, Refusal};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokenization::SegmentCache;

pub(crate) use page::Page;

use crate::{encoders::Encoders, models::Models};

/// 50 us to 5 s: a short chat takes some hundred microseconds, and no call takes longer than 5 s.
static TIMES: Shape = Shape::nanos(&[
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
]);

/// Ids of a prompt: by fours, to beyond a million.
static TOKENS: Shape = Shape::units(&[
    16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304,
]);

/// Ends of a call that no [`Refusal`] names.
const ENDS: [&str; 5] = ["ok", "degraded", "internal", "late-body", "given-up"];

/// All refusals, by a sample of each.
fn refusals() -> [&'static str; 7] {
    let text = String::new;
    let (limit, flag) = (0, "");
    [
        Refusal::BadRequest(text()),
        Refusal::Template(text()),
        Refusal::UnknownModel(text()),
        Refusal::TooLarge { limit, flag },
        Refusal::Unsupported(text()),
        Refusal::Overloaded,
        Refusal::NotReady,
    ]
    .map(|refusal| refusal.reason())
}

/// A part of a call that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The wait for a thread.
    Queue,
    /// From the body to text.
    Render,
    /// From text to ids.
    Encode,
    /// The Router's answer.
    Route,
    /// The write to the token cache.
    Store,
}

/// How a call ended, for its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// A stage did without.
    Degraded,
    Refused(&'static str),
    Internal,
    /// The body did not come in time.
    LateBody,
    /// The caller left.
    GivenUp,
}

/// What became of a message of a booking's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relayed {
    /// The Router took it.
    Ok,
    /// It knows no such booking, or there is no Router.
    Unknown,
    /// It refused it, failed, or did not answer.
    Failed,
}

/// All that is counted. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Arc<[(&'static str, Counter)]>,
    stages: Arc<[Histogram; Stage::ALL.len()]>,
    prompt_tokens: Single,
    template_errors: Family<ModelLabel, Counter>,
    route_fallbacks: Arc<[(Degraded, Counter)]>,
    relayed: [Counter; Relayed::ALL.len()],
    /// Connections that were closed at once.
    pub(crate) refused_connections: Counter,
    /// What the models file does.
    pub(crate) catalogue: CatalogueMetrics,
}

/// What the models file does.
#[derive(Clone, Debug, Default)]
pub struct CatalogueMetrics {
    loads: Arc<[AtomicU64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

// === impl Stage ===

impl Stage {
    pub(crate) const ALL: [Self; 5] = [
        Self::Queue,
        Self::Render,
        Self::Encode,
        Self::Route,
        Self::Store,
    ];

    /// Stable, of spans.
    pub(crate) fn span(self) -> &'static str {
        match self {
            Self::Queue => "processor.queue",
            Self::Render => "processor.render",
            Self::Encode => "processor.encode",
            Self::Route => "processor.route",
            Self::Store => "processor.store",
        }
    }

    /// Stable, of metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Render => "render",
            Self::Encode => "encode",
            Self::Route => "route",
            Self::Store => "store",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Refused(reason) => reason,
            Self::Internal => "internal",
            Self::LateBody => "late-body",
            Self::GivenUp => "given-up",
        }
    }
}

// === impl Relayed ===

impl Relayed {
    const ALL: [Self; 3] = [Self::Ok, Self::Unknown, Self::Failed];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Failed => "failed",
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Puts them on the page.
    pub fn register(registry: &mut Registry) -> Self {
        let requests = Family::<OutcomeLabel, Counter>::default();
        let outcomes = ENDS.into_iter().chain(refusals());
        let by_outcome = |outcome| {
            (
                outcome,
                requests.get_or_create_owned(&OutcomeLabel { outcome }),
            )
        };
        let fallbacks = Family::<ReasonLabel, Counter>::default();
        let reasons = [
            Degraded::NoRouter,
            Degraded::RouteTimeout,
            Degraded::RouteError,
            Degraded::RouteSaturated,
        ];
        let by_reason = |degraded: Degraded| {
            let reason = degraded.reason();
            (
                degraded,
                fallbacks.get_or_create_owned(&ReasonLabel { reason }),
            )
        };
        let relayed = Family::<ResultLabel, Counter>::default();
        let metrics = Self {
            requests: outcomes.map(by_outcome).collect(),
            stages: Arc::new(Stage::ALL.map(|_| Histogram::new(&TIMES))),
            prompt_tokens: Single::new(&TOKENS),
            template_errors: Family::default(),
            route_fallbacks: reasons.into_iter().map(by_reason).collect(),
            relayed: Relayed::ALL.map(|how| {
                let result = how.label();
                relayed.get_or_create_owned(&ResultLabel { result })
            }),
            refused_connections: Counter::default(),
            catalogue: CatalogueMetrics::default(),
        };
        registry.register(
            "processor_requests",
            "Calls of /process and /render by how they ended: ok, degraded (without a worker or a key that was asked for), a refusal's reason, internal, late-body, given-up",
            requests,
        );
        registry.register(
            "processor_prompt_tokens",
            "Ids of a prompt",
            metrics.prompt_tokens.clone(),
        );
        registry.register(
            "processor_template_errors",
            "Conversations that a model's chat template refuses",
            metrics.template_errors.clone(),
        );
        registry.register(
            "processor_route_fallback",
            "Replies without a worker although one was asked for, by reason",
            fallbacks,
        );
        registry.register(
            "processor_relayed",
            "Messages of bookings' lives that were passed on to the Router: ok, unknown to it, failed",
            relayed,
        );
        registry.register(
            "processor_refused_connections",
            "Connections over the limit of 10000 of a port",
            metrics.refused_connections.clone(),
        );
        metrics
    }

    /// Puts what is read at each look on the page.
    pub fn register_page(
        &self,
        registry: &mut Registry,
        models: Models,
        encoders: Arc<Encoders>,
        cache: SegmentCache,
    ) {
        registry.register_collector(Box::new(Page {
            metrics: self.clone(),
            models,
            encoders,
            cache,
        }));
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        let label = outcome.label();
        if let Some((_, counter)) = self.requests.iter().find(|(known, _)| *known == label) {
            counter.inc();
        }
    }

    pub(crate) fn took(&self, stage: Stage, time: Duration) {
        if let Some(times) = self.stages.get(stage as usize) {
            times.observe(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn prompt(&self, ids: usize) {
        self.prompt_tokens
            .observe(u64::try_from(ids).unwrap_or(u64::MAX));
    }

    /// `model` is of the catalogue.
    pub(crate) fn template_error(&self, model: &str) {
        let model = model.to_owned();
        self.template_errors
            .get_or_create_owned(&ModelLabel { model })
            .inc();
    }

    pub(crate) fn route_fallback(&self, degraded: Degraded) {
        let known = self.route_fallbacks.iter();
        if let Some((_, counter)) = known.into_iter().find(|(known, _)| *known == degraded) {
            counter.inc();
        }
    }

    pub(crate) fn relayed(&self, how: Relayed) {
        if let Some(counter) = self.relayed.get(how as usize) {
            counter.inc();
        }
    }
}

impl Default for Metrics {
    /// On no page.
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

// === impl CatalogueMetrics ===

impl CatalogueMetrics {
    pub(crate) fn reloaded(&self) {
        self.loads[0].fetch_add(1, Relaxed);
    }

    pub(crate) fn reload_failed(&self) {
        self.loads[1].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> [(&'static str, u64); 2] {
        let [ok, failed] = &*self.loads;
        [("ok", ok.load(Relaxed)), ("failed", failed.load(Relaxed))]
    }
}

#[cfg(test)]
mod tests;
