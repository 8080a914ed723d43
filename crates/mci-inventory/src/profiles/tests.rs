use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::provider::ProviderFile;

/// Profiles under watch, with a plugin that appends a line to `runs` and prints what `answer` holds.
struct Bench {
    directory: tempfile::TempDir,
    updates: mpsc::Sender<Update<ClusterProfile>>,
    refused: mpsc::Sender<ClusterName>,
    lists: mpsc::Receiver<(SourceKind, Listings)>,
    _tasks: JoinSet<()>,
}

fn profile(name: &str, status: Value) -> ClusterProfile {
    serde_json::from_value(json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
        "metadata": {"name": name, "namespace": "fleet", "uid": format!("u-{name}")},
        "spec": {}, "status": status,
    }))
    .expect("a profile")
}

fn served() -> Value {
    json!({"accessProviders": [{"name": "p", "cluster": {"server": "https://192.0.2.1"}}]})
}

fn token(token: &str) -> String {
    json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}})
        .to_string()
}

impl Bench {
    fn start(answer: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("plugin");
        // read by the shell and not run itself, as in the tests of `exec`
        std::fs::write(&path, "echo run >> $DIR/runs\ncat $DIR/answer\n").expect("written");
        let file = json!({"providers": [{"name": "p", "execConfig": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": [path],
            "env": [{"name": "DIR", "value": directory.path()}],
        }}]});
        let source = ProfileSource {
            namespace: "fleet".to_owned(),
            providers: ProviderFile::parse(file.to_string().as_bytes()).expect("a file"),
            allow_extensions: false,
        };
        let profiles = Profiles::new(source, Reading::default(), Clock::start());
        let (updates, stream) = mpsc::channel(16);
        let (refused, asked) = mpsc::channel(16);
        let (sender, lists) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(profiles.follow(ReceiverStream::new(stream), asked, sender));
        let bench = Self {
            directory,
            updates,
            refused,
            lists,
            _tasks: tasks,
        };
        bench.answer(answer);
        bench
    }

    fn answer(&self, text: &str) {
        std::fs::write(self.directory.path().join("answer"), text).expect("written");
    }

    fn runs(&self) -> usize {
        let runs = std::fs::read_to_string(self.directory.path().join("runs"));
        runs.map_or(0, |text| text.lines().count())
    }

    async fn send(&self, update: Update<ClusterProfile>) {
        self.updates.send(update).await.expect("received");
    }

    /// The next list that is as wanted.
    async fn until(&mut self, wanted: impl Fn(&Listings) -> bool) -> Listings {
        let mut last = None;
        let waiting = async {
            loop {
                let (_, listings) = self.lists.recv().await.expect("a list");
                if wanted(&listings) {
                    return listings;
                }
                last = Some(listings);
            }
        };
        let found = timeout(Duration::from_secs(20), waiting).await;
        found.unwrap_or_else(|_| panic!("last list: {last:?}"))
    }
}

fn access<'a>(listings: &'a Listings, name: &str) -> &'a Access {
    &listings[name].access
}

fn is_ready(listings: &Listings, name: &str) -> bool {
    matches!(access(listings, name), Access::Ready(_))
}

#[tokio::test]
async fn a_profile_is_a_member_as_soon_as_its_plugin_has_answered() {
    let mut bench = Bench::start(&token("t"));
    let other = json!({"accessProviders": [{"name": "q", "cluster": {"server": "https://192.0.2.1"}}],
        "properties": [{"name": "cluster.clusterset.k8s.io", "value": "west"}]});
    let list = vec![profile("east", served()), profile("b", other)];
    bench.send(Update::Reset(list)).await;
    let first = bench.until(|listings| listings.len() == 2).await;
    assert!(
        matches!(access(&first, "b"), Access::Refused(refused) if refused.refusal == Refusal::NoAccessProvider)
    );
    assert_eq!(first["b"].member, "west");
    let ready = bench.until(|listings| is_ready(listings, "east")).await;
    assert_eq!(
        ready["east"].origin.source.to_string(),
        "ClusterProfile fleet/east"
    );
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_profile_that_left_the_fleet_is_no_member() {
    let mut bench = Bench::start(&token("t"));
    bench
        .send(Update::Reset(vec![profile("east", served())]))
        .await;
    bench.until(|listings| is_ready(listings, "east")).await;
    let mut left = served();
    left["conditions"] = json!([{"type": "Joined", "status": "False", "reason": "x", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    bench.send(Update::Apply(profile("east", left))).await;
    bench.until(Listings::is_empty).await;
}

#[tokio::test]
async fn an_ill_control_plane_is_a_hint_and_no_more() {
    let mut bench = Bench::start(&token("t"));
    bench
        .send(Update::Reset(vec![profile("east", served())]))
        .await;
    let well = bench.until(|listings| is_ready(listings, "east")).await;
    assert_eq!(well["east"].origin.hint, None);
    let mut status = served();
    status["conditions"] = json!([{"type": "ControlPlaneHealthy", "status": "False", "reason": "ApiDown",
        "message": "for 3 s", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let apply = |status: &Value| Update::Apply(profile("east", status.clone()));
    bench.send(apply(&status)).await;
    let ill = bench
        .until(|listings| listings["east"].origin.hint.is_some())
        .await;
    let hint = "the ClusterProfile says ControlPlaneHealthy=False/ApiDown";
    assert_eq!(ill["east"].origin.hint.as_deref(), Some(hint));
    assert_eq!(access(&ill, "east"), access(&well, "east"));
    status["conditions"][0]["status"] = json!("Unknown");
    bench.send(apply(&status)).await;
    let unknown = bench.until(|listings| *listings != ill).await;
    assert_eq!(unknown, well);
    assert_eq!(bench.runs(), 1, "the credentials are as good as before");
}

#[tokio::test]
async fn refused_credentials_are_issued_again() {
    let mut bench = Bench::start(&token("old"));
    bench
        .send(Update::Reset(vec![profile("east", served())]))
        .await;
    let old = bench.until(|listings| is_ready(listings, "east")).await;
    bench.answer(&token("new"));
    let name = ClusterName::new("east").expect("a label");
    bench.refused.send(name).await.expect("received");
    let old = access(&old, "east").clone();
    let new = bench
        .until(|listings| is_ready(listings, "east") && *access(listings, "east") != old)
        .await;
    let shown = format!("{:?}", access(&new, "east"));
    assert!(shown.contains("Credentials(https://"), "{shown}");
    assert!(!format!("{new:?}").contains("new"), "{new:?}");
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn bad_output_shows_and_does_not_spin() {
    let mut bench = Bench::start("]{");
    bench
        .send(Update::Reset(vec![profile("east", served())]))
        .await;
    let shown = bench
        .until(|listings| matches!(access(listings, "east"), Access::Refused(_)))
        .await;
    let Access::Refused(refused) = access(&shown, "east") else {
        panic!("{shown:?}");
    };
    assert_eq!(refused.refusal, Refusal::BadCredentials);
    assert_eq!(bench.runs(), 1, "the next run is 2 s away at least");
    // once it is well again, it is found without any other event
    bench.answer(&token("t"));
    bench.until(|listings| is_ready(listings, "east")).await;
}
