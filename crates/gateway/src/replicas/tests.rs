//! Replicas and an API server that has one `ConfigMap`, under paused time.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower_test::mock::Handle;

use super::*;
use crate::world::Key;
use crate::xds::ads::proxies::{Known, tests as envoys};

const SECOND: Duration = Duration::from_secs(1);

/// The API server: what is stored, and what was asked, as method and path.
#[derive(Clone, Default)]
struct Server {
    stored: Arc<Mutex<Option<Value>>>,
    asked: Arc<Mutex<Vec<(Method, String)>>>,
    /// Every call gets an error.
    is_away: Arc<Mutex<bool>>,
    /// Every write gets an error, and reads get answers.
    is_read_only: Arc<Mutex<bool>>,
}

/// One replica. Its tasks end with it.
struct Replica {
    proxies: Proxies,
    tasks: JoinSet<()>,
}

impl Server {
    fn replica(&self, me: &str) -> Replica {
        let (service, handle) = tower_test::mock::pair();
        let client = Client::new(service, "default");
        let proxies = Proxies::default();
        let replicas = Replicas::new(
            client,
            "home",
            "the-map".to_owned(),
            me,
            proxies.clone(),
            Clock::start(),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(replicas.run(CancellationToken::new()));
        tasks.spawn(self.clone().serve(handle));
        Replica { proxies, tasks }
    }

    async fn serve(self, mut handle: Handle<Request<Body>, Response<Body>>) {
        let mut unanswered = Vec::new();
        while let Some((request, send)) = handle.next_request().await {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            self.asked.lock().push((method.clone(), path));
            if *self.is_away.lock() {
                unanswered.push(send);
                continue;
            }
            let body = request.into_body().collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = self.answer(&method, body);
            let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            send.send_response(response);
        }
    }

    fn answer(&self, method: &Method, mut body: Value) -> (u16, Value) {
        let failure = |code: u16| {
            let reason = match code {
                403 => "Forbidden",
                404 => "NotFound",
                _ => "Conflict",
            };
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
            (code, status)
        };
        let mut stored = self.stored.lock();
        let version = |value: &Value| {
            value["metadata"]["resourceVersion"]
                .as_str()
                .map(str::to_owned)
        };
        let before = stored.as_ref().and_then(version);
        match (&before, method) {
            (_, method) if method != Method::GET && *self.is_read_only.lock() => failure(403),
            (None, &Method::GET) => failure(404),
            (Some(_), &Method::GET) => (200, stored.clone().unwrap()),
            (Some(_), &Method::POST) => failure(409),
            (Some(before), _) if Some(before) != version(&body).as_ref() => failure(409),
            (before, _) => {
                let next = before
                    .as_ref()
                    .map_or(1, |before| before.parse::<u64>().unwrap() + 1);
                body["metadata"]["resourceVersion"] = json!(next.to_string());
                *stored = Some(body.clone());
                (200, body)
            }
        }
    }

    /// Who has an entry.
    fn entries(&self) -> BTreeSet<String> {
        let stored = self.stored.lock();
        let data = stored.as_ref().and_then(|map| map["data"].as_object());
        data.map(|data| data.keys().cloned().collect())
            .unwrap_or_default()
    }

    fn take_asked(&self) -> Vec<(Method, String)> {
        std::mem::take(&mut *self.asked.lock())
    }
}

async fn eventually(limit: Duration, what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "not {what} within {limit:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn gateway() -> Key {
    Key::new("ns", "gw")
}

#[tokio::test(start_paused = true)]
async fn what_an_envoy_of_one_replica_does_is_known_to_the_other() {
    let server = Server::default();
    let (a, b) = (server.replica("a"), server.replica("b"));
    let served = envoys::joins(&b.proxies, "new");
    envoys::becomes_ready(&a.proxies, "old", "edge/443");
    eventually(SECOND * 15, "known", || served() == ["edge/443"]).await;
    // also what changes later, and what is refused
    envoys::becomes_ready(&a.proxies, "older", "edge/80");
    envoys::refuses(&b.proxies, "bad", "edge/80");
    eventually(SECOND * 5, "known", || served() == ["edge/443", "edge/80"]).await;
    let refused = || envoys::refused(&a.proxies);
    eventually(SECOND * 5, "refused", || refused() == Some((1, 4, true))).await;
    assert_eq!(
        server.entries(),
        BTreeSet::from(["a", "b"].map(str::to_owned))
    );
}

/// It crashed, so it says nothing more.
#[tokio::test(start_paused = true)]
async fn what_a_replica_knew_that_is_gone_ends() {
    let server = Server::default();
    let (a, b) = (server.replica("a"), server.replica("b"));
    let served = envoys::joins(&b.proxies, "new");
    envoys::becomes_ready(&a.proxies, "old", "edge/443");
    eventually(SECOND * 15, "known", || !served().is_empty()).await;
    sleep(SECOND * 600).await;
    assert_eq!(served(), ["edge/443"], "it lives");
    drop(a.tasks);
    let gone = Instant::now();
    eventually(SECOND * 60, "forgotten", || served().is_empty()).await;
    // Envoys that were connected to it come back meanwhile
    assert!(gone.elapsed() >= SECOND * 15, "{:?}", gone.elapsed());
    eventually(SECOND * 5, "removed", || !server.entries().contains("a")).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_ends_while_the_api_server_is_away() {
    let server = Server::default();
    let (a, b) = (server.replica("a"), server.replica("b"));
    let served = envoys::joins(&b.proxies, "new");
    envoys::becomes_ready(&a.proxies, "old", "edge/443");
    eventually(SECOND * 15, "known", || !served().is_empty()).await;
    *server.is_away.lock() = true;
    sleep(SECOND * 600).await;
    *server.is_away.lock() = false;
    let start = Instant::now();
    while start.elapsed() < SECOND * 120 {
        assert_eq!(served(), ["edge/443"], "after {:?}", start.elapsed());
        sleep(SECOND).await;
    }
}

/// A webhook refuses what this replica writes, or the object is too large: what it reads counts all the same.
#[tokio::test(start_paused = true)]
async fn what_a_replica_knew_that_is_gone_ends_also_where_writes_fail() {
    let server = Server::default();
    let (a, b) = (server.replica("a"), server.replica("b"));
    let served = envoys::joins(&b.proxies, "new");
    envoys::becomes_ready(&a.proxies, "old", "edge/443");
    eventually(SECOND * 15, "known", || !served().is_empty()).await;
    *server.is_read_only.lock() = true;
    drop(a.tasks);
    eventually(SECOND * 60, "forgotten", || served().is_empty()).await;
    let asked = server.take_asked();
    assert!(asked.iter().any(|(method, _)| method == Method::PUT));
}

/// A gateway alone is the default: it reads a `ConfigMap` that nobody else writes each 10 s.
#[tokio::test(start_paused = true)]
async fn a_replica_that_is_alone_writes_only_what_changes() {
    let server = Server::default();
    let a = server.replica("a");
    sleep(SECOND * 60).await;
    let asked = server.take_asked();
    assert!(
        asked.iter().all(|(method, _)| method == Method::GET) && asked.len() <= 7,
        "{asked:?}"
    );
    assert_eq!(*server.stored.lock(), None);
    envoys::becomes_ready(&a.proxies, "old", "edge/443");
    sleep(SECOND * 60).await;
    let asked = server.take_asked();
    let writes = asked.iter().filter(|(method, _)| method != Method::GET);
    let writes: Vec<_> = writes
        .map(|(method, path)| (method.as_str(), &**path))
        .collect();
    assert_eq!(writes, [("POST", "/api/v1/namespaces/home/configmaps")]);
    assert!(asked.len() <= 9, "{asked:?}");
    assert!(
        asked
            .iter()
            .any(|(_, path)| path == "/api/v1/namespaces/home/configmaps/the-map")
    );
}

/// Others' fields of the object stay.
#[tokio::test(start_paused = true)]
async fn what_others_wrote_on_the_object_stays() {
    let server = Server::default();
    let known = BTreeMap::from([(gateway(), Known::default())]);
    let (text, _) = entry::encode(&known, 1);
    *server.stored.lock() = Some(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "the-map", "namespace": "home", "resourceVersion": "5", "annotations": {"kept": "yes"}},
        "data": {"gone": text},
    }));
    let a = server.replica("a");
    envoys::becomes_ready(&a.proxies, "old", "edge/443");
    eventually(SECOND * 60, "alone", || server.entries().iter().eq(["a"])).await;
    let stored = server.stored.lock().clone().unwrap();
    assert_eq!(stored["metadata"]["annotations"]["kept"], "yes");
}
