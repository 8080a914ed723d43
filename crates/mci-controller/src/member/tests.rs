//! A member's tasks against a scripted API server, on paused time.

mod credentials;
mod parents;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::*;
use crate::{
    fixtures::mk_name,
    index::update::{Change, Kind},
};
use moment::Clock;

/// What the server does.
#[derive(Default)]
struct Script {
    hang: AtomicBool,
    crd_terminating: AtomicBool,
    unauthorised: AtomicBool,
    /// So many answers are 401.
    slips: AtomicUsize,
    probes: AtomicUsize,
    writes: AtomicUsize,
    /// Answers as another cluster.
    other: AtomicBool,
    /// Queries of the lists of EndpointSlices.
    slice_lists: parking_lot::Mutex<Vec<String>>,
    /// Status of its answers about Gateway API; 0: it serves it.
    gateway_api: AtomicUsize,
    /// Paths that are answered with 403.
    hidden: parking_lot::Mutex<Vec<&'static str>>,
    /// Lists and watches of Gateway API's kinds.
    gateway_calls: AtomicUsize,
}

fn list(kind: &str, items: Value) -> Value {
    json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
}

fn answer(script: &Script, request: &Request<Body>) -> Option<(u16, Value)> {
    let path = request.uri().path();
    let watching = request
        .uri()
        .query()
        .unwrap_or_default()
        .contains("watch=true");
    if path.ends_with("/endpointslices") && !watching {
        let query = request.uri().query().unwrap_or_default();
        script.slice_lists.lock().push(query.to_owned());
    }
    if path.starts_with("/apis/gateway.networking.k8s.io/") {
        script.gateway_calls.fetch_add(1, Ordering::SeqCst);
    }
    if path.ends_with("/selfsubjectaccessreviews") {
        return Some((404, json!("404 page not found")));
    }
    if request.method() != http::Method::GET {
        script.writes.fetch_add(1, Ordering::SeqCst);
    }
    if path == "/version" {
        script.probes.fetch_add(1, Ordering::SeqCst);
    }
    if script.hang.load(Ordering::SeqCst) || watching {
        return None;
    }
    let slip = |left: usize| left.checked_sub(1);
    let slips = script
        .slips
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, slip);
    if slips.is_ok() || script.unauthorised.load(Ordering::SeqCst) {
        return Some((
            401,
            json!({"kind": "Status", "status": "Failure", "code": 401, "reason": "Unauthorized"}),
        ));
    }
    if script.hidden.lock().contains(&path) {
        return Some((
            403,
            json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden"}),
        ));
    }
    let refused = script.gateway_api.load(Ordering::SeqCst);
    if path.starts_with("/apis/gateway.networking.k8s.io/") && refused > 0 {
        let code = u16::try_from(refused).expect("a status");
        return Some((
            code,
            json!({"kind": "Status", "status": "Failure", "code": code}),
        ));
    }
    Some((
        200,
        match path {
            "/version" => {
                json!({"major": "1", "minor": "34", "gitVersion": "v1.34.2", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""})
            }
            "/api/v1/namespaces/kube-system" => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": "kube-system", "uid": if script.other.load(Ordering::SeqCst) { "cluster-2" } else { "cluster-1" }}})
            }
            "/api/v1/namespaces" => list("PartialObjectMetadataList", json!([])),
            "/api/v1/services" => list("ServiceList", json!([])),
            "/apis/discovery.k8s.io/v1/endpointslices" => list("EndpointSliceList", json!([])),
            "/apis/gateway.networking.k8s.io/v1/gateways" => list("GatewayList", json!([])),
            "/apis/gateway.networking.k8s.io/v1/httproutes" => list("HTTPRouteList", json!([])),
            "/apis/inference.networking.k8s.io/v1/inferencepools" => {
                list("InferencePoolList", json!([]))
            }
            "/apis/inference.networking.x-k8s.io/v1alpha1/inferencepoolimports" => {
                list("InferencePoolImportList", json!([]))
            }
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions" => {
                list("PartialObjectMetadataList", json!([]))
            }
            _ if path.starts_with("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/") => {
                let mut meta =
                    json!({"name": "inferencepools.inference.networking.k8s.io", "uid": "crd-1"});
                if script.crd_terminating.load(Ordering::SeqCst) {
                    meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta})
            }
            _ => return Some((404, json!("404 page not found"))),
        },
    ))
}

/// A client whose server follows the script; requests that it does not answer hang.
fn mk_client(script: Arc<Script>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let script = script.clone();
        async move {
            match answer(&script, &request) {
                None => std::future::pending().await,
                Some((status, body)) => Response::builder()
                    .status(status)
                    .body(Body::from(body.to_string().into_bytes())),
            }
        }
    });
    Client::new(service, "default")
}

struct Bench {
    updates: mpsc::Receiver<Timed>,
    clock: Clock,
    end: JoinSet<End>,
    control: watch::Sender<Control>,
    queue: Arc<Queue>,
}

