//! What is counted of the stage.

use std::{fmt, sync::Arc, time::Duration};

use histogram::{Shape, Single};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};

use super::{
    CallProcessor, RefusedWorker, Skip,
    label::{Each, Label},
};

/// A call of an idle Processor takes 1 ms, and none more than its deadline of mostly 5 s.
static CALLS: Shape = Shape::micros(&[
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
]);

type ByOne = Family<[(&'static str, &'static str); 1], Counter>;

/// All handles. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ExternalMetrics(Arc<Handles>);

#[derive(Debug)]
struct Handles {
    requests: Each<Outcome>,
    skipped: Each<Skip>,
    fallbacks: Family<[(&'static str, &'static str); 2], Counter>,
    duration: Single,
    picks: Each<PickedBy>,
    refused: Each<RefusedWorker>,
    tokens: Each<Transfer>,
    mismatches: Counter,
    overwritten: Each<Overwritten>,
    pending: Gauge,
    lifecycle_dropped: Counter,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With a reply.
    Replied,
    /// Without one: the request went on.
    Failed,
    /// Its client was refused.
    Refused,
    /// Its client left, or the drain came first.
    Cancelled,
}

/// Who picked, where the Processor was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PickedBy {
    External,
    Internal,
}

/// How a worker got the ids of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    Key,
    Direct,
    None,
}

/// What of a client's was not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overwritten {
    /// The header of the model.
    ModelName,
    /// The header of a token key.
    TokensKey,
    /// Ids in the body.
    TokenIds,
    /// A boolean `route`, where that of clients does not count.
    Route,
    /// A `route` that is no boolean, which is left as it is.
    ForeignRoute,
}

/// Where a request fell back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The Processor gave no reply.
    Process,
    /// Its reply has no worker that can be used.
    Route,
    /// The token cache did not take the ids.
    Cache,
}

/// A request in the stage, until its drop.
#[derive(Debug)]
pub(crate) struct Pending(Gauge);

/// Serves `epp_external_breaker_open`.
struct BreakerCollector(Arc<dyn CallProcessor>);

// === impl ExternalMetrics ===

impl ExternalMetrics {
    /// Registers all but [`Self::breaker`].
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("epp_external");
        let mut family = |name: &str, help: &str| {
            let family = ByOne::default();
            registry.register(name, help, family.clone());
            family
        };
        let requests = family("requests", "Questions to the Processor, by how they ended");
        let skipped = family("skipped", "Requests that the Processor was not asked about");
        let picks = family(
            "picks",
            "Requests that the Processor was asked about, by who picked for them",
        );
        let refused = family("pick_refused", "Workers of replies that were not used");
        let tokens = family(
            "tokens",
            "Requests with a reply, by how their ids went to the worker",
        );
        let overwritten = family(
            "overwritten",
            "What clients said and was overwritten, taken out, or not for us",
        );
        let handles = Handles {
            requests: Each::of("outcome", &requests),
            skipped: Each::of("reason", &skipped),
            fallbacks: Family::default(),
            duration: Single::new(&CALLS),
            picks: Each::of("by", &picks),
            refused: Each::of("reason", &refused),
            tokens: Each::of("transfer", &tokens),
            mismatches: Counter::default(),
            overwritten: Each::of("what", &overwritten),
            pending: Gauge::default(),
            lifecycle_dropped: Counter::default(),
        };
        registry.register(
            "fallback",
            "Requests that went on without a part of the stage",
            handles.fallbacks.clone(),
        );
        registry.register(
            "duration_seconds",
            "From the question to the Processor to its reply, or to the end of the wait",
            handles.duration.clone(),
        );
        registry.register(
            "token_count_mismatch",
            "Responses whose prompt has another number of tokens than the Processor counted",
            handles.mismatches.clone(),
        );
        registry.register("pending", "Requests in the stage", handles.pending.clone());
        registry.register(
            "lifecycle_dropped",
            "Reports of bookings that found no room, or no reply within 1 s",
            handles.lifecycle_dropped.clone(),
        );
        Self(Arc::new(handles))
    }

    /// Serves whether the Processor is left alone.
    pub(crate) fn breaker(processor: Arc<dyn CallProcessor>) -> impl Collector + 'static {
        BreakerCollector(processor)
    }

    /// For the sender of reports.
    pub(crate) fn lifecycle_dropped(&self) -> Counter {
        self.0.lifecycle_dropped.clone()
    }

    /// A request is in the stage from now on.
    pub(crate) fn pending(&self) -> Pending {
        self.0.pending.inc();
        Pending(self.0.pending.clone())
    }

    /// A question ended after so long.
    pub(crate) fn ended(&self, outcome: Outcome, took: Duration) {
        self.0.requests.inc(outcome);
        self.0.duration.observe_micros(took);
    }

    pub(crate) fn skipped(&self, skip: Skip) {
        self.0.skipped.inc(skip);
    }

    pub(crate) fn fell_back(&self, stage: Stage, reason: &'static str) {
        let labels = [("stage", stage.label()), ("reason", reason)];
        self.0.fallbacks.get_or_create(&labels).inc();
    }

    pub(crate) fn picked(&self, by: PickedBy) {
        self.0.picks.inc(by);
    }

    pub(crate) fn refused(&self, why: RefusedWorker) {
        self.0.refused.inc(why);
    }

    pub(crate) fn sent_tokens(&self, transfer: Transfer) {
        self.0.tokens.inc(transfer);
    }

    /// The worker counted another number of tokens.
    pub(crate) fn mismatched(&self) {
        self.0.mismatches.inc();
    }

    pub(crate) fn overwritten(&self, what: Overwritten) {
        self.0.overwritten.inc(what);
    }
}

// === impl Pending ===

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.dec();
    }
}

// === impl BreakerCollector ===

impl Collector for BreakerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(
            "epp_external_breaker_open",
            "1 while the Processor is not asked, as its last calls failed",
            None,
            MetricType::Gauge,
        )?;
        let value = ConstGauge::new(i64::from(self.0.is_open()));
        value.encode(metric.encode_family(&[("hop", "processor")])?)
    }
}

impl fmt::Debug for BreakerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerCollector").finish_non_exhaustive()
    }
}

// === labels ===

impl Label for Outcome {
    const ALL: &'static [Self] = &[Self::Replied, Self::Failed, Self::Refused, Self::Cancelled];

    fn label(self) -> &'static str {
        match self {
            Self::Replied => "replied",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Label for PickedBy {
    const ALL: &'static [Self] = &[Self::External, Self::Internal];

    fn label(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Internal => "internal",
        }
    }
}

impl Label for Transfer {
    const ALL: &'static [Self] = &[Self::Key, Self::Direct, Self::None];

    fn label(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Direct => "direct",
            Self::None => "none",
        }
    }
}

impl Label for Overwritten {
    const ALL: &'static [Self] = &[
        Self::ModelName,
        Self::TokensKey,
        Self::TokenIds,
        Self::Route,
        Self::ForeignRoute,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::ModelName => "model-name",
            Self::TokensKey => "tokens-key",
            Self::TokenIds => "token-ids",
            Self::Route => "route",
            Self::ForeignRoute => "foreign-route",
        }
    }
}

// === impl Stage ===

impl Stage {
    fn label(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Route => "route",
            Self::Cache => "cache",
        }
    }
}
