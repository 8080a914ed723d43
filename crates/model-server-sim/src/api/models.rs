//! Which models there are, and LoRA adapters that come and go.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::{error::ApiError, object::Object, read_body, request::brief};
use crate::{
    models::{LoraError, LoraModule},
    server::App,
};

/// 64 KiB: more than any name and path.
const LORA_BODY_LIMIT: usize = 64 * 1024;

#[derive(Debug, Deserialize)]
struct RawLora {
    lora_name: Option<String>,
    lora_path: Option<String>,
}

/// `GET /v1/models`
pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    #[derive(Serialize)]
    struct Model<'a> {
        id: &'a str,
        object: &'static str,
        created: i64,
        owned_by: &'static str,
        root: &'a str,
        parent: Option<&'a str>,
        max_model_len: Option<u32>,
    }
    #[derive(Serialize)]
    struct Models<'a> {
        object: &'static str,
        data: Vec<Model<'a>>,
    }
    let model = |id, root, parent, max_model_len| Model {
        id,
        object: "model",
        created: app.started.as_second(),
        owned_by: "vllm",
        root,
        parent,
        max_model_len,
    };
    let served = app.models.served();
    let max_model_len = Some(app.settings.max_model_len.get());
    let adapters = app.models.adapters();
    let own = served
        .iter()
        .map(|name| model(name, &app.settings.model, None, max_model_len));
    let parent = served.first().map(|name| &**name);
    let adapters = adapters
        .iter()
        .map(|(name, path)| model(name, path, parent, None));
    Json(Models {
        object: "list",
        data: own.chain(adapters).collect(),
    })
    .into_response()
}

/// `POST /v1/load_lora_adapter`
pub(super) async fn load_adapter(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<String, ApiError> {
    let (name, path) = read(request).await?;
    let module = LoraModule {
        name,
        path: path.unwrap_or_default(),
        base_model_name: None,
    };
    app.models.load(&module)?;
    let name = module.name;
    Ok(format!(
        "Success: LoRA adapter '{name}' added successfully."
    ))
}

/// `POST /v1/unload_lora_adapter`
pub(super) async fn unload_adapter(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<String, ApiError> {
    let (name, _) = read(request).await?;
    app.models.unload(&name)?;
    Ok(format!(
        "Success: LoRA adapter '{name}' removed successfully."
    ))
}

async fn read(request: Request) -> Result<(String, Option<String>), ApiError> {
    let body = read_body(request.into_body(), LORA_BODY_LIMIT).await?;
    let Object(raw): Object<RawLora> = serde_json::from_slice(&body)
        .map_err(|error| ApiError::InvalidJson(brief(&error.to_string())))?;
    let name = raw.lora_name.ok_or(ApiError::MissingField {
        field: "lora_name",
        expected: "name the adapter",
    })?;
    Ok((name, raw.lora_path))
}

// === impl ApiError ===

impl From<LoraError> for ApiError {
    fn from(error: LoraError) -> Self {
        Self::Lora(error)
    }
}
