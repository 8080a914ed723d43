//! Paths that count or show tokens and compute nothing: `count_tokens`, `render`, `tokenize`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{
    answer::Endpoint,
    error::ApiError,
    receive,
    request::{Input, Limits, Request as Generation},
};
use crate::{
    server::{ApiServer, App},
    text::token_ids,
};

/// `POST /v1/messages/count_tokens`
pub(super) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    let counted = async {
        let (_, body) = receive(&app, request).await?;
        Input::parse(Endpoint::Messages, &body, &app.models)
    };
    match counted.await {
        Ok(input) => Json(json!({"input_tokens": input.prompt.tokens()})).into_response(),
        Err(error) => error.into_anthropic_response(),
    }
}

/// `POST /tokenize`: messages or a prompt.
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, body) = receive(&app, request).await?;
    let input = Input::parse_either(&body, &app.models)?;
    Ok(Json(json!({
        "count": input.prompt.tokens(),
        "max_model_len": app.settings.max_model_len,
        "tokens": token_ids(input.prompt.bytes()),
        "token_strs": null,
    })))
}

/// `POST /v1/chat/completions/render`
pub(super) async fn render_chat(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    render(&app, Endpoint::Chat, request).await.map(Json)
}

/// `POST /v1/completions/render`: a list, as a completion may have several prompts.
pub(super) async fn render_completion(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let rendered = render(&app, Endpoint::Completions, request).await?;
    Ok(Json(json!([rendered])))
}

/// What `/inference/v1/generate` takes for the same answer.
async fn render(app: &App, endpoint: Endpoint, request: Request) -> Result<Value, ApiError> {
    let (_, body) = receive(app, request).await?;
    let limits = Limits {
        models: &app.models,
        max_model_len: app.settings.max_model_len,
        responses: app.responses(ApiServer::default()),
    };
    let request = Generation::parse(endpoint, &body, &limits)?;
    let input = request.input();
    Ok(json!({
        "request_id": app.next_id(),
        "model": &*input.model.name,
        "token_ids": token_ids(input.prompt.bytes()),
        "sampling_params": {"max_tokens": request.max_tokens(), "seed": request.seed()},
        "stream": request.include_usage().is_some(),
    }))
}
