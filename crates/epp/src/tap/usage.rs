//! Token counts of a response.

use serde::Deserialize;

/// Tokens as the engine counted them; `None`: it did not say. In Anthropic's format `input_tokens` may
/// leave out the cached ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of the prompt.
    pub input_tokens: Option<u64>,
    /// Generated.
    pub output_tokens: Option<u64>,
    /// Of the prompt, found in the engine's cache.
    pub cached_tokens: Option<u64>,
}

/// The names of all formats.
#[derive(Deserialize)]
struct Raw {
    prompt_tokens: Option<u64>,
    input_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

// === impl Usage ===

impl Usage {
    /// Reads the value of `usage`; one that cannot be read says nothing.
    pub(super) fn from_json(json: &[u8]) -> Self {
        let Ok(raw) = serde_json::from_slice::<Raw>(json) else {
            return Self::default();
        };
        let details = raw.prompt_tokens_details.or(raw.input_tokens_details);
        Self {
            input_tokens: raw.prompt_tokens.or(raw.input_tokens),
            output_tokens: raw.completion_tokens.or(raw.output_tokens),
            cached_tokens: details
                .and_then(|details| details.cached_tokens)
                .or(raw.cache_read_input_tokens),
        }
    }

    /// Adds what came later, which counts where both say something.
    pub(super) fn merge(&mut self, later: Self) {
        self.input_tokens = later.input_tokens.or(self.input_tokens);
        self.output_tokens = later.output_tokens.or(self.output_tokens);
        self.cached_tokens = later.cached_tokens.or(self.cached_tokens);
    }
}
