//! A member's tasks on paused time, and the scripted API server that they talk to.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::super::*;
use crate::fixtures::mk_name;
use moment::Clock;

/// What the server does.
#[derive(Default)]
pub(super) struct Script {
    pub(super) hang: AtomicBool,
    pub(super) crd_terminating: AtomicBool,
    pub(super) unauthorised: AtomicBool,
    /// So many answers are 401.
    pub(super) slips: AtomicUsize,
    pub(super) probes: AtomicUsize,
    pub(super) writes: AtomicUsize,
    /// Answers as another cluster.
    pub(super) other: AtomicBool,
    /// Queries of the lists of EndpointSlices.
    pub(super) slice_lists: parking_lot::Mutex<Vec<String>>,
    /// Status of its answers about Gateway API; 0: it serves it.
    pub(super) gateway_api: AtomicUsize,
    /// Paths that are answered with 403.
    pub(super) hidden: parking_lot::Mutex<Vec<&'static str>>,
    /// Watches are answered with 404, as where a proxy sends them elsewhere.
    pub(super) no_watches: AtomicBool,
    /// Lists of pools and imports are, too.
    pub(super) no_kinds: AtomicBool,
    /// Answers access reviews with a denial; else it does not answer them.
    pub(super) no_rights: AtomicBool,
    /// Its list of Services never ends.
    pub(super) endless: AtomicBool,
    /// Lists and watches of Gateway API's kinds.
    pub(super) gateway_calls: AtomicUsize,
}

/// One member's tasks, and the other ends of their channels.
pub(super) struct Bench {
    pub(super) updates: mpsc::Receiver<Timed>,
    pub(super) clock: Clock,
    pub(super) end: JoinSet<End>,
    pub(super) control: watch::Sender<Control>,
    pub(super) queue: Arc<Queue>,
}

fn list(kind: &str, items: Value) -> Value {
    json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
}

/// A page of Services with many addresses, which another follows.
fn mk_page() -> Value {
    let ingress = vec![json!({"ip": "x".repeat(253)}); 256];
    let service = json!({"metadata": {"namespace": "ml", "name": "large"},
        "status": {"loadBalancer": {"ingress": ingress}}});
    let mut page = list("ServiceList", json!(vec![service; 50]));
    page["metadata"]["continue"] = json!("more");
    page
}

fn is_missing(script: &Script, path: &str, watching: bool) -> bool {
    if watching {
        return script.no_watches.load(Ordering::SeqCst);
    }
    let ours = path.ends_with("/inferencepools") || path.ends_with("/inferencepoolimports");
    ours && script.no_kinds.load(Ordering::SeqCst)
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
        if script.no_rights.load(Ordering::SeqCst) {
            return Some((
                201,
                json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": {}, "status": {"allowed": false}}),
            ));
        }
        return Some((404, json!("404 page not found")));
    }
    if request.method() != http::Method::GET {
        script.writes.fetch_add(1, Ordering::SeqCst);
    }
    if path == "/version" {
        script.probes.fetch_add(1, Ordering::SeqCst);
    }
    if is_missing(script, path, watching) {
        return Some((404, json!("404 page not found")));
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
            "/api/v1/services" if script.endless.load(Ordering::SeqCst) => mk_page(),
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

/// Runs one session against the script.
pub(super) fn start(script: Arc<Script>) -> Bench {
    start_with(script, |mut context| async move {
        one_session(&mut context).await
    })
}

pub(super) fn start_with<F>(script: Arc<Script>, run: impl FnOnce(MemberContext) -> F) -> Bench
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
        partial: std::collections::BTreeSet::new(),
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
        events: Arc::default(),
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
        interner: crate::member::Interner::default(),
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

/// Gives new credentials, as the inventory would.
pub(super) fn rotate(bench: &Bench, script: &Arc<Script>) {
    let credentials = Credentials::scripted(mk_client(script.clone()));
    bench.control.send_modify(|control| {
        control.credentials = credentials;
        control.version += 1;
    });
}

pub(super) fn run_on(script: &Arc<Script>) -> Bench {
    start_with(script.clone(), |context| async move {
        run_member(context).await;
        End::IndexGone
    })
}

/// Something to write.
pub(super) fn offer(bench: &Bench) {
    let work = crate::write::action::Work {
        action: crate::write::action::Action::Patch(bytes::Bytes::from_static(b"[]")),
        content: 1,
        base: String::new(),
        since: Moment::default(),
        not_before: None,
        summary: None,
    };
    let slot = crate::write::action::Slot::Import(crate::fixtures::mk_key("llm"));
    bench.queue.offer(slot, work, bench.clock.now());
}

// === impl Bench ===

impl Bench {
    /// The next updates, until one that fits.
    pub(super) async fn until(&mut self, fits: impl Fn(&Update) -> bool) -> Vec<Update> {
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
        let found = timeout(Duration::from_mins(3), wait).await;
        assert_eq!(found, Ok(true), "saw only {seen:?}");
        seen
    }

    pub(super) async fn ended(&mut self) -> End {
        let ended = timeout(Duration::from_mins(2), self.end.join_next()).await;
        ended.expect("ends").expect("a task").expect("no panic")
    }
}
