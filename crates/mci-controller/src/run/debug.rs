//! `GET /debug/clusters`: what is known of the members, without their secrets.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::{Json, Router, extract::State, routing::get};
use serde::Serialize;

use crate::{
    index::{World, facts::Claim, member::PoolRecord},
    metrics::state,
};
use moment::Moment;

/// The page, as it was last drawn up.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    /// Whether anything is written yet.
    gate_open: bool,
    clusters: Vec<Row>,
}

/// One member.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    link: &'static str,
    reason: &'static str,
    /// Uid of its `kube-system` namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    /// Seconds; absent while in contact.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_seconds: Option<u64>,
    pools: usize,
    exported_pools: usize,
    imports: usize,
    /// Absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    import_crd: Option<bool>,
}

pub(super) fn router(page: Arc<ArcSwap<Page>>) -> Router {
    Router::new()
        .route("/debug/clusters", get(clusters))
        .with_state(page)
}

async fn clusters(State(page): State<Arc<ArcSwap<Page>>>) -> Json<Page> {
    Json(page.load().as_ref().clone())
}

// === impl Page ===

impl Page {
    pub(super) fn draw(world: &World, gate_open: bool, now: Moment) -> Self {
        let rows = world.members.iter().map(|(name, member)| Row {
            name: name.to_string(),
            link: member.link.name(),
            reason: state(member),
            uid: member.uid.clone(),
            silent_seconds: member
                .silence
                .map(|silence| now.since(silence.since).as_secs()),
            pools: member.pools.len(),
            exported_pools: member
                .pools
                .values()
                .filter(|record| PoolRecord::is_exported(record))
                .count(),
            imports: member
                .imports
                .items
                .values()
                .filter(|import| import.claim == Claim::Ours)
                .count(),
            import_crd: member.import_crd,
        });
        Self {
            gate_open,
            clusters: rows.collect(),
        }
    }
}
