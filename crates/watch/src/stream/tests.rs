use http::{Request, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use super::*;

type Server = Handle<Request<Body>, Response<Body>>;

fn mk_client() -> (Client, Server) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    (Client::new(service, "default"), handle)
}

/// Answers the next request, whose path and query must hold `part`.
async fn answer(server: &mut Server, part: &str, status: u16, body: String) {
    let (request, send) = server.next_request().await.expect("a request");
    let uri = request.uri().to_string();
    assert!(uri.contains(part), "{uri} lacks {part}");
    send.send_response(
        Response::builder()
            .status(status)
            .body(Body::from(body.into_bytes()))
            .expect("a response"),
    );
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "resourceVersion": "1"}})
}

/// A line of a watch, in the order in which API servers write it.
fn event(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
        .to_string()
}

fn names(update: &Update<Pod>) -> String {
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    match update {
        Update::Reset(pods) => format!(
            "reset {}",
            pods.iter().map(name).collect::<Vec<_>>().join(",")
        ),
        Update::Apply(pod) => format!("apply {}", name(pod)),
        Update::Delete(pod) => format!("delete {}", name(pod)),
        Update::Odd(odd) => format!("odd {}/{}", odd.namespace, odd.name),
        Update::OddDelete(odd) => format!("odd delete {}/{}", odd.namespace, odd.name),
        Update::Failed(failure) => format!("failed {}", failure.reason()),
    }
}

