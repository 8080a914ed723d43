//! `GET /debug/clusters`: the state of the members, without secrets.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::{Json, Router, extract::State, routing::get};

use crate::overview::Overview;

pub(super) fn router(overview: Arc<ArcSwap<Overview>>) -> Router {
    Router::new()
        .route("/debug/clusters", get(clusters))
        .with_state(overview)
}

async fn clusters(State(overview): State<Arc<ArcSwap<Overview>>>) -> Json<Overview> {
    Json(overview.load().as_ref().clone())
}
