//! `/debug/config` and `/debug/xds`: what was decided, and what Envoys have of it. Of header
//! filters, and of matches of headers and query parameters, only the names: values may be credentials.
//! Of certificates the Secrets' names and versions alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use moment::Clock;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control::SharedSelector;
use crate::model::GatewayModel;
use crate::text::quoted;
use crate::world::Key;
use crate::xds::ads::proxies::Proxies;
use crate::xds::ads::server::{Snapshots, version_text};
use crate::xds::{Kind, Snapshot};

/// What the pages show, replaced as a whole.
#[derive(Clone)]
pub(crate) struct DebugView {
    models: Arc<ArcSwap<Models>>,
    snapshots: Arc<ArcSwap<BTreeMap<Key, Arc<Snapshot>>>>,
    proxies: Proxies,
    selector: SharedSelector,
    clock: Clock,
}

type Models = BTreeMap<Key, Arc<GatewayModel>>;

#[derive(Deserialize)]
struct Which {
    gateway: Option<String>,
}

// === impl DebugView ===

impl DebugView {
    /// `clock` is the one by which facts come to the selector.
    pub(crate) fn new(proxies: Proxies, selector: SharedSelector, clock: Clock) -> Self {
        Self {
            models: Arc::default(),
            snapshots: Arc::default(),
            proxies,
            selector,
            clock,
        }
    }

    pub(crate) fn set_models(&self, models: Models) {
        self.models.store(Arc::new(models));
    }

    pub(crate) fn set_snapshots(&self, snapshots: Snapshots) {
        self.snapshots.store(snapshots);
    }

    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/debug/config", get(config))
            .route("/debug/xds", get(xds))
            .route("/debug/selection", get(selection))
            .with_state(self.clone())
    }
}

/// The routing model as text, of one Gateway or all.
async fn config(State(view): State<DebugView>, Query(which): Query<Which>) -> Response {
    let models = view.models.load();
    let chosen = models.values().filter(|model| which.includes(&model.key));
    let mut text = String::new();
    for model in chosen {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{model:#?}");
    }
    if text.is_empty() {
        return (StatusCode::NOT_FOUND, which.not_found()).into_response();
    }
    text.into_response()
}

/// Names and versions of resources, and of each Envoy what it acknowledged.
async fn xds(State(view): State<DebugView>, Query(which): Query<Which>) -> Response {
    let snapshots = view.snapshots.load();
    let chosen = snapshots.iter().filter(|(key, _)| which.includes(key));
    let shown: BTreeMap<String, Value> = chosen
        .map(|(key, snapshot)| (key.to_string(), show(&view.proxies, key, snapshot)))
        .collect();
    if shown.is_empty() {
        return (StatusCode::NOT_FOUND, which.not_found()).into_response();
    }
    Json(shown).into_response()
}

/// Health, metrics and shares of the clusters of each import in use, and why they are so.
async fn selection(State(view): State<DebugView>) -> Response {
    let shown = view.selector.lock().show(view.clock.now());
    Json(shown).into_response()
}

fn show(proxies: &Proxies, key: &Key, snapshot: &Snapshot) -> Value {
    let text = |versions: &BTreeMap<String, u64>| -> BTreeMap<String, String> {
        let texts = versions
            .iter()
            .map(|(name, v)| (name.clone(), version_text(*v)));
        texts.collect()
    };
    let resources: BTreeMap<&str, BTreeMap<String, String>> = Kind::ALL
        .iter()
        .map(|kind| {
            let all = snapshot.of(*kind).iter();
            let versions = all.map(|(name, resource)| (name.clone(), resource.version));
            (kind.as_str(), text(&versions.collect()))
        })
        .collect();
    let connected = proxies
        .connected()
        .into_iter()
        .filter(|proxy| proxy.gateway == *key);
    let envoys: Vec<Value> = connected
        .map(|proxy| {
            let acknowledged: BTreeMap<&str, _> = proxy
                .acknowledged
                .iter()
                .map(|(kind, versions)| (*kind, text(versions)))
                .collect();
            json!({
                "node": proxy.node,
                "version": proxy.version,
                "authenticated": proxy.authenticated,
                "current": proxy.current,
                "acknowledged": acknowledged,
            })
        })
        .collect();
    json!({ "resources": resources, "envoys": envoys })
}

// === impl Which ===

impl Which {
    fn includes(&self, key: &Key) -> bool {
        self.gateway
            .as_ref()
            .is_none_or(|wanted| *wanted == key.to_string())
    }

    fn not_found(&self) -> String {
        match &self.gateway {
            Some(gateway) => {
                let gateway = quoted(gateway);
                format!(
                    "no Gateway {gateway} of this controller: use ?gateway=<namespace>/<name>\n"
                )
            }
            None => "no Gateway of this controller yet\n".to_owned(),
        }
    }
}
