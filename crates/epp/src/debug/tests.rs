//! What the pages say after real decisions.

use axum::{body::Body, http::Request};
use bytes::Bytes;
use http_body_util::BodyExt;
use scheduling::{EndpointId, Member, Moment, Subset};
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::{
    body::Api,
    config::{Config, CurrentConfig, Prefix, TrustedHeaders},
    director::{Decision, Options, Picking, Pool},
    extproc::{Query, RequestHead},
};

fn mk_director() -> Arc<Director> {
    let pool = Pool::default();
    let member = |pod: &str, address: &str| Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: pod.into(),
            rank: 0,
            uid: pod.into(),
        },
        address: address.parse().unwrap(),
        engine: "vllm".into(),
        labels: Arc::default(),
    };
    let members = [member("a", "10.0.0.1:80"), member("b", "10.0.0.2:80")];
    pool.replace(members.into(), Moment::START);
    let prefix = Prefix {
        max_bytes: 1 << 20,
        ..Prefix::default()
    };
    let mut config = Config {
        prefix,
        objectives: [("batch".to_owned(), -1)].into(),
        trusted_headers: TrustedHeaders {
            objective: true,
            ..TrustedHeaders::default()
        },
        ..Config::default()
    };
    // Nothing but shedding depends on it.
    config.detector = scheduling::Detector::Concurrency {
        mode: scheduling::ConcurrencyMode::Requests,
        max_requests: 0.1,
        max_tokens: 1.0,
        headroom: 0.0,
    };
    let director = Director::new(
        pool,
        CurrentConfig::new(config),
        Options::default(),
        moment::Clock::start(),
    );
    Arc::new(director.recording())
}

fn decide(director: &Director, fields: &[(&str, &str)], subset: Option<&str>) -> Decision {
    let body = Bytes::from_static(br#"{"model":"m","prompt":"hello"}"#);
    let api = Api::for_path(b"/v1/completions").unwrap().unwrap();
    let bytes = |text: &str| Bytes::from(text.to_owned());
    let query = Query {
        head: RequestHead {
            fields: fields
                .iter()
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            ..RequestHead::default()
        },
        subset: subset.map(|list| {
            let mut subset = Subset::default();
            subset.extend_from_list(list);
            subset
        }),
        list: 1,
        parsed: Some(api.parse(&body).unwrap()),
        is_inference: true,
        body,
    };
    let resolved = director.resolve(&query, None).unwrap();
    director.decide(query, &resolved, scheduling::DEFAULT_TRANSIT)
}

async fn page(director: &Arc<Director>, path: &str) -> Value {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router(Arc::clone(director)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_pick_is_explained_by_views_scores_and_exclusions() {
    let director = mk_director();
    let id = [("x-request-id", "id-1")];
    let decision = decide(&director, &id, Some("10.0.0.2"));
    assert!(matches!(decision, Decision::Picked(Picking::Made(Ok(_)))));
    let picks = page(&director, "/debug/picks").await;
    let pick = &picks[0];
    assert_eq!(pick["request_id"], "id-1");
    assert_eq!(pick["model"], "m");
    assert_eq!(pick["picked"][0], "10.0.0.2:80");
    let [chosen, other] = pick["members"].as_array().unwrap().as_slice() else {
        panic!("two members: {pick:#}")
    };
    assert_eq!(chosen["endpoint"], "ns/b-rank-0");
    assert_eq!(chosen["quality"], "unknown");
    assert_eq!(chosen["in_flight"], 0, "before the pick");
    assert_eq!(chosen["scores"][0]["scorer"], "queue-scorer");
    assert_eq!(chosen["scores"][0]["weight"], 2.0);
    assert_eq!(chosen["score"], 4.0);
    assert_eq!(other["excluded_by"], "the subset that the proxy allows");
    assert_eq!(other["score"], Value::Null);
}

#[tokio::test]
async fn refusals_say_why_and_how_saturated_the_pool_was() {
    let director = mk_director();
    let decision = decide(&director, &[], Some("10.9.9.9"));
    assert!(matches!(decision, Decision::Picked(Picking::Made(Err(_)))));
    let _held = decide(&director, &[], None);
    let low = [("x-llm-d-inference-objective", "batch")];
    let shed = decide(&director, &low, None);
    assert!(matches!(shed, Decision::Picked(Picking::Made(Err(_)))));
    let picks = page(&director, "/debug/picks").await;
    let mut refused: Vec<_> = picks
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| !one["refused"].is_null())
        .map(|one| {
            let refused = &one["refused"];
            (refused["status"].clone(), refused["saturation"].clone())
        })
        .collect();
    refused.sort_by_key(|(status, _)| status.as_u64());
    assert_eq!(
        refused,
        [(429.into(), 5.0.into()), (503.into(), Value::Null)]
    );
}

#[tokio::test]
async fn the_state_has_members_queue_index_and_configuration() {
    let director = mk_director();
    let _held = decide(&director, &[], Some("10.0.0.1"));
    let state = page(&director, "/debug/state").await;
    let endpoint = &state["endpoints"][0];
    assert_eq!(endpoint["endpoint"], "ns/a-rank-0");
    assert_eq!(
        (&endpoint["in_flight"], &endpoint["picks"]),
        (&1.into(), &1.into())
    );
    assert_eq!(endpoint["view"]["waiting"], 1.0);
    assert_eq!(endpoint["scraped"]["waiting"], Value::Null);
    assert_eq!(state["queue"]["total"]["requests"], 0);
    assert_eq!(state["saturation"], 5.0);
    let config = &state["config"];
    assert_eq!(
        config["profile"]["scorers"][2]["type"],
        "prefix-cache-scorer"
    );
    assert_eq!(config["objectives"]["batch"], -1);
}

#[tokio::test]
async fn nothing_is_recorded_unless_it_is_asked_for() {
    let director = Arc::try_unwrap(mk_director()).unwrap();
    let silent = Director::new(
        director.pool().clone(),
        CurrentConfig::new((**director.config()).clone()),
        Options::default(),
        director.clock(),
    );
    let _held = decide(&silent, &[], None);
    assert!(silent.latest_picks().is_empty());
}
