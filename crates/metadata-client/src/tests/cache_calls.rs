//! Against the open version of the former service, which has no calls for prompt caches.

use std::time::Duration;

use metadata::wire::cache::Save;
use rstest::rstest;
use serde_json::json;
use tokio::time::sleep;

use super::compat::{ips, start, view};
use crate::{
    cache_calls::ASK_AGAIN,
    client::Degraded,
    script::{Mode, Rig, Script, cluster, ms, settings},
    settings::{Api, Settings},
};

/// The answer of the service's framework to a call that it does not support.
fn unknown() -> Mode {
    Mode::Answers(404, json!("404 page not found"))
}

fn save(rig: &Rig) {
    rig.client.save(Save {
        cluster: cluster(),
        prompt_hash: vec![1, 2].into(),
        ip: ips()[1],
        ttl_s: None,
        capacity: None,
    });
}

fn gauge(rig: &Rig) -> bool {
    let page = rig.page();
    let line = page
        .lines()
        .find_map(|it| it.strip_prefix("epp_metadata_cache_calls_missing "));
    line.unwrap().parse::<f64>().unwrap() > 0.0
}

#[tokio::test(start_paused = true)]
async fn missing_cache_calls_are_no_failure_and_are_made_once_a_minute() {
    let script = Script::new(&[1]);
    script.set_path("/v1/cache", unknown());
    let (rig, charges) = start(&script).await;
    let calls = || script.calls_of("/v1/cache").len();
    assert_eq!((calls(), gauge(&rig)), (1, true), "before any request");
    let first = view(&rig, &charges).await;
    assert_eq!((&first.matched, first.matched_took), (&Ok(None), None));
    assert!(first.load.is_ok() && first.degraded().is_none());
    save(&rig);
    sleep(ms(1)).await;
    assert_eq!((calls(), gauge(&rig)), (1, true));
    assert!(rig.client.degraded().all(|(_, is_missing)| !is_missing));
    for again in [unknown(), Mode::Hangs] {
        script.set_path("/v1/cache", again);
        let before = calls();
        sleep(ASK_AGAIN).await;
        for _ in 0..3 {
            let later = view(&rig, &charges).await;
            assert_eq!((&later.matched, later.degraded()), (&Ok(None), None));
        }
        assert_eq!((calls(), gauge(&rig)), (before + 1, true));
    }
}

#[tokio::test(start_paused = true)]
async fn cache_locations_that_wait_are_not_sent_to_a_service_without_cache_calls() {
    let script = Script::new(&[1]);
    let (rig, charges) = start(&script).await;
    script.set_path("/v1/cache/query", unknown());
    script.set_path("/v1/cache/save", Mode::Slow(ms(50)));
    for _ in 0..10 {
        save(&rig);
    }
    sleep(ms(1)).await;
    view(&rig, &charges).await;
    sleep(ms(500)).await;
    let under_way = script.calls_of("/v1/cache/save").len();
    assert_eq!(under_way, 4, "as many as are sent at once");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_has_cache_calls_later_is_used_without_a_restart() {
    let script = Script::new(&[1]);
    script.set_path("/v1/cache", unknown());
    let (rig, charges) = start(&script).await;
    view(&rig, &charges).await;
    script.set_path("/v1/cache", Mode::Up);
    sleep(ASK_AGAIN).await;
    assert_eq!(view(&rig, &charges).await.matched, Ok(Some(vec![0, 0])));
    save(&rig);
    sleep(ms(1)).await;
    assert_eq!(view(&rig, &charges).await.matched, Ok(Some(vec![0, 2])));
    assert!(!gauge(&rig));
}

#[rstest]
#[case::refuses_this_cluster(404, json!({"error": {"code": 40_401_404, "message": "m", "reason": "no such cluster"}}))]
#[case::refuses_the_token(401, json!({}))]
#[case::fails(500, json!({}))]
#[tokio::test(start_paused = true)]
async fn other_failures_do_not_say_that_cache_calls_are_missing(
    #[case] status: u16,
    #[case] body: serde_json::Value,
) {
    let script = Script::new(&[1]);
    script.set_path("/v1/cache", Mode::Answers(status, body));
    let (rig, charges) = start(&script).await;
    let at_start = script.calls_of("/v1/cache").len();
    assert_eq!(at_start, 1);
    for calls in 1..=2 {
        let view = view(&rig, &charges).await;
        assert_eq!(view.degraded(), Some(Degraded::Cache));
        assert_eq!(script.calls_of("/v1/cache").len(), at_start + calls);
    }
    assert!(!gauge(&rig));
}

#[rstest]
#[case::refuses_connections(Mode::Refuses)]
#[case::is_slow(Mode::Hangs)]
#[case::fails(Mode::Answers(500, json!({})))]
#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_answer_at_the_start_is_queried_until_it_does(#[case] first: Mode) {
    let script = Script::new(&[1]);
    script.set_path("/v1/cache", first);
    let (rig, _charges) = start(&script).await;
    sleep(Duration::from_secs(20)).await;
    let before = script.calls_of("/v1/cache").len();
    assert!(!gauge(&rig) && (2..=20).contains(&before), "{before}");
    script.set_path("/v1/cache", unknown());
    sleep(Duration::from_secs(20)).await;
    let after = script.calls_of("/v1/cache").len();
    assert_eq!((gauge(&rig), after), (true, before + 1));
    sleep(2 * ASK_AGAIN).await;
    let later = script.calls_of("/v1/cache").len();
    assert_eq!(later, after, "the start is over, and no request came");
}

#[rstest]
#[case::caches_do_not_count(Api::Compat, false)]
#[case::our_service(Api::Isthmus, true)]
#[tokio::test(start_paused = true)]
async fn cache_calls_are_not_looked_for_where_none_are_made(
    #[case] api: Api,
    #[case] caches: bool,
) {
    let script = Script::new(&[1]);
    let settings = Settings {
        caches,
        ..settings(api)
    };
    let _rig = Rig::start(&script, settings).await;
    sleep(Duration::from_secs(20)).await;
    assert!(script.calls_of("/v1/cache").is_empty());
}
