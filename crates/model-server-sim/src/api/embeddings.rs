//! `/v1/embeddings`: made-up vectors of length 1, the same for the same text.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use xxhash_rust::xxh64::xxh64;

use super::{
    error::ApiError,
    receive,
    request::{EmbeddingRequest, Input, Limits},
};
use crate::{
    engine::{Finish, Work, share},
    server::{ApiServer, App},
};

/// `POST /v1/embeddings`: each input is a sequence of its own.
pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (number, body) = receive(&app, request).await?;
    let settings = &app.settings;
    let limits = Limits {
        models: &app.models,
        max_model_len: settings.max_model_len,
        responses: app.responses(ApiServer::default()),
    };
    let EmbeddingRequest {
        inputs,
        dimensions,
        base64,
    } = EmbeddingRequest::parse(&body, &limits)?;
    drop(body);
    let submit = |input: &Input| {
        app.engine.submit(Work {
            prompt_tokens: input.prompt.tokens(),
            prefix: input.prefix(&settings.model, settings.limits.block_tokens),
            content: app.content(input),
            adapter: input.model.adapter.clone(),
            output_tokens: 0,
            finish: Finish::Stop,
        })
    };
    // Where one is refused, those before it are dropped and so cancelled.
    let sequences: Vec<_> = inputs.iter().map(submit).collect::<Result<_, _>>()?;
    let mut cached_tokens = 0_u32;
    for mut sequence in sequences {
        cached_tokens = cached_tokens.saturating_add(sequence.finished().await?.cached_tokens);
    }
    app.admin.record_cached(number, cached_tokens);
    let data: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let vector = vector(xxh64(input.prompt.bytes(), settings.seed), dimensions);
            let embedding = if base64 {
                let bytes: Vec<_> = vector.iter().flat_map(|part| part.to_le_bytes()).collect();
                json!(STANDARD.encode(bytes))
            } else {
                json!(vector)
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let prompt_tokens = inputs.iter().fold(0_u32, |sum, input| {
        sum.saturating_add(input.prompt.tokens())
    });
    let model = inputs.first().map(|input| &*input.model.name);
    Ok(Json(json!({
        "id": format!("embd-{}", app.next_id()),
        "object": "list",
        "model": model,
        "data": data,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        },
    })))
}

/// A direction that depends on `seed` alone.
fn vector(seed: u64, dimensions: u32) -> Vec<f32> {
    let parts: Vec<_> = (0..dimensions)
        .map(|index| share(xxh64(&index.to_le_bytes(), seed)) * 2.0 - 1.0)
        .collect();
    let length = parts.iter().map(|part| part * part).sum::<f64>().sqrt();
    let length = if length > 0.0 { length } else { 1.0 };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "from -1 to 1: only precision is lost"
    )]
    let narrow = |part: f64| (part / length) as f32;
    parts.into_iter().map(narrow).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_1_and_repeat() {
        let first = vector(1, 100);
        let length: f32 = first.iter().map(|part| part * part).sum();
        assert!((length - 1.0).abs() < 1e-4);
        assert_eq!(first.len(), 100);
        assert!(first == vector(1, 100) && first != vector(2, 100));
    }
}
