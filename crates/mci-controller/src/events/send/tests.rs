use crd::annotations::MCI_CONTROLLER;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::{Client, client::Body};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower_test::mock::{Handle, SendResponse};

use super::*;
use crate::{
    events::{Notice, Reason, Regarding},
    fixtures::mk_key,
};

mod claim;
mod writes;

/// More than a breaker bears.
const SIX: [Reason; 6] = [
    Reason::Exported,
    Reason::ImportConflict,
    Reason::NamespaceMissing,
    Reason::AddressRejected,
    Reason::PoolStatusFull,
    Reason::TooManyExporters,
];

/// A cluster's API server, reduced to a script, and the sender that calls it.
struct Server<P> {
    handle: Handle<Request<Body>, Response<Body>>,
    postbox: Arc<P>,
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

impl<P: Postbox + Default + 'static> Server<P> {
    fn start() -> Self {
        Self::start_with(Clock::start(), Claim::always())
    }

    fn start_with(clock: Clock, claim: Claim) -> Self {
        Self::connect(clock, claim, Arc::default())
    }

    /// Ends the sender as the end of a connection does, and begins another.
    async fn reconnect(mut self) -> Self {
        self.sender.shutdown().await;
        Self::connect(self.clock, Claim::always(), self.postbox)
    }

    fn connect(clock: Clock, claim: Claim, postbox: Arc<P>) -> Self {
        let (service, handle) = tower_test::mock::pair();
        let settings = SenderSettings {
            cluster: "a".to_owned(),
            claim,
            clock,
        };
        let mut sender = JoinSet::new();
        let client = Client::new(service, "default");
        sender.spawn(run_sender(postbox.clone(), client.into(), settings));
        Self {
            handle,
            postbox,
            clock,
            sender,
        }
    }

    fn offer(&self, notice: Notice) {
        self.postbox.outbox().offer(notice, self.clock.now());
    }

    /// The next request.
    async fn next(&mut self) -> (Seen, SendResponse<Response<Body>>) {
        let next = timeout(Duration::from_mins(10), self.handle.next_request()).await;
        let (request, send) = next.expect("not silent").expect("a request");
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let seen = Seen {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            content_type: parts.headers["content-type"].to_str().unwrap().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            at: Instant::now(),
        };
        (seen, send)
    }

    /// Waits for the next request and answers it.
    async fn answer(&mut self, status: u16) -> Seen {
        self.answer_with(status, None).await
    }

    async fn answer_with(&mut self, status: u16, retry_after: Option<&str>) -> Seen {
        let (seen, send) = self.next().await;
        send.send_response(response(status, retry_after));
        seen
    }

    /// Waits for the next request, says nothing, and lets go once the deadline has passed.
    async fn hang(&mut self) -> Seen {
        let (seen, _send) = self.next().await;
        sleep(CALL_TIMEOUT).await;
        seen
    }

