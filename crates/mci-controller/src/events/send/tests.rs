use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use lease::ByHand;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tower_test::mock::{Handle, SendResponse};

use super::*;
use crate::{
    events::{lease as lease_of, pool},
    fixtures::mk_key,
    write::action::{Action, Slot, Work},
};

impl EventQueue {
    /// Name of the object, reason and note of all that waits.
    pub(crate) fn drain_all(&self) -> Vec<[String; 3]> {
        let mut waiting = self.waiting.try_lock().expect("nobody sends");
        let reports = std::iter::from_fn(|| waiting.try_recv().ok());
        let texts = reports.map(|QueuedEvent { event, .. }| {
            let parts = ["/involvedObject/name", "/reason", "/message"];
            parts.map(|part| {
                event
                    .pointer(part)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            })
        });
        texts.collect()
    }

    /// Reason and note of all that waits.
    pub(crate) fn drain(&self) -> Vec<(String, String)> {
        let all = self.drain_all().into_iter();
        all.map(|[_, reason, note]| (reason, note)).collect()
    }

    /// Leaves no room.
    pub(crate) fn fill(&self) {
        while self.offer(mk_event("IsolationGuard", Moment::START)) {}
    }
}

/// A cluster's API server, reduced to a script, and the sender that calls it.
struct Server {
    handle: Handle<Request<Body>, Response<Body>>,
    events: Arc<EventQueue>,
    writes: Arc<Queue>,
    clock: Clock,
    sender: JoinSet<()>,
}

/// What arrived.
#[derive(Debug)]
struct Seen {
    method: String,
    path: String,
    content_type: String,
    body: Value,
    at: Instant,
}

impl Server {
    fn start() -> Self {
        Self::connect(
            Clock::start(),
            Claim::always(),
            Arc::default(),
            Arc::default(),
        )
    }

    /// Ends the sender as the end of a connection does, and begins another.
    async fn reconnect(mut self) -> Self {
        self.sender.shutdown().await;
        Self::connect(self.clock, Claim::always(), self.events, self.writes)
    }

    fn connect(clock: Clock, claim: Claim, events: Arc<EventQueue>, writes: Arc<Queue>) -> Self {
        let (service, handle) = tower_test::mock::pair();
        let mut sender = JoinSet::new();
        let client = Client::new(service, "default");
        let (of, beside) = (events.clone(), writes.clone());
        sender.spawn(run_sender(
            of,
            beside,
            client.into(),
            "a".to_owned(),
            claim,
            clock,
        ));
        Self {
            handle,
            events,
            writes,
            clock,
            sender,
        }
    }

    fn offer(&self, reason: EventReason) {
        assert!(self.events.offer(mk_event(reason, self.clock.now())));
    }

    /// The next request.
    async fn next(&mut self) -> (Seen, SendResponse<Response<Body>>) {
        let next = timeout(Duration::from_mins(15), self.handle.next_request()).await;
        let (request, send) = next.expect("not silent").expect("a request");
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let seen = Seen {
            method: parts.method.to_string(),
            path: parts.uri.to_string(),
            content_type: parts.headers["content-type"].to_str().unwrap().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            at: Instant::now(),
        };
        (seen, send)
    }

    /// Waits for the next request and answers it.
    async fn answer(&mut self, status: u16, retry_after: Option<&str>) -> Seen {
        let (seen, send) = self.next().await;
        send.send_response(response(status, retry_after));
        seen
    }

    /// The same, where it takes an event: its reason.
    async fn take(&mut self) -> Value {
        self.answer(201, None).await.body["reason"].clone()
    }

    /// Whether none comes within this time.
    async fn is_quiet(&mut self, time: Duration) -> bool {
        timeout(time, self.handle.next_request()).await.is_err()
    }

    /// When a write that is due now may go.
    fn write_wait(&self) -> Duration {
        let now = self.clock.now();
        let work = Work {
            action: Action::Patch(Bytes::new()),
            content: 1,
            base: String::new(),
            not_before: None,
            since: now,
            summary: None,
        };
        self.writes.offer(Slot::Import(mk_key("llm")), work, now);
        self.writes.next_due().expect("a write waits").since(now)
    }
}

