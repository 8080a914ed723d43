use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::client::MAX_WATCH;

const GOOD: &str = "current-context: it\n\
    contexts: [{name: it, context: {cluster: c, user: u}}]\n\
    clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n\
    users: [{name: u, user: {token: t0ps3cr3t}}]\n";

fn mk(name: &str, annotations: Value, data: Value) -> MemberSecret {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("u-{name}"), "annotations": annotations},
        "data": data,
    });
    serde_json::from_value(secret).expect("a Secret")
}

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

fn refusal(listing: &Listing) -> Option<Refusal> {
    match &listing.access {
        Access::Refused(refused) => Some(refused.refusal),
        Access::Ready(_) | Access::Kept(..) | Access::Pending => None,
    }
}

#[rstest]
#[case(json!({"kubeconfig": encoded(GOOD), "value": encoded("]{")}), None)]
#[case(json!({"value": encoded(GOOD), "config": encoded("]{")}), None)]
#[case(json!({"Config": encoded(GOOD)}), None)]
#[case(json!({"kubeconfig": encoded("]{"), "value": encoded(GOOD)}), Some(Refusal::BadCredentials))]
#[case(json!({"other": encoded(GOOD)}), Some(Refusal::BadCredentials))]
#[case(json!({"value": encoded(&format!("{GOOD}# {}", "x".repeat(1024 * 1024)))}), Some(Refusal::BadCredentials))]
#[case(Value::Null, Some(Refusal::BadCredentials))]
fn the_first_key_that_is_there_counts(#[case] data: Value, #[case] expected: Option<Refusal>) {
    let secret = mk("east", json!({}), data);
    let (_, listing) = read(&secret, &Reading::default());
    assert_eq!(refusal(&listing), expected, "{listing:?}");
}

#[rstest]
#[case::exec(
    "exec: {apiVersion: client.authentication.k8s.io/v1, command: PROGRAM, interactiveMode: Never}",
    ""
)]
#[case::token_file("tokenFile: /etc/hostname", "")]
#[case::insecure("token: x", ", insecure-skip-tls-verify: true")]
fn what_could_harm_is_refused_and_nothing_is_run(#[case] user: &str, #[case] cluster: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let ran = directory.path().join("ran");
    let program = directory.path().join("program");
    let script = format!("#!/bin/sh\ntouch {}\n", ran.display());
    std::fs::write(&program, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("executable");
    let text = GOOD
        .replace("token: t0ps3cr3t", user)
        .replace("PROGRAM", &program.display().to_string())
        .replace(":6443'", &format!(":6443'{cluster}"));
    let secret = mk("east", json!({}), json!({"kubeconfig": encoded(&text)}));
    let (_, listing) = read(&secret, &Reading::default());
    assert_eq!(refusal(&listing), Some(Refusal::InsecureCredentials));
    assert!(!ran.exists(), "it was run");
}

#[test]
fn the_annotation_names_the_member() {
    let named = mk("a", json!({CLUSTER_NAME: "east"}), json!({}));
    assert_eq!(read(&named, &Reading::default()).1.member, "east");
    let plain = mk("a", json!({}), json!({}));
    assert_eq!(read(&plain, &Reading::default()).1.member, "a");
}

#[test]
fn nothing_shows_the_bytes() {
    let secret = mk(
        "east",
        json!({"note": "t0ps3cr3t"}),
        json!({"value": encoded(GOOD)}),
    );
    let shown = format!("{secret:?} {:?}", read(&secret, &Reading::default()));
    assert!(shown.contains("MemberSecret(Some(\"east\"))"), "{shown}");
    assert!(!shown.contains("t0ps3cr3t"), "{shown}");
    assert!(!shown.contains(&encoded(GOOD)), "{shown}");
    let bad = json!({"metadata": {"name": "x"}, "data": {"value": "t0ps3cr3t!"}});
    let error = serde_json::from_value::<MemberSecret>(bad).expect_err("no base64");
    assert!(error.to_string().contains("not base64"), "{error}");
    assert!(!error.to_string().contains("t0ps3cr3t"), "{error}");
}

#[test]
fn a_secret_stays_while_either_label_stays() {
    let reading = Reading::default();
    let mut selected = Selected::default();
    let both = || mk("east", json!({}), json!({}));
    selected.apply(0, Update::Reset(vec![both()]), &reading);
    assert!(
        selected.all().is_none(),
        "the other selector has not listed"
    );
    selected.apply(1, Update::Reset(vec![both()]), &reading);
    assert!(selected.apply(0, Update::Delete(both()), &reading));
    assert_eq!(selected.all().expect("listed").len(), 1);
    selected.apply(1, Update::Delete(both()), &reading);
    assert!(selected.all().expect("listed").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_server_ends_a_quiet_watch_before_the_client_does() {
    let (asked, mut queries) = mpsc::channel(8);
    let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let asked = asked.clone();
        async move {
            if query.contains("watch=true") {
                asked.send(query).await.expect("received");
                return std::future::pending().await;
            }
            let list = json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
            http::Response::builder().body(kube::client::Body::from(list.to_string().into_bytes()))
        }
    });
    let client = Client::new(server, "default");
    let (lists, _listings) = mpsc::channel(8);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(watch_secrets(
        client,
        "ns".to_owned(),
        Reading::default(),
        lists,
    ));
    for _ in SELECTORS {
        let query = queries.recv().await.expect("a watch");
        let mut pairs = query.split('&');
        let seconds = pairs.find_map(|pair| pair.strip_prefix("timeoutSeconds="));
        let seconds: u64 = seconds.expect("a timeout").parse().expect("a number");
        assert!(seconds < MAX_WATCH.as_secs(), "{seconds}");
    }
}
