//! The way of a request for text: read, checked, computed, answered.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use jiff::Timestamp;
use xxhash_rust::xxh64::xxh64;

use super::{
    answer::{Answer, Endpoint, Stored},
    error::ApiError,
    json, receive,
    request::{Limits, Request as Generation},
    responses::keep,
    source::{CHECKSUM, SOURCE},
    stream::events,
};
use crate::{
    args::Mode,
    engine::{Engine, Work},
    server::App,
    text::Output,
};

/// `POST /v1/chat/completions`
pub(super) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Chat, request).await
}

/// `POST /v1/completions`
pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Completions, request).await
}

/// `POST /v1/responses`
pub(super) async fn responses(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Responses, request).await
}

/// `POST /v1/messages`
pub(super) async fn messages(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Messages, request).await
}

/// `POST /inference/v1/generate`
pub(super) async fn tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, Endpoint::Generate, request).await
}

async fn respond(app: Arc<App>, endpoint: Endpoint, request: Request) -> Response {
    match generate(&app, endpoint, request).await {
        Ok(response) => response,
        Err(error) if endpoint == Endpoint::Messages => error.into_anthropic_response(),
        Err(error) => error.into_response(),
    }
}

async fn generate(
    app: &Arc<App>,
    endpoint: Endpoint,
    request: Request,
) -> Result<Response, ApiError> {
    let takes_ids = matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
    let rank = app.rank_for(request.headers());
    let server = app.api_server(&request);
    let headers = takes_ids.then(|| request.headers().clone());
    let (number, body) = receive(app, request).await?;
    let engine = &rank?.engine;
    let limits = Limits {
        models: &app.models,
        max_model_len: app.settings.max_model_len,
        responses: app.responses(server),
    };
    let Some(headers) = headers else {
        let request = Generation::parse(endpoint, &body, &limits)?;
        return compute(app, engine, endpoint, number, body, request).await;
    };
    let given = app.tokens.find(endpoint, &headers, &body).await;
    let request = Generation::parse_with(endpoint, &body, &limits, given.ids.as_deref())?;
    let checksum = format!("{:016x}", request.input().prompt.checksum());
    let value = HeaderValue::try_from(&checksum);
    app.admin
        .record_tokens(number, given.source, given.reason, checksum);
    let mut response = compute(app, engine, endpoint, number, body, request).await?;
    let headers = response.headers_mut();
    headers.insert(SOURCE, HeaderValue::from_static(given.source));
    headers.extend(value.ok().map(|value| (CHECKSUM, value)));
    Ok(response)
}

/// Computes and answers a valid request, whose body is used up.
pub(super) async fn compute(
    app: &Arc<App>,
    engine: &Engine,
    endpoint: Endpoint,
    number: u64,
    body: Bytes,
    request: Generation,
) -> Result<Response, ApiError> {
    let settings = &app.settings;
    let (input, keeping) = (request.input(), request.keeping());
    let output = match settings.mode {
        Mode::Echo => Output::echo(input.prompt.echo_text(), request.max_tokens()),
        Mode::Random => {
            let seed = xxh64(&body, settings.seed ^ request.seed());
            let (tokens, finish) = request.output_length(seed, settings.output_tokens);
            Output::random(seed, tokens, finish)
        }
    };
    // A long prompt must not stay in memory while it is "computed".
    drop(body);
    let prompt_tokens = input.prompt.tokens();
    let work = Work {
        prompt_tokens,
        prefix: input.prefix(&settings.model, settings.limits.block_tokens),
        content: app.content(input),
        adapter: input.model.adapter.clone(),
        output_tokens: output.tokens().get(),
        finish: output.finish(),
    };
    let mut answer = Answer {
        endpoint,
        id: app.next_id(),
        created: Timestamp::now().as_second(),
        model: input.model.name.clone(),
        prompt_tokens,
        cached_tokens: 0,
        include_usage: request.include_usage(),
        repeated_input: match endpoint {
            Endpoint::Triton(shape) if shape.repeats_input => input.prompt.echo_text().to_owned(),
            _ => String::new(),
        },
        output,
        stored: keeping.is_stored.then(|| Stored {
            by: keeping.by,
            prompt: input.prompt.bytes().to_vec(),
        }),
    };
    drop(request);
    let mut sequence = engine.submit(work)?;
    if keeping.is_in_background {
        let document = app.responses(keeping.by).run(answer, sequence);
        return Ok(Json(document).into_response());
    }
    if answer.include_usage.is_none() {
        let progress = sequence.finished().await?;
        answer.cached_tokens = progress.cached_tokens;
        app.admin.record_cached(number, progress.cached_tokens);
        keep(app, &answer);
        return Ok(json(StatusCode::OK, answer.whole()));
    }
    let events = events(app.clone(), number, answer, sequence);
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}
