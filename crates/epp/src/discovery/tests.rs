//! Against an API server of which the test holds every answer.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tower_test::mock::{self, SendResponse};

use super::*;

const POOL_PATH: &str = "inferencepools";
const LIMIT: Duration = Duration::from_secs(100);
/// Of virtual time: lets the clock go on while a test waits.
const STEP: Duration = Duration::from_millis(1);

type Answer = UnsyncBoxBody<bytes::Bytes, std::io::Error>;

type Events = mpsc::Sender<Result<Frame<bytes::Bytes>, std::io::Error>>;

/// Lists by what was asked for; open watches by the same.
#[derive(Clone, Default)]
struct FakeApi(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    lists: HashMap<String, Vec<Value>>,
    /// Requests for lists that the test has not given yet.
    asked: HashMap<String, SendResponse<Response<Answer>>>,
    watches: HashMap<String, Events>,
    down: bool,
}

struct Running {
    api: FakeApi,
    pool: Pool,
    readiness: Readiness,
    members: watch::Receiver<Option<Arc<Snapshot>>>,
    _tasks: JoinSet<()>,
}

fn mk_pool(app: &str, port: u16) -> Value {
    json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": { "name": "llm", "namespace": "ns", "resourceVersion": "2" },
        "spec": { "selector": { "matchLabels": { "app": app } }, "targetPorts": [{ "number": port }] },
    })
}

/// [`mk_pool`] with ports that are no list.
fn mk_odd_pool() -> Value {
    let mut pool = mk_pool("llm", 8000);
    pool["spec"]["targetPorts"] = json!("8000");
    pool
}

fn mk_pod(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": "2" },
        "status": { "phase": "Running", "podIP": ip, "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn mk_list(items: &[Value]) -> Response<Answer> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
    Response::new(mk_body(list.to_string()))
}

fn mk_body(text: String) -> Answer {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// `inferencepools`, or the selector that pods were asked for with.
fn key(request: &Request<Body>) -> String {
    let uri = request.uri();
    if uri.path().ends_with(POOL_PATH) {
        assert!(
            uri.query()
                .unwrap()
                .contains("fieldSelector=metadata.name%3Dllm"),
            "{uri}"
        );
        return POOL_PATH.to_owned();
    }
    assert_eq!(uri.path(), "/api/v1/namespaces/ns/pods");
    let mut terms = uri.query().unwrap().split('&');
    let selector = terms
        .find_map(|term| term.strip_prefix("labelSelector="))
        .expect("a selector");
    selector.replace("%3D", "=")
}

impl Objects {
    /// For the person who reads a failure.
    fn told(&self) -> String {
        let (given, asked): (BTreeSet<_>, BTreeSet<_>) =
            (self.lists.keys().collect(), self.asked.keys().collect());
        let watches: BTreeSet<_> = self.watches.keys().collect();
        let down = self.down;
        format!("given: {given:?}, asked for: {asked:?}, watches: {watches:?}, down: {down}")
    }
}

impl FakeApi {
    fn handle(&self, request: &Request<Body>, send: SendResponse<Response<Answer>>) {
        let key = key(request);
        let mut objects = self.0.lock();
        if objects.down {
            let refusal = Response::builder()
                .status(500)
                .body(mk_body("down".to_owned()));
            send.send_response(refusal.unwrap());
        } else if request.uri().query().unwrap().contains("watch=true") {
            let (events, stream) = mpsc::channel(16);
            objects.watches.insert(key, events);
            let body = StreamBody::new(ReceiverStream::new(stream));
            send.send_response(Response::new(body.boxed_unsync()));
        } else if let Some(list) = objects.lists.get(&key) {
            send.send_response(mk_list(list));
        } else {
            objects.asked.insert(key, send);
        }
    }

    /// Gives a list, to who waits for it and to all who ask later.
    fn set(&self, key: &str, items: &[Value]) {
        let mut objects = self.0.lock();
        objects.lists.insert(key.to_owned(), items.to_vec());
        if let Some(send) = objects.asked.remove(key) {
            send.send_response(mk_list(items));
        }
    }

    /// Looks again and again until there is what is looked for.
    async fn until<T>(&self, what: &str, look: impl Fn(&Objects) -> Option<T>) -> T {
        let waiting = async {
            loop {
                let found = look(&self.0.lock());
                match found {
                    Some(found) => return found,
                    None => tokio::time::sleep(STEP).await,
                }
            }
        };
        let found = timeout(LIMIT, waiting).await;
        found.unwrap_or_else(|_| panic!("{what}: not within {LIMIT:?}; {}", self.0.lock().told()))
    }

    /// Waits for a list to be asked for that the test has not given.
    async fn asked(&self, key: &str) {
        let asked = |objects: &Objects| objects.asked.contains_key(key).then_some(());
        self.until(&format!("the list {key} is asked for"), asked)
            .await;
    }

    /// Sends an event on the watch of `key`, once that is open.
    async fn event(&self, key: &str, kind: &str, object: Value) {
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        let events = self.watch(key).await;
        events.send(Ok(Frame::data(line.into()))).await.unwrap();
    }

    /// Waits for the watch of `key` to be opened.
    async fn watch(&self, key: &str) -> Events {
        let open = |objects: &Objects| objects.watches.get(key).cloned();
        self.until(&format!("the watch {key} is opened"), open)
            .await
    }

    /// Makes the watch of `key` list anew, and waits until that list is taken.
    async fn relist(&self, key: &str) {
        let gone = json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old" });
        self.event(key, "ERROR", gone).await;
        self.0.lock().watches.remove(key);
        self.watch(key).await;
    }

    /// Every watch breaks, every request is refused.
    fn go_down(&self) {
        let mut objects = self.0.lock();
        objects.down = true;
        objects.watches.clear();
    }

    fn come_back(&self) {
        self.0.lock().down = false;
    }
}

fn start() -> Running {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Answer>>();
    let (snapshots, members) = watch::channel(None);
    let (pool, readiness) = (Pool::default(), Readiness::new());
    readiness.set(Part::Metrics, true);
    let discovery = Discovery {
        client: Client::new(service, "ns"),
        namespace: "ns".into(),
        name: "llm".into(),
        pool: pool.clone(),
        readiness: readiness.clone(),
        metrics: Metrics::register(&mut Registry::default()),
        snapshots,
        clock: Clock::start(),
    };
    let api = FakeApi::default();
    let mut tasks = JoinSet::new();
    tasks.spawn(discovery.run());
    let answering = api.clone();
    tasks.spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            answering.handle(&request, send);
        }
    });
    Running {
        api,
        pool,
        readiness,
        members,
        _tasks: tasks,
    }
}

