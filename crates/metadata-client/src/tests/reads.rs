//! What requests wait for.

use metadata::wire::pick::Picks;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    answer::Unavailable,
    client::Degraded,
    script::{Mode, Rig, address, mk_pick, ms},
    transport::Trace,
};

async fn pick(rig: &Rig) -> Result<Picks, Unavailable> {
    rig.client.pick(&mk_pick("r"), &Trace::default()).await
}

/// The reason of a pick's failure, or `ok`; and how many milliseconds it took.
async fn timed(rig: &Rig) -> (&'static str, u128) {
    let start = Instant::now();
    let picked = pick(rig).await;
    let reason = picked.as_ref().err().map_or("ok", Unavailable::reason);
    (reason, start.elapsed().as_millis())
}

fn picks(rig: &Rig) -> usize {
    rig.script.calls_of("/v1/pick").len()
}

#[tokio::test(start_paused = true)]
async fn a_pick_is_made_by_the_service() {
    let rig = Rig::isthmus(&[1]).await;
    let picks = pick(&rig).await.unwrap();
    assert_eq!((picks.picks.len(), picks.charge), (1, 1024));
    let picked = picks.picks[0].ip.to_string();
    assert_eq!(rig.script.loads()[&picked], (1, 1024));
}

#[tokio::test(start_paused = true)]
async fn one_deadline_covers_both_tries() {
    let rig = Rig::isthmus(&[1, 2]).await;
    for mode in [Mode::Hangs, Mode::Slow(ms(101))] {
        for last in [1, 2] {
            rig.script.set(last, mode.clone());
        }
        assert_eq!(timed(&rig).await, ("timeout", 100));
    }
    rig.script.set(1, Mode::Breaks(ms(30)));
    let mut calls = Vec::new();
    // By turns the one that breaks comes first.
    for _ in 0..2 {
        let before = picks(&rig);
        assert_eq!(timed(&rig).await, ("timeout", 100));
        calls.push(picks(&rig) - before);
    }
    calls.sort_unstable();
    assert_eq!(calls, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_tried_again_elsewhere_while_half_of_the_time_is_left() {
    let rig = Rig::isthmus(&[1, 2]).await;
    for (after, expected) in [(0, "ok"), (50, "ok"), (51, "broken")] {
        rig.script.set(1, Mode::Breaks(ms(after)));
        let mut found = [timed(&rig).await, timed(&rig).await].map(|(reason, _)| reason);
        found.sort_unstable();
        let mut want = ["ok", expected];
        want.sort_unstable();
        assert_eq!(found, want, "broken after {after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_serve_is_not_the_only_one() {
    let rig = Rig::isthmus(&[1, 2]).await;
    rig.script.set(1, Mode::Answers(503, json!({})));
    assert_eq!([timed(&rig).await, timed(&rig).await], [("ok", 0); 2]);
    rig.script.set(1, Mode::Answers(500, json!({})));
    let mut found = [timed(&rig).await, timed(&rig).await];
    found.sort_unstable();
    assert_eq!(
        found,
        [("ok", 0), ("status", 0)],
        "the call may be at fault"
    );
}

#[tokio::test(start_paused = true)]
async fn a_single_address_is_not_tried_twice() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script.set(1, Mode::Refuses);
    assert_eq!(timed(&rig).await, ("connect", 0));
    assert_eq!(picks(&rig), 1);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_no_wait_and_one_call_probes_it() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script.set_path("/v1/pick", Mode::Hangs);
    for _ in 0..10 {
        assert_eq!(timed(&rig).await, ("timeout", 100));
    }
    assert_eq!(timed(&rig).await, ("breaker-open", 0));
    assert!(
        rig.page()
            .contains("breaker_state{address=\"10.9.0.1:8080\"} 2")
    );
    let before = picks(&rig);
    sleep(ms(5000)).await;
    let many = futures::future::join_all((0..20).map(|_| timed(&rig))).await;
    let probes = many.iter().filter(|(reason, _)| *reason == "timeout");
    assert_eq!((probes.count(), picks(&rig) - before), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_service_open_the_breaker_and_refusals_do_not() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script.set(1, Mode::Answers(400, json!({})));
    for _ in 0..20 {
        assert_eq!(timed(&rig).await, ("refused", 0));
    }
    rig.script.set(1, Mode::Answers(503, json!({})));
    for _ in 0..10 {
        assert_eq!(timed(&rig).await, ("status", 0));
    }
    assert_eq!(timed(&rig).await, ("breaker-open", 0));
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_picks_are_not_used() {
    let rig = Rig::isthmus(&[1]).await;
    let entry = json!({"ip": "10.0.0.1", "score": 1.0, "matched": 0, "queued_req_num": 0, "prompt_length": 0});
    let bodies = [
        json!({"data": null}),
        json!({"data": {"picks": [], "charge": 1, "candidates": 1}}),
        json!({"data": {"picks": vec![entry.clone(); 9], "charge": 1, "candidates": 1}}),
        json!({"data": {"picks": [entry.clone()], "charge": -1, "candidates": 1}}),
        json!({"data": {"picks": [entry], "charge": 1_u64 << 31, "candidates": 1}}),
        json!({"data": {"picks": [{"ip": "junk"}], "charge": 1, "candidates": 1}}),
    ];
    for body in bodies {
        rig.script.set_path("/v1/pick", Mode::Answers(200, body));
        assert_eq!(timed(&rig).await, ("malformed", 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_pick_degrades_until_the_next_one() {
    let rig = Rig::isthmus(&[1]).await;
    let degraded = || {
        let kinds = rig.client.degraded().filter(|(_, is)| *is);
        kinds.map(|(kind, _)| kind).collect::<Vec<_>>()
    };
    rig.script.set_path("/v1/pick", Mode::Refuses);
    pick(&rig).await.unwrap_err();
    assert_eq!(degraded(), [Degraded::Both]);
    rig.script.set_path("/v1/pick", Mode::Up);
    pick(&rig).await.unwrap();
    assert_eq!(degraded(), []);
}

#[tokio::test(start_paused = true)]
async fn addresses_are_looked_for_each_five_seconds() {
    let rig = Rig::isthmus(&[1]).await;
    rig.script.set(1, Mode::Refuses);
    rig.script.set(2, Mode::Up);
    assert_eq!(timed(&rig).await.0, "connect");
    sleep(ms(5000)).await;
    for _ in 0..2 {
        assert_eq!(timed(&rig).await.0, "ok");
    }
    let (_, last, _) = rig.script.calls().pop().unwrap();
    assert_eq!(last, address(2));
}
