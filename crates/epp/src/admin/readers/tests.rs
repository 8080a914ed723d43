use axum::{body::Body, routing::get};
use http_body_util::BodyExt;
use kube::{Client, client::Body as KubeBody};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::advance};
use tower::ServiceExt;

use super::*;

/// An API server that knows two tokens: of `reader`, who may, and of `stranger`.
struct ApiServer {
    /// What it was asked, kind and subject.
    asked: mpsc::Receiver<(String, Value)>,
    router: Router,
    _server: JoinSet<()>,
}

/// How it answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Answers,
    Fails,
    Hangs,
}

impl ApiServer {
    fn start(mood: Mood) -> Self {
        let (service, mut handle) =
            tower_test::mock::pair::<http::Request<KubeBody>, http::Response<KubeBody>>();
        let (tell, asked) = mpsc::channel(100);
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut hanging = Vec::new();
            while let Some((request, respond)) = handle.next_request().await {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                let kind = review["kind"].as_str().unwrap().to_owned();
                tell.send((kind, review["spec"].clone())).await.unwrap();
                match mood {
                    Mood::Answers => respond.send_response(answer(review)),
                    Mood::Fails => {
                        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                            "message": "no rights", "reason": "Forbidden", "code": 403});
                        respond.send_response(mk_response(403, &status));
                    }
                    Mood::Hangs => hanging.push(respond),
                }
            }
        });
        let reviewer = Reviewer::new(Client::new(service, "default"));
        let paths = ["/metrics", "/debug/state", "/healthz", "/readyz"];
        let router = paths.iter().fold(Router::new(), |router, path| {
            router.route(path, get(async || "seen"))
        });
        Self {
            asked,
            router: Readers::new(reviewer).guard(router),
            _server: server,
        }
    }

    async fn get(&self, path: &str, authorization: Option<&str>) -> u16 {
        let mut request = Request::get(path);
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    }

    fn asked(&mut self) -> Vec<(String, Value)> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

fn answer(mut review: Value) -> http::Response<KubeBody> {
    let spec = &review["spec"];
    review["status"] = if review["kind"] == "TokenReview" {
        match spec["token"].as_str().unwrap() {
            token @ ("reader" | "stranger") => {
                json!({"authenticated": true, "user": {"username": token, "uid": "7", "groups": ["g"],
                    "extra": {"pod": ["p"]}}})
            }
            _ => json!({"error": "nobody's"}),
        }
    } else {
        json!({"allowed": spec["user"] == "reader"})
    };
    mk_response(201, &review)
}

fn mk_response(status: u16, body: &Value) -> http::Response<KubeBody> {
    let body = KubeBody::from(serde_json::to_vec(body).unwrap());
    let mut response = http::Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

#[rstest]
#[case("/metrics", None, 401)]
#[case("/metrics", Some("Basic reader"), 401)]
#[case("/metrics", Some("Bearer"), 401)]
#[case("/metrics", Some("Bearer  "), 401)]
#[case("/metrics", Some("Bearer nobody"), 401)]
#[case("/metrics", Some("Bearer stranger"), 403)]
#[case("/metrics", Some("Bearer reader"), 200)]
#[case("/metrics", Some("bearer reader"), 200)]
#[case("/debug/state", None, 401)]
#[case("/healthz", None, 200)]
#[case("/readyz", None, 200)]
#[case("/other", None, 404)]
#[tokio::test]
async fn the_owner_of_the_token_must_have_the_right(
    #[case] path: &str,
    #[case] authorization: Option<&str>,
    #[case] expected: u16,
) {
    let api = ApiServer::start(Mood::Answers);
    assert_eq!(api.get(path, authorization).await, expected);
}

#[tokio::test]
async fn the_api_server_is_asked_for_the_user_and_for_the_path() {
    let mut api = ApiServer::start(Mood::Answers);
    api.get("/metrics", Some("Bearer reader")).await;
    let expected = [
        ("TokenReview".to_owned(), json!({"token": "reader"})),
        (
            "SubjectAccessReview".to_owned(),
            json!({"user": "reader", "uid": "7", "groups": ["g"], "extra": {"pod": ["p"]},
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}),
        ),
    ];
    assert_eq!(api.asked(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_holds_for_a_while() {
    let mut api = ApiServer::start(Mood::Answers);
    for (token, expected, calls, time) in [
        ("Bearer reader", 200, 2, ALLOWED_FOR),
        ("Bearer stranger", 403, 2, REFUSED_FOR),
        ("Bearer nobody", 401, 1, REFUSED_FOR),
    ] {
        assert_eq!(api.get("/metrics", Some(token)).await, expected);
        assert_eq!(api.asked().len(), calls);
        advance(time.saturating_sub(Duration::from_millis(1))).await;
        assert_eq!(api.get("/metrics", Some(token)).await, expected);
        assert_eq!(api.asked().len(), 0, "{token} is remembered");
        advance(Duration::from_millis(1)).await;
        assert_eq!(api.get("/metrics", Some(token)).await, expected);
        assert_eq!(api.asked().len(), calls, "{token} is asked for again");
    }
    assert_eq!(api.get("/debug/state", Some("Bearer reader")).await, 200);
    assert_eq!(api.asked().len(), 2, "another path is another question");
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nobody_is_let_in_and_nothing_is_remembered() {
    for (mood, limit) in [(Mood::Fails, 0), (Mood::Hangs, 5)] {
        let mut api = ApiServer::start(mood);
        for _ in 0..2 {
            let started = Instant::now();
            assert_eq!(api.get("/metrics", Some("Bearer reader")).await, 503);
            assert_eq!(started.elapsed().as_secs(), limit);
            assert_eq!(api.asked().len(), 1);
        }
        assert_eq!(api.get("/healthz", None).await, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_invented_tokens_is_no_flood_of_reviews() {
    let mut api = ApiServer::start(Mood::Hangs);
    let tokens: Vec<_> = (0..100).map(|token| format!("Bearer {token}")).collect();
    let flood = tokens.iter().map(|token| api.get("/metrics", Some(token)));
    let answers = futures::future::join_all(flood).await;
    assert!(answers.iter().all(|status| *status == 503));
    assert_eq!(api.asked().len(), REVIEWS);
}

fn mk_question(token: usize) -> Question {
    Question {
        token: token.to_string(),
        verb: "get".to_owned(),
        path: "/metrics".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn strangers_push_out_no_reader_and_take_bounded_memory() {
    let mut verdicts = Verdicts::default();
    let now = Instant::now();
    verdicts.insert(mk_question(0), Verdict::Allowed, now);
    for token in 1..=1000 {
        let now = now + Duration::from_millis(u64::try_from(token).unwrap());
        verdicts.insert(mk_question(token), Verdict::Unknown, now);
    }
    assert_eq!(verdicts.refused.0.len(), REMEMBERED);
    assert_eq!(verdicts.get(&mk_question(0), now), Some(Verdict::Allowed));
    assert_eq!(
        verdicts.get(&mk_question(1000), now),
        Some(Verdict::Unknown)
    );
    assert_eq!(verdicts.get(&mk_question(1), now), None, "the oldest goes");
}