impl Running {
    fn addresses(snapshot: &Snapshot) -> Vec<String> {
        snapshot
            .endpoints()
            .map(|endpoint| endpoint.address().to_string())
            .collect()
    }

    /// Waits until exactly these are the members.
    async fn until(&mut self, addresses: &[&str]) {
        let wanted = self.members.wait_for(|snapshot| {
            snapshot
                .as_ref()
                .is_some_and(|snapshot| Self::addresses(snapshot) == addresses)
        });
        let arrived = timeout(LIMIT, wanted).await.map(|_| ());
        let now = Self::addresses(&self.pool.snapshot());
        arrived.unwrap_or_else(|_| panic!("the members stay {now:?}"));
        assert_eq!(now, addresses, "the director has what the scraper got");
    }
}

#[tokio::test(start_paused = true)]
async fn members_follow_the_pool_and_its_pods() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.asked("app=llm").await;
    assert!(!running.readiness.is_ready(), "the pods are not known yet");
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    assert!(running.readiness.is_ready());
    running
        .api
        .event("app=llm", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    running
        .api
        .event("app=llm", "DELETED", mk_pod("a", "10.0.0.1"))
        .await;
    running.until(&["10.0.0.2:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("llm", 9000))
        .await;
    running.until(&["10.0.0.2:9000"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_pods_is_ready() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[]);
    running.until(&[]).await;
    assert!(running.readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_changed_selector_keeps_the_members_until_the_new_pods_are_listed() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("old", 8000)]);
    running.api.set("app=old", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("new", 8000))
        .await;
    running.api.asked("app=new").await;
    assert_eq!(
        Running::addresses(&running.pool.snapshot()),
        ["10.0.0.1:8000"]
    );
    // The old watch still counts.
    running
        .api
        .event("app=old", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    running.api.set("app=new", &[mk_pod("c", "10.0.0.3")]);
    running.until(&["10.0.0.3:8000"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pool_has_no_members_until_it_is_back() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "DELETED", mk_pool("llm", 8000))
        .await;
    running.until(&[]).await;
    assert!(!running.readiness.is_ready());
    running
        .api
        .event(POOL_PATH, "ADDED", mk_pool("llm", 8000))
        .await;
    running.until(&["10.0.0.1:8000"]).await;
    assert!(running.readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_pool_listed_but_unreadable_keeps_its_members() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running.api.set(POOL_PATH, &[mk_odd_pool()]);
    running.api.relist(POOL_PATH).await;
    assert_eq!(
        Running::addresses(&running.pool.snapshot()),
        ["10.0.0.1:8000"]
    );
    assert!(running.readiness.is_ready());
    // It is remembered for one list only.
    running.api.set(POOL_PATH, &[]);
    running.api.relist(POOL_PATH).await;
    running.until(&[]).await;
    assert!(!running.readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_pool_deleted_while_unreadable_is_gone() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_odd_pool())
        .await;
    running.api.event(POOL_PATH, "DELETED", mk_odd_pool()).await;
    running.until(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_selector_and_a_port_changed_at_once_never_mix_with_the_old() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("old", 8000)]);
    running.api.set("app=old", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("new", 9000))
        .await;
    running.api.asked("app=new").await;
    // News of an old pod come with the old port.
    running
        .api
        .event("app=old", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    // The port awaited changes too.
    running
        .api
        .event(POOL_PATH, "MODIFIED", mk_pool("new", 9001))
        .await;
    running.api.set("app=new", &[mk_pod("c", "10.0.0.3")]);
    running.until(&["10.0.0.3:9001"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_gone_costs_no_member() {
    let mut running = start();
    running.api.set(POOL_PATH, &[mk_pool("llm", 8000)]);
    running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
    running.until(&["10.0.0.1:8000"]).await;
    running
        .api
        .event("app=llm", "ADDED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000", "10.0.0.2:8000"]).await;
    running.api.go_down();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(running.readiness.is_ready());
    assert_eq!(running.pool.snapshot().endpoints().len(), 2);
    running.api.come_back();
    running
        .api
        .event("app=llm", "DELETED", mk_pod("b", "10.0.0.2"))
        .await;
    running.until(&["10.0.0.1:8000"]).await;
}
