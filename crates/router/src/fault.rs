//! Why a call is refused.

use kv_router::NoWorker;
use processor_api::{ErrorBody, ErrorDetail, WireError};

/// A call that is refused. No text repeats what was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// It is not what the call takes.
    #[error("{0}")]
    BadRequest(String),
    /// Its body did not come in time.
    #[error(
        "the body was not there in time: send it sooner, or state more in x-isthmus-deadline-ms"
    )]
    LateBody,
    /// The caller has none of the tokens.
    #[error("send one of the tokens as authorization: Bearer TOKEN")]
    Unauthorized,
    /// There is no such path.
    #[error(
        "there is no such path: use /route, /route/keepalive, /route/ID or /route/ID/prefill_complete"
    )]
    NotFound,
    /// There is no such booking: it is over, or was never made.
    #[error("there is no booking of that name: it is over, or was not made here")]
    UnknownReservation,
    /// The path takes another method.
    #[error("use {0} here")]
    Method(&'static str),
    /// Its body is too large.
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    /// There is nobody to send the prompt to.
    #[error("{0}")]
    NoWorker(NoWorker),
    /// The program ends.
    #[error("this Router ends: ask another")]
    ShuttingDown,
    /// A bug.
    #[error("internal error")]
    Internal,
}

// === impl Fault ===

impl Fault {
    /// Stable: on the wire and as a metric label alike.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad-request",
            Self::LateBody => "late-body",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not-found",
            Self::UnknownReservation => "unknown-reservation",
            Self::Method(_) => "method",
            Self::TooLarge(_) => "too-large",
            Self::NoWorker(why) => why.reason(),
            Self::ShuttingDown => "shutting-down",
            Self::Internal => "internal",
        }
    }

    /// Of the HTTP response.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::BadRequest(_) => 400,
            Self::LateBody => 408,
            Self::Unauthorized => 401,
            Self::NotFound | Self::UnknownReservation => 404,
            Self::Method(_) => 405,
            Self::TooLarge(_) => 413,
            Self::NoWorker(NoWorker::Saturated) => 429,
            Self::NoWorker(NoWorker::Unknown) | Self::ShuttingDown => 503,
            Self::Internal => 500,
        }
    }
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Self::BadRequest(error.to_string())
    }
}

impl From<NoWorker> for Fault {
    fn from(why: NoWorker) -> Self {
        Self::NoWorker(why)
    }
}

impl From<&Fault> for ErrorBody {
    fn from(fault: &Fault) -> Self {
        Self {
            error: ErrorDetail {
                message: fault.to_string(),
                kind: fault.reason().to_owned(),
                code: fault.status(),
            },
        }
    }
}
