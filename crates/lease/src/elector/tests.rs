use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower_test::mock::Handle;

use super::*;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/home/leases";
const SECOND: Duration = Duration::from_secs(1);

/// The home cluster's API server, reduced to a script, and an elector that talks to it.
struct Home {
    handle: Handle<Request<Body>, Response<Body>>,
    claim: Claim,
    clock: Clock,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    started: Instant,
    /// Whether the elector's process may have the lease.
    may_lead: Arc<AtomicBool>,
}

/// What arrived, to be answered.
struct Asked {
    method: String,
    body: Value,
    at: Duration,
    send: tower_test::mock::SendResponse<Response<Body>>,
}

impl Home {
    fn start() -> Self {
        let (service, handle) = tower_test::mock::pair();
        let client = Client::new(service, "default");
        let clock = Clock::start();
        let (elector, claim) = Elector::new(client, "home", "the-lease", "me", clock);
        let stop = CancellationToken::new();
        let may_lead = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&may_lead);
        let elector = elector.only_while(move || asked.load(Ordering::Relaxed));
        let mut tasks = JoinSet::new();
        tasks.spawn(elector.run(stop.clone(), || ()));
        Self {
            handle,
            claim,
            clock,
            stop,
            tasks,
            started: Instant::now(),
            may_lead,
        }
    }

    async fn asked(&mut self) -> Asked {
        let next = timeout(SECOND * 60, self.handle.next_request()).await;
        let (request, send) = next.expect("a request in time").expect("an elector");
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let expected = if parts.method == "POST" {
            format!("{PATH}?")
        } else {
            format!("{PATH}/the-lease")
        };
        let uri = parts.uri.to_string();
        assert_eq!(uri.trim_end_matches('?'), expected.trim_end_matches('?'));
        Asked {
            method: parts.method.to_string(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            at: self.started.elapsed(),
            send,
        }
    }

    /// Answers the next request, and returns its method and body.
    async fn answer(&mut self, status: u16, body: &Value) -> (String, Value) {
        let asked = self.asked().await;
        asked.send.send_response(response(status, body));
        (asked.method, asked.body)
    }

    /// Answers a write with what was written, as its next version.
    async fn accept(&mut self, version: &str) -> Value {
        let asked = self.asked().await;
        assert_ne!(asked.method, "GET");
        let mut lease = asked.body.clone();
        lease["metadata"]["resourceVersion"] = json!(version);
        asked.send.send_response(response(200, &lease));
        asked.body
    }

    /// Lets the elector take a free lease; its version is then 2.
    async fn lead(&mut self) {
        self.answer(200, &mk_lease("", "1")).await;
        self.accept("2").await;
        timeout(SECOND, self.claim.gained()).await.expect("gained");
    }

    fn leads(&self) -> bool {
        self.claim.is_valid(self.clock.now())
    }
}

fn response(status: u16, body: &Value) -> Response<Body> {
    let body = Body::from(body.to_string().into_bytes());
    let response = Response::builder().status(status).body(body);
    response.expect("a response")
}

fn mk_lease(holder: &str, version: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "the-lease", "namespace": "home", "resourceVersion": version,
            "labels": {"kept": "yes"}},
        "spec": {"holderIdentity": holder, "leaseTransitions": 6, "leaseDurationSeconds": 15,
            // an hour ahead of any clock here
            "renewTime": "2099-01-01T00:00:00.000000Z"},
    })
}

