//! What replicas save reaches the others.

use metadata::wire::cache::{Location, Query, Save};

use super::*;

fn mk_save(endpoint: u8, hashes: &[u64]) -> Save {
    Save {
        cluster: cluster("c"),
        prompt_hash: hashes.to_vec().into(),
        ip: ip(endpoint),
        ttl_s: None,
        capacity: None,
    }
}

async fn found(engine: &Redis, hashes: &[u64]) -> Vec<(Address, u32)> {
    let query = Query {
        cluster: cluster("c"),
        prompt_hash: hashes.to_vec().into(),
        top_k: None,
        topk: None,
        candidates: None,
    };
    let found = engine.query(&query).await.unwrap().locations;
    let found = found.into_iter();
    found.map(|Location { ip, length }| (ip, length)).collect()
}

async fn eventually_found(engine: &Redis, hashes: &[u64], expected: &[(Address, u32)]) {
    eventually("the replica learns it", || async {
        let found = found(engine, hashes).await;
        let is_it = found == expected;
        is_it.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
}

#[tokio::test]
async fn saves_picks_and_purges_reach_another_replica() {
    let server = Server::start().unwrap();
    let (one, other) = (
        mk_engine(mk_options(&server)).await,
        mk_engine(mk_options(&server)).await,
    );
    one.save(&mk_save(1, &[1, u64::MAX, 3])).await.unwrap();
    assert_eq!(found(&one, &[1, u64::MAX]).await, [(ip(1), 2)], "at once");
    eventually_found(&other, &[1, u64::MAX, 3, 4], &[(ip(1), 3)]).await;
    let pick = Pick {
        prompt_hash: vec![7, 8].into(),
        ..mk_pick("r", 1)
    };
    other.pick(&pick).await.unwrap();
    assert_eq!(found(&other, &[7, 8]).await, [(ip(1), 2)], "at once");
    eventually_found(&one, &[7, 8], &[(ip(1), 2)]).await;
    other.purge(&cluster("c"), ip(1)).await.unwrap();
    assert_eq!(found(&other, &[1]).await, [], "at once");
    eventually_found(&one, &[1], &[]).await;
    assert_eq!(one.cache_log().unwrap().append_errors, 0);
}

/// It may be purged elsewhere between its save and the look at the log.
#[tokio::test]
async fn what_a_replica_saved_itself_is_applied_again_only_behind_a_purge() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    let one = |save: Save| {
        let engine = &engine;
        async move { engine.save(&save).await.unwrap() }
    };
    one(mk_save(1, &[1])).await;
    let known = engine.shared.directory.find(&cluster("c")).unwrap();
    // Here, and in no entry: an entry of another one behind it shows that all before it is read.
    engine.shared.cache.purge(&cluster("c"), ip(1));
    let add = |fields: &[(&str, &str)]| {
        let mut add = redis::cmd("XADD");
        add.arg(known.key("k")).arg("*");
        for (name, value) in fields {
            add.arg(name).arg(value);
        }
        let mut pipe = redis::pipe();
        pipe.add_command(add).ignore();
        pipe
    };
    let link = &engine.shared.link;
    let hash = "\u{9}\0\0\0\0\0\0\0";
    let marker = |endpoint: u8| ip(endpoint).to_string();
    let by_other = [("e", &*marker(2)), ("h", hash), ("x", "60")];
    link.query::<()>(&add(&by_other)).await.unwrap();
    eventually_found(&engine, &[9], &[(ip(2), 1)]).await;
    assert_eq!(found(&engine, &[1]).await, [], "its own entry");
    link.query::<()>(&add(&[("d", &*marker(1))])).await.unwrap();
    one(mk_save(1, &[1])).await;
    eventually_found(&engine, &[1], &[(ip(1), 1)]).await;
    let last = [("e", &*marker(3)), ("h", hash), ("x", "60")];
    link.query::<()>(&add(&last)).await.unwrap();
    eventually_found(&engine, &[9], &[(ip(2), 1), (ip(3), 1)]).await;
    assert_eq!(found(&engine, &[1]).await, [(ip(1), 1)], "not lost");
}

#[tokio::test]
async fn a_replica_knows_at_its_start_what_the_others_saved_and_for_how_long() {
    let server = Server::start().unwrap();
    let one = mk_engine(mk_options(&server)).await;
    for endpoint in 1..=200u8 {
        let hashes: Vec<_> = (1..=u64::from(endpoint)).collect();
        one.save(&mk_save(endpoint, &hashes)).await.unwrap();
    }
    let short = Save {
        ttl_s: Some(1),
        ..mk_save(250, &[7777])
    };
    one.save(&short).await.unwrap();
    one.purge(&cluster("c"), ip(200)).await.unwrap();
    eventually("the short one is over", || async {
        one.sweep().await.unwrap();
        let found = found(&one, &[7777]).await;
        found
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("{found:?}"))
    })
    .await;
    let late = mk_engine(mk_options(&server)).await;
    let long: Vec<_> = (1..=200).collect();
    let best = found(&late, &long).await;
    assert_eq!(best[..2], [(ip(199), 199), (ip(198), 198)]);
    assert_eq!(found(&late, &[7777]).await, [], "its time was over before");
    let all = |engine: &Redis| engine.shared.cache.chunks(&cluster("c"));
    assert_eq!(all(&late), all(&one));
}

#[tokio::test]
async fn the_log_is_cut_to_its_bytes() {
    let server = Server::start().unwrap();
    let engine = mk_engine(RedisOptions {
        cache_log_max_bytes: 1 << 20,
        ..mk_options(&server)
    })
    .await;
    let hashes: Vec<u64> = (0..1000).collect();
    for _ in 0..600 {
        engine.save(&mk_save(1, &hashes)).await.unwrap();
    }
    let mut ask = redis::pipe();
    ask.cmd("XLEN").arg("mc1:{c}:k");
    let (length,): (usize,) = engine.shared.link.query(&ask).await.unwrap();
    // Redis cuts whole blocks of up to 100 entries or 4 KiB.
    assert!((100..=250).contains(&length), "{length} entries of 8 KiB");
}