/// Runs one session against the script.
fn start(script: Arc<Script>) -> Bench {
    start_with(script, |mut context| async move {
        one_session(&mut context).await
    })
}

fn start_with<F>(script: Arc<Script>, run: impl FnOnce(MemberContext) -> F) -> Bench
where
    F: Future<Output = End> + Send + 'static,
{
    let (sender, updates) = mpsc::channel(64);
    let clock = Clock::start();
    let mut end = JoinSet::new();
    let (control_sender, control) = watch::channel(Control {
        credentials: Credentials::scripted(mk_client(script)),
        version: 0,
        refused: None,
        accepted: None,
        accepted_identity: None,
        interest: Some(crate::index::interest::Interest::default()),
    });
    let queue = Arc::new(Queue::default());
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    let context = MemberContext {
        name: mk_name("a"),
        control,
        proven: None,
        rebuild: None,
        updates: sender,
        queue: queue.clone(),
        writer: WriterSettings {
            controller_name: crd::annotations::MCI_CONTROLLER.to_owned(),
            write_timeout: Duration::from_secs(5),
            clock,
            metrics: metrics.clone(),
            claim: lease::Claim::always(),
            drain: CancellationToken::new(),
            dry_run: false,
        },
        ours: Ours {
            clusterset: "default".to_owned(),
            instance: "default".to_owned(),
            controller_name: crd::annotations::MCI_CONTROLLER.to_owned(),
        },
        turns: crate::client::Turns::default().member(),
        metrics,
        stop: CancellationToken::new(),
    };
    end.spawn(run(context));
    Bench {
        updates,
        clock,
        end,
        control: control_sender,
        queue,
    }
}

impl Bench {
    /// The next updates, until one that fits.
    async fn until(&mut self, fits: impl Fn(&Update) -> bool) -> Vec<Update> {
        let mut seen = Vec::new();
        let wait = async {
            while let Some((update, _)) = self.updates.recv().await {
                let last = fits(&update);
                seen.push(update);
                if last {
                    return true;
                }
            }
            false
        };
        let found = timeout(Duration::from_mins(2), wait).await;
        assert_eq!(found, Ok(true), "saw only {seen:?}");
        seen
    }

