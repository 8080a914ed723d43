//! A request that the LLM filter has a say in, from its match to its end.

use super::{Match, PromptFacts, TraceId};

/// What is known of one request.
#[derive(Debug)]
pub(crate) struct LlmRequest {
    /// Where it goes; its rule names the backend.
    pub(crate) found: Match,
    /// Names it in logs; absent without an LLM filter.
    pub(crate) trace_id: Option<TraceId>,
    /// Absent: the body was not seen.
    pub(crate) prompt: Option<PromptFacts>,
}

// === impl LlmRequest ===

impl LlmRequest {
    /// For logs.
    pub(crate) fn trace_id(&self) -> Option<&str> {
        self.trace_id.as_ref().map(TraceId::as_str)
    }

    /// Of the prompt, in the unit of lengths; 0 where the body was not seen.
    pub(crate) fn prompt_length(&self) -> u64 {
        self.prompt.as_ref().map_or(0, |prompt| prompt.length)
    }
}
