//! Pages for who asks why requests go where they go: `/debug/state` and `/debug/picks`, as JSON.
//!
//! They are made when somebody asks for them, from what the parts hold anyway; picks are recorded by the director.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;

use crate::director::Director;

mod config;
mod state;

/// The pages of one pool.
pub(crate) fn router(director: Arc<Director>) -> Router {
    Router::new()
        .route("/debug/state", get(state))
        .route("/debug/picks", get(picks))
        .with_state(director)
}

async fn state(State(director): State<Arc<Director>>) -> Response {
    json(&state::of(&director))
}

async fn picks(State(director): State<Arc<Director>>) -> Response {
    let latest = director.latest_picks();
    let records: Vec<_> = latest.iter().map(AsRef::as_ref).collect();
    json(&records)
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests;
