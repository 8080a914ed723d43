use bytes::Bytes;
use crd::conditions;
use http::{Request, Response};
use kube::{Client, client::Body};
use lease::ByHand;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower_test::mock::Handle;

use super::*;
use crate::{
    fixtures::{mk_key, mk_name},
    write::action::{Action, Work},
};

/// A member's API server, reduced to a script.
struct Server {
    handle: Handle<Request<Body>, Response<Body>>,
    queue: Arc<Queue>,
    clock: Clock,
    writer: JoinSet<()>,
    drain: CancellationToken,
    unauthorised: Arc<Notify>,
}

/// What arrived.
#[derive(Debug)]
struct Seen {
    method: String,
    uri: String,
    content_type: String,
    accept: String,
    body: Value,
}

impl Server {
    fn start() -> Self {
        Self::start_with(Clock::start(), Claim::always(), false)
    }

    fn start_with(clock: Clock, claim: Claim, dry_run: bool) -> Self {
        let (service, handle) = tower_test::mock::pair();
        let client = Client::new(service, "default");
        let queue = Arc::new(Queue::default());
        let drain = CancellationToken::new();
        let settings = WriterSettings {
            controller_name: crd::annotations::MCI_CONTROLLER.to_owned(),
            write_timeout: Duration::from_secs(5),
            clock,
            metrics: Metrics::register(&mut prometheus_client::registry::Registry::default()),
            claim,
            drain: drain.clone(),
            dry_run,
        };
        let mut writer = JoinSet::new();
        let unauthorised = Arc::new(Notify::new());
        let task = run_writer(
            mk_name("b"),
            queue.clone(),
            client.into(),
            settings,
            unauthorised.clone(),
        );
        writer.spawn(task);
        Self {
            handle,
            queue,
            clock,
            writer,
            drain,
            unauthorised,
        }
    }

    fn offer(&self, slot: Slot, action: Action) {
        let work = Work {
            action,
            content: 1,
            base: String::new(),
            since: self.clock.now(),
            not_before: None,
            summary: None,
        };
        self.queue.offer(slot, work, self.clock.now());
    }

    /// Waits for the next request and answers it.
    async fn answer(&mut self, status: u16, body: Value) -> Seen {
        let (request, send) = self.handle.next_request().await.expect("a request");
        let (parts, content) = request.into_parts();
        let content = http_body_util::BodyExt::collect(content)
            .await
            .expect("a body")
            .to_bytes();
        let response = Response::builder()
            .status(status)
            .header("retry-after", "7")
            .body(Body::from(body.to_string().into_bytes()))
            .expect("a response");
        send.send_response(response);
        let header = |name: &str| parts.headers[name].to_str().unwrap().to_owned();
        Seen {
            method: parts.method.to_string(),
            uri: parts.uri.to_string(),
            content_type: header("content-type"),
            accept: header("accept"),
            body: serde_json::from_slice(&content).unwrap_or_default(),
        }
    }

    /// Whether a request comes within this time.
    async fn is_quiet(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.handle.next_request())
            .await
            .is_err()
    }

    async fn idle(&self) {
        let emptied = async {
            while !self.queue.is_idle() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let emptied = tokio::time::timeout(Duration::from_mins(10), emptied).await;
        assert!(emptied.is_ok(), "never idle: {:?}", self.queue);
    }
}

fn mk_apply(create: bool) -> Action {
    Action::Apply {
        create,
        main: Bytes::from_static(br#"{"metadata":{"labels":{"mine":"yes"}}}"#),
        status: Bytes::from_static(br#"{"status":{"clusters":[]}}"#),
    }
}

fn import() -> Slot {
    Slot::Import(mk_key("llm"))
}

fn failure(code: u16, kind: &str, causes: &Value) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": "R", "message": "m",
        "details": {"kind": kind, "name": "x", "causes": causes}})
}

const STATUS_URI: &str = "/apis/inference.networking.x-k8s.io/v1alpha1/namespaces/ml/inferencepoolimports/llm/status\
    ?fieldManager=isthmus.dev/mci-controller&force=false";
const MAIN_URI: &str = "/apis/inference.networking.x-k8s.io/v1alpha1/namespaces/ml/inferencepoolimports/llm\
    ?fieldManager=isthmus.dev/mci-controller&force=false";

