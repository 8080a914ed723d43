//! Against an API server of which the test holds every answer.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    follower::{DENIED, DOUBT, LOOK, RETURN},
    *,
};
use crate::fake_api::{FakeApi, mk_status};

const GROUP: &str = "/apis/llm-d.ai/v1alpha2";
const OBJECTIVES: &str = "/apis/llm-d.ai/v1alpha2/namespaces/ns/inferenceobjectives";
const FORMER_GROUP: &str = "/apis/inference.networking.x-k8s.io/v1alpha2";
const MODELS: &str = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/ns/inferencemodels";
const LIMIT: Duration = Duration::from_mins(20);

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    settled: bool,
    synced: BTreeMap<&'static str, bool>,
    gone: Vec<String>,
    denied: Vec<String>,
    failed: usize,
    odd: Vec<String>,
}

struct Running {
    api: FakeApi,
    state: watch::Receiver<State>,
    _tasks: JoinSet<()>,
}

fn mk_objective(name: &str, priority: i32) -> Value {
    json!({
        "apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": "2"},
        "spec": {"poolRef": {"name": "llm"}, "priority": priority},
    })
}

fn mk_model(name: &str) -> Value {
    json!({
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2", "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": "2"},
        "spec": {"poolRef": {"name": "llm"}, "modelName": name},
    })
}

/// A group that serves one kind, as API servers describe it.
fn mk_group(plural: &str, verbs: &[&str]) -> (u16, Value) {
    let resource = json!({"name": plural, "singularName": "", "namespaced": true, "kind": "K", "verbs": verbs});
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "g/v", "resources": [resource]});
    (200, list)
}

const ALL: [&str; 4] = ["create", "get", "list", "watch"];
/// Of a kind whose CRD is being deleted.
const ENDING: [&str; 3] = ["get", "list", "watch"];

impl State {
    fn on(&mut self, update: ObjectUpdate) {
        match update {
            ObjectUpdate::Objects(objects) => {
                assert_ne!(self.objects, objects, "nothing changed");
                self.objects = objects;
            }
            ObjectUpdate::Settled => {
                assert!(!self.settled, "once");
                self.settled = true;
            }
            ObjectUpdate::Synced { kind, synced } => {
                self.synced.insert(kind.as_str(), synced);
            }
            ObjectUpdate::Gone { resource, .. } => self.gone.push(resource),
            ObjectUpdate::Denied { resource, .. } => self.denied.push(resource),
            ObjectUpdate::Failed { .. } => self.failed += 1,
            ObjectUpdate::Odd { name, .. } => self.odd.push(name),
        }
    }

    fn priorities(&self) -> Vec<(&str, i32)> {
        let objectives = self.objects.objectives.iter();
        objectives
            .map(|one| (one.name.as_str(), one.priority))
            .collect()
    }
}

impl Running {
    fn start(prepare: impl FnOnce(&FakeApi)) -> Self {
        let mut tasks = JoinSet::new();
        let (api, client) = FakeApi::start(&mut tasks);
        prepare(&api);
        let discovery = ObjectDiscovery {
            client,
            namespace: "ns".to_owned(),
            pool: "llm".to_owned(),
        };
        let (states, state) = watch::channel(State::default());
        tasks.spawn(async move {
            let mut updates = discovery.updates();
            while let Some(update) = updates.next().await {
                states.send_modify(|state| state.on(update));
            }
        });
        Self {
            api,
            state,
            _tasks: tasks,
        }
    }

    /// With objectives served, and these in the cluster.
    fn with_objectives(objectives: &[Value]) -> Self {
        Self::start(|api| {
            api.fix(GROUP, mk_group("inferenceobjectives", &ALL));
            api.set(OBJECTIVES, objectives);
        })
    }

    async fn until(&mut self, what: &str, wanted: impl Fn(&State) -> bool) {
        let seen = timeout(LIMIT, self.state.wait_for(|state| wanted(state)))
            .await
            .map(drop);
        seen.unwrap_or_else(|_| panic!("{what}: {:?}", self.state.borrow()));
    }

    async fn until_priorities(&mut self, wanted: &[(&str, i32)]) {
        let what = format!("the objectives are {wanted:?}");
        self.until(&what, |state| state.priorities() == wanted)
            .await;
    }

