use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use lease::ByHand;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use mci_model::fixtures::mk_name;

const PATH: &str = "/api/v1/namespaces/isthmus-system/configmaps/isthmus-mci-prod-members";

/// A home that holds one ConfigMap.
#[derive(Default)]
struct Shelf {
    live: Mutex<Option<Value>>,
    writes: Mutex<Vec<Method>>,
    conflict: AtomicBool,
    /// Writes are not answered.
    mute: AtomicBool,
    /// Writes that wait for an answer.
    waiting: AtomicUsize,
}

/// A write that waits for an answer, until it is given up.
struct Waiting(Arc<Shelf>);

impl Waiting {
    fn at(shelf: &Arc<Shelf>) -> Self {
        shelf.waiting.fetch_add(1, Ordering::SeqCst);
        Self(shelf.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shelf {
    fn answer(&self, method: Method, path: &str, body: &[u8]) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": ""}),
            )
        };
        if method == Method::GET {
            assert_eq!(path, PATH);
            return match &*self.live.lock() {
                Some(live) => (200, live.clone()),
                None => status(404, "NotFound"),
            };
        }
        self.writes.lock().push(method);
        if self.conflict.swap(false, Ordering::SeqCst) {
            return status(409, "Conflict");
        }
        let mut live: Value = serde_json::from_slice(body).expect("JSON");
        live["metadata"]["resourceVersion"] = json!("7");
        *self.live.lock() = Some(live.clone());
        (200, live)
    }

    fn line(&self, name: &str) -> Option<Value> {
        let live = self.live.lock();
        let text = live.as_ref()?["data"][name].as_str()?.to_owned();
        serde_json::from_str(&text).ok()
    }
}

fn mk(shelf: &Arc<Shelf>) -> Identities {
    let shelf = shelf.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let shelf = shelf.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            if head.method != Method::GET && shelf.mute.load(Ordering::SeqCst) {
                let _waiting = Waiting::at(&shelf);
                pending::<()>().await;
            }
            let (status, answer) = shelf.answer(head.method, head.uri.path(), &body);
            let body = Body::from(answer.to_string().into_bytes());
            Response::builder().status(status).body(body)
        }
    });
    let home = Home::for_tests(Client::new(service, "default"));
    Identities::new(&home, "prod")
}

fn record(uid: &str) -> Record {
    Record {
        uid: uid.to_owned(),
        source: "Secret ns/a".to_owned(),
        first_seen: None,
    }
}

fn records(of: &[(&str, &str)]) -> Records {
    let named = of.iter();
    named
        .map(|(name, uid)| (mk_name(name), record(uid)))
        .collect()
}

async fn keep(identities: &Identities, wanted: watch::Receiver<Option<Records>>) {
    identities
        .keep(wanted, Claim::always(), Clock::start())
        .await;
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_mins(5), waiting)
        .await
        .expect("in time");
}

