//! An API server of which the test holds every answer, and a reader of what a source makes of it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use scheduling::Member;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tower_test::mock::{self, SendResponse};

use crate::update::{Discovery, Kind, Update};

/// The key of the list and watch of pools.
pub(crate) const POOL_PATH: &str = "inferencepools";
const LIMIT: Duration = Duration::from_secs(100);
/// Of virtual time: lets the clock go on while a test waits.
const STEP: Duration = Duration::from_millis(1);

type Answer = UnsyncBoxBody<bytes::Bytes, std::io::Error>;

type Events = mpsc::Sender<Result<Frame<bytes::Bytes>, std::io::Error>>;

/// Lists by what was asked for; open watches by the same.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    /// Answers before all others.
    fixed: HashMap<String, (u16, Value)>,
    lists: HashMap<String, Vec<Value>>,
    /// Requests for lists that the test has not given yet.
    asked: HashMap<String, SendResponse<Response<Answer>>>,
    watches: HashMap<String, Events>,
    down: bool,
}

/// What the reader of a source knows.
#[derive(Clone, Debug, Default)]
struct State {
    members: Option<Vec<Member>>,
    gone: bool,
    odd: Vec<(Kind, String, String)>,
    failed: usize,
}

/// A source, its API server and its reader.
pub(crate) struct Running {
    pub(crate) api: FakeApi,
    state: watch::Receiver<State>,
    _tasks: JoinSet<()>,
}

pub(crate) fn mk_pod(name: &str, ip: &str) -> Value {
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

fn mk_answer(code: u16, body: &Value) -> Response<Answer> {
    let response = Response::builder().status(code);
    response.body(mk_body(body.to_string())).unwrap()
}

/// A refusal as API servers write it.
pub(crate) fn mk_status(code: u16) -> Value {
    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": "", "message": "refused" })
}

fn mk_body(text: String) -> Answer {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// `inferencepools`, the path of what else is of a group, or the selector that pods were asked for with.
fn key(request: &Request<Body>) -> String {
    let uri = request.uri();
    if uri.path().starts_with("/apis/") && !uri.path().ends_with(POOL_PATH) {
        return uri.path().to_owned();
    }
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
    // the encoding of forms
    let mut text = selector.replace('+', " ");
    for (code, sign) in [
        ("%3D", "="),
        ("%2C", ","),
        ("%28", "("),
        ("%29", ")"),
        ("%21", "!"),
    ] {
        text = text.replace(code, sign);
    }
    text
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
    /// One that answers, and its client.
    pub(crate) fn start(tasks: &mut JoinSet<()>) -> (Self, Client) {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Answer>>();
        let api = Self::default();
        let answering = api.clone();
        tasks.spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                answering.handle(&request, send);
            }
        });
        (api, Client::new(service, "ns"))
    }

    fn handle(&self, request: &Request<Body>, send: SendResponse<Response<Answer>>) {
        let key = key(request);
        let query = request.uri().query().unwrap_or_default();
        let mut objects = self.0.lock();
        if objects.down {
            send.send_response(mk_answer(500, &mk_status(500)));
        } else if let Some((code, body)) = objects.fixed.get(&key) {
            send.send_response(mk_answer(*code, body));
        } else if query.contains("watch=true") {
            let (events, stream) = mpsc::channel(16);
            objects.watches.insert(key, events);
            let body = StreamBody::new(ReceiverStream::new(stream));
            send.send_response(Response::new(body.boxed_unsync()));
        } else if let Some(list) = objects.lists.get(&key) {
            send.send_response(mk_list(list));
        } else if key.starts_with("/apis/") {
            send.send_response(mk_answer(404, &mk_status(404)));
        } else {
            objects.asked.insert(key, send);
        }
    }

    /// Gives a list, to who waits for it and to all who ask later.
    pub(crate) fn set(&self, key: &str, items: &[Value]) {
        let mut objects = self.0.lock();
        objects.lists.insert(key.to_owned(), items.to_vec());
        if let Some(send) = objects.asked.remove(key) {
            send.send_response(mk_list(items));
        }
    }

    /// Answers requests for `key` so from now on, watches too.
    pub(crate) fn fix(&self, key: &str, answer: (u16, Value)) {
        self.0.lock().fixed.insert(key.to_owned(), answer);
    }

    /// Answers requests for `key` as before [`FakeApi::fix`].
    pub(crate) fn unfix(&self, key: &str) {
        self.0.lock().fixed.remove(key);
    }

    /// Ends the watch of `key`.
    pub(crate) fn cut(&self, key: &str) {
        self.0.lock().watches.remove(key);
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
    pub(crate) async fn asked(&self, key: &str) {
        let asked = |objects: &Objects| objects.asked.contains_key(key).then_some(());
        self.until(&format!("the list {key} is asked for"), asked)
            .await;
    }

    /// Sends an event on the watch of `key`, once that is open.
    pub(crate) async fn event(&self, key: &str, kind: &str, object: Value) {
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        let events = self.watch(key).await;
        events.send(Ok(Frame::data(line.into()))).await.unwrap();
    }

    /// Waits for the watch of `key` to be opened.
    pub(crate) async fn watch(&self, key: &str) -> Events {
        let open = |objects: &Objects| objects.watches.get(key).cloned();
        self.until(&format!("the watch {key} is opened"), open)
            .await
    }

    /// Makes the watch of `key` list anew, and waits until that list is taken.
    pub(crate) async fn relist(&self, key: &str) {
        let gone = json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old" });
        self.event(key, "ERROR", gone).await;
        self.0.lock().watches.remove(key);
        self.watch(key).await;
    }

    /// Every watch breaks, every request is refused.
    pub(crate) fn go_down(&self) {
        let mut objects = self.0.lock();
        objects.down = true;
        objects.watches.clear();
    }

    pub(crate) fn come_back(&self) {
        self.0.lock().down = false;
    }
}