    /// Asserts that these are the objectives for this time.
    async fn stay(&mut self, wanted: &[(&str, i32)], time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert_eq!(self.state.borrow().priorities(), wanted);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_kinds_is_settled_at_once_and_in_silence() {
    let start = Instant::now();
    let mut running = Running::start(|_| {});
    running.until("it is settled", |state| state.settled).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    running.stay(&[], LOOK * 4).await;
    let state = running.state.borrow();
    assert!(state.synced.is_empty(), "{state:?}");
    assert_eq!((state.failed, state.denied.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_crd_that_is_installed_later_is_found_at_the_next_look() {
    let mut running = Running::start(|_| {});
    running.until("it is settled", |state| state.settled).await;
    running
        .api
        .fix(GROUP, mk_group("inferenceobjectives", &ALL));
    running.api.set(OBJECTIVES, &[mk_objective("a", 3)]);
    let installed = Instant::now();
    running.until_priorities(&[("a", 3)]).await;
    assert!(installed.elapsed() < LOOK.mul_f64(1.3));
    running
        .until("it is synced", |state| {
            state.synced == [("InferenceObjective", true)].into()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn objects_follow_the_watch() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1)]);
    running
        .until("known before it is settled", |state| {
            state.settled && state.priorities() == [("a", 1)]
        })
        .await;
    let api = running.api.clone();
    api.event(OBJECTIVES, "ADDED", mk_objective("b", 2)).await;
    running.until_priorities(&[("a", 1), ("b", 2)]).await;
    let mut other = mk_objective("a", 1);
    other["spec"]["poolRef"]["name"] = json!("other");
    api.event(OBJECTIVES, "MODIFIED", other).await;
    running.until_priorities(&[("b", 2)]).await;
    let deleted = Instant::now();
    api.event(OBJECTIVES, "DELETED", mk_objective("b", 2)).await;
    running.until_priorities(&[]).await;
    assert!(deleted.elapsed() >= DOUBT);
}

/// Its last state stays, as with pods.
#[tokio::test(start_paused = true)]
async fn an_odd_object_is_skipped_and_spoils_no_other() {
    let mut odd = mk_objective("odd", 1);
    odd["spec"]["priority"] = json!("high");
    let mut running = Running::with_objectives(&[odd, mk_objective("a", 1)]);
    running.until_priorities(&[("a", 1)]).await;
    let mut odd = mk_objective("a", 1);
    odd["spec"]["poolRef"] = json!(7);
    let api = running.api.clone();
    api.event(OBJECTIVES, "MODIFIED", odd).await;
    api.event(OBJECTIVES, "ADDED", mk_objective("b", 2)).await;
    running.until_priorities(&[("a", 1), ("b", 2)]).await;
    assert_eq!(running.state.borrow().odd, ["odd", "a"]);
}

/// The deletions arrive while the CRD ends, and nobody has deleted the objects.
#[tokio::test(start_paused = true)]
async fn objects_outlive_their_crd_and_its_return_until_they_are_missed() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1), mk_objective("b", 2)]);
    let both = [("a", 1), ("b", 2)];
    running.until_priorities(&both).await;
    let api = running.api.clone();
    api.fix(GROUP, mk_group("inferenceobjectives", &ENDING));
    api.event(OBJECTIVES, "DELETED", mk_objective("a", 1)).await;
    running
        .until("its end is noticed", |state| {
            state.gone == ["inferenceobjectives.llm-d.ai"]
                && state.synced == [("InferenceObjective", false)].into()
        })
        .await;
    api.unfix(GROUP);
    running.stay(&both, LOOK * 4).await;

    // back, with one of them
    api.fix(GROUP, mk_group("inferenceobjectives", &ALL));
    api.set(OBJECTIVES, &[mk_objective("b", 3)]);
    running.until_priorities(&[("a", 1), ("b", 3)]).await;
    let back = Instant::now();
    running.until_priorities(&[("b", 3)]).await;
    assert!(back.elapsed() > RETURN / 2, "{:?}", back.elapsed());
}

/// As when the CRD vanishes between two lists.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_not_found_ends_the_watch_and_no_object() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1)]);
    running.until_priorities(&[("a", 1)]).await;
    let api = running.api.clone();
    api.unfix(GROUP);
    api.fix(OBJECTIVES, (404, mk_status(404)));
    api.cut(OBJECTIVES);
    running
        .until("its end is noticed", |state| !state.gone.is_empty())
        .await;
    running.stay(&[("a", 1)], LOOK * 3).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_gone_costs_no_object() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1)]);
    running.until_priorities(&[("a", 1)]).await;
    let api = running.api.clone();
    api.event(OBJECTIVES, "DELETED", mk_objective("a", 1)).await;
    api.go_down();
    running.stay(&[("a", 1)], LOOK * 4).await;
    assert!(running.state.borrow().failed > 0);
    api.come_back();
    running.until_priorities(&[]).await;
}

/// A list finds what a watch that broke has missed.
#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_followed_by_a_list() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1), mk_objective("b", 1)]);
    running.until_priorities(&[("a", 1), ("b", 1)]).await;
    let api = running.api.clone();
    api.set(OBJECTIVES, &[mk_objective("b", 2)]);
    api.relist(OBJECTIVES).await;
    running.until_priorities(&[("b", 2)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_rights_is_reported_once_and_looked_at_slowly() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1)]);
    let api = running.api.clone();
    api.fix(OBJECTIVES, (403, mk_status(403)));
    running.until("it is settled", |state| state.settled).await;
    running.stay(&[], DENIED * 3).await;
    {
        let state = running.state.borrow();
        assert_eq!(state.denied, ["inferenceobjectives.llm-d.ai"]);
        assert_eq!(state.synced, [("InferenceObjective", false)].into());
        assert_eq!(state.failed, 0);
    }
    api.unfix(OBJECTIVES);
    let granted = Instant::now();
    running.until_priorities(&[("a", 1)]).await;
    assert!(granted.elapsed() < DENIED.mul_f64(1.3));

    // taken away again
    api.fix(OBJECTIVES, (403, mk_status(403)));
    api.cut(OBJECTIVES);
    running
        .until("it is reported", |state| state.denied.len() == 2)
        .await;
    running.stay(&[("a", 1)], LOOK).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_the_former_group_is_found_beside_one_of_the_current() {
    let mut running = Running::with_objectives(&[mk_objective("a", 1)]);
    running
        .api
        .fix(FORMER_GROUP, mk_group("inferencemodels", &ALL));
    running.api.set(MODELS, &[mk_model("m")]);
    running
        .until("both are there", |state| {
            state.priorities() == [("a", 1)] && state.objects.models.len() == 1
        })
        .await;
}

/// Nobody waits for it for ever; but a look that failed has settled nothing.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_settles_nothing() {
    let mut running = Running::start(FakeApi::go_down);
    running.until("looks fail", |state| state.failed > 10).await;
    assert!(!running.state.borrow().settled);
    running.api.come_back();
    running.until("it is settled", |state| state.settled).await;
}
