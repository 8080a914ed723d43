//! A request that the LLM filter has a say in, from its match to its end.

use std::{sync::Arc, time::Duration};

use metadata::RequestId;
use moment::Moment;
use scheduling::{inference_lb::PrefillCharge, ttft::Prompt};
use tracing::debug;

use super::{LengthUnit, Match, PromptFacts, TraceId};

/// What is known of one request.
#[derive(Debug)]
pub(crate) struct LlmRequest {
    /// Where it goes; its rule names the backend.
    pub(crate) found: Match,
    /// Names it in logs; absent without an LLM filter.
    pub(crate) trace_id: Option<TraceId>,
    /// The model that the server gets.
    pub(crate) target: Option<Arc<str>>,
    /// Absent: the body was not seen.
    pub(crate) prompt: Option<PromptFacts>,
    /// What its length is in.
    pub(crate) unit: LengthUnit,
    /// Tokens of the prompt; absent: nobody counted them.
    pub(crate) counted: Option<u32>,
    /// Names its charge: a fresh one, for clients repeat theirs.
    pub(crate) id: RequestId,
    /// The client asks for the response as events, whose first tells when the prompt is computed.
    pub(crate) is_streaming: bool,
    /// How long computing the prompt is expected to take, where nothing tells its end.
    pub(crate) prefill: Option<Duration>,
    /// Once it is picked for.
    pub(crate) pick: LlmPick,
    /// Where somebody was asked for the pick.
    pub(crate) asked: AskedElsewhere,
    /// For spans.
    pub(crate) phases: Phases,
    /// The `traceparent` that it came with, where somebody else is asked.
    pub(crate) trace_parent: Option<Box<str>>,
}

/// From when to when the parts of a decision took place; absent: there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Phases {
    /// A rule was looked for.
    pub(crate) rule: Option<[Moment; 2]>,
    /// The prompt was hashed.
    pub(crate) hash: Option<[Moment; 2]>,
    /// Somebody else was asked for a pick.
    pub(crate) asked: Option<[Moment; 2]>,
}

/// How somebody else was asked for load and caches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AskedElsewhere {
    /// How long load was waited for; absent: it was not asked for.
    pub load: Option<Duration>,
    /// Likewise the caches.
    pub cache: Option<Duration>,
    /// What of it was not given; absent: nothing is missing.
    pub missing: Option<&'static str>,
}

/// A pick for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LlmPick {
    /// Endpoints that it was made from.
    pub(crate) candidates: u32,
    /// Chunks of the prompt that the endpoint has cached.
    pub(crate) cached: u32,
    /// By load and caches; 0 where they were not asked for.
    pub(crate) score: f64,
    /// What the endpoint is charged as unfinished prefill.
    pub(crate) charge: u64,
}

// === impl LlmRequest ===

impl LlmRequest {
    /// For logs.
    pub(crate) fn trace_id(&self) -> Option<&str> {
        self.trace_id.as_ref().map(TraceId::as_str)
    }

    /// Of the prompt's chunks; none where the body was not seen.
    pub(crate) fn hashes(&self) -> &[u64] {
        self.prompt.as_ref().map_or(&[], |prompt| &prompt.hashes)
    }

    /// Of the prompt, in the unit of lengths; 0 where the body was not seen.
    pub(crate) fn prompt_length(&self) -> u64 {
        self.length_in(self.unit)
    }

    fn length_in(&self, unit: LengthUnit) -> u64 {
        let bytes = self.prompt.as_ref().map_or(0, |prompt| prompt.length);
        match (unit, self.counted) {
            (LengthUnit::Tokens, Some(tokens)) => tokens.into(),
            (unit, _) => bytes.div_ceil(unit.bytes().into()),
        }
    }

    /// The share of the prompt that the picked endpoint has cached.
    pub(crate) fn cache_ratio(&self) -> f64 {
        match self.hashes().len() {
            0 => 0.0,
            chunks => f64::from(self.pick.cached) / chunks as f64,
        }
    }

    /// What an endpoint that has so many chunks of the prompt is charged.
    pub(crate) fn charge(&self, kind: PrefillCharge, cached: u32) -> u64 {
        let chunks = self.prompt.as_ref().map_or(0, PromptFacts::chunks);
        let least = self.unit.least_charge();
        kind.of(self.prompt_length(), least, cached, chunks)
    }

    /// Lengths in tokens, counted or estimated; none: the prompt is not known.
    pub(crate) fn tokens(&self) -> Option<Prompt> {
        let length = self.length_in(LengthUnit::Tokens);
        let tokens = length as f64;
        (length > 0).then(|| Prompt {
            tokens,
            cached: tokens * self.cache_ratio(),
        })
    }

    /// Logs where it goes.
    pub(crate) fn log_pick(&self, selected: &str) {
        let LlmPick {
            candidates, score, ..
        } = self.pick;
        let trace_id = self.trace_id();
        debug!(trace_id, candidates, selected, score, "LoadBalancer");
    }
}
