//! A call, what answers it, and why nothing does.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, uri::PathAndQuery};

use crate::breaker::Outcome;

/// A request to the peer.
#[derive(Clone, Debug)]
pub struct Call {
    /// Of HTTP.
    pub method: Method,
    /// Below the path of the base URL; with the query.
    pub path: PathAndQuery,
    /// As they are. `host`, `content-length` and those of [`Settings::isthmus`](crate::Settings::isthmus) are added.
    pub headers: HeaderMap,
    /// Sent one after the other, never joined in memory.
    pub body: Vec<Bytes>,
}

/// What the peer answered, whole.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Of HTTP. A redirect is a reply like any other: it is not followed.
    pub status: StatusCode,
    /// As they came.
    pub headers: HeaderMap,
    /// At most [`Settings::max_reply`](crate::Settings::max_reply) bytes.
    pub body: Bytes,
}

/// Why there is no reply. No variant repeats what was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The last calls failed: the peer is left alone for some seconds.
    #[error("it is not called for some seconds, as its last calls failed")]
    Open,
    /// As many calls as may be are in flight.
    #[error("too many calls of it are in flight")]
    Busy,
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// No reply in time.
    #[error("no reply in time")]
    Late,
    /// The connection ended, or what came over it was no reply.
    #[error("the connection failed: {0}")]
    Broken(String),
    /// The reply is larger than the bound.
    #[error("the reply is too large")]
    TooLarge,
}

// === impl Reply ===

impl Reply {
    /// What it tells of the peer: 4xx but 429 is the caller's own fault, all else but 2xx is the peer's.
    pub fn outcome(&self) -> Outcome {
        let of_caller =
            self.status.is_client_error() && self.status != StatusCode::TOO_MANY_REQUESTS;
        if self.status.is_success() || of_caller {
            Outcome::Success
        } else {
            Outcome::Failure
        }
    }
}

// === impl CallError ===

impl CallError {
    /// Stable: metric label and log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Open => "breaker-open",
            Self::Busy => "busy",
            Self::Connect(_) => "connect",
            Self::Late => "timeout",
            Self::Broken(_) => "broken",
            Self::TooLarge => "reply-too-large",
        }
    }
}