    /// Whether none comes within this time.
    async fn is_quiet(&mut self, time: Duration) -> bool {
        timeout(time, self.handle.next_request()).await.is_err()
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

fn mk_notice(reason: Reason) -> Notice {
    Notice {
        regarding: Regarding::pool(&mk_key("llm"), "u1"),
        subject: String::new(),
        reason,
        note: "exported to 1/2".to_owned(),
        at: Timestamp::from_second(1_000).expect("in range"),
    }
}

fn mk_of_lease(member: &str) -> Notice {
    Notice {
        regarding: Regarding::lease("isthmus-system", "prod"),
        subject: member.to_owned(),
        ..mk_notice(Reason::Member("AuthFailed"))
    }
}

/// Offers what was told before, so that it is a count that is to be patched.
async fn offer_again<P: Postbox + Default + 'static>(server: &mut Server<P>, reason: Reason) {
    server.offer(mk_notice(reason));
    server.answer(201).await;
    sleep(Duration::from_secs(301)).await;
    server.offer(mk_notice(reason));
}

#[tokio::test(start_paused = true)]
async fn an_event_is_created_where_describe_finds_it_and_counted_when_repeated() {
    let mut server = Server::<Outbox>::start();
    server.offer(mk_notice(Reason::PartiallyExported));
    let seen = server.answer(201).await;
    assert_eq!(
        (
            seen.method.as_str(),
            seen.path.as_str(),
            seen.content_type.as_str()
        ),
        ("POST", "/api/v1/namespaces/ml/events", "application/json")
    );
    let body = seen.body;
    assert_eq!(
        (&body["apiVersion"], &body["kind"]),
        (&json!("v1"), &json!("Event"))
    );
    assert_eq!(body["involvedObject"]["kind"], "InferencePool");
    assert_eq!(
        body["involvedObject"]["apiVersion"],
        "inference.networking.k8s.io/v1"
    );
    assert_eq!(body["involvedObject"]["uid"], "u1");
    assert_eq!(body["reason"], "PartiallyExported");
    assert_eq!(body["type"], "Warning");
    assert_eq!(body["message"], "exported to 1/2");
    assert_eq!(body["source"]["component"], MCI_CONTROLLER);
    let name = body["metadata"]["name"].as_str().expect("a name");
    sleep(Duration::from_secs(301)).await;
    server.offer(mk_notice(Reason::PartiallyExported));
    let seen = server.answer(404).await;
    assert_eq!(
        (seen.method.as_str(), seen.content_type.as_str()),
        ("PATCH", "application/merge-patch+json")
    );
    assert_eq!(seen.path, format!("/api/v1/namespaces/ml/events/{name}"));
    assert_eq!(seen.body["count"], 2);
    // it had aged out: made anew
    let seen = server.answer(409).await;
    assert_eq!(
        (seen.method.as_str(), &seen.body["count"]),
        ("POST", &json!(2))
    );
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_or_refuses_costs_only_its_own_event() {
    let mut server = Server::<Outbox>::start();
    server.offer(mk_notice(Reason::Exported));
    server.offer(mk_notice(Reason::ImportConflict));
    server.offer(mk_notice(Reason::NamespaceMissing));
    assert_eq!(server.hang().await.body["reason"], "Exported");
    assert_eq!(server.answer(403).await.body["reason"], "ImportConflict");
    assert_eq!(server.answer(201).await.body["reason"], "NamespaceMissing");
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn an_event_on_our_lease_bears_its_uid() {
    let mut server = Server::<Outbox>::start();
    server.offer(mk_of_lease("a"));
    server.offer(mk_of_lease("b"));
    let seen = server.answer(200).await;
    assert_eq!(
        seen.path,
        "/apis/coordination.k8s.io/v1/namespaces/isthmus-system/leases/isthmus-mci-prod"
    );
    for _ in ["a", "b"] {
        let seen = server.answer(201).await;
        assert_eq!(seen.path, "/api/v1/namespaces/isthmus-system/events");
        assert_eq!(seen.body["involvedObject"]["uid"], "l1");
        assert_eq!(seen.body["reason"], "AuthFailed");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_obeyed_and_the_letter_then_sent_before_the_others() {
    for (status, asked, waited) in [
        (429, Some("7"), 12),
        (503, None, 1),
        (503, Some("0"), 6),
        (429, Some("86400"), 305),
        // not an answer that is throttling by itself
        (500, Some("20"), 25),
    ] {
        let mut server = Server::<Outbox>::start();
        server.offer(mk_notice(Reason::Exported));
        server.offer(mk_notice(Reason::NamespaceMissing));
        let first = server.answer_with(status, asked).await;
        let again = server.answer(201).await;
        let time = again.at.duration_since(first.at);
        assert!(
            time >= Duration::from_secs(waited) && time < Duration::from_millis(waited * 1000 + 5),
            "{status} {asked:?}: {time:?}"
        );
        assert_eq!(again.body, first.body);
        assert_eq!(server.answer(201).await.body["reason"], "NamespaceMissing");
        assert!(server.is_quiet(Duration::from_mins(10)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silence_that_was_asked_for_outlasts_the_connection() {
    let mut server = Server::<Outbox>::start();
    server.offer(mk_notice(Reason::Exported));
    let (_, send) = server.next().await;
    send.send_response(response(429, Some("60")));
    sleep(Duration::from_millis(1)).await;
    let mut server = server.reconnect().await;
    assert!(server.is_quiet(Duration::from_secs(64)).await);
    assert_eq!(server.answer(201).await.body["reason"], "Exported");
}

#[tokio::test(start_paused = true)]
async fn an_event_in_flight_when_the_connection_ends_is_sent_over_the_next() {
    let mut server = Server::<Outbox>::start();
    server.offer(mk_notice(Reason::Exported));
    let (_, _send) = server.next().await;
    let mut server = server.reconnect().await;
    assert_eq!(server.answer(201).await.body["reason"], "Exported");
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_never_taken_is_tried_five_times() {
    let mut server = Server::<Outbox>::start();
    server.offer(mk_notice(Reason::Exported));
    server.offer(mk_notice(Reason::NamespaceMissing));
    for _ in 0..5 {
        let seen = server.answer_with(429, Some("10")).await;
        assert_eq!(seen.body["reason"], "Exported");
    }
    assert_eq!(server.answer(201).await.body["reason"], "NamespaceMissing");
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_left_alone_between_events() {
    let mut server = Server::<Outbox>::start();
    for reason in SIX {
        server.offer(mk_notice(reason));
    }
    let mut before = None;
    for reason in SIX {
        let seen = server.hang().await;
        assert_eq!(seen.body["reason"], reason.name(), "each is lost");
        if let Some(before) = before {
            let time = seen.at.duration_since(before);
            // its deadline, and from a second to a minute
            let allowed = Duration::from_secs(6)..Duration::from_secs(66);
            assert!(allowed.contains(&time), "{time:?}");
        }
        before = Some(seen.at);
    }
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn a_last_word_that_came_too_soon_is_told_five_minutes_after_its_like() {
    let mut server = Server::<Outbox>::start();
    let started = server.clock.now();
    let of = |reason| mk_notice(Reason::Member(reason));
    server.offer(of("AuthFailed"));
    assert_eq!(server.answer(201).await.body["reason"], "AuthFailed");
    sleep(Duration::from_mins(1)).await;
    server.offer(of("Active"));
    assert_eq!(server.answer(201).await.body["reason"], "Active");
    sleep(Duration::from_mins(1)).await;
    server.offer(of("AuthFailed"));
    // which holds up nothing else
    sleep(Duration::from_mins(1)).await;
    server.offer(mk_notice(Reason::Exported));
    assert_eq!(server.answer(201).await.body["reason"], "Exported");
    assert_eq!(server.clock.now().since(started).as_secs(), 180);
    let seen = server.answer(200).await;
    assert_eq!(
        (seen.method.as_str(), &seen.body["count"]),
        ("PATCH", &json!(2))
    );
    assert_eq!(server.clock.now().since(started).as_secs(), 300);
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}