#[tokio::test(start_paused = true)]
async fn a_status_is_applied_in_one_call() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    let seen = server.answer(200, json!({})).await;
    assert_eq!(
        (seen.method.as_str(), seen.uri.as_str()),
        ("PATCH", STATUS_URI)
    );
    assert_eq!(seen.content_type, "application/apply-patch+yaml");
    assert_eq!(seen.body["status"]["clusters"], json!([]));
    server.idle().await;
    assert!(server.is_quiet(Duration::from_mins(1)).await);
}

#[tokio::test(start_paused = true)]
async fn the_server_answers_writes_with_metadata_alone() {
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut server = Server::start();
    server.offer(import(), mk_apply(true));
    assert_eq!(server.answer(201, json!({})).await.accept, metadata, "main");
    let status = server.answer(200, json!({})).await;
    assert_eq!(status.accept, metadata, "status");
    server.idle().await;
    let patch = Bytes::from_static(br#"[{"op":"remove","path":"/status/clusters/1"}]"#);
    server.offer(Slot::Import(mk_key("other")), Action::Patch(patch));
    assert_eq!(
        server.answer(200, json!({})).await.accept,
        metadata,
        "patch"
    );
    server.idle().await;
    let condition = conditions::make(
        conditions::EXPORTED,
        conditions::Status::True,
        "Exported",
        "",
        Some(1),
    );
    server.offer(Slot::Pool(mk_key("llm")), Action::Pool(Some(condition)));
    // the body of this one is needed
    let pool = json!({"metadata": {"name": "llm", "namespace": "ml", "resourceVersion": "9"}});
    let get = server.answer(200, pool).await;
    assert_eq!(
        (get.method.as_str(), get.accept.as_str()),
        ("GET", "application/json")
    );
    let put = server.answer(200, json!({})).await;
    assert_eq!(
        (put.method.as_str(), put.accept.as_str()),
        ("PUT", metadata)
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_import_is_applied_then_its_status() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(true));
    let main = server.answer(201, json!({})).await;
    assert_eq!(main.uri, MAIN_URI);
    assert_eq!(main.body["metadata"]["labels"]["mine"], "yes");
    assert_eq!(server.answer(200, json!({})).await.uri, STATUS_URI);
}

#[tokio::test(start_paused = true)]
async fn a_missing_import_is_created() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    let missing = failure(404, "inferencepoolimports", &json!([]));
    assert_eq!(server.answer(404, missing).await.uri, STATUS_URI);
    assert_eq!(server.answer(201, json!({})).await.uri, MAIN_URI);
    assert_eq!(server.answer(200, json!({})).await.uri, STATUS_URI);
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_or_kind_creates_nothing() {
    for missing in [
        failure(404, "namespaces", &json!([])),
        json!("404 page not found"),
    ] {
        let mut server = Server::start();
        server.offer(import(), mk_apply(false));
        server.answer(404, missing).await;
        assert!(server.is_quiet(Duration::from_millis(400)).await);
        // when the plan changes, the retry is withdrawn
        server.queue.withdraw(&import());
        assert!(server.is_quiet(Duration::from_mins(2)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn fields_taken_by_another_manager_are_taken_back() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    let conflict = failure(409, "", &json!([{"reason": "FieldManagerConflict"}]));
    server.answer(409, conflict).await;
    let forced = server.answer(200, json!({})).await;
    assert!(forced.uri.ends_with("force=true"), "{}", forced.uri);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_of_this_object_in_this_state() {
    let mut server = Server::start();
    let delete = Action::Delete {
        uid: "u-1".to_owned(),
        resource_version: "42".to_owned(),
    };
    server.offer(import(), delete);
    let seen = server.answer(409, failure(409, "", &json!([]))).await;
    assert_eq!(seen.method, "DELETE");
    let preconditions = json!({"uid": "u-1", "resourceVersion": "42"});
    assert_eq!(seen.body["preconditions"], preconditions);
    // the object changed: the watch decides, not a retry
    assert!(server.is_quiet(Duration::from_mins(2)).await);
}

#[tokio::test(start_paused = true)]
async fn others_entries_are_removed_by_a_json_patch() {
    let mut server = Server::start();
    let patch = Bytes::from_static(br#"[{"op":"remove","path":"/status/clusters/1"}]"#);
    server.offer(import(), Action::Patch(patch));
    let seen = server.answer(422, failure(422, "", &json!([]))).await;
    assert_eq!(seen.content_type, "application/json-patch+json");
    assert!(seen.uri.contains("/llm/status?"), "{}", seen.uri);
    assert!(server.is_quiet(Duration::from_mins(2)).await);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_ends_goes_though_another_manager_owns_a_part_of_it() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    server.answer(422, failure(422, "", &json!([]))).await;
    let live =
        json!({"metadata": {"resourceVersion": "7"}, "status": {"clusters": [{"name": "a"}]}});
    let read = server.answer(200, live).await;
    assert_eq!(read.method, "GET");
    let patch = server.answer(200, json!({})).await;
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"});
    let remove = json!({"op": "remove", "path": "/status/clusters/0"});
    assert_eq!(patch.body, json!([test, remove]));
    let again = server.answer(200, json!({})).await;
    assert!(again.uri.ends_with("force=true"), "{}", again.uri);
    server.idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_crd_refuses_for_another_reason_is_not_sent_again() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    server.answer(422, failure(422, "", &json!([]))).await;
    server
        .answer(200, json!({"status": {"clusters": []}}))
        .await;
    assert!(server.is_quiet(Duration::from_mins(2)).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_costs_one_deadline_and_is_tried_again() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    let first = server.handle.next_request().await.expect("a request");
    let started = tokio::time::Instant::now();
    let seen = server.answer(200, json!({})).await;
    assert_eq!(seen.uri, STATUS_URI);
    assert!(started.elapsed() >= Duration::from_secs(5));
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_obeyed() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    server.answer(429, json!({})).await;
    let started = tokio::time::Instant::now();
    server.answer(200, json!({})).await;
    assert!(started.elapsed() >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_pool_condition_is_put_beside_the_others_and_survives_a_race() {
    let mut server = Server::start();
    let status = conditions::Status::True;
    let condition = conditions::make(conditions::EXPORTED, status, "Exported", "", Some(1));
    server.offer(Slot::Pool(mk_key("llm")), Action::Pool(Some(condition)));
    let pool = json!({"metadata": {"name": "llm", "namespace": "ml", "resourceVersion": "9"},
        "status": {"parents": [{"parentRef": {"name": "gw"}}]}});
    let get = server.answer(200, pool.clone()).await;
    assert_eq!(
        (get.method.as_str(), get.uri.as_str()),
        (
            "GET",
            "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools/llm"
        )
    );
    let put = server.answer(409, failure(409, "", &json!([]))).await;
    assert_eq!(put.method, "PUT");
    assert!(put.uri.contains("/llm/status?"), "{}", put.uri);
    assert_eq!(put.body["metadata"]["resourceVersion"], "9");
    server.answer(200, pool).await;
    let put = server.answer(200, json!({})).await;
    assert_eq!(
        put.body["status"]["parents"].as_array().map(Vec::len),
        Some(2)
    );
    server.idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_was_full_is_written_when_the_same_is_asked_again() {
    let mut server = Server::start();
    let ask = |server: &Server| {
        let status = conditions::Status::True;
        let condition = conditions::make(conditions::EXPORTED, status, "Exported", "", Some(1));
        server.offer(Slot::Pool(mk_key("llm")), Action::Pool(Some(condition)));
    };
    let mk_pool = |parents: usize| {
        let parents: Vec<Value> = (0..parents)
            .map(|n| json!({"parentRef": {"name": format!("gw-{n}")}}))
            .collect();
        json!({"metadata": {"name": "llm", "namespace": "ml"}, "status": {"parents": parents}})
    };
    ask(&server);
    assert_eq!(server.answer(200, mk_pool(32)).await.method, "GET");
    server.idle().await;
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    ask(&server);
    let get = server.answer(200, mk_pool(31));
    let get = tokio::time::timeout(Duration::from_mins(1), get).await;
    assert_eq!(get.expect("it is asked again").method, "GET");
    assert_eq!(server.answer(200, json!({})).await.method, "PUT");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_has_the_entry_already_is_not_written() {
    let mut server = Server::start();
    server.offer(Slot::Pool(mk_key("llm")), Action::Pool(None));
    let pool = json!({"metadata": {"name": "llm", "namespace": "ml"}});
    assert_eq!(server.answer(200, pool).await.method, "GET");
    assert!(server.is_quiet(Duration::from_mins(1)).await);
}

#[tokio::test(start_paused = true)]
async fn draining_finishes_what_is_in_flight_and_begins_nothing() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    let (_, send) = server.handle.next_request().await.expect("a request");
    server.drain.cancel();
    server.offer(Slot::Import(mk_key("other")), mk_apply(false));
    send.send_response(Response::new(Body::empty()));
    let mut writer = std::mem::take(&mut server.writer);
    let ended = tokio::time::timeout(Duration::from_secs(1), writer.join_next()).await;
    assert!(ended.expect("ends").is_some());
    assert!(!server.queue.is_idle(), "the other write stays queued");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_sends_nothing() {
    let mut server = Server::start_with(Clock::start(), Claim::always(), true);
    server.offer(import(), mk_apply(true));
    server.offer(
        Slot::Import(mk_key("old")),
        Action::Delete {
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
        },
    );
    server.offer(Slot::Pool(mk_key("llm")), Action::Pool(None));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
    assert!(server.queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_not_accepted_are_reported() {
    let mut server = Server::start();
    server.offer(import(), mk_apply(false));
    server.answer(401, failure(401, "", &json!([]))).await;
    let notified =
        tokio::time::timeout(Duration::from_secs(1), server.unauthorised.notified()).await;
    assert!(notified.is_ok());
}

#[tokio::test(start_paused = true)]
async fn one_request_at_most_reaches_a_server_that_asks_for_a_pause() {
    let mut server = Server::start();
    for n in 0..20 {
        server.offer(Slot::Import(mk_key(&format!("llm-{n}"))), mk_apply(false));
        if n == 0 {
            // the first goes alone: the server throttles it
            server.answer(429, failure(429, "", &json!([]))).await;
            // and the writer has received that
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // `Retry-After` was 7 s
    assert!(server.is_quiet(Duration::from_millis(6_900)).await);
    server.answer(200, json!({})).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_claim_nothing_is_sent_and_nothing_is_forgotten() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::start_with(clock, claim, false);
    server.offer(import(), mk_apply(false));
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    hand.hold(Duration::from_secs(10));
    assert_eq!(server.answer(200, json!({})).await.uri, STATUS_URI);
    server.idle().await;
    // it runs out by itself
    tokio::time::sleep(Duration::from_secs(10)).await;
    server.offer(Slot::Import(mk_key("other")), mk_apply(false));
    assert!(server.is_quiet(Duration::from_mins(1)).await);
}

#[tokio::test(start_paused = true)]
async fn losing_the_claim_ends_a_write_between_its_calls() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::start_with(clock, claim, false);
    hand.hold(Duration::from_secs(3));
    server.offer(import(), mk_apply(true));
    let (request, send) = server.handle.next_request().await.expect("a request");
    assert_eq!(request.uri(), MAIN_URI);
    tokio::time::sleep(Duration::from_secs(3)).await;
    send.send_response(Response::new(Body::from(b"{}".to_vec())));
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    // what it was for is kept
    hand.hold(Duration::from_secs(10));
    assert_eq!(server.answer(201, json!({})).await.uri, MAIN_URI);
    assert_eq!(server.answer(200, json!({})).await.uri, STATUS_URI);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_an_earlier_term_is_not_of_this_one() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::start_with(clock, claim, false);
    hand.hold(Duration::from_secs(10));
    server.offer(import(), mk_apply(true));
    let (_, send) = server.handle.next_request().await.expect("a request");
    hand.give_up();
    hand.hold(Duration::from_secs(10));
    let started = tokio::time::Instant::now();
    assert_eq!(server.answer(201, json!({})).await.uri, MAIN_URI);
    // at once, not after a deadline
    assert!(started.elapsed() < Duration::from_secs(1));
    // the answer to the earlier leads to no second call
    send.send_response(Response::new(Body::from(b"{}".to_vec())));
    assert_eq!(server.answer(200, json!({})).await.uri, STATUS_URI);
    server.idle().await;
    assert!(server.is_quiet(Duration::from_secs(5)).await);
}