#[tokio::test(start_paused = true)]
async fn an_odd_object_ends_neither_list_nor_watch() {
    let (client, mut server) = mk_client();
    let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
    let mut odd = pod("odd");
    odd["spec"] = json!("not a spec");
    let script = async {
        answer(
            &mut server,
            "/api/v1/pods?",
            200,
            list(&[pod("a"), odd.clone(), pod("b")]),
        )
        .await;
        let events = [
            event("MODIFIED", &odd),
            event("DELETED", &odd),
            event("DELETED", &pod("a")),
        ];
        let lines = events.concat();
        answer(&mut server, "watch=true", 200, lines).await;
    };
    let seen = async {
        let mut seen = Vec::new();
        while seen.len() < 5 {
            seen.push(names(&updates.next().await.expect("never ends")));
        }
        seen
    };
    let ((), seen) = tokio::join!(script, seen);
    assert_eq!(
        seen,
        [
            "odd ml/odd",
            "reset a,b",
            "odd ml/odd",
            "odd delete ml/odd",
            "delete a"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_is_told_and_retried_after_a_wait() {
    let (client, mut server) = mk_client();
    let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
    let start = tokio::time::Instant::now();
    let script = async {
        answer(&mut server, "/pods", 403, json!({"apiVersion":"v1","kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":"no"}).to_string()).await;
        answer(&mut server, "/pods", 200, list(&[pod("a")])).await;
    };
    let seen = async {
        let failed = updates.next().await.expect("never ends");
        let Update::Failed(failure) = &failed else {
            panic!("{failed:?}");
        };
        assert!(failure.is_denied());
        assert_eq!(failure.reason(), "AuthFailed");
        names(&updates.next().await.expect("never ends"))
    };
    let ((), seen) = tokio::join!(script, seen);
    assert_eq!(seen, "reset a");
    assert!(start.elapsed() >= BACKOFF_MIN, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_far_apart_are_not_in_a_row() {
    let (client, mut server) = mk_client();
    let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
    let gone =
        || json!({"apiVersion":"v1","kind":"Status","status":"Failure","code":500}).to_string();
    for _ in 0..12 {
        let ((), update) = tokio::join!(answer(&mut server, "/pods", 500, gone()), updates.next());
        assert!(matches!(update, Some(Update::Failed(_))), "{update:?}");
        tokio::time::advance(IN_A_ROW * 2).await;
    }
    let start = tokio::time::Instant::now();
    let ((), update) = tokio::join!(answer(&mut server, "/pods", 200, list(&[])), updates.next());
    assert!(matches!(update, Some(Update::Reset(_))), "{update:?}");
    assert!(start.elapsed() <= BACKOFF_MIN * 2, "{:?}", start.elapsed());
}

fn status(code: u16) -> String {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code}).to_string()
}

/// The failure that the stream tells next.
async fn failure(updates: &mut (impl Stream<Item = Update<Pod>> + Unpin)) -> WatchFailure {
    match updates.next().await {
        Some(Update::Failed(failure)) => failure,
        update => panic!("{update:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_found_is_followed_by_a_list_which_alone_tells_that_the_kind_is_missing()
 {
    // as a status, in plain text, as the event of a watch; and what is too old to be resumed
    let event = |code| {
        let status: Value = serde_json::from_str(&status(code)).expect("JSON");
        json!({"type": "ERROR", "object": status}).to_string() + "\n"
    };
    let answers = [
        (404, status(404)),
        (404, "404 page not found".to_owned()),
        (200, event(404)),
        (410, status(410)),
        (200, event(410)),
    ];
    for (code, body) in answers {
        let (client, mut server) = mk_client();
        let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
        let script = async {
            answer(&mut server, "/pods?", 200, list(&[pod("a")])).await;
            answer(&mut server, "watch=true", code, body.clone()).await;
            answer(&mut server, "/pods?&limit", 200, list(&[pod("b")])).await;
            answer(&mut server, "watch=true", code, body.clone()).await;
            answer(&mut server, "/pods?&limit", 404, status(404)).await;
        };
        let seen = async {
            for name in ["a", "b"] {
                let update = updates.next().await.expect("never ends");
                assert_eq!(names(&update), format!("reset {name}"));
                let failed = failure(&mut updates).await;
                assert!(!failed.is_kind_missing() && failed.relists(), "{failed:?}");
                assert_ne!(failed.reason(), "KindMissing");
            }
            let failed = failure(&mut updates).await;
            assert!(failed.is_kind_missing() && failed.relists(), "{failed:?}");
        };
        tokio::join!(script, seen);
    }
}

/// After each list the watch is answered like this, again and again; how long that takes.
async fn fail_watches(codes: &[u16]) -> Duration {
    let (client, mut server) = mk_client();
    let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
    let start = tokio::time::Instant::now();
    for _ in 0..40 {
        let script = async {
            answer(&mut server, "/pods?&limit", 200, list(&[])).await;
            for code in codes {
                answer(&mut server, "watch=true", *code, status(*code)).await;
            }
        };
        let seen = async {
            assert!(matches!(updates.next().await, Some(Update::Reset(_))));
            for _ in codes {
                failure(&mut updates).await;
            }
        };
        tokio::join!(script, seen);
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn lists_that_no_watch_follows_come_later_and_later_whatever_comes_between() {
    for codes in [&[404][..], &[502, 404]] {
        let took = fail_watches(codes).await;
        // half of the longest wait, on average
        assert!(took > BACKOFF_MAX * 10, "{codes:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_none_is_followed_by_a_list() {
    let (client, mut server) = mk_client();
    let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
    let script = async {
        answer(&mut server, "/pods?&limit", 200, list(&[pod("a")])).await;
        // no API server writes them in this order
        let odd = json!({"object": pod("a"), "type": "DELETED"}).to_string() + "\n";
        let lines = odd + &event("MODIFIED", &pod("b"));
        answer(&mut server, "watch=true", 200, lines).await;
        answer(&mut server, "/pods?&limit", 200, list(&[])).await;
    };
    let seen = async {
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(names(&updates.next().await.expect("never ends")));
        }
        assert_eq!(seen, ["reset a", "failed BadStream", "reset "]);
    };
    tokio::join!(script, seen);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_cut_within_its_object_comes_with_the_next_watch() {
    let changed = |name: &str, version: &str| {
        let mut pod = pod(name);
        pod["metadata"]["resourceVersion"] = json!(version);
        event("MODIFIED", &pod)
    };
    let (before, broken) = (changed("a", "5"), changed("b", "6"));
    // wherever it is cut, in the envelope or deep inside
    for at in 1..broken.trim_end().len() {
        let (client, mut server) = mk_client();
        let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
        let lines = format!("{before}{}", broken.get(..at).expect("ASCII"));
        let script = async {
            answer(&mut server, "/pods?&limit", 200, list(&[])).await;
            answer(&mut server, "resourceVersion=1", 200, lines).await;
            // no list, and from where the last whole event was
            answer(&mut server, "resourceVersion=5", 200, broken.clone()).await;
        };
        let seen = async {
            for expected in ["reset ", "apply a", "apply b"] {
                let update = updates.next().await.expect("never ends");
                assert_eq!(names(&update), expected, "cut at {at}");
            }
        };
        tokio::join!(script, seen);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_says_at_length_is_cut() {
    let long = "\u{e4}".repeat(1 << 20);
    let (client, mut server) = mk_client();
    let mut updates = Box::pin(objects::<Pod>(Api::all(client), Config::default()));
    let mut odd = pod(&long);
    odd["spec"] = json!(long);
    let refusal = json!({"kind": "Status", "status": "Failure", "code": 500, "message": long});
    let script = async {
        answer(&mut server, "/pods", 500, refusal.to_string()).await;
        answer(&mut server, "/pods", 200, list(&[odd])).await;
    };
    let seen = async {
        let failed = failure(&mut updates).await;
        assert!(failed.message.len() < 600, "{}", failed.message.len());
        let update = updates.next().await;
        let Some(Update::Odd(odd)) = update else {
            panic!("no odd object");
        };
        let lengths = [odd.name.len(), odd.error.len()];
        assert!(lengths.iter().all(|length| *length < 600), "{lengths:?}");
    };
    tokio::join!(script, seen);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_odd_objects_is_one_line_in_ten_seconds() {
    let mut log = OddLog {
        kind: "Pod".to_owned(),
        told: None,
        untold: 0,
    };
    let mut lines = 0;
    for _ in 0..1000 {
        lines += usize::from(log.is_due(Instant::now()));
        tokio::time::advance(Duration::from_millis(25)).await;
    }
    assert_eq!((lines, log.untold), (3, 997));
}
