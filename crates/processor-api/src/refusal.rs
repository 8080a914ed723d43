//! Why the Processor does not answer a call, and what the endpoint picker does then.

use serde::{Deserialize, Serialize};

/// A call that the Processor refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client's request is wrong, and no worker would take it.
    #[error("{0}")]
    BadRequest(String),
    /// The model's chat template refuses the conversation.
    #[error("{0}")]
    Template(String),
    /// No model of this name is in the catalogue.
    #[error("the model {0:?} is not in the catalogue of the Processor")]
    UnknownModel(String),
    /// There is more of it than the Processor takes.
    #[error("it has more than {limit} bytes, the limit of {flag}")]
    TooLarge {
        /// In bytes.
        limit: usize,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// Only the engine can render it.
    #[error("{0}")]
    Unsupported(String),
    /// All threads are busy and the queue is full, or the caller's time is over.
    #[error("the Processor has too much to do: retry later")]
    Overloaded,
    /// It still loads the model, or drains.
    #[error("the Processor is not ready: retry later")]
    NotReady,
}

/// The body of each error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// As in the API of OpenAI.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// For people.
    pub message: String,
    /// [`Refusal::reason`].
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status.
    pub code: u16,
}

/// Why the endpoint picker has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageFailure {
    /// 400: the client's fault, with a message for it.
    Client(String),
    /// 404.
    UnknownModel,
    /// 413.
    TooLarge,
    /// 422.
    Unsupported,
    /// 429, 503, or nobody listens.
    Unavailable,
    /// Any other status, or a reply that cannot be read.
    Invalid,
    /// No reply in time.
    Timeout,
}

/// What becomes of the client's request without a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The endpoint picker chooses an endpoint itself, and sends no ids.
    Internal,
    /// The client is refused with this status.
    Refuse(u16),
}

// === impl Refusal ===

impl Refusal {
    /// Stable: on the wire and as a metric label alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad-request",
            Self::Template(_) => "template-error",
            Self::UnknownModel(_) => "unknown-model",
            Self::TooLarge { .. } => "too-large",
            Self::Unsupported(_) => "unsupported",
            Self::Overloaded => "overloaded",
            Self::NotReady => "not-ready",
        }
    }

    /// Of the HTTP response.
    pub fn status(&self) -> u16 {
        match self {
            Self::BadRequest(_) | Self::Template(_) => 400,
            Self::UnknownModel(_) => 404,
            Self::TooLarge { .. } => 413,
            Self::Unsupported(_) => 422,
            Self::Overloaded | Self::NotReady => 503,
        }
    }
}

// === impl ErrorBody ===

impl From<&Refusal> for ErrorBody {
    fn from(refusal: &Refusal) -> Self {
        Self {
            error: ErrorDetail {
                message: refusal.to_string(),
                kind: refusal.reason().to_owned(),
                code: refusal.status(),
            },
        }
    }
}

// === impl StageFailure ===

impl StageFailure {
    /// Of a response that is no 200.
    pub fn of_response(status: u16, body: &[u8]) -> Self {
        match status {
            400 => {
                let body: Option<ErrorBody> = serde_json::from_slice(body).ok();
                let message = body.map(|body| body.error.message);
                message.map_or(Self::Invalid, Self::Client)
            }
            404 => Self::UnknownModel,
            413 => Self::TooLarge,
            422 => Self::Unsupported,
            429 | 503 => Self::Unavailable,
            _ => Self::Invalid,
        }
    }

    /// Stable, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Client(_) => "client-error",
            Self::UnknownModel => "unknown-model",
            Self::TooLarge => "too-large",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid-reply",
            Self::Timeout => "timeout",
        }
    }

    /// What follows from it; `closed`: no request may do without the stage.
    pub fn fallback(&self, closed: bool) -> Fallback {
        match (self, closed) {
            (Self::Client(_), _) => Fallback::Refuse(400),
            (Self::Unsupported, _) | (_, false) => Fallback::Internal,
            (Self::UnknownModel, true) => Fallback::Refuse(404),
            (Self::TooLarge, true) => Fallback::Refuse(413),
            (Self::Unavailable, true) => Fallback::Refuse(503),
            (Self::Invalid, true) => Fallback::Refuse(502),
            (Self::Timeout, true) => Fallback::Refuse(504),
        }
    }

    /// Whether it tells something about the Processor, rather than about the request.
    pub fn counts_for_breaker(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Invalid | Self::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(400, Fallback::Refuse(400), Fallback::Refuse(400), false)]
    #[case(404, Fallback::Internal, Fallback::Refuse(404), false)]
    #[case(413, Fallback::Internal, Fallback::Refuse(413), false)]
    #[case(422, Fallback::Internal, Fallback::Internal, false)]
    #[case(429, Fallback::Internal, Fallback::Refuse(503), true)]
    #[case(503, Fallback::Internal, Fallback::Refuse(503), true)]
    #[case(500, Fallback::Internal, Fallback::Refuse(502), true)]
    #[case(302, Fallback::Internal, Fallback::Refuse(502), true)]
    fn each_status_has_its_fallback_open_and_closed(
        #[case] status: u16,
        #[case] open: Fallback,
        #[case] closed: Fallback,
        #[case] counts: bool,
    ) {
        let body = br#"{"error":{"message":"no","type":"bad-request","code":400}}"#;
        let failure = StageFailure::of_response(status, body);
        assert_eq!(failure.fallback(false), open, "{failure:?}");
        assert_eq!(failure.fallback(true), closed, "{failure:?}");
        assert_eq!(failure.counts_for_breaker(), counts, "{failure:?}");
    }

    #[test]
    fn a_400_that_no_processor_wrote_is_not_put_on_the_client() {
        let failure = StageFailure::of_response(400, b"<html>bad gateway</html>");
        assert_eq!(failure, StageFailure::Invalid);
    }

    #[test]
    fn a_timeout_internal_or_504() {
        assert_eq!(StageFailure::Timeout.fallback(false), Fallback::Internal);
        assert_eq!(StageFailure::Timeout.fallback(true), Fallback::Refuse(504));
    }

    #[rstest]
    #[case(Refusal::BadRequest("x".into()), 400, "bad-request")]
    #[case(Refusal::Template("x".into()), 400, "template-error")]
    #[case(Refusal::UnknownModel("m".into()), 404, "unknown-model")]
    #[case(Refusal::TooLarge { limit: 1, flag: "--max-prompt-bytes" }, 413, "too-large")]
    #[case(Refusal::Unsupported("x".into()), 422, "unsupported")]
    #[case(Refusal::Overloaded, 503, "overloaded")]
    #[case(Refusal::NotReady, 503, "not-ready")]
    fn each_refusal_has_its_status_and_reason(
        #[case] refusal: Refusal,
        #[case] code: u16,
        #[case] kind: &str,
    ) {
        let body = ErrorBody::from(&refusal).error;
        assert_eq!((body.code, body.kind.as_str()), (code, kind));
    }
}
