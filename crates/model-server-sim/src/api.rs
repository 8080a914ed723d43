//! The APIs of OpenAI, Anthropic, vLLM and Triton: what a client sends and gets.
//!
//! [`request`] reads and checks a body, [`prompt`] is what the model would read of it, [`answer`] gives the
//! result the shape of its API, [`stream`] sends it token by token, [`error`] says what went wrong, [`source`]
//! finds token ids that others made, [`responses`] keeps responses. The handlers are in [`generation`], [`triton`], [`embeddings`], [`tokens`] and [`models`].

mod answer;
mod embeddings;
mod error;
mod generation;
mod models;
mod object;
mod prompt;
mod request;
mod responses;
mod source;
mod stream;
mod tokens;
mod triton;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

pub(crate) use self::{error::ApiError, request::Input, responses::Responses, source::Tokens};
use crate::{args::EngineKind, server::App};

/// 60 s: what the endpoint picker gives a body too.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// All paths of the APIs that an engine has.
pub(crate) fn routes(engine: EngineKind) -> Router<Arc<App>> {
    if engine.is_in_triton() {
        return triton::routes();
    }
    Router::new()
        .route("/v1/chat/completions", post(generation::chat))
        .route("/v1/completions", post(generation::completions))
        .route("/v1/responses", post(generation::responses))
        .route("/v1/responses/{id}", get(responses::get))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/messages", post(generation::messages))
        .route("/inference/v1/generate", post(generation::tokens))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/messages/count_tokens", post(tokens::count_tokens))
        .route("/v1/chat/completions/render", post(tokens::render_chat))
        .route("/v1/completions/render", post(tokens::render_completion))
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/models", get(models::models))
        .route("/v1/load_lora_adapter", post(models::load_adapter))
        .route("/v1/unload_lora_adapter", post(models::unload_adapter))
}

/// For paths that do not exist.
pub(crate) async fn not_found(State(app): State<Arc<App>>, request: Request) -> Response {
    refuse(&app, ApiError::NoSuchPath(request.uri().path().to_owned()))
}

/// For methods that a path does not have.
pub(crate) async fn method_not_allowed(State(app): State<Arc<App>>, request: Request) -> Response {
    let error = ApiError::WrongMethod {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
    };
    refuse(&app, error)
}

/// An error in the shape of the engine's APIs.
fn refuse(app: &App, error: ApiError) -> Response {
    if app.settings.engine.is_in_triton() {
        error.into_triton_response()
    } else {
        error.into_response()
    }
}

/// Reads a body, whole and bounded in size and time.
///
/// # Errors
/// [`ApiError`] when it is too large, too slow or broken off.
pub(crate) async fn read_body(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match timeout(BODY_TIMEOUT, Limited::new(body, limit).collect()).await {
        Err(_) => Err(ApiError::BodyTimeout),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::BodyTooLarge { limit }),
        Ok(Err(error)) => Err(ApiError::BodyBroken(error.to_string())),
    }
}

/// What all requests that a model would answer begin with: read, record, do what the knobs say. Gives back
/// the request's number in the log and its body.
async fn receive(app: &App, request: Request) -> Result<(u64, Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, app.settings.max_request_body).await?;
    let number = app.admin.record(&parts, &body);
    app.admin.disturb().await?;
    if !app.started_up() {
        return Err(ApiError::StartingUp);
    }
    Ok((number, body))
}

fn json(status: StatusCode, body: Vec<u8>) -> Response {
    let content_type = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    (status, [content_type], body).into_response()
}