    async fn ended(&mut self) -> End {
        let ended = timeout(Duration::from_mins(2), self.end.join_next()).await;
        ended.expect("ends").expect("a task").expect("no panic")
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_is_live_once_every_kind_is_listed() {
    let mut bench = start(Arc::default());
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    assert!(matches!(&seen[0], Update::Connected { uid, .. } if uid == "cluster-1"));
    let listed = |update: &Update| match update {
        Update::PoolsListed { crd, .. } => {
            assert_eq!(
                *crd,
                crate::index::facts::CrdCheck::Serving {
                    uid: "crd-1".to_owned()
                }
            );
            true
        }
        Update::Services(Change::Listed(_))
        | Update::SlicesListed { .. }
        | Update::Namespaces(Change::Listed(_))
        | Update::Imports(Change::Listed(_)) => true,
        _ => false,
    };
    assert_eq!(
        seen.iter().filter(|update| listed(update)).count(),
        Kind::ALL.len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_is_lost_within_13_seconds() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.hang.store(true, Ordering::SeqCst);
    let silent_since = bench.clock.now();
    bench
        .until(|update| matches!(update, Update::Suspect))
        .await;
    let end = bench.ended().await;
    let lost = End::Lost {
        fault: Fault::ConnectionLost,
        was_live: true,
    };
    assert_eq!(end, lost);
    let took = bench.clock.now().since(silent_since);
    assert!(took <= Duration::from_secs(13), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_late_answer_is_no_loss() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.hang.store(true, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Suspect))
        .await;
    script.hang.store(false, Ordering::SeqCst);
    bench.until(|update| matches!(update, Update::Live)).await;
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_told_as_such() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.unauthorised.store(true, Ordering::SeqCst);
    assert_eq!(bench.ended().await, End::Unauthorised);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_never_answers_is_given_ten_seconds() {
    let script = Arc::<Script>::default();
    script.hang.store(true, Ordering::SeqCst);
    let mut bench = start(script);
    let end = bench.ended().await;
    assert!(matches!(
        end,
        End::Lost {
            was_live: false,
            ..
        }
    ));
    assert!(bench.clock.now().since(Moment::default()) <= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_list_under_a_crd_that_is_going_is_told_as_doubtful() {
    let script = Arc::<Script>::default();
    script.crd_terminating.store(true, Ordering::SeqCst);
    let mut bench = start(script);
    let seen = bench
        .until(|update| matches!(update, Update::PoolsListed { .. }))
        .await;
    let Some(Update::PoolsListed { crd, .. }) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_eq!(*crd, crate::index::facts::CrdCheck::Doubtful);
}

/// Gives new credentials, as the inventory would.
fn rotate(bench: &Bench, script: &Arc<Script>) {
    let credentials = Credentials::scripted(mk_client(script.clone()));
    bench.control.send_modify(|control| {
        control.credentials = credentials;
        control.version += 1;
    });
}

fn run_on(script: &Arc<Script>) -> Bench {
    start_with(script.clone(), |context| async move {
        run_member(context).await;
        End::IndexGone
    })
}

/// Something to write.
fn offer(bench: &Bench) {
    let work = crate::write::action::Work {
        action: crate::write::action::Action::Patch(bytes::Bytes::from_static(b"[]")),
        content: 1,
        base: String::new(),
        since: Moment::default(),
        summary: None,
    };
    let slot = crate::write::action::Slot::Import(crate::fixtures::mk_key("llm"));
    bench.queue.offer(slot, work, bench.clock.now());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_index_has_accepted_the_cluster() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    offer(&bench);
    bench.until(|update| matches!(update, Update::Live)).await;
    let accept = |bench: &Bench, uid: &str| {
        let accepted = Some(uid.to_owned());
        bench
            .control
            .send_modify(|control| control.accepted = accepted);
    };
    accept(&bench, "another");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(script.writes.load(Ordering::SeqCst), 0);
    accept(&bench, "cluster-1");
    sleep(Duration::from_secs(3)).await;
    assert!(script.writes.load(Ordering::SeqCst) > 0);
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_fail_leave_the_old_in_use_and_are_tried_again() {
    let (old, new) = (Arc::<Script>::default(), Arc::<Script>::default());
    let mut bench = run_on(&old);
    bench.until(|update| matches!(update, Update::Live)).await;
    new.unauthorised.store(true, Ordering::SeqCst);
    rotate(&bench, &new);
    sleep(Duration::from_secs(5)).await;
    // the connection breaks: the old ones make the next
    old.hang.store(true, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Lost(_)))
        .await;
    old.hang.store(false, Ordering::SeqCst);
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    assert!(
        !seen
            .iter()
            .any(|update| matches!(update, Update::Refused(_))),
        "{seen:?}"
    );
    // the new ones come to work: they are taken up by themselves
    let probed = || new.probes.load(Ordering::SeqCst);
    new.unauthorised.store(false, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Connected { .. }))
        .await;
    bench.until(|update| matches!(update, Update::Live)).await;
    let before = probed();
    sleep(Duration::from_secs(30)).await;
    assert!(probed() >= before + 5, "the session probes the new server");
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_lead_elsewhere_leave_the_old_in_use() {
    let (old, new) = (Arc::<Script>::default(), Arc::<Script>::default());
    let mut bench = run_on(&old);
    bench.until(|update| matches!(update, Update::Live)).await;
    new.other.store(true, Ordering::SeqCst);
    rotate(&bench, &new);
    old.hang.store(true, Ordering::SeqCst);
    bench
        .until(|update| matches!(update, Update::Lost(_)))
        .await;
    old.hang.store(false, Ordering::SeqCst);
    let seen = bench.until(|update| matches!(update, Update::Live)).await;
    for update in seen {
        if let Update::Connected { uid, .. } = update {
            assert_eq!(uid, "cluster-1");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pools_are_listed_again_once_their_crd_stands() {
    let script = Arc::<Script>::default();
    script.crd_terminating.store(true, Ordering::SeqCst);
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    script.crd_terminating.store(false, Ordering::SeqCst);
    let seen = bench
        .until(|update| matches!(update, Update::PoolsListed { .. }))
        .await;
    let Some(Update::PoolsListed { crd, .. }) = seen.last() else {
        panic!("{seen:?}");
    };
    assert_ne!(*crd, crate::index::facts::CrdCheck::Doubtful);
}

#[tokio::test(start_paused = true)]
async fn endpoint_slices_are_selected_by_the_epps_of_interest() {
    let script = Arc::<Script>::default();
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    assert_eq!(
        *script.slice_lists.lock(),
        Vec::<String>::new(),
        "nothing is exported: nothing is listed"
    );
    let mut wanted = crate::index::interest::Interest::default();
    for name in ["epp", "epp2"] {
        wanted.epps.insert(crate::fixtures::mk_key(name));
        let interest = Some(wanted.clone());
        bench
            .control
            .send_modify(|control| control.interest = interest);
        bench
            .until(|update| match update {
                Update::SlicesListed { scope, .. } => *scope == wanted.scope(),
                _ => false,
            })
            .await;
    }
    // what is watched already is not listed again; what nobody needs any more is let go
    wanted.epps.remove(&crate::fixtures::mk_key("epp2"));
    for interest in [wanted, crate::index::interest::Interest::default()] {
        let interest = Some(interest);
        bench
            .control
            .send_modify(|control| control.interest = interest);
        sleep(Duration::from_secs(1)).await;
    }
    bench
        .until(|update| matches!(update, Update::SlicesListed { scope, .. } if scope.is_empty()))
        .await;
    let lists = script.slice_lists.lock().clone();
    assert_eq!(lists.len(), 2, "{lists:?}");
    assert!(
        lists[0].contains("labelSelector=kubernetes.io%2Fservice-name+in+%28epp%29"),
        "{lists:?}"
    );
    assert!(lists[1].contains("%28epp%2Cepp2%29"), "{lists:?}");
}
