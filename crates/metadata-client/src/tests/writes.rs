//! What requests do not wait for.

use std::{collections::BTreeMap, time::Duration};

use metadata::{Address, RequestId};
use tokio::time::{Instant, sleep};

use crate::{
    client::Degraded,
    outboxes::Charges,
    script::{Mode, Rig, Script, cluster, mk_pick, ms, settings},
    settings::{Api, Settings},
    transport::Trace,
};

fn id(number: usize) -> RequestId {
    format!("r{number}").parse().unwrap()
}

fn ip(last: u8) -> Address {
    format!("10.0.0.{last}:8000").parse().unwrap()
}

fn charges(rig: &Rig) -> Charges {
    rig.client.charges(&cluster()).unwrap()
}

fn put(charges: &Charges, number: usize, endpoint: u8, prefill: i64) {
    let prompt = prefill.try_into().unwrap();
    charges.put(id(number), ip(endpoint), prompt, false);
}

fn loads(of: &[(u8, (i32, i32))]) -> BTreeMap<String, (i32, i32)> {
    let loads = of.iter().map(|(last, load)| (ip(*last).to_string(), *load));
    loads.collect()
}

#[tokio::test(start_paused = true)]
async fn changes_are_sent_at_once_where_nothing_is_under_way() {
    let rig = Rig::isthmus(&[1]).await;
    let charges = charges(&rig);
    sleep(ms(1)).await;
    let start = Instant::now();
    put(&charges, 1, 1, 70);
    sleep(ms(1)).await;
    assert_eq!(rig.script.loads(), loads(&[(1, (1, 70))]));
    charges.prompt_done(&id(1));
    sleep(ms(1)).await;
    assert_eq!(rig.script.loads(), loads(&[(1, (1, 0))]));
    charges.end(&id(1), false);
    sleep(ms(1)).await;
    assert_eq!(rig.script.loads(), loads(&[]));
    assert!(start.elapsed() < ms(10));
}

