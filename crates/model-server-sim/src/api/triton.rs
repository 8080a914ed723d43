//! Triton's paths: its generate extension, and whether it is alive and ready.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;

use super::{
    answer::Endpoint,
    error::ApiError,
    generation::compute,
    receive,
    request::{Limits, Request as Generation, TritonCall},
};
use crate::server::{ApiServer, App};

/// The only version of the model.
const VERSION: &str = "1";

/// Of a path.
#[derive(Debug, Deserialize)]
struct Place {
    model: String,
    version: Option<String>,
}

pub(super) fn routes() -> Router<Arc<App>> {
    let model = "/v2/models/{model}";
    let version = format!("{model}/versions/{{version}}");
    [model, &version].into_iter().fold(
        Router::new()
            .route("/v2/health/live", get(live))
            .route("/v2/health/ready", get(ready)),
        |router, place| {
            router
                .route(&format!("{place}/ready"), get(model_ready))
                .route(&format!("{place}/generate"), post(generate))
                .route(&format!("{place}/generate_stream"), post(generate_stream))
        },
    )
}

async fn live() -> StatusCode {
    StatusCode::OK
}

/// Not ready is 400, as in Triton.
async fn ready(State(app): State<Arc<App>>) -> StatusCode {
    if app.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::BAD_REQUEST
    }
}

async fn model_ready(State(app): State<Arc<App>>, Path(place): Path<Place>) -> Response {
    match place.check(&app) {
        Ok(()) => ready(State(app)).await.into_response(),
        Err(error) => error.into_triton_response(),
    }
}

async fn generate(state: State<Arc<App>>, place: Path<Place>, request: Request) -> Response {
    respond(state, place, request, false).await
}

async fn generate_stream(state: State<Arc<App>>, place: Path<Place>, request: Request) -> Response {
    respond(state, place, request, true).await
}

async fn respond(
    State(app): State<Arc<App>>,
    Path(place): Path<Place>,
    request: Request,
    streams: bool,
) -> Response {
    let answer = async {
        let (number, body) = receive(&app, request).await?;
        place.check(&app)?;
        let call = TritonCall {
            model: &place.model,
            streams,
            engine: app.settings.engine,
            stream_output: app.settings.triton_stream_output,
        };
        let limits = Limits {
            models: &app.models,
            max_model_len: app.settings.max_model_len,
            responses: app.responses(ApiServer::default()),
        };
        let (request, shape) = Generation::parse_triton(call, &body, &limits)?;
        compute(
            &app,
            &app.engine,
            Endpoint::Triton(shape),
            number,
            body,
            request,
        )
        .await
    };
    answer.await.unwrap_or_else(ApiError::into_triton_response)
}

// === impl Place ===

impl Place {
    /// Whether there is such a model: adapters have no place of their own.
    fn check(&self, app: &App) -> Result<(), ApiError> {
        let model = app.models.resolve(&self.model);
        let known = model.is_some_and(|model| model.adapter.is_none());
        if known
            && self
                .version
                .as_deref()
                .is_none_or(|version| version == VERSION)
        {
            return Ok(());
        }
        Err(ApiError::UnknownModel {
            model: self.model.clone(),
            served: app.models.served().join(", "),
        })
    }
}
