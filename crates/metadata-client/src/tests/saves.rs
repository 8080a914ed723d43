//! Cache locations.

use std::time::Duration;

use metadata::wire::{
    cache::{Query, Save},
    pick::Pick,
};
use tokio::time::sleep;

use crate::{
    script::{Mode, Rig, cluster, mk_pick, ms},
    transport::Trace,
};

fn save(hash: u64, last: u8) -> Save {
    Save {
        cluster: cluster(),
        prompt_hash: vec![hash].into(),
        ip: format!("10.0.0.{last}:8000").parse().unwrap(),
        ttl_s: None,
        capacity: None,
    }
}

/// How much of the prompt the endpoint that is picked has seen.
async fn matched(rig: &Rig, hash: u64, request: &str) -> u32 {
    let pick = Pick {
        prompt_hash: vec![hash].into(),
        ..mk_pick(request)
    };
    let picks = rig.client.pick(&pick, &Trace::default()).await.unwrap();
    picks.picks[0].matched
}

fn saved(rig: &Rig) -> Vec<u64> {
    let calls = rig.script.calls_of("/v1/cache/save").into_iter();
    let save = |call: crate::transport::Call| serde_json::from_slice::<Save>(&call.body).unwrap();
    calls
        .map(|(_, call)| save(call).prompt_hash.hashes()[0])
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_saved_is_found_by_picks() {
    let rig = Rig::isthmus(&[1]).await;
    rig.client.save(save(7, 2));
    sleep(ms(1)).await;
    assert_eq!(matched(&rig, 7, "a").await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_newest_saves_are_kept_while_the_service_is_away() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script.set(1, Mode::Refuses);
    for hash in 0..4 {
        rig.client.save(save(hash, 1));
    }
    sleep(ms(1)).await; // these are under way
    for hash in 100..456 {
        rig.client.save(save(hash, 1));
    }
    let page = rig.page();
    assert!(
        page.contains("epp_metadata_saves_dropped_total 100"),
        "{page}"
    );
    let before = saved(&rig).len();
    rig.script.set(1, Mode::Up);
    sleep(Duration::from_secs(10)).await;
    let mut sent = saved(&rig).split_off(before);
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent, (0..4).chain(200..456).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_purge_comes_after_saves_that_are_under_way_and_instead_of_those_that_wait() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script.set(1, Mode::Slow(ms(50)));
    for hash in 0..10 {
        rig.client.save(save(hash, 1));
    }
    sleep(ms(1)).await;
    rig.client.save(save(20, 2));
    rig.client.purge(cluster(), save(0, 1).ip);
    rig.client.save(save(30, 1));
    sleep(ms(1000)).await;
    let calls = rig.script.calls_of("/v1/cache");
    let purge = calls
        .iter()
        .position(|(_, call)| call.path.contains("endpoint"));
    assert_eq!(purge, Some(4), "four saves were under way");
    assert_eq!(saved(&rig).split_off(4), [20, 30]);
    rig.script.set(1, Mode::Up);
    let query = Query {
        cluster: cluster(),
        prompt_hash: vec![0].into(),
        top_k: None,
        topk: None,
        candidates: None,
    };
    assert_eq!(rig.script.query(&query), []);
    assert_eq!(matched(&rig, 30, "b").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_save_that_is_refused_is_not_repeated() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script
        .set_path("/v1/cache", Mode::Answers(429, serde_json::json!({})));
    rig.client.save(save(1, 1));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(saved(&rig), [1]);
    assert!(rig.page().contains("epp_metadata_saves_dropped_total 1"));
}
