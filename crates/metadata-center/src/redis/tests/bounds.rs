//! What there can be too many of, and what takes several calls.

use metadata::{Bound, wire::cache::Save};

use rstest::rstest;

use super::*;

fn mk_save(name: &str, hashes: &[u64], endpoint: u8) -> Save {
    Save {
        cluster: cluster(name),
        prompt_hash: hashes.to_vec().into(),
        ip: ip(endpoint),
        ttl_s: None,
        capacity: None,
    }
}

async fn mk_bounded(server: &Server, limits: Limits) -> Redis {
    mk_engine(RedisOptions {
        limits,
        ..mk_options(server)
    })
    .await
}

#[tokio::test]
async fn endpoints_of_a_cluster_are_bounded() {
    let server = Server::start().unwrap();
    let limits = Limits {
        endpoints: 2,
        ..Limits::default()
    };
    let engine = mk_bounded(&server, limits).await;
    let full = || Err(Fault::Limit(Bound::Endpoints));
    let three = vec![put("a", 1, 1), put("b", 2, 1), put("c", 3, 1)];
    let refused = engine.batch(mk_batch(1, true, three, &[])).await;
    assert_eq!(refused.map(|_| ()), full());
    assert_eq!(
        engine.loads(&cluster("c")).await,
        Ok(Some(vec![])),
        "all or none"
    );
    engine.add(mk_add("x", 1, 1), false).await.unwrap();
    engine.pick(&mk_pick("y", 2)).await.unwrap();
    assert_eq!(engine.add(mk_add("z", 3, 1), false).await, full());
    let mut elsewhere = mk_pick("z", 3);
    elsewhere.candidates.drain(..2);
    assert_eq!(engine.pick(&elsewhere).await.map(|_| ()), full());
    assert_eq!(engine.sizes().await.unwrap().requests, 2);
}

#[tokio::test]
async fn clusters_are_bounded_and_one_kept_for_its_cache_gives_way() {
    let server = Server::start().unwrap();
    let limits = Limits {
        clusters: 1,
        request_expire: Duration::from_secs(3),
        ..Limits::default()
    };
    let engine = mk_bounded(&server, limits).await;
    engine.save(&mk_save("c", &[1], 1)).await.unwrap();
    let refused = engine.save(&mk_save("d", &[1], 1)).await;
    assert_eq!(refused, Err(Fault::Limit(Bound::Clusters)));
    eventually("the first gives way", || async {
        engine.sweep().await.unwrap();
        let saved = engine.save(&mk_save("d", &[1], 1)).await;
        saved.map_err(|fault| fault.to_string())
    })
    .await;
    assert_eq!(
        engine.sizes().await.unwrap().by_cluster[0].cluster,
        cluster("d")
    );
    assert_eq!(engine.loads(&cluster("c")).await, Ok(None));
}

#[tokio::test]
async fn live_leases_are_bounded_over_replicas_and_those_that_end_make_room() {
    let server = Server::start().unwrap();
    let limits = Limits {
        instances: 1,
        ..Limits::default()
    };
    let (one, other) = (
        mk_bounded(&server, limits).await,
        mk_bounded(&server, limits).await,
    );
    let begin = |instance: &str| Batch {
        instance: instance.parse().unwrap(),
        ..mk_batch(1, true, vec![put("x", 1, 1)], &[])
    };
    one.batch(begin("a")).await.unwrap();
    let refused = other.batch(begin("b")).await;
    assert_eq!(refused, Err(Fault::Limit(Bound::Instances)));
    for name in ["a", "b", "c", "d"] {
        if name != "a" {
            one.batch(begin(name)).await.unwrap();
        }
        one.end_leases(&name.parse().unwrap(), 1).await.unwrap();
        assert_eq!(loads(&one).await, []);
    }
    assert_eq!(one.sweep().await.unwrap().released, 4);
}

