//! Why a request is not passed on, and what its client is told.

use processor_api::{Fallback, StageFailure};
use scheduling::NoPick;

use crate::llm::{LlmError, TraceId, error_body};

/// Longest part of a client's text that is repeated in an error, in bytes.
const MAX_CODING: usize = 64;

/// A request-level failure. It becomes an immediate HTTP response, never a gRPC error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reject {
    /// The body of a path whose format is known cannot be read; and the field that is at fault, if it is one.
    #[error("{0}")]
    BadRequest(String, Option<&'static str>),
    /// The LLM filter has no place for it.
    #[error(transparent)]
    Llm(#[from] LlmError),
    /// No part of the body came for too long.
    #[error(
        "no part of the request body arrived for {seconds} s: send it faster or check the connection"
    )]
    BodyTimeout {
        /// How long nothing came.
        seconds: u64,
    },
    /// The body is larger than this EPP holds.
    #[error("the request body is larger than {limit} bytes, the limit of --max-request-body")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The body is compressed, as its `content-encoding` header states.
    #[error(
        "the request body is encoded: content-encoding {0:?} is not read here; send the body as it is, without this header"
    )]
    Encoded(String),
    /// All bodies held together are at their limit.
    #[error("too many request bodies are being held: retry later")]
    Saturated,
    /// The model is none that clients may ask for; absent: the body was not read.
    #[error("{}", no_model(.0.as_deref()))]
    ModelNotFound(Option<String>),
    /// What matters of the body may stand in a part of it that was not seen: the model, or ids that may not go on.
    #[error(
        "the request body is too large to be read whole in the proxy's body mode: send less, or have the proxy use FULL_DUPLEX_STREAMED"
    )]
    BodyNotSeen,
    /// It is of low priority and the pool is at its limit.
    #[error("the pool is saturated and the request is of low priority: retry later")]
    Shed,
    /// There is no room to wait.
    #[error("{0}")]
    QueueFull(String),
    /// It waited too long.
    #[error("{}", if *.empty { "no endpoint became ready in time" } else { "the pool stayed saturated for too long: retry later" })]
    Expired {
        /// The pool had no endpoint.
        empty: bool,
    },
    /// There is nowhere to send it.
    #[error(transparent)]
    NoEndpoints(#[from] NoPick),
    /// No request may go on without the external stage, which failed.
    #[error("{}", stage_failed(.0))]
    External(StageFailure),
    /// The EPP itself failed: it panicked.
    #[error("the endpoint picker failed: its log says where; retry")]
    Internal,
    /// This EPP ends before it could decide.
    #[error("the endpoint picker is shutting down: retry")]
    ShuttingDown,
}

fn no_model(model: Option<&str>) -> String {
    match model {
        Some(model) => format!("the model {model:?} is not served here"),
        None => {
            "the model of the request is not known: its body is not sent to the endpoint picker"
                .to_owned()
        }
    }
}

fn stage_failed(failure: &StageFailure) -> &str {
    match failure {
        StageFailure::Client(message) => message,
        StageFailure::UnknownModel => "the external processor does not know the model",
        StageFailure::TooLarge => "the request is larger than the external processor takes",
        StageFailure::Unsupported => "the external processor cannot render the request",
        StageFailure::Unavailable => "the external processor is not available: retry later",
        StageFailure::Invalid => "the external processor gave no valid reply: retry later",
        StageFailure::Timeout => "the external processor gave no reply in time: retry later",
    }
}

// === impl Reject ===

impl Reject {
    /// Rejects a body in this coding, of which the first bytes are kept for the message.
    pub(crate) fn encoded(coding: &str) -> Self {
        let end = coding.floor_char_boundary(MAX_CODING);
        Self::Encoded(coding.get(..end).unwrap_or_default().to_owned())
    }