#[tokio::test(start_paused = true)]
async fn what_began_and_ended_while_a_batch_was_under_way_is_not_sent() {
    let rig = Rig::isthmus(&[1]).await;
    let charges = charges(&rig);
    sleep(ms(1)).await;
    rig.script.set(1, Mode::Slow(ms(100)));
    for number in 0..30 {
        put(&charges, number, 1, 1);
    }
    sleep(ms(50)).await;
    for number in 100..200 {
        put(&charges, number, 1, 1);
        charges.end(&id(number), false);
    }
    sleep(ms(1000)).await;
    let sent: usize = rig
        .script
        .batches()
        .iter()
        .map(|(_, it)| it.puts.len())
        .sum();
    assert_eq!(sent, 30);
    assert_eq!(rig.script.loads(), loads(&[(1, (30, 30))]));
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_each_third_of_it() {
    let rig = Rig::isthmus(&[1]).await;
    let charges = charges(&rig);
    put(&charges, 1, 1, 1);
    sleep(Duration::from_secs(61)).await;
    let batches = rig.script.batches();
    let of_one = batches.iter().filter(|(_, batch)| batch.shard == 0);
    let seconds: Vec<_> = of_one.map(|(at, _)| at.since_start().as_secs()).collect();
    assert_eq!(seconds, (0..=60).step_by(5).collect::<Vec<_>>());
    assert_eq!(rig.script.loads(), loads(&[(1, (1, 1))]));
}

#[tokio::test(start_paused = true)]
async fn too_many_changes_while_the_service_is_away_lose_nothing() {
    let script = Script::new(&[1]);
    let few = Settings {
        queue_size: 10,
        ..settings(Api::Isthmus)
    };
    let rig = Rig::start(&script, few).await;
    let charges = charges(&rig);
    for number in 0..100 {
        put(&charges, number, 1, 5);
    }
    sleep(ms(10)).await;
    script.set(1, Mode::Refuses);
    for number in 0..60 {
        charges.end(&id(number), false);
    }
    for number in 200..260 {
        put(&charges, number, 2, 1);
    }
    sleep(Duration::from_secs(30)).await;
    let writes = rig.client.degraded().find(|it| it.0 == Degraded::Writes);
    assert_eq!(writes, Some((Degraded::Writes, true)));
    let page = rig.page();
    assert!(page.contains("epp_metadata_ack_lag_seconds 30"), "{page}");
    script.set(1, Mode::Up);
    sleep(Duration::from_secs(7)).await;
    assert_eq!(script.loads(), loads(&[(1, (40, 200)), (2, (60, 60))]));
    let page = rig.page();
    assert!(
        page.contains("full_batches_total{cause=\"overflow\"} 3"),
        "{page}"
    );
    assert!(page.contains("epp_metadata_ack_lag_seconds 0"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_answer_is_lost_counts_once() {
    let rig = Rig::isthmus(&[1]).await;
    let charges = charges(&rig);
    sleep(ms(1)).await;
    rig.script.set(1, Mode::Mute);
    put(&charges, 1, 1, 5);
    sleep(ms(510)).await; // longer than a call, shorter than the wait after it
    rig.script.set(1, Mode::Up);
    sleep(Duration::from_secs(1)).await;
    let batches = rig.script.batches().into_iter().map(|(_, batch)| batch);
    let batches: Vec<_> = batches.filter(|it| !it.puts.is_empty()).collect();
    assert_eq!(batches.len(), 2, "{batches:?}");
    assert_eq!(batches[0], batches[1]);
    assert_eq!(rig.script.loads(), loads(&[(1, (1, 5))]));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_lost_its_state_has_it_again_within_five_seconds() {
    let rig = Rig::isthmus(&[1]).await;
    let charges = charges(&rig);
    for number in 0..20 {
        put(&charges, number, 1, 1);
    }
    sleep(Duration::from_secs(2)).await;
    rig.script.restart();
    // An idle client finds it when it renews.
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.script.loads(), loads(&[(1, (20, 20))]));
    rig.script.restart();
    let pick = mk_pick("p");
    rig.client.pick(&pick, &Trace::default()).await.unwrap();
    charges.end(&pick.request_id, true);
    // One that asks finds it at once.
    sleep(ms(10)).await;
    assert_eq!(rig.script.loads(), loads(&[(1, (20, 20))]));
    let page = rig.page();
    assert!(
        page.contains("full_batches_total{cause=\"boot\"} 3"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_cluster_has_its_own_charges() {
    let rig = Rig::isthmus(&[1]).await;
    let other = rig.client.charges(&"other".parse().unwrap()).unwrap();
    put(&charges(&rig), 1, 1, 1);
    put(&charges(&rig), 2, 1, 1);
    put(&other, 1, 1, 7);
    sleep(ms(10)).await;
    assert_eq!(rig.script.loads(), loads(&[(1, (2, 2))]));
    let named = |name: &str| {
        let batches = rig.script.batches().into_iter().map(|(_, batch)| batch);
        let of = batches.filter(|it| it.cluster.as_str() == name);
        of.map(|it| it.puts.len()).sum::<usize>()
    };
    assert_eq!((named("ns/pool"), named("other")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_sends_what_is_left_and_gives_its_lease_back() {
    let mut rig = Rig::isthmus(&[1]).await;
    let charges = charges(&rig);
    put(&charges, 1, 1, 1);
    sleep(ms(10)).await;
    rig.script.set(1, Mode::Slow(ms(50)));
    put(&charges, 2, 1, 1);
    charges.end(&id(1), false);
    rig.end().await;
    let mut calls = rig.script.calls();
    let (_, _, last) = calls.pop().unwrap();
    assert_eq!(last.path, "/v1/leases/epp-0?epoch=1000");
    let batches = rig.script.batches();
    assert!(batches.iter().any(|(_, it)| it.deletes == [id(1)]));
    assert_eq!(
        (rig.script.instances().len(), rig.script.loads().len()),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_ends_in_time_without_the_service() {
    let mut rig = Rig::isthmus(&[1]).await;
    put(&charges(&rig), 1, 1, 1);
    sleep(ms(10)).await;
    rig.script.set(1, Mode::Hangs);
    put(&charges(&rig), 2, 1, 1);
    let start = Instant::now();
    rig.end().await;
    assert!(start.elapsed() <= ms(2500), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_programs_under_one_name_find_names_of_their_own() {
    let script = Script::new(&[1]);
    let first = Rig::start(&script, settings(Api::Isthmus)).await;
    let second = Settings {
        epoch: 2000,
        ..settings(Api::Isthmus)
    };
    let second = Rig::start(&script, second).await;
    put(&charges(&first), 1, 1, 1);
    put(&charges(&second), 1, 1, 1);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(script.loads(), loads(&[(1, (2, 2))]));
    let instances = script.instances();
    assert_eq!(instances.len(), 2, "{instances:?}");
    let named = |length| instances.iter().filter(|it| it.len() == length).count();
    // One at most kept the name; a UUID has 36 characters.
    assert!(
        named("epp-0".len()) <= 1 && named("epp-0-".len() + 36) >= 1,
        "{instances:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_that_takes_nothing_is_not_pressed() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script
        .set_path("/v1/load", Mode::Answers(401, serde_json::json!({})));
    put(&charges(&rig), 1, 1, 1);
    sleep(Duration::from_mins(1)).await;
    let calls = rig.script.batches().len();
    assert!(
        (90..=3 * 70).contains(&calls),
        "{calls} calls of 3 workers in 60 s"
    );
    rig.script.set_path("/v1/load", Mode::Up);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(rig.script.loads(), loads(&[(1, (1, 1))]));
}

#[tokio::test(start_paused = true)]
async fn the_page_says_how_far_the_service_is_behind() {
    let script = Script::new(&[1]);
    let few = Settings {
        queue_size: 4,
        workers: 1,
        ..settings(Api::Isthmus)
    };
    let rig = Rig::start(&script, few).await;
    let charges = charges(&rig);
    sleep(ms(1)).await;
    script.set(1, Mode::Hangs);
    put(&charges, 0, 1, 1);
    sleep(ms(200)).await;
    for number in 1..=4 {
        put(&charges, number, 1, 1);
    }
    let has = |lines: &[&str]| {
        let page = rig.page();
        for line in lines {
            assert!(page.contains(line), "{line} is not in {page}");
        }
    };
    has(&[
        "epp_metadata_outbox_dirty 4",
        "epp_metadata_overflow_total 0",
        "epp_metadata_ack_lag_seconds 0.2",
        "epp_metadata_breaker_state{address=\"10.9.0.1:8080\"} 0",
        "epp_metadata_full_batches_total{cause=\"start\"} 1",
        "epp_metadata_request_duration_seconds_count{call=\"batch\",outcome=\"ok\"} 1",
    ]);
    put(&charges, 5, 1, 1);
    sleep(ms(400)).await;
    has(&[
        "epp_metadata_overflow_total 1",
        "epp_metadata_request_duration_seconds_count{call=\"batch\",outcome=\"timeout\"} 1",
    ]);
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metadata-client.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for line in rig.page().lines().filter(|line| line.starts_with("# TYPE")) {
        let name = line.split(' ').nth(2).unwrap();
        assert!(
            docs.contains(&format!("| `{name}")),
            "{name} is not documented"
        );
    }
}
