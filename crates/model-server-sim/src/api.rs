//! The OpenAI API: what a client sends and gets.
//!
//! [`request`] reads and checks a body, [`answer`] gives the result its OpenAI shape, [`stream`] sends it
//! token by token, [`error`] says what went wrong; this file is the way of a request through them.

mod answer;
mod error;
mod request;
mod stream;

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::timeout;
use xxhash_rust::xxh64::xxh64;

pub(crate) use self::error::ApiError;
use self::{
    answer::{Answer, Endpoint},
    request::{Limits, Request as Generation},
    stream::events,
};
use crate::{args::Mode, engine::Work, server::App, text::Output};

/// 60 s: what the endpoint picker gives a body too.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// `POST /v1/chat/completions`
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Chat, request).await
}

/// `POST /v1/completions`
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Completions, request).await
}

/// `GET /v1/models`
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    #[derive(Serialize)]
    struct Model<'a> {
        id: &'a str,
        object: &'static str,
        created: i64,
        owned_by: &'static str,
        root: &'a str,
        parent: Option<&'static str>,
        max_model_len: u32,
    }
    #[derive(Serialize)]
    struct Models<'a> {
        object: &'static str,
        data: Vec<Model<'a>>,
    }
    let data = app.settings.served_models.iter().map(|name| Model {
        id: name,
        object: "model",
        created: app.started.as_second(),
        owned_by: "vllm",
        root: &app.settings.model,
        parent: None,
        max_model_len: app.settings.max_model_len.get(),
    });
    Json(Models {
        object: "list",
        data: data.collect(),
    })
    .into_response()
}

/// For paths that do not exist.
pub(crate) async fn not_found(request: Request) -> ApiError {
    ApiError::NoSuchPath(request.uri().path().to_owned())
}

/// For methods that a path does not have.
pub(crate) async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::WrongMethod {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
    }
}

/// Reads a body, whole and bounded in size and time.
///
/// # Errors
/// [`ApiError`] when it is too large, too slow or broken off.
pub(crate) async fn read_body(body: Body, limit: usize) -> Result<bytes::Bytes, ApiError> {
    match timeout(BODY_TIMEOUT, Limited::new(body, limit).collect()).await {
        Err(_) => Err(ApiError::BodyTimeout),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::BodyTooLarge { limit }),
        Ok(Err(error)) => Err(ApiError::BodyBroken(error.to_string())),
    }
}

async fn respond(app: Arc<App>, endpoint: Endpoint, request: Request) -> Response {
    match generate(&app, endpoint, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(reason = error.reason(), %error, "request refused");
            error.into_response()
        }
    }
}

async fn generate(
    app: &Arc<App>,
    endpoint: Endpoint,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, app.settings.max_request_body).await?;
    let number = app.admin.record(&parts, &body);
    app.admin.disturb().await?;
    if !app.started_up() {
        return Err(ApiError::StartingUp);
    }

    let limits = Limits {
        served_models: &app.settings.served_models,
        max_model_len: app.settings.max_model_len,
    };
    let request = Generation::parse(endpoint, &body, &limits)?;
    let output = match app.settings.mode {
        Mode::Echo => Output::echo(request.echo_text(), request.max_tokens()),
        Mode::Random => {
            let seed = xxh64(&body, app.settings.seed ^ request.seed());
            let (tokens, finish) = request.output_length(seed, app.settings.output_tokens);
            Output::random(seed, tokens, finish)
        }
    };
    // A long prompt must not stay in memory while it is "computed".
    drop(body);
    let settings = &app.settings;
    let work = Work {
        prompt_tokens: request.prompt_tokens(),
        prefix: request.prefix(&settings.model, settings.limits.block_tokens),
        output_tokens: output.tokens().get(),
        finish: output.finish(),
    };
    let sequence = app.engine.submit(work)?;
    let mut answer = Answer {
        endpoint,
        id: app.next_id(),
        created: Timestamp::now().as_second(),
        prompt_tokens: request.prompt_tokens(),
        cached_tokens: 0,
        include_usage: request.include_usage(),
        model: request.into_model(),
        output,
    };
    if answer.include_usage.is_none() {
        let mut sequence = sequence;
        let progress = sequence.finished().await?;
        answer.cached_tokens = progress.cached_tokens;
        app.admin.record_cached(number, progress.cached_tokens);
        return Ok(json(StatusCode::OK, answer.whole()));
    }
    let mut response = Response::new(Body::from_stream(events(
        app.clone(),
        number,
        answer,
        sequence,
    )));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

fn json(status: StatusCode, body: Vec<u8>) -> Response {
    let content_type = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    (status, [content_type], body).into_response()
}
