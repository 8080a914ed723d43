//! The admin port: `/metrics`, `/healthz`, `/readyz`, and what the program adds.

use std::{fmt, io, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{net::TcpListener, sync::Semaphore, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::Health;

#[derive(Clone)]
struct Admin {
    registry: Arc<Registry>,
    health: Health,
    /// Of making a page: one after the other.
    turns: Arc<Semaphore>,
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
        .with_state(Admin {
            registry,
            health,
            turns: Arc::new(Semaphore::new(1)),
        })
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let Admin {
        registry, turns, ..
    } = admin;
    // A page of many series takes milliseconds, for which nothing else on this thread is to wait.
    let page = async {
        let turn = turns.acquire_owned().await.map_err(|_| fmt::Error)?;
        let make = move || {
            let _turn = turn;
            let mut text = String::new();
            encode(&mut text, &registry).map(|()| text)
        };
        spawn_blocking(make).await.unwrap_or(Err(fmt::Error))
    };
    match page.await {
        Ok(text) => (
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
    use std::{sync::mpsc, time::Duration};

    use axum::{body::Body, http::Request};
    use parking_lot::Mutex;
    use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
    use tokio::task::{JoinSet, yield_now};
    use tower::ServiceExt;

    use super::*;

    /// The most that a page waits in a test.
    const LIMIT: Duration = Duration::from_secs(10);

    async fn status(health: &Health, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        router(Arc::new(Registry::default()), health.clone())
            .oneshot(request)
            .await
            .expect("infallible")
            .status()
    }

    /// A collector that is not done before it is told to be.
    #[derive(Debug)]
    struct Slow(Mutex<mpsc::Receiver<()>>);

    impl Collector for Slow {
        fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.lock().recv_timeout(LIMIT).map_err(|_| fmt::Error)
        }
    }

    #[tokio::test]
    async fn a_page_that_takes_its_time_delays_no_probe() {
        let (done, waiting) = mpsc::channel();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Slow(Mutex::new(waiting))));
        let router = router(Arc::new(registry), Health::new(&[]));
        let ask = |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            router.clone().oneshot(request)
        };
        let mut pages = JoinSet::new();
        pages.spawn(ask("/metrics"));
        yield_now().await; // the page is begun
        assert_eq!(ask("/healthz").await.expect("infallible").status(), 200);
        done.send(()).expect("the page waits");
        let page = pages.join_next().await.expect("one").expect("no panic");
        assert_eq!(page.expect("infallible").status(), 200);
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