// === impl State ===

impl State {
    fn take(&mut self, update: Update) {
        match update {
            Update::Listed(_) => {}
            Update::Members(members) => {
                assert_ne!(self.members.as_ref(), Some(&members), "nothing changed");
                self.members = Some(members);
                self.gone = false;
            }
            Update::Gone { pool } => {
                assert_eq!(pool, "ns/llm");
                self.members = None;
                self.gone = true;
            }
            Update::Failed { .. } => self.failed += 1,
            Update::Odd { kind, name, error } => self.odd.push((kind, name, error)),
        }
    }

    fn addresses(&self) -> Option<Vec<String>> {
        let members = self.members.as_ref()?.iter();
        Some(members.map(|member| member.address.to_string()).collect())
    }
}

// === impl Running ===

impl Running {
    pub(crate) fn start<D: Discovery + 'static>(source: impl FnOnce(Client) -> D) -> Self {
        let mut tasks = JoinSet::new();
        let (api, client) = FakeApi::start(&mut tasks);
        let discovery = source(client);
        let (states, state) = watch::channel(State::default());
        tasks.spawn(async move {
            let mut updates = Box::new(discovery).updates();
            while let Some(update) = updates.next().await {
                states.send_modify(|state| state.take(update));
            }
        });
        Self {
            api,
            state,
            _tasks: tasks,
        }
    }

    /// Whether there are members, or none for a reason that is known.
    pub(crate) fn is_known(&self) -> bool {
        self.state.borrow().members.is_some()
    }

    pub(crate) fn members(&self) -> Vec<String> {
        self.state.borrow().addresses().unwrap_or_default()
    }

    /// The names and texts of the odd, so far.
    pub(crate) fn odd(&self) -> Vec<(Kind, String, String)> {
        self.state.borrow().odd.clone()
    }

    pub(crate) fn failures(&self) -> usize {
        self.state.borrow().failed
    }

    /// Waits until exactly these are the members.
    pub(crate) async fn until(&mut self, addresses: &[&str]) {
        let wanted = |state: &State| state.addresses().is_some_and(|now| now == addresses);
        let arrived = timeout(LIMIT, self.state.wait_for(wanted)).await.map(drop);
        arrived.unwrap_or_else(|_| panic!("the members stay {:?}", self.members()));
    }

    /// Waits until the pool is reported as gone.
    pub(crate) async fn until_gone(&mut self) {
        let gone = timeout(LIMIT, self.state.wait_for(|state| state.gone))
            .await
            .map(drop);
        gone.unwrap_or_else(|_| panic!("the members stay {:?}", self.members()));
    }
}