fn response(status: u16, retry_after: Option<&str>) -> Response<Body> {
    let body = match status {
        200..300 => json!({"metadata": {"uid": "l1"}}),
        _ => {
            json!({"kind": "Status", "status": "Failure", "code": status, "reason": "x", "message": "no"})
        }
    };
    let mut builder = Response::builder().status(status);
    if let Some(seconds) = retry_after {
        builder = builder.header("retry-after", seconds);
    }
    let body = Body::from(body.to_string().into_bytes());
    builder.body(body).expect("a response")
}

fn mk_event(reason: EventReason, since: Moment) -> QueuedEvent {
    let wall = Timestamp::from_second(1_000).expect("in range");
    QueuedEvent::new(
        &pool(&mk_key("llm"), "u1"),
        reason,
        "exported to 1/2",
        (since, wall),
    )
}

/// Lets the sender run.
async fn a_moment() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_is_applied_where_describe_finds_it() {
    let mut server = Server::start();
    server.offer("PartiallyExported");
    let seen = server.answer(201, None).await;
    let Seen { body, path, .. } = &seen;
    assert_eq!(seen.method, "PATCH");
    assert_eq!(seen.content_type, "application/apply-patch+yaml");
    let name = body["metadata"]["name"].as_str().expect("a name");
    let wanted =
        format!("/api/v1/namespaces/ml/events/{name}?fieldManager={MCI_CONTROLLER}&force=true");
    assert_eq!(*path, wanted);
    assert_eq!(
        (&body["apiVersion"], &body["kind"]),
        (&json!("v1"), &json!("Event"))
    );
    let about = json!({
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "namespace": "ml",
        "name": "llm",
        "uid": "u1",
    });
    assert_eq!(body["involvedObject"], about);
    assert_eq!(body["type"], "Warning");
    assert_eq!(body["message"], "exported to 1/2");
    assert_eq!(body["source"]["component"], MCI_CONTROLLER);
    assert_eq!(body["lastTimestamp"], "1970-01-01T00:16:40Z");
    // the same again is the same object
    server.offer("PartiallyExported");
    assert_eq!(server.answer(200, None).await.path, *path);
    server.offer("Exported");
    let other = server.answer(201, None).await;
    assert_ne!(other.path, *path);
    assert_eq!(other.body["type"], "Normal");
}

