//! The admin port: `/metrics`, `/healthz`, `/readyz`, and what the program adds.

use std::{io, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Health;

#[derive(Clone)]
struct Admin {
    registry: Arc<Registry>,
    health: Health,
}

/// Serves the admin port on `listener` until `stop` is cancelled. `extra` adds routes, such as `/debug/…`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    registry: Arc<Registry>,
    health: Health,
    extra: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    axum::serve(listener, router(registry, health).merge(extra))
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

/// The routes of [`serve`], without a listener.
pub fn router(registry: Arc<Registry>, health: Health) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Admin { registry, health })
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &admin.registry) {
        Ok(()) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn healthz(State(admin): State<Admin>) -> Response {
    match admin.health.failure() {
        None => {
            let mut text = "ok\n".to_owned();
            for name in admin.health.watched() {
                text.push_str(name);
                text.push_str(": goes round\n");
            }
            text.into_response()
        }
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let status = if admin.health.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, admin.health.report()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    async fn status(health: &Health, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        router(Arc::new(Registry::default()), health.clone())
            .oneshot(request)
            .await
            .expect("infallible")
            .status()
    }

    #[tokio::test]
    async fn health_shows_on_the_probes() {
        let health = Health::new(&["lists"]);
        assert_eq!(status(&health, "/readyz").await, 503);
        assert_eq!(status(&health, "/healthz").await, 200);
        health.set("lists", true);
        assert_eq!(status(&health, "/readyz").await, 200);
        health.fail("writer ended");
        assert_eq!(status(&health, "/healthz").await, 503);
        assert_eq!(status(&health, "/metrics").await, 200);
    }
}
