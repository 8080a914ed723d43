//! What clients are told in the terms of the LLM filter.

use super::{PromptError, RuleError};

/// Why a request under the LLM filter has no answer of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// No rule has a place for it.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// It has no prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// It has no body.
    #[error("the request has no body: send one as JSON")]
    NoBody,
    /// The backend does not speak the protocol, and what the request asks for cannot be put in its terms.
    #[error("{message}")]
    Transcode {
        /// What cannot, and what could.
        message: String,
        /// The field of the request that asks for it.
        param: Option<String>,
    },
    /// The server's answer is none that a client could read.
    #[error(transparent)]
    Response(#[from] transcode::Failure),
    /// The server answered with headers alone.
    #[error("the model server {server} answered without a body: retry")]
    NoUpstreamData {
        /// Its address.
        server: String,
    },
}

// === impl LlmError ===

impl LlmError {
    /// Stable: metric label and dropped-reason header alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Rule(error) => error.reason(),
            Self::Prompt(_) => "bad-request",
            Self::NoBody => "no-body",
            Self::Transcode { .. } => "transcode",
            Self::Response(failure) => failure.reason(),
            Self::NoUpstreamData { .. } => "no-upstream-data",
        }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Rule(_) => 404,
            Self::Prompt(_) | Self::NoBody | Self::Transcode { .. } => 400,
            Self::Response(_) | Self::NoUpstreamData { .. } => 503,
        }
    }

    /// The field of the request that is at fault.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Rule(RuleError::ModelNotFound(_)) => Some("model"),
            Self::Prompt(PromptError::NoMessages) => Some("messages"),
            Self::Transcode { param, .. } => param.as_deref(),
            Self::Rule(_) | Self::NoBody | Self::Response(_) | Self::NoUpstreamData { .. } => None,
        }
    }
}

impl From<transcode::Refusal> for LlmError {
    fn from(refusal: transcode::Refusal) -> Self {
        let transcode::Refusal { message, param } = refusal;
        Self::Transcode { message, param }
    }
}