    /// Stable: metric label, error type and dropped-reason header alike.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(..) => "bad-request",
            Self::Llm(error) => error.reason(),
            Self::BodyTimeout { .. } => "body-timeout",
            Self::BodyTooLarge { .. } | Self::BodyNotSeen => "body-too-large",
            Self::Saturated | Self::Shed | Self::QueueFull(_) => "saturated",
            Self::ModelNotFound(_) => "model-not-found",
            Self::Expired { .. } => "ttl-expired",
            Self::External(failure) => failure.reason(),
            Self::NoEndpoints(no_pick) => no_pick.reason(),
            Self::Encoded(_) => "content-encoding",
            Self::Internal => "internal",
            Self::ShuttingDown => "shutting-down",
        }
    }

    /// HTTP status. 503 means that another pool may serve the request, 429 that this one will later.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::BadRequest(..) => 400,
            Self::Llm(error) => error.status(),
            Self::BodyTimeout { .. } => 408,
            Self::Encoded(_) => 415,
            Self::Internal => 500,
            Self::BodyTooLarge { .. } | Self::BodyNotSeen => 413,
            Self::ModelNotFound(_) | Self::NoEndpoints(NoPick::Unlabelled) => 404,
            Self::Saturated
            | Self::Shed
            | Self::QueueFull(_)
            | Self::Expired { empty: false }
            | Self::NoEndpoints(NoPick::Filtered) => 429,
            Self::External(failure) => match failure.fallback(true) {
                Fallback::Refuse(status) => status,
                Fallback::Internal => 503,
            },
            Self::Expired { empty: true } | Self::NoEndpoints(_) | Self::ShuttingDown => 503,
        }
    }

    /// Value of `x-llm-d-request-dropped-reason`, where the request itself was in order.
    pub(crate) fn dropped_reason(&self) -> Option<String> {
        match self {
            Self::Saturated
            | Self::Shed
            | Self::QueueFull(_)
            | Self::Expired { .. }
            | Self::NoEndpoints(_)
            | Self::External(
                StageFailure::Unavailable | StageFailure::Invalid | StageFailure::Timeout,
            )
            | Self::ShuttingDown => Some(format!("rejected-{}", self.reason())),
            Self::BadRequest(..)
            | Self::Llm(_)
            | Self::BodyTimeout { .. }
            | Self::BodyTooLarge { .. }
            | Self::ModelNotFound(_)
            | Self::External(_)
            | Self::Encoded(_)
            | Self::Internal
            | Self::BodyNotSeen => None,
        }
    }

    /// Value of `retry-after` in seconds, where waiting helps.
    pub(crate) fn retry_after(&self) -> Option<&'static str> {
        (self.status() == 429).then_some("1")
    }

    /// The field of the request that is at fault.
    fn param(&self) -> Option<&str> {
        match self {
            Self::BadRequest(_, param) => *param,
            Self::Llm(error) => error.param(),
            Self::ModelNotFound(Some(_)) => Some("model"),
            _ => None,
        }
    }

    /// The JSON body for the client: in the terms of the endpoint picker, or, with the id that the request has in logs, in
    /// those of the LLM filter.
    pub(crate) fn body(&self, trace_id: Option<&TraceId>) -> Vec<u8> {
        let message = self.to_string();
        if let Some(trace_id) = trace_id {
            return error_body(&message, self.status(), self.param(), trace_id.as_str());
        }
        let error = serde_json::json!({
            "error": { "message": message, "type": self.reason(), "code": self.status() }
        });
        error.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;
    use crate::llm::{Headers, PromptError, RuleError};

    #[rstest]
    #[case(Reject::BadRequest("no model".into(), None), 400, "bad-request", None, None)]
    #[case(Reject::BodyTimeout { seconds: 60 }, 408, "body-timeout", None, None)]
    #[case(Reject::BodyTooLarge { limit: 9 }, 413, "body-too-large", None, None)]
    #[case(
        Reject::Saturated,
        429,
        "saturated",
        Some("rejected-saturated"),
        Some("1")
    )]
    #[case(NoPick::EmptyPool.into(), 503, "no-endpoints", Some("rejected-no-endpoints"), None)]
    #[case(NoPick::EmptySubset.into(), 503, "no-endpoints", Some("rejected-no-endpoints"), None)]
    #[case(NoPick::NoRole.into(), 503, "no-endpoints", Some("rejected-no-endpoints"), None)]
    #[case(NoPick::Filtered.into(), 429, "saturated", Some("rejected-saturated"), Some("1"))]
    #[case(Reject::ModelNotFound(None), 404, "model-not-found", None, None)]
    #[case(Reject::BodyNotSeen, 413, "body-too-large", None, None)]
    #[case(Reject::encoded("zstd"), 415, "content-encoding", None, None)]
    #[case(Reject::Internal, 500, "internal", None, None)]
    #[case(Reject::Shed, 429, "saturated", Some("rejected-saturated"), Some("1"))]
    #[case(Reject::External(StageFailure::TooLarge), 413, "too-large", None, None)]
    #[case(
        Reject::External(StageFailure::Unavailable),
        503,
        "unavailable",
        Some("rejected-unavailable"),
        None
    )]
    #[case(
        Reject::External(StageFailure::Invalid),
        502,
        "invalid-reply",
        Some("rejected-invalid-reply"),
        None
    )]
    #[case(
        Reject::External(StageFailure::Timeout),
        504,
        "timeout",
        Some("rejected-timeout"),
        None
    )]
    #[case(Reject::QueueFull("full".into()), 429, "saturated", Some("rejected-saturated"), Some("1"))]
    #[case(Reject::Expired { empty: false }, 429, "ttl-expired", Some("rejected-ttl-expired"), Some("1"))]
    #[case(Reject::Expired { empty: true }, 503, "ttl-expired", Some("rejected-ttl-expired"), None)]
    #[case(
        Reject::ShuttingDown,
        503,
        "shutting-down",
        Some("rejected-shutting-down"),
        None
    )]
    fn clients_are_told_in_the_agreed_terms(
        #[case] reject: Reject,
        #[case] status: u16,
        #[case] reason: &str,
        #[case] dropped: Option<&str>,
        #[case] retry_after: Option<&str>,
    ) {
        assert_eq!((reject.status(), reject.reason()), (status, reason));
        assert_eq!(reject.dropped_reason().as_deref(), dropped);
        assert_eq!(reject.retry_after(), retry_after);
        let body: serde_json::Value = serde_json::from_slice(&reject.body(None)).unwrap();
        assert_eq!(body["error"]["type"], reason);
        assert_eq!(body["error"]["code"], status);
        assert_eq!(body["error"]["message"], reject.to_string());
    }

    fn mk_rule_not_found() -> LlmError {
        let (model, wanted) = ("m".to_owned(), "expected x-env: prod".to_owned());
        LlmError::Rule(RuleError::RuleNotFound { model, wanted })
    }

    fn mk_transcode() -> LlmError {
        let message = "n is 2: triton gives one answer".to_owned();
        let param = Some("n".to_owned());
        LlmError::Transcode { message, param }
    }

    #[rstest]
    #[case(Reject::BadRequest("\"model\"".into(), Some("model")),
        r#"{"error":{"message":"\"model\"","type":"BadRequestError","param":"model","code":400},"trace_id":"t"}"#)]
    #[case(LlmError::from(PromptError::NoMessages).into(),
        r#"{"error":{"message":"the request has no messages: set \"messages\" to a list of at least one","type":"BadRequestError","param":"messages","code":400},"trace_id":"t"}"#)]
    #[case(LlmError::NoBody.into(),
        r#"{"error":{"message":"the request has no body: send one as JSON","type":"BadRequestError","param":null,"code":400},"trace_id":"t"}"#)]
    #[case(mk_transcode().into(),
        r#"{"error":{"message":"n is 2: triton gives one answer","type":"BadRequestError","param":"n","code":400},"trace_id":"t"}"#)]
    #[case(Reject::BodyTimeout { seconds: 60 },
        r#"{"error":{"message":"no part of the request body arrived for 60 s: send it faster or check the connection","type":"BadRequestError","param":null,"code":408},"trace_id":"t"}"#)]
    #[case(Reject::BodyTooLarge { limit: 9 },
        r#"{"error":{"message":"the request body is larger than 9 bytes, the limit of --max-request-body","type":"BadRequestError","param":null,"code":413},"trace_id":"t"}"#)]
    #[case(Reject::ModelNotFound(Some("gpt".into())),
        r#"{"error":{"message":"the model \"gpt\" is not served here","type":"NotFoundError","param":"model","code":404},"trace_id":"t"}"#)]
    #[case(mk_rule_not_found().into(),
        r#"{"error":{"message":"no rule of the model \"m\" is for the headers of this request: expected x-env: prod","type":"NotFoundError","param":null,"code":404},"trace_id":"t"}"#)]
    #[case(Reject::Shed,
        r#"{"error":{"message":"the pool is saturated and the request is of low priority: retry later","type":"RateLimitError","param":null,"code":429},"trace_id":"t"}"#)]
    #[case(LlmError::NoUpstreamData { server: "10.0.0.1:80".into() }.into(),
        r#"{"error":{"message":"the model server 10.0.0.1:80 answered without a body: retry","type":"InferenceServerError","param":null,"code":503},"trace_id":"t"}"#)]
    fn under_the_llm_filter_errors_are_those_of_openai(#[case] reject: Reject, #[case] want: &str) {
        let field = (Bytes::from("x-request-id"), Bytes::from("t"));
        let trace_id = TraceId::of(&Headers::new(&[field]), &mut rand::rng());
        assert_eq!(String::from_utf8_lossy(&reject.body(Some(&trace_id))), want);
    }

    #[rstest]
    #[case(RuleError::ModelNotFound("m".into()), 404, "model-not-found")]
    #[case(RuleError::ClusterNotServed { model: "m".into(), cluster: "c".parse().unwrap() }, 404, "cluster-not-served")]
    #[case(RuleError::LabelsMatchNone { model: "m".into(), labels: "a=b".into() }, 404, "labels-match-none")]
    #[case(mk_rule_not_found(), 404, "rule-not-found")]
    #[case(PromptError::NoMessages, 400, "bad-request")]
    #[case(LlmError::NoBody, 400, "no-body")]
    #[case(mk_transcode(), 400, "transcode")]
    #[case(LlmError::NoUpstreamData { server: String::new() }, 503, "no-upstream-data")]
    fn errors_of_the_llm_filter_have_their_reasons(
        #[case] error: impl Into<LlmError>,
        #[case] status: u16,
        #[case] reason: &str,
    ) {
        let reject = Reject::from(error.into());
        assert_eq!((reject.status(), reject.reason()), (status, reason));
        assert_eq!(
            (reject.dropped_reason(), reject.retry_after()),
            (None, None)
        );
    }
}
