//! The LLM filter: which rule a request falls under, what its prompt is, and what a client is told where none can serve it
//! (pure).
//!
//! ```text
//!  file ─► config ─► LlmFilter ─► rules: model, headers ─► Match ─► labels, cluster, adapter, backend
//!  body ─► prompt: text, roles, media ─► PromptFacts: chunk hashes, length
//! ```

mod access_log;
mod config;
mod ended;
mod prompt;
mod refusal;
mod request;
mod rules;
mod trace;

pub(crate) use access_log::{AccessLogger, Line};
pub use config::{AccessLog, Algorithm, Balance, LengthUnit, LlmFilter};
pub(crate) use ended::{Ended, begins_with_error};
pub use prompt::{Mode, PromptError, PromptFacts, read};
pub use refusal::LlmError;
pub use request::AskedElsewhere;
pub(crate) use request::{LlmPick, LlmRequest, Phases};
pub use rules::{Headers, Match, Rule, RuleError, Subset, Table};
pub use trace::TraceId;
pub(crate) use transcode::error_body;
pub use transcode::{
    Backend, ChatTemplate, Protocol, StreamOutput, Transcoders, Triton, TrtLlm, Wire,
};
