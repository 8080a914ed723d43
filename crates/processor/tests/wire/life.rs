//! Messages of bookings' lives.

use serde_json::Value;

use crate::{
    router::{Answer, StubRouter},
    served::{Options, Served, ask},
};

const ID: &str = "r_aaaaaaaaaaaaaaaaaaaaaaaaaa";

fn messages() -> [(&'static str, String, String); 3] {
    let id = |path: &str| format!("/route/{ID}{path}");
    let ids = format!(r#"{{"reservation_ids":["{ID}"]}}"#);
    let served = r#"{"worker_address":"10.1.2.3:8000"}"#.to_owned();
    [
        ("POST", id("/prefill_complete"), served),
        ("DELETE", id(""), String::new()),
        ("POST", "/route/keepalive".to_owned(), ids),
    ]
}

async fn statuses(served: &Served) -> Vec<(u16, String)> {
    let mut statuses = Vec::new();
    for (method, path, body) in messages() {
        let reply = ask(&served.calls, method, &path, &[], body).await;
        let body: Option<Value> = serde_json::from_slice(&reply.body).ok();
        let kind = body.and_then(|body| Some(body["error"]["type"].as_str()?.to_owned()));
        statuses.push((reply.status.as_u16(), kind.unwrap_or_default()));
    }
    statuses
}

#[tokio::test]
async fn they_are_passed_on_as_they_are() {
    let router = StubRouter::start(Answer::of(204, "")).await;
    let served = Served::start(Options {
        router: Some(router.address),
        ..Options::default()
    })
    .await;
    assert_eq!(statuses(&served).await, vec![(204, String::new()); 3]);
    let asked: Vec<_> = router.asked.lock().drain(..).collect();
    let passed: Vec<_> = asked
        .iter()
        .map(|asked| {
            (
                asked.line.clone(),
                String::from_utf8(asked.body.to_vec()).unwrap(),
            )
        })
        .collect();
    let want = messages().map(|(method, path, body)| (format!("{method} {path}"), body));
    assert_eq!(passed, want);
}

#[tokio::test]
async fn the_routers_answer_is_passed_back() {
    for (status, want) in [
        (404, (404, "unknown-reservation")),
        (500, (502, "router-unreachable")),
    ] {
        let router = StubRouter::start(Answer::of(status, "{}")).await;
        let served = Served::start(Options {
            router: Some(router.address),
            ..Options::default()
        })
        .await;
        let want = vec![(want.0, want.1.to_owned()); 3];
        assert_eq!(statuses(&served).await, want);
    }
}

#[tokio::test]
async fn without_a_router_there_are_no_bookings() {
    let served = Served::start(Options::default()).await;
    let want = vec![(404, "unknown-reservation".to_owned()); 3];
    assert_eq!(statuses(&served).await, want);
}

#[tokio::test]
async fn messages_of_another_shape_are_refused_here() {
    let router = StubRouter::start(Answer::of(204, "")).await;
    let served = Served::start(Options {
        router: Some(router.address),
        ..Options::default()
    })
    .await;
    let prefill = format!("/route/{ID}/prefill_complete");
    for (path, body) in [
        (&*prefill, "{}"),
        ("/route/keepalive", r#"{"reservation_ids":["x"]}"#),
        ("/route/r_1/prefill_complete", r#"{"worker_address":"a:1"}"#),
    ] {
        let reply = served.post(path, body).await;
        assert_eq!(reply.status, 400, "{path} {body}");
    }
    assert!(router.asked.lock().is_empty());
}
