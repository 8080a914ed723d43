//! Why a request is not passed on, and what its client is told.

use scheduling::NoPick;

/// A request-level failure. It becomes an immediate HTTP response, never a gRPC error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reject {
    /// The body of a path whose format is known cannot be read.
    #[error("{0}")]
    BadRequest(String),
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
    /// All bodies held together are at their limit.
    #[error("too many request bodies are being held: retry later")]
    Saturated,
    /// The model is none that clients may ask for; absent: the body was not read.
    #[error("{}", no_model(.0.as_deref()))]
    ModelNotFound(Option<String>),
    /// The model matters, and stands in a part of the body that was not seen.
    #[error(
        "the request body is too large to be read whole in the proxy's body mode: send less, or have the proxy use FULL_DUPLEX_STREAMED"
    )]
    ModelNotSeen,
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

// === impl Reject ===

impl Reject {
    /// Stable: metric label, error type and dropped-reason header alike.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad-request",
            Self::BodyTimeout { .. } => "body-timeout",
            Self::BodyTooLarge { .. } | Self::ModelNotSeen => "body-too-large",
            Self::Saturated | Self::Shed | Self::QueueFull(_) => "saturated",
            Self::ModelNotFound(_) => "model-not-found",
            Self::Expired { .. } => "ttl-expired",
            Self::NoEndpoints(no_pick) => no_pick.reason(),
            Self::ShuttingDown => "shutting-down",
        }
    }

    /// HTTP status. 503 means that another pool may serve the request, 429 that this one will later.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::BadRequest(_) => 400,
            Self::BodyTimeout { .. } => 408,
            Self::BodyTooLarge { .. } | Self::ModelNotSeen => 413,
            Self::ModelNotFound(_) => 404,
            Self::Saturated
            | Self::Shed
            | Self::QueueFull(_)
            | Self::Expired { empty: false }
            | Self::NoEndpoints(NoPick::Filtered) => 429,
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
            | Self::ShuttingDown => Some(format!("rejected-{}", self.reason())),
            Self::BadRequest(_)
            | Self::BodyTimeout { .. }
            | Self::BodyTooLarge { .. }
            | Self::ModelNotFound(_)
            | Self::ModelNotSeen => None,
        }
    }

    /// Value of `retry-after` in seconds, where waiting helps.
    pub(crate) fn retry_after(&self) -> Option<&'static str> {
        (self.status() == 429).then_some("1")
    }

    /// The JSON body for the client.
    pub(crate) fn body(&self) -> Vec<u8> {
        let error = serde_json::json!({
            "error": { "message": self.to_string(), "type": self.reason(), "code": self.status() }
        });
        error.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Reject::BadRequest("no model".into()), 400, "bad-request", None, None)]
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
    #[case(NoPick::Filtered.into(), 429, "saturated", Some("rejected-saturated"), Some("1"))]
    #[case(Reject::ModelNotFound(None), 404, "model-not-found", None, None)]
    #[case(Reject::ModelNotSeen, 413, "body-too-large", None, None)]
    #[case(Reject::Shed, 429, "saturated", Some("rejected-saturated"), Some("1"))]
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
        let body: serde_json::Value = serde_json::from_slice(&reject.body()).unwrap();
        assert_eq!(body["error"]["type"], reason);
        assert_eq!(body["error"]["code"], status);
        assert_eq!(body["error"]["message"], reject.to_string());
    }
}
