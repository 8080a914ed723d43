//! What goes wrong with a request, and its OpenAI shape.

use axum::{
    Json,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    engine::{Cancelled, Rejected},
    listen::Reset,
    models::LoraError,
};

/// Why a request is not answered with a completion.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("the body is not a valid request: {0}")]
    InvalidJson(String),
    #[error("{field} is missing: {expected}")]
    MissingField {
        field: &'static str,
        expected: &'static str,
    },
    #[error("{field}: {message}")]
    InvalidField {
        field: &'static str,
        message: String,
    },
    #[error("The model `{model}` does not exist: {served} is served here")]
    UnknownModel { model: String, served: String },
    #[error(
        "This model's maximum context length is {limit} tokens, but {prompt} prompt tokens and {output} output tokens were requested: shorten one of them"
    )]
    ContextTooLong {
        limit: u32,
        prompt: u32,
        output: u32,
    },
    #[error("Response with id '{0}' not found.")]
    UnknownResponse(String),
    #[error("Cannot cancel a synchronous response.")]
    NotInBackground,
    #[error("there is nothing at {0}")]
    NoSuchPath(String),
    #[error("{path} does not take {method}")]
    WrongMethod { method: Method, path: String },
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive within 60 s")]
    BodyTimeout,
    #[error("the body broke off: {0}")]
    BodyBroken(String),
    #[error("the model is still being loaded: try again later")]
    StartingUp,
    #[error(transparent)]
    Rejected(#[from] Rejected),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    #[error(transparent)]
    Lora(LoraError),
    #[error("the connection is reset, as /admin/config says")]
    ToldToReset,
    #[error("rejected, as /admin/config says")]
    ToldToReject,
    #[error("failed with status {0}, as /admin/config says")]
    ToldToFail(StatusCode),
    #[error("the new configuration is not valid: {0}")]
    InvalidConfig(String),
}

// === impl ApiError ===

impl ApiError {
    /// Stable: log field and value of `error.reason` in the body.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::InvalidJson(_) => "invalid-json",
            Self::MissingField { .. } => "missing-field",
            Self::InvalidField { .. } => "invalid-field",
            Self::UnknownModel { .. } => "unknown-model",
            Self::ContextTooLong { .. } => "context-too-long",
            Self::UnknownResponse(_) => "unknown-response",
            Self::NotInBackground => "not-in-background",
            Self::NoSuchPath(_) => "no-such-path",
            Self::WrongMethod { .. } => "wrong-method",
            Self::BodyTooLarge { .. } => "body-too-large",
            Self::BodyTimeout => "body-timeout",
            Self::BodyBroken(_) => "body-broken",
            Self::StartingUp => "starting-up",
            Self::Rejected(rejected) => rejected.reason(),
            Self::Cancelled(_) => "shutting-down",
            Self::Lora(LoraError::Unknown(_)) => "unknown-adapter",
            Self::Lora(_) => "adapter-refused",
            Self::ToldToReset => "told-to-reset",
            Self::ToldToReject => "told-to-reject",
            Self::ToldToFail(_) => "told-to-fail",
            Self::InvalidConfig(_) => "invalid-config",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::InvalidJson(_)
            | Self::MissingField { .. }
            | Self::InvalidField { .. }
            | Self::ContextTooLong { .. }
            | Self::NotInBackground
            | Self::BodyBroken(_)
            | Self::Rejected(Rejected::TooLarge { .. })
            | Self::Lora(LoraError::Invalid(_) | LoraError::Taken(_) | LoraError::TooMany)
            | Self::InvalidConfig(_) => StatusCode::BAD_REQUEST,
            Self::UnknownModel { .. }
            | Self::UnknownResponse(_)
            | Self::NoSuchPath(_)
            | Self::Lora(LoraError::Unknown(_)) => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Rejected(Rejected::QueueFull { .. }) | Self::ToldToReject => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::StartingUp | Self::Cancelled(_) => StatusCode::SERVICE_UNAVAILABLE,
            // Never sent: see `Reset`.
            Self::ToldToReset => StatusCode::BAD_GATEWAY,
            Self::ToldToFail(status) => *status,
        }
    }

    fn kind(&self) -> &'static str {
        if let Self::UnknownResponse(_) | Self::NotInBackground = self {
            return "invalid_request_error";
        }
        match self.status() {
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            status if status.is_server_error() => "InternalServerError",
            _ => "BadRequestError",
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            Self::MissingField { field, .. } | Self::InvalidField { field, .. } => Some(field),
            Self::UnknownModel { .. } => Some("model"),
            Self::UnknownResponse(_) | Self::NotInBackground => Some("response_id"),
            _ => None,
        }
    }

    /// The shape of the Anthropic API; `reason` is ours.
    pub(crate) fn into_anthropic_response(self) -> Response {
        let status = self.status();
        let kind = match status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let error = json!({
            "type": "error",
            "error": {"type": kind, "message": self.to_string(), "reason": self.reason()},
        });
        self.respond(Json(error))
    }

    /// The shape of Triton: a text.
    pub(crate) fn into_triton_response(self) -> Response {
        let (status, text) = match &self {
            Self::UnknownModel { model, .. } => {
                let text = format!("Request for unknown model: '{model}' is not found");
                (StatusCode::NOT_FOUND, text)
            }
            // Where vLLM says 429.
            Self::Rejected(Rejected::QueueFull { .. }) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Exceeds maximum queue size".to_owned(),
            ),
            _ => (self.status(), self.to_string()),
        };
        let mut response = self.respond(Json(json!({"error": text})));
        *response.status_mut() = status;
        response
    }

    fn respond(&self, body: impl IntoResponse) -> Response {
        tracing::debug!(reason = self.reason(), error = %self, "request refused");
        let status = self.status();
        let mut response = (status, body).into_response();
        if matches!(self, Self::ToldToReset) {
            response.extensions_mut().insert(Reset);
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Detail {
            message: String,
            r#type: &'static str,
            param: Option<&'static str>,
            code: u16,
            reason: &'static str,
        }
        #[derive(Serialize)]
        struct Envelope {
            error: Detail,
        }
        let error = Detail {
            message: self.to_string(),
            r#type: self.kind(),
            param: self.param(),
            code: self.status().as_u16(),
            reason: self.reason(),
        };
        self.respond(Json(Envelope { error }))
    }
}
