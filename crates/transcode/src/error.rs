//! What goes wrong on the way, and the JSON by which clients learn of it.

use serde::Serialize;

/// Why a request cannot be put in the terms of its server: an answer 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What cannot, and what could.
    pub message: String,
    /// The field of the request that asks for it.
    pub param: Option<String>,
}

/// Why a response is none that the client asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server said so.
    #[error("{0}")]
    Server(String),
    /// What it sent cannot be read.
    #[error("the model server's response cannot be read: {0}; retry")]
    Broken(String),
}

/// The body of an error.
#[derive(Debug, Serialize)]
struct Body<'a> {
    error: Fields<'a>,
    trace_id: &'a str,
}

#[derive(Debug, Serialize)]
struct Fields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: u16,
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: Some(param.into()),
        }
    }
}

// === impl Failure ===

impl Failure {
    /// Stable: metric label and log field alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Server(_) => "server-error",
            Self::Broken(_) => "broken-response",
        }
    }

    /// HTTP status for a client that has none yet, and the code for one that has.
    pub fn status(&self) -> u16 {
        match self {
            Self::Server(_) => 500,
            Self::Broken(_) => 503,
        }
    }
}

/// The first `max` bytes of a message, cut between characters.
pub(crate) fn brief(message: &str, max: usize) -> &str {
    let end = message.floor_char_boundary(max);
    message.get(..end).unwrap_or_default()
}

/// The JSON for a client, whose log has the same trace id as ours.
pub fn error_body(message: &str, status: u16, param: Option<&str>, trace_id: &str) -> Vec<u8> {
    let body = Body {
        error: Fields {
            message,
            r#type: type_of(status),
            param,
            code: status,
        },
        trace_id,
    };
    // only maps with keys that are no texts cannot be written
    serde_json::to_vec(&body).unwrap_or_default()
}

/// As `OpenAI`'s clients know errors.
fn type_of(status: u16) -> &'static str {
    match status {
        400 | 408 | 413 => "BadRequestError",
        401 => "AuthenticationError",
        404 => "NotFoundError",
        429 => "RateLimitError",
        500 => "InternalServerError",
        503 => "InferenceServerError",
        _ => "UnknownError",
    }
}