#[test]
fn long_names_and_notes_are_cut_to_what_is_legal() {
    let mut regarding = pool(&mk_key("llm"), "u1");
    // 253 characters, the 230th of which is a dot
    regarding.name = Some(format!(
        "{}{}",
        format!("{}.", "a".repeat(45)).repeat(5),
        "b".repeat(23)
    ));
    let time = (Moment::START, Timestamp::UNIX_EPOCH);
    let report = QueuedEvent::new(&regarding, "Exported", &"ä".repeat(1000), time);
    let name = report.event["metadata"]["name"].as_str().expect("a name");
    assert!(crate::name::is_subdomain(name), "{name}");
    let note = report.event["message"].as_str().expect("a note");
    assert_eq!(note.len(), MAX_NOTE);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_or_refuses_costs_only_its_own_event() {
    let mut server = Server::start();
    for reason in ["Exported", "ImportConflict", "NamespaceMissing"] {
        server.offer(reason);
    }
    let (hung, _send) = server.next().await;
    let refused = server.answer(403, None).await;
    let waited = refused.at.duration_since(hung.at);
    assert!(
        waited >= CALL_TIMEOUT && waited < CALL_TIMEOUT * 2,
        "{waited:?}"
    );
    assert_eq!(refused.body["reason"], "ImportConflict");
    assert_eq!(server.take().await, "NamespaceMissing");
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn an_event_on_our_lease_bears_its_uid() {
    let mut server = Server::start();
    let lease = lease_of("isthmus-system", "prod");
    let time = (server.clock.now(), Timestamp::UNIX_EPOCH);
    let report = QueuedEvent::new(&lease, "AuthFailed", "member a", time);
    assert!(server.events.offer(report));
    let seen = server.answer(200, None).await;
    assert_eq!(
        seen.path,
        "/apis/coordination.k8s.io/v1/namespaces/isthmus-system/leases/isthmus-mci-prod"
    );
    let seen = server.answer(201, None).await;
    assert!(
        seen.path
            .starts_with("/api/v1/namespaces/isthmus-system/events/")
    );
    assert_eq!(seen.body["involvedObject"]["uid"], "l1");
}

#[tokio::test(start_paused = true)]
async fn retry_after_delays_writes_and_twice_as_long_events() {
    for (status, asked, silence, pause) in [
        (429, Some("7"), 7, 14),
        (503, Some("86400"), 300, 600),
        // no time for writes
        (429, None, 0, 2),
    ] {
        let mut server = Server::start();
        server.offer("Exported");
        server.offer("NamespaceMissing");
        let first = server.answer(status, asked).await;
        a_moment().await;
        let wait = server.write_wait();
        assert!(wait.as_millis().abs_diff(silence * 1000) <= 5, "{wait:?}");
        let stats = server.writes.stats(server.clock.now());
        assert_eq!((stats.limit, stats.breaker_open), (32, false));
        let again = server.answer(201, None).await;
        let waited = again.at.duration_since(first.at);
        assert!(waited.as_millis().abs_diff(pause * 1000) <= 5, "{waited:?}");
        assert_eq!(again.body, first.body);
        assert_eq!(server.take().await, "NamespaceMissing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_was_asked_for_outlasts_the_connection() {
    let mut server = Server::start();
    server.offer("Exported");
    server.answer(429, Some("60")).await;
    a_moment().await;
    let mut server = server.reconnect().await;
    server.offer("NamespaceMissing");
    assert!(server.is_quiet(Duration::from_secs(59)).await);
    assert_eq!(server.take().await, "NamespaceMissing");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_never_taken_is_tried_three_times() {
    let mut server = Server::start();
    server.offer("Exported");
    server.offer("NamespaceMissing");
    for _ in 0..3 {
        let seen = server.answer(429, Some("10")).await;
        assert_eq!(seen.body["reason"], "Exported");
    }
    assert_eq!(server.take().await, "NamespaceMissing");
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn events_wait_while_writes_do() {
    let mut server = Server::start();
    server.write_wait();
    let (slot, _) = server.writes.take(server.clock.now()).expect("due");
    let throttled = Outcome::Throttled(Some(Duration::from_mins(1)));
    server.writes.finish(&slot, throttled, server.clock.now());
    server.offer("Exported");
    assert!(server.is_quiet(Duration::from_secs(59)).await);
    assert_eq!(server.take().await, "Exported");
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_events_is_nothing_to_writes() {
    let mut server = Server::start();
    // more than open a breaker
    for _ in 0..6 {
        server.offer("Exported");
        let (_, _send) = server.next().await;
        sleep(CALL_TIMEOUT).await;
    }
    let stats = server.writes.stats(server.clock.now());
    assert!(!stats.breaker_open);
    assert_eq!((stats.limit, stats.in_flight), (32, 0));
    assert_eq!(server.write_wait(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_without_the_claim_and_what_is_older_than_five_minutes_never() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::connect(clock, claim, Arc::default(), Arc::default());
    server.offer("Exported");
    assert!(server.is_quiet(Duration::from_secs(200)).await);
    server.offer("NamespaceMissing");
    assert!(server.is_quiet(Duration::from_secs(200)).await);
    hand.hold(Duration::from_secs(30));
    assert_eq!(server.take().await, "NamespaceMissing");
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    // the claim ran out
    server.offer("ImportConflict");
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    hand.hold(Duration::from_hours(1));
    assert_eq!(server.take().await, "ImportConflict");
}

#[tokio::test(start_paused = true)]
async fn losing_the_claim_ends_an_event_between_its_calls() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::connect(clock, claim, Arc::default(), Arc::default());
    hand.hold(Duration::from_hours(1));
    let time = (clock.now(), Timestamp::UNIX_EPOCH);
    let lease = lease_of("isthmus-system", "prod");
    assert!(
        server
            .events
            .offer(QueuedEvent::new(&lease, "AuthFailed", "", time))
    );
    let (seen, send) = server.next().await;
    assert_eq!(seen.method, "GET");
    hand.give_up();
    send.send_response(response(200, None));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}
