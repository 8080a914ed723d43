//! A control loop that hangs.

use std::pin::pin;

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_test::mock::{Handle, pair};

use super::*;
use crate::fixture::{CONTROLLER, mk_options, mk_settings};
use crate::infra::InfraSettings;

const SECOND: Duration = Duration::from_secs(1);

/// A control loop whose lists never end, and its health.
fn mk_control(clock: Clock, health: &Health) -> (Control, Handle<Request<Body>, Response<Body>>) {
    let (service, server) = pair();
    let client = Client::new(service, "default");
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (observed, facts) = mpsc::channel(FACTS);
    let (sender, events) = mpsc::channel(EVENTS);
    let (proxies, selector) = (Proxies::default(), SharedSelector::default());
    let control = Control {
        index: Index::default(),
        watches: Watches::start(client, sender),
        events,
        settings: mk_settings(),
        options: mk_options(),
        infra: InfraSettings {
            controller: CONTROLLER.to_owned(),
            ads_hostname: "isthmus-gateway".to_owned(),
            ads_port: 18000,
            ads_tls: false,
            envoy_image: "envoy".to_owned(),
        },
        snapshots: watch::channel(Arc::new(BTreeMap::new())).0,
        proxies: proxies.clone(),
        status: Queue::new(),
        parts: Queue::new(),
        problems: Problems::default(),
        credentials: None,
        metrics: metrics.model,
        pulse: health.watch("control loop", CONTROL_LIMIT),
        health: health.clone(),
        debug: DebugView::new(proxies, Arc::clone(&selector), clock),
        open: CancellationToken::new(),
        decided: Decided::default(),
        observers: Observers::new(observed, metrics.observe),
        facts,
        selector,
        pace: Pace::default(),
        clock,
    };
    (control, server)
}

/// An API server with one Lease.
async fn serve_lease(mut server: Handle<Request<Body>, Response<Body>>) {
    let mut stored: Option<Value> = None;
    let mut version = 0;
    while let Some((request, send)) = server.next_request().await {
        let is_read = request.method() == http::Method::GET;
        let body = request.into_body().collect_bytes().await.unwrap();
        if !is_read {
            let mut lease: Value = serde_json::from_slice(&body).unwrap();
            version += 1;
            lease["metadata"]["resourceVersion"] = json!(version.to_string());
            stored = Some(lease);
        }
        let missing =
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"});
        let code = if stored.is_some() { 200 } else { 404 };
        let answer = stored.clone().unwrap_or(missing);
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        send.send_response(response);
    }
}

/// Nothing it would write is written any more, so another replica is to write, and this one is to be restarted.
#[tokio::test(start_paused = true)]
async fn a_control_loop_that_hangs_is_not_alive_and_has_not_the_lease() {
    let clock = Clock::start();
    let health = Health::new(&[SYNCED]);
    let (control, _server) = mk_control(clock, &health);
    let (service, leases) = pair();
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_lease(leases));
    let client = Client::new(service, "default");
    let elector = Elector::new(client, "home", "the-lease", "me", clock);
    let listed = CancellationToken::new();
    listed.cancel();
    let election = stand(elector, listed, health.clone());
    let claim = election.claim();
    let mut running = pin!(control.run(CancellationToken::new()));
    assert!(timeout(SECOND * 90, &mut running).await.is_err());
    assert_eq!(health.failure(), None);
    assert!(claim.is_valid(clock.now()));
    // from now on nobody polls it
    let hangs = Instant::now();
    while claim.is_valid(clock.now()) {
        assert!(hangs.elapsed() < SECOND * 45, "{:?}", health.failure());
        sleep(SECOND).await;
    }
    assert!(hangs.elapsed() >= CONTROL_LIMIT, "{:?}", hangs.elapsed());
    let failure = health.failure().expect("it is stuck");
    assert!(
        failure.starts_with("control loop has not gone round"),
        "{failure}"
    );
    // it was only slow
    assert!(timeout(SECOND * 5, &mut running).await.is_err());
    assert_eq!(health.failure(), None);
    assert!(claim.is_valid(clock.now()));
}
