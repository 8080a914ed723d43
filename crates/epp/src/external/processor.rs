//! The Processor, as the director sees it.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use processor_api::{ProcessReply, StageFailure};

use super::{ExternalMetrics, LifeCycle, Outgoing, Skip, Switches, label::Label, lifecycle::Live};

/// Asks the Processor.
pub(crate) trait CallProcessor: fmt::Debug + Send + Sync {
    /// Asks, within a time of its own.
    fn process(&self, question: Outgoing) -> BoxFuture<'static, Result<ProcessReply, NoReply>>;

    /// Reports what becomes of a booking. Never waits, and may drop it.
    fn report(&self, report: LifeCycle);

    /// Whether its last calls failed, so that it is left alone for a while.
    fn is_open(&self) -> bool;
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// Nothing was sent: the last calls failed, or too many are in flight.
    Skipped(Skip),
    /// Nothing was sent: nobody listens.
    Unreachable,
    /// What was sent may have had an effect.
    Failed(StageFailure),
}

/// The stage of one pool.
#[derive(Debug)]
pub(crate) struct External {
    pub(crate) switches: Switches,
    pub(crate) processor: Arc<dyn CallProcessor>,
    pub(crate) metrics: ExternalMetrics,
    /// Bookings that may live.
    pub(super) live: Live,
}

// === impl External ===

impl External {
    pub(crate) fn new(
        switches: Switches,
        processor: Arc<dyn CallProcessor>,
        metrics: ExternalMetrics,
    ) -> Self {
        Self {
            switches,
            processor,
            metrics,
            live: Live::default(),
        }
    }
}

// === impl NoReply ===

impl NoReply {
    /// In the terms of the table of fallbacks.
    pub(crate) fn failure(&self) -> StageFailure {
        match self {
            Self::Skipped(skip) => skip.failure().unwrap_or(StageFailure::Unavailable),
            Self::Unreachable => StageFailure::Unavailable,
            Self::Failed(failure) => failure.clone(),
        }
    }

    /// Stable, for metrics and spans.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Skipped(skip) => skip.label(),
            Self::Unreachable => "unreachable",
            Self::Failed(failure) => failure.reason(),
        }
    }

    /// Whether the Router may have booked a worker all the same.
    pub(crate) fn may_have_booked(&self) -> bool {
        match self {
            Self::Skipped(_) | Self::Unreachable => false,
            Self::Failed(failure) => failure.counts_for_breaker(),
        }
    }
}