#[tokio::test(start_paused = true)]
async fn identities_outlive_the_process_and_keep_their_time() {
    let shelf = Arc::new(Shelf::default());
    let identities = mk(&shelf);
    assert!(identities.load().await.is_empty());
    let (wanted, receiver) = watch::channel(None);
    let mut tasks = JoinSet::new();
    let keeper = identities.clone();
    tasks.spawn(async move { keep(&keeper, receiver).await });
    wanted
        .send(Some(records(&[("a", "u-1")])))
        .expect("received");
    until(|| shelf.line("a").is_some()).await;
    let first = shelf.line("a").expect("a line");
    assert_eq!(first["uid"], "u-1");
    assert!(first["firstSeen"].is_string(), "{first}");
    wanted
        .send(Some(records(&[("a", "u-1"), ("b", "u-2")])))
        .expect("received");
    until(|| shelf.line("b").is_some()).await;
    assert_eq!(shelf.line("a"), Some(first));
    let loaded = mk(&shelf).load().await;
    assert!(loaded.values().all(|record| record.first_seen.is_some()));
    assert_eq!(loaded.len(), 2);
    wanted
        .send(Some(records(&[("b", "u-2")])))
        .expect("received");
    until(|| shelf.line("a").is_none()).await;
    let methods = shelf.writes.lock().clone();
    assert_eq!(methods, [Method::POST, Method::PUT, Method::PUT]);
    // what did not change is not written
    wanted
        .send(Some(records(&[("b", "u-2")])))
        .expect("received");
    drop(wanted);
    while tasks.join_next().await.is_some() {}
    assert_eq!(shelf.writes.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes() {
    let shelf = Arc::new(Shelf::default());
    let (wanted, receiver) = watch::channel(Some(records(&[("a", "u-1")])));
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut tasks = JoinSet::new();
    let keeper = mk(&shelf);
    tasks.spawn(async move { keeper.keep(receiver, claim, clock).await });
    sleep(Duration::from_mins(1)).await;
    assert!(shelf.writes.lock().is_empty());
    hand.hold(Duration::from_mins(1));
    until(|| shelf.line("a").is_some()).await;
    // whoever does not lead ends with its owner nevertheless
    hand.give_up();
    wanted
        .send(Some(records(&[("b", "u-2")])))
        .expect("received");
    drop(wanted);
    let ended = timeout(Duration::from_mins(1), tasks.join_next()).await;
    assert!(matches!(ended, Ok(Some(Ok(())))), "{ended:?}");
    assert_eq!(shelf.writes.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_ends_with_its_term_and_is_made_in_the_next() {
    const TERM: Duration = Duration::from_secs(3);
    assert!(TERM < TIMEOUT);
    let shelf = Arc::new(Shelf::default());
    shelf.mute.store(true, Ordering::SeqCst);
    let (wanted, receiver) = watch::channel(Some(records(&[("a", "u-1")])));
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut tasks = JoinSet::new();
    let keeper = mk(&shelf);
    tasks.spawn(async move { keeper.keep(receiver, claim, clock).await });
    hand.hold(TERM);
    until(|| shelf.waiting.load(Ordering::SeqCst) == 1).await;
    sleep(TERM).await;
    assert_eq!(shelf.waiting.load(Ordering::SeqCst), 0, "given up");
    shelf.mute.store(false, Ordering::SeqCst);
    sleep(Duration::from_mins(1)).await;
    assert!(shelf.writes.lock().is_empty());
    hand.hold(TERM);
    until(|| shelf.line("a").is_some()).await;
    drop(wanted);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_read_again() {
    let shelf = Arc::new(Shelf::default());
    *shelf.live.lock() =
        Some(json!({"metadata": {"name": "x", "resourceVersion": "1"}, "data": {}}));
    shelf.conflict.store(true, Ordering::SeqCst);
    let (wanted, receiver) = watch::channel(Some(records(&[("a", "u-1")])));
    let mut tasks = JoinSet::new();
    let keeper = mk(&shelf);
    tasks.spawn(async move { keep(&keeper, receiver).await });
    until(|| shelf.line("a").is_some()).await;
    assert_eq!(shelf.writes.lock().len(), 2);
    drop(wanted);
}

#[test]
fn a_spoilt_line_spoils_no_other() {
    let data = [
        ("a", r#"{"uid":"u-1","source":"x"}"#),
        ("b", "]{"),
        ("../c", r#"{"uid":"u-1","source":"x"}"#),
    ];
    let data = data.map(|(name, line)| (name.to_owned(), line.to_owned()));
    let config_map = ConfigMap {
        data: Some(data.into()),
        ..ConfigMap::default()
    };
    let parsed = parse(&config_map);
    assert_eq!(
        parsed.keys().map(ClusterName::as_str).collect::<Vec<_>>(),
        ["a"]
    );
    assert!(parsed[&mk_name("a")].first_seen.is_some());
}