fn failure(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "Other" };
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"})
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_there_is_created_and_renewed() {
    let mut home = Home::start();
    assert!(!home.leads());
    let (method, _) = home.answer(404, &failure(404)).await;
    assert_eq!(method, "GET");
    let asked = home.asked().await;
    assert_eq!(asked.method, "POST");
    let mut lease = asked.body.clone();
    assert_eq!(lease["metadata"]["name"], "the-lease");
    assert_eq!(lease["spec"]["holderIdentity"], "me");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    assert!(lease["spec"]["acquireTime"].is_string(), "{lease}");
    lease["metadata"]["resourceVersion"] = json!("1");
    asked.send.send_response(response(201, &lease));
    timeout(SECOND, home.claim.gained()).await.expect("gained");
    let renewal = home.asked().await;
    assert_eq!(renewal.method, "PUT");
    assert_eq!(renewal.at, SECOND * 2);
    assert_eq!(renewal.body["metadata"]["resourceVersion"], "1");
    assert_eq!(renewal.body["spec"]["leaseTransitions"], 0);
    assert_eq!(
        renewal.body["spec"]["acquireTime"],
        lease["spec"]["acquireTime"]
    );
    assert_ne!(
        renewal.body["spec"]["renewTime"],
        lease["spec"]["renewTime"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once_and_what_is_not_ours_in_it_kept() {
    let mut home = Home::start();
    home.answer(200, &mk_lease("", "1")).await;
    let written = home.accept("2").await;
    assert_eq!(written["spec"]["holderIdentity"], "me");
    assert_eq!(written["spec"]["leaseTransitions"], 7);
    assert_eq!(written["metadata"]["resourceVersion"], "1");
    assert_eq!(written["metadata"]["labels"]["kept"], "yes");
    assert!(home.started.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_holder_is_replaced_after_15_s_whatever_its_clock_said() {
    let mut home = Home::start();
    let taken = loop {
        let asked = home.asked().await;
        if asked.method != "GET" {
            break asked;
        }
        asked
            .send
            .send_response(response(200, &mk_lease("other", "1")));
    };
    assert!(taken.at >= SECOND * 15, "{:?}", taken.at);
    assert!(taken.at < SECOND * 16, "{:?}", taken.at);
    assert_eq!(taken.body["spec"]["holderIdentity"], "me");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_is_followed_for_ever() {
    let mut home = Home::start();
    let mut looks = 0;
    while home.started.elapsed() < SECOND * 600 {
        let asked = home.asked().await;
        assert_eq!(asked.method, "GET");
        looks += 1;
        // renewed each 10 s or so, and its times never change
        let version = (home.started.elapsed().as_secs() / 10).to_string();
        asked
            .send
            .send_response(response(200, &mk_lease("other", &version)));
    }
    assert!(!home.leads());
    // every 2 s at least, and no storm
    assert!((300..2_000).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_ends_in_time_when_home_is_silent_and_comes_back_with_it() {
    let mut home = Home::start();
    home.lead().await;
    let tenure = home.claim.gained().await;
    let mut held = Vec::new();
    let ended = async {
        tenure.ended().await;
        Instant::now()
    };
    let swallow = async {
        loop {
            held.push(home.handle.next_request().await);
        }
    };
    let ended = tokio::select! {
        ended = ended => ended,
        () = swallow => unreachable!("it never ends"),
    };
    let length = ended - home.started;
    assert!(length >= SECOND * 10 && length < SECOND * 11, "{length:?}");
    // three tries before that: each had 2.5 s
    assert!(held.len() >= 3, "{}", held.len());
    drop(held);
    assert!(!home.leads());
    // nobody else was there: it is ours at once, as a new term
    let renewed = loop {
        let asked = home.asked().await;
        if asked.method == "PUT" {
            break asked;
        }
        asked
            .send
            .send_response(response(200, &mk_lease("me", "2")));
    };
    assert_eq!(renewed.body["spec"]["leaseTransitions"], 7);
    let mut lease = renewed.body.clone();
    lease["metadata"]["resourceVersion"] = json!("3");
    renewed.send.send_response(response(200, &lease));
    timeout(SECOND, home.claim.gained()).await.expect("gained");
    assert_eq!(home.claim.term(), 2);
}

/// Its part that writes is stuck: another process is to take over.
#[tokio::test(start_paused = true)]
async fn a_process_that_may_not_lead_renews_nothing_until_it_may_again() {
    let mut home = Home::start();
    home.lead().await;
    home.may_lead.store(false, Ordering::Relaxed);
    let asked = timeout(SECOND * 60, home.handle.next_request()).await;
    assert!(asked.is_err(), "it asks for nothing");
    assert!(!home.leads(), "and the claim has run out");
    home.may_lead.store(true, Ordering::Relaxed);
    // another one has taken it meanwhile
    let (method, _) = home.answer(409, &failure(409)).await;
    assert_eq!(method, "PUT");
    let (method, _) = home.answer(200, &mk_lease("other", "9")).await;
    assert_eq!(method, "GET");
    assert!(!home.leads());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_overruled_says_so_at_once_and_follows() {
    let mut home = Home::start();
    home.lead().await;
    let tenure = home.claim.gained().await;
    let (method, _) = home.answer(409, &failure(409)).await;
    assert_eq!(method, "PUT");
    let (method, _) = home.answer(200, &mk_lease("other", "9")).await;
    assert_eq!(method, "GET");
    timeout(SECOND, tenure.ended()).await.expect("at once");
    assert!(home.started.elapsed() < SECOND * 3);
    let (method, _) = home.answer(200, &mk_lease("other", "9")).await;
    assert_eq!(method, "GET");
    assert!(!home.leads());
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_for_the_first_lease_is_no_claim() {
    let mut home = Home::start();
    home.answer(404, &failure(404)).await;
    let (method, _) = home.answer(409, &failure(409)).await;
    assert_eq!(method, "POST");
    let (method, _) = home.answer(200, &mk_lease("other", "1")).await;
    assert_eq!(method, "GET");
    assert!(!home.leads());
}

#[tokio::test(start_paused = true)]
async fn missing_rights_are_waited_for_without_a_storm() {
    let mut home = Home::start();
    let mut asked = 0;
    while home.started.elapsed() < SECOND * 300 {
        home.answer(403, &failure(403)).await;
        asked += 1;
    }
    assert!((60..600).contains(&asked), "{asked}");
    home.lead().await;
    assert!(home.leads());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_missing_is_no_lost_race() {
    let mut home = Home::start();
    let mut creations = 0;
    while home.started.elapsed() < SECOND * 100 {
        let (method, _) = home.answer(404, &failure(404)).await;
        creations += u32::from(method == "POST");
    }
    assert!((5..200).contains(&creations), "{creations}");
    assert!(!home.leads());
}

#[tokio::test(start_paused = true)]
async fn the_end_gives_the_lease_back_once_the_claim_is_over() {
    let mut home = Home::start();
    home.lead().await;
    home.stop.cancel();
    let asked = home.asked().await;
    assert!(!home.leads(), "the claim ends before another may have one");
    assert_eq!(asked.method, "PUT");
    assert_eq!(asked.body["spec"].get("holderIdentity"), None);
    assert_eq!(asked.body["spec"]["leaseTransitions"], 7);
    let mut lease = asked.body.clone();
    lease["metadata"]["resourceVersion"] = json!("3");
    asked.send.send_response(response(200, &lease));
    let ended = timeout(SECOND, home.tasks.join_next()).await;
    ended.expect("ends").expect("a task").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_under_way_does_not_hinder_giving_back() {
    let mut home = Home::start();
    home.lead().await;
    // it takes effect, but its answer is never heard
    let renewal = home.asked().await;
    home.stop.cancel();
    sleep(Duration::from_millis(1)).await;
    drop(renewal);
    let (method, _) = home.answer(409, &failure(409)).await;
    assert_eq!(method, "PUT");
    let (method, _) = home.answer(200, &mk_lease("me", "3")).await;
    assert_eq!(method, "GET");
    let written = home.accept("4").await;
    assert_eq!(written["metadata"]["resourceVersion"], "3");
    assert_eq!(written["spec"].get("holderIdentity"), None);
    let ended = timeout(SECOND, home.tasks.join_next()).await;
    ended.expect("ends").expect("a task").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_follower_has_nothing_to_give_back() {
    let mut home = Home::start();
    home.answer(200, &mk_lease("other", "1")).await;
    home.stop.cancel();
    let ended = timeout(SECOND, home.tasks.join_next()).await;
    ended.expect("ends").expect("a task").expect("no panic");
}

#[test]
fn a_clock_that_stands_still_does_not_hide_a_renewal() {
    let wall: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let draft = Draft {
        holder: "me".to_owned(),
        transitions: 0,
        acquires: false,
        replaces: Some("1".to_owned()),
    };
    let mut spec = LeaseSpec::default();
    stamp(&mut spec, &draft, wall);
    let first = spec.clone();
    stamp(&mut spec, &draft, wall);
    assert_ne!(spec, first);
}

#[test]
fn no_two_processes_have_one_name() {
    let (one, other) = (identity(), identity());
    assert_ne!(one, other);
    assert_eq!(
        one.rsplit_once('_').map(|(_, random)| random.len()),
        Some(16)
    );
}