#[tokio::test]
async fn what_is_more_than_one_call_takes_is_done_in_parts() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    let puts = |range: std::ops::Range<i64>| -> Vec<Put> {
        range.map(|it| put(&format!("r{it}"), 1, it)).collect()
    };
    let begin = mk_batch(1, true, puts(0..1300), &[]);
    assert!(!engine.batch(begin).await.unwrap().resync);
    assert_eq!(loads(&engine).await, [(1, 1300, 1300 * 1299 / 2)]);
    let fewer = mk_batch(2, true, puts(1000..2000), &["r7"]);
    assert!(!engine.batch(fewer).await.unwrap().resync);
    assert_eq!(loads(&engine).await, [(1, 1000, 1_499_500)]);
    assert_eq!(engine.sweep().await.unwrap().left_out, 1000 - 1);
    let next = Batch {
        epoch: 2,
        ..mk_batch(1, true, puts(0..700), &[])
    };
    assert!(!engine.batch(next).await.unwrap().resync);
    assert_eq!(engine.sizes().await.unwrap().requests, 700);
    assert_eq!(engine.sweep().await.unwrap().replaced, 1000);
    engine.end_leases(&"a".parse().unwrap(), 2).await.unwrap();
    assert_eq!(loads(&engine).await, []);
    let mut many = mk_pick("many", 1);
    many.candidates = (0..4096u32)
        .map(|it| Candidate {
            ip: std::net::IpAddr::V4((0x0a00_0000 + it).into()).into(),
            bias: f64::from(it),
        })
        .collect();
    let picks = engine.pick(&many).await.unwrap();
    assert_eq!(picks.candidates, 4096);
}

#[rstest]
#[case::requests(Limits { requests: 1500, ..Limits::default() }, Bound::Requests)]
#[case::endpoints(Limits { endpoints: 3, ..Limits::default() }, Bound::Endpoints)]
#[tokio::test]
async fn of_a_batch_in_parts_all_puts_fit_or_none(#[case] limits: Limits, #[case] bound: Bound) {
    let server = Server::start().unwrap();
    let engine = mk_bounded(&server, limits).await;
    let puts = |range: std::ops::Range<u16>| -> Vec<Put> {
        let endpoint = |it: u16| u8::try_from(it / 500).unwrap();
        range
            .map(|it| put(&format!("r{it}"), endpoint(it), 1))
            .collect()
    };
    engine
        .batch(mk_batch(1, true, puts(0..1200), &[]))
        .await
        .unwrap();
    let more = engine.batch(mk_batch(2, true, puts(100..2000), &[])).await;
    assert_eq!(more, Err(Fault::Limit(bound)));
    assert_eq!(
        engine.sizes().await.unwrap().requests,
        1100,
        "what was left out is gone"
    );
    let fits = engine.batch(mk_batch(2, true, puts(100..1500), &[])).await;
    assert_eq!(fits.map(|it| it.resync), Ok(false));
    assert_eq!(engine.sizes().await.unwrap().requests, 1400);
}

#[tokio::test]
async fn a_pick_names_the_best_first_and_is_charged_for_what_is_not_cached() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    for (name, endpoint, prefill) in [("x", 1, 5000), ("y", 2, 2000), ("z", 3, 9000)] {
        engine
            .add(mk_add(name, endpoint, prefill), false)
            .await
            .unwrap();
    }
    engine.save(&mk_save("c", &[1, 2, 3], 3)).await.unwrap();
    let mut pick = Pick {
        count: 3,
        prompt_hash: vec![1, 2, 3, 4].into(),
        prompt_length: length(4000),
        ..mk_pick("r", 4)
    };
    pick.candidates[2].bias = 10.0;
    let picks = engine.pick(&pick).await.unwrap();
    let order: Vec<_> = picks.picks.iter().map(|it| it.ip).collect();
    assert_eq!(order, [ip(3), ip(4), ip(2)]);
    let best = picks.picks[0];
    let as_before = (best.matched, best.queued_req_num, best.prompt_length);
    assert_eq!((as_before, picks.charge), ((3, 1, 9000), 1000));
    pick.candidates.remove(2);
    let again = engine.pick(&pick).await.unwrap();
    assert_eq!(
        again.picks[0].ip,
        ip(3),
        "though it is no candidate any more"
    );
    assert_eq!(again.charge, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_and_its_delete_at_two_replicas_at_once_leave_nothing() {
    let server = Server::start().unwrap();
    let (one, other) = (
        mk_engine(mk_options(&server)).await,
        mk_engine(mk_options(&server)).await,
    );
    // no delete may take it along
    one.add(mk_add("stays", 1, 7), false).await.unwrap();
    for round in 0..300 {
        let name = format!("r{round}");
        let (added, deleted) = tokio::join!(one.add(mk_add(&name, 1, 5), false), async {
            if round % 3 == 0 {
                other.prompt_done(&id(&name), false).await.unwrap();
            }
            other.remove(&id(&name), false).await
        });
        added.unwrap();
        deleted.unwrap();
    }
    assert_eq!(loads(&one).await, [(1, 1, 7)]);
}
