//! Starts servers for the wire tests and reads what they answer.
#![cfg(test)]

use axum::{Router, body::Body, response::Response};
use clap::Parser;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use model_server_sim::{Args, Server, Settings};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// A server without a port; its engine runs while this lives.
pub(crate) struct Sim {
    pub(crate) router: Router,
    pub(crate) draining: CancellationToken,
    _engine: JoinSet<()>,
}

pub(crate) fn mk_settings(flags: &[&str]) -> Settings {
    let common = [
        "sim",
        "--model",
        "m",
        "--pod-name",
        "pod-1",
        "--pod-namespace",
        "ns",
    ];
    let args = Args::try_parse_from(common.iter().chain(flags)).expect("valid flags");
    let mut servers = args.settings().expect("valid settings");
    assert_eq!(servers.len(), 1, "one server");
    servers.remove(0)
}

impl Sim {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let draining = CancellationToken::new();
        let server = Server::new(mk_settings(flags), draining.clone());
        let mut engine = JoinSet::new();
        engine.spawn(server.engine().run(CancellationToken::new()));
        Self {
            router: server.router(8000),
            draining,
            _engine: engine,
        }
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Response {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(body.into())
            .expect("valid");
        self.router
            .clone()
            .oneshot(request)
            .await
            .expect("routers do not fail")
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        json(self.send("GET", path, Body::empty()).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        json(self.send("POST", path, body).await).await
    }

    /// The value of one sample of `/metrics`, by the beginning of its line.
    pub(crate) async fn metric(&self, start: &str) -> f64 {
        let page = text(self.send("GET", "/metrics", Body::empty()).await).await;
        let line = page.lines().find(|line| line.starts_with(start));
        let value = line
            .and_then(|line| line.rsplit(' ').next())
            .and_then(|text| text.parse().ok());
        value.unwrap_or_else(|| panic!("no {start} in {page}"))
    }
}

pub(crate) async fn text(response: Response) -> String {
    let body = response
        .into_body()
        .collect()
        .await
        .expect("a whole body")
        .to_bytes();
    String::from_utf8(body.to_vec()).expect("UTF-8")
}

pub(crate) async fn json(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = text(response).await;
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

/// The next event of a stream, without `data: ` and the empty line; `None` at the end.
pub(crate) async fn next_event(body: &mut Body) -> Option<String> {
    let frame = body.frame().await?.expect("an unbroken stream");
    let data = frame.into_data().expect("data");
    let text = String::from_utf8(data.to_vec()).expect("UTF-8");
    let event = text
        .strip_prefix("data: ")
        .and_then(|text| text.strip_suffix("\n\n"));
    Some(
        event
            .unwrap_or_else(|| panic!("one event per frame: {text:?}"))
            .to_owned(),
    )
}
