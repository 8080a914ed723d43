//! Against a service that takes single writes and does not pick. Ours serves these calls too.

use std::time::Duration;

use metadata::{Address, RequestId, Sum, wire::cache::PromptHash};
use rstest::rstest;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    client::Degraded,
    outboxes::Charges,
    script::{Mode, Rig, Script, cluster, ms, settings},
    settings::Api,
    transport::Trace,
    view::{Asked, View},
};

fn id(number: usize) -> RequestId {
    format!("r{number}").parse().unwrap()
}

pub(super) fn ips() -> Vec<Address> {
    [1, 2]
        .map(|last| format!("10.0.0.{last}").parse().unwrap())
        .to_vec()
}

fn sum(requests: i64, prefill: i64) -> Sum {
    Sum { requests, prefill }
}

pub(super) async fn start(script: &Script) -> (Rig, Charges) {
    let rig = Rig::start(script, settings(Api::Compat)).await;
    let charges = rig.client.charges(&cluster()).unwrap();
    (rig, charges)
}

pub(super) async fn view(rig: &Rig, charges: &Charges) -> View {
    let prompt = PromptHash::from(vec![1, 2, 3]);
    let asked = Asked {
        ips: &ips(),
        load: true,
        prompt: Some(&prompt),
    };
    rig.client.view(charges, &asked, &Trace::default()).await
}

#[tokio::test(start_paused = true)]
async fn each_change_is_a_call() {
    let script = Script::new(&[1]);
    let (mut rig, charges) = start(&script).await;
    charges.put(id(1), ips()[0], 9.try_into().unwrap(), false);
    sleep(ms(1)).await;
    assert_eq!(script.loads()["10.0.0.1"], (1, 9));
    charges.prompt_done(&id(1));
    sleep(ms(1)).await;
    assert_eq!(script.loads()["10.0.0.1"], (1, 0));
    charges.end(&id(1), false);
    rig.end().await;
    assert_eq!(script.loads().len(), 0);
    let paths = script.calls().into_iter();
    let paths: Vec<_> = paths.map(|(_, _, call)| call.path.into_owned()).collect();
    assert_eq!(
        paths,
        [
            "/v1/cache/query", // at the start
            "/v1/load/stats",
            "/v1/load/prompt",
            "/v1/load/stats"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_view_has_other_gateways_as_reported_and_ours_as_they_are_now() {
    let script = Script::new(&[1]);
    let (first, mine) = start(&script).await;
    let (_second, others) = start(&script).await;
    others.put(id(100), ips()[0], 50.try_into().unwrap(), false);
    mine.put(id(1), ips()[0], 7.try_into().unwrap(), false);
    sleep(ms(1)).await;
    script.set_path("/v1/load/stats", Mode::Slow(ms(80)));
    let during = async {
        sleep(ms(10)).await;
        // Neither is known to the service when it answers.
        mine.end(&id(1), false);
        mine.put(id(2), ips()[1], 3.try_into().unwrap(), false);
    };
    let (view, ()) = tokio::join!(view(&first, &mine), during);
    assert_eq!(view.load, Ok(vec![sum(1, 50), sum(1, 3)]));
    assert_eq!(view.own, [sum(0, 0), sum(1, 3)]);
}

#[rstest]
#[case(None, None, None)]
#[case(Some(Mode::Hangs), None, Some(Degraded::Load))]
#[case(None, Some(Mode::Refuses), Some(Degraded::Cache))]
#[case(Some(Mode::Answers(500, json!({}))), Some(Mode::Hangs), Some(Degraded::Both))]
#[case(Some(Mode::Answers(200, json!({"data": {}}))), None, Some(Degraded::Load))]
#[tokio::test(start_paused = true)]
async fn load_and_caches_fail_each_alone_under_one_deadline(
    #[case] load: Option<Mode>,
    #[case] cache: Option<Mode>,
    #[case] degraded: Option<Degraded>,
) {
    let script = Script::new(&[1]);
    let (rig, charges) = start(&script).await;
    charges.put(id(1), ips()[1], 4.try_into().unwrap(), false);
    rig.client.save(metadata::wire::cache::Save {
        cluster: cluster(),
        prompt_hash: vec![1, 2].into(),
        ip: ips()[1],
        ttl_s: None,
        capacity: None,
    });
    sleep(ms(1)).await;
    for (path, mode) in [("/v1/load/stats?", load), ("/v1/cache/query", cache)] {
        script.set_path(path, mode.unwrap_or(Mode::Slow(ms(90))));
    }
    let start = Instant::now();
    let view = view(&rig, &charges).await;
    assert!(start.elapsed() <= ms(100), "{:?}", start.elapsed());
    assert_eq!(view.degraded(), degraded);
    assert_eq!(view.own, [sum(0, 0), sum(1, 4)]);
    let reported: Vec<_> = rig.client.degraded().filter(|it| it.1).collect();
    assert_eq!(
        reported,
        degraded
            .map(|it| (it, true))
            .into_iter()
            .collect::<Vec<_>>()
    );
    if let Ok(load) = view.load {
        assert_eq!(load, [sum(0, 0), sum(1, 4)]);
    }
    if let Ok(matched) = view.matched {
        assert_eq!(matched, Some(vec![0, 2]));
    }
}

#[tokio::test(start_paused = true)]
async fn entries_of_other_gateways_that_are_no_addresses_are_passed_over() {
    let script = Script::new(&[1]);
    let (rig, charges) = start(&script).await;
    let loads = json!({"status": "OK", "data": [
        {"ip": "pod-7", "queued_req_num": 3, "prompt_length": 1, "updated_time": 1},
        {"ip": "10.0.0.2", "queued_req_num": 3, "prompt_length": -1, "updated_time": 1},
    ]});
    let locations = json!({"status": "OK", "data": {"locations": [
        {"ip": "pod-7", "length": 1}, {"ip": "10.0.0.1", "length": 99}, {"ip": "10.0.0.77", "length": 1},
    ]}});
    script.set_path("/v1/load/stats?", Mode::Answers(200, loads));
    script.set_path("/v1/cache/query", Mode::Answers(200, locations));
    let view = view(&rig, &charges).await;
    assert_eq!(view.load, Ok(vec![sum(0, 0), sum(3, 0)]));
    assert_eq!(view.matched, Ok(Some(vec![3, 0])));
}

#[tokio::test(start_paused = true)]
async fn an_empty_service_is_no_failure() {
    let script = Script::new(&[1]);
    let (rig, charges) = start(&script).await;
    let view = view(&rig, &charges).await;
    assert_eq!(
        (view.load, view.matched),
        (Ok(vec![sum(0, 0); 2]), Ok(Some(vec![0, 0])))
    );
}

#[tokio::test(start_paused = true)]
async fn deletes_reach_a_service_that_was_away() {
    let script = Script::new(&[1]);
    let (_rig, charges) = start(&script).await;
    for number in 0..50 {
        charges.put(id(number), ips()[0], 1.try_into().unwrap(), false);
    }
    sleep(ms(10)).await;
    script.set(1, Mode::Hangs);
    for number in 0..49 {
        charges.end(&id(number), false);
    }
    sleep(Duration::from_secs(30)).await;
    script.set(1, Mode::Up);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(script.loads()["10.0.0.1"], (1, 1));
}
