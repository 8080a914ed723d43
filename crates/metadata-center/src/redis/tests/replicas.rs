//! Replicas over one Redis, and a Redis that goes.

use super::*;

#[tokio::test]
async fn replicas_answer_alike_and_share_the_charges() {
    let server = Server::start().unwrap();
    let (one, other) = (
        mk_engine(mk_options(&server)).await,
        mk_engine(mk_options(&server)).await,
    );
    assert_eq!(one.boot(), other.boot());
    one.batch(mk_batch(1, true, vec![put("x", 1, 100)], &[]))
        .await
        .unwrap();
    assert_eq!(loads(&other).await, [(1, 1, 100)]);
    let next = Batch {
        live: 2,
        prompt_sum: 150,
        ..mk_batch(2, false, vec![put("y", 2, 50)], &[])
    };
    let applied = other.batch(next.clone()).await.unwrap();
    assert!(!applied.resync, "{applied:?}");
    let stale = Fault::StaleSeq {
        last: 2,
        applied: true,
    };
    assert_eq!(one.batch(next).await, Err(stale));
    other.add(mk_add("r", 3, 7), false).await.unwrap();
    one.prompt_done(&id("r"), true).await.unwrap();
    let first = one.pick(&mk_pick("p", 8)).await.unwrap();
    assert_eq!(
        other.pick(&mk_pick("p", 8)).await.unwrap(),
        first,
        "the same reservation"
    );
    eventually("both list the same", || async {
        let mut both = (
            one.clusters().await.unwrap(),
            other.clusters().await.unwrap(),
        );
        for lease in both
            .0
            .iter_mut()
            .chain(&mut both.1)
            .flat_map(|it| &mut it.leases)
        {
            lease.remaining_ms = 0;
        }
        let same = both.0 == both.1 && both.0.len() == 1;
        same.then_some(()).ok_or_else(|| format!("{both:?}"))
    })
    .await;
    let listed = &one.clusters().await.unwrap()[0];
    let lease = &listed.leases[0];
    assert_eq!((lease.live, lease.prompt_sum, listed.requests), (2, 150, 4));
    assert!((1..=10_000).contains(&lease.remaining_ms), "{lease:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn picks_at_two_replicas_see_each_other() {
    let server = Server::start().unwrap();
    let engines = [
        mk_engine(mk_options(&server)).await,
        mk_engine(mk_options(&server)).await,
    ];
    let picks = (0..100).map(|request| {
        let engine = &engines[request % 2];
        async move {
            engine
                .pick(&mk_pick(&format!("r{request}"), 10))
                .await
                .unwrap()
        }
    });
    futures::future::join_all(picks).await;
    let even: Vec<_> = (1..=10).map(|it| (it, 10, 1000)).collect();
    assert_eq!(loads(&engines[0]).await, even);
}

#[tokio::test]
async fn charges_of_a_silent_owner_go_by_the_clock_of_redis() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    let short = Batch {
        lease_ms: 1000,
        ..mk_batch(1, true, vec![put("x", 1, 100)], &[])
    };
    engine.batch(short).await.unwrap();
    engine.sweep().await.unwrap();
    assert_eq!(loads(&engine).await, [(1, 1, 100)]);
    eventually("the lease ends", || async {
        engine.sweep().await.unwrap();
        let loads = loads(&engine).await;
        loads
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("{loads:?}"))
    })
    .await;
    let next = engine.batch(mk_batch(2, false, vec![], &[])).await;
    assert_eq!(next, Err(Fault::LeaseLost));
}

#[tokio::test]
async fn a_redis_that_restarts_empty_has_another_boot_id_and_no_lease() {
    let mut server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    engine
        .batch(mk_batch(1, true, vec![put("x", 1, 100)], &[]))
        .await
        .unwrap();
    let save = metadata::wire::cache::Save {
        cluster: cluster("c"),
        prompt_hash: vec![1, 2].into(),
        ip: ip(1),
        ttl_s: None,
        capacity: None,
    };
    engine.save(&save).await.unwrap();
    let before = engine.boot();
    server.kill();
    eventually("not ready", || async {
        engine
            .unready()
            .map(|_| ())
            .ok_or_else(|| "ready".to_owned())
    })
    .await;
    let refused = engine.pick(&mk_pick("r", 1)).await.unwrap_err();
    assert_eq!(refused.reason(), "backend-unavailable");
    let query = metadata::wire::cache::Query {
        cluster: cluster("c"),
        prompt_hash: vec![1, 2].into(),
        top_k: None,
        topk: None,
        candidates: None,
    };
    assert_eq!(
        engine.query(&query).await.unwrap().locations.len(),
        1,
        "queries go on"
    );
    engine.save(&save).await.unwrap();
    assert_eq!(
        engine.cache_log().unwrap().append_errors,
        1,
        "and saves stay here"
    );
    server.restart().unwrap();
    eventually("ready again", || async {
        engine.unready().map_or(Ok(()), |why| Err(why.to_owned()))
    })
    .await;
    assert_ne!(engine.boot(), before);
    let next = engine.batch(mk_batch(2, false, vec![], &["x"])).await;
    assert_eq!(next, Err(Fault::LeaseLost));
    let full = engine
        .batch(mk_batch(3, true, vec![put("y", 2, 5)], &[]))
        .await;
    assert!(!full.unwrap().resync);
    assert_eq!(loads(&engine).await, [(2, 1, 5)]);
    assert_eq!(
        engine.query(&query).await.unwrap().locations.len(),
        1,
        "as true as before"
    );
}

#[tokio::test]
async fn a_redis_that_hangs_costs_each_call_its_deadline_and_readiness() {
    let server = Server::start().unwrap();
    let engine = mk_engine(RedisOptions {
        timeout: Duration::from_millis(200),
        ..mk_options(&server)
    })
    .await;
    server.pause();
    let begin = Instant::now();
    let refused = engine.loads(&cluster("c")).await.unwrap_err();
    assert_eq!(refused.reason(), "backend-unavailable");
    assert!(begin.elapsed() < LIMIT / 4, "{:?}", begin.elapsed());
    eventually("not ready", || async {
        engine
            .unready()
            .map(|_| ())
            .ok_or_else(|| "ready".to_owned())
    })
    .await;
    server.resume();
    eventually("ready again", || async {
        engine.unready().map_or(Ok(()), |why| Err(why.to_owned()))
    })
    .await;
    assert_eq!(engine.loads(&cluster("c")).await, Ok(None));
}

#[tokio::test]
async fn a_redis_without_memory_refuses_adds_and_changes_nothing_by_halves() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    engine
        .batch(mk_batch(1, true, vec![put("x", 1, 100)], &[]))
        .await
        .unwrap();
    engine.add(mk_add("r", 2, 7), false).await.unwrap();
    let set = async |bytes: &str| {
        let mut set = redis::pipe();
        set.cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(bytes)
            .ignore();
        engine.shared.link.query::<()>(&set).await.unwrap();
    };
    set("1").await;
    let more = mk_batch(2, false, vec![put("y", 1, 1)], &["x"]);
    let refused = engine.batch(more.clone()).await.unwrap_err();
    assert_eq!(
        refused,
        Fault::BackendUnavailable("Redis is out of memory".to_owned())
    );
    assert_eq!(loads(&engine).await, [(1, 1, 100), (2, 1, 7)]);
    eventually("not ready", || async {
        let why = engine.unready();
        let right = why == Some("Redis is out of memory");
        right.then_some(()).ok_or_else(|| format!("{why:?}"))
    })
    .await;
    engine.remove(&id("r"), true).await.unwrap();
    assert_eq!(loads(&engine).await, [(1, 1, 100)], "deletes make room");
    set("0").await;
    eventually("ready again", || async {
        engine.unready().map_or(Ok(()), |why| Err(why.to_owned()))
    })
    .await;
    engine.batch(more).await.unwrap();
    assert_eq!(loads(&engine).await, [(1, 1, 1)]);
}

#[tokio::test]
async fn scripts_that_redis_forgot_are_loaded_again() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    engine.add(mk_add("r", 1, 100), false).await.unwrap();
    let mut flush = redis::pipe();
    flush.cmd("SCRIPT").arg("FLUSH").ignore();
    engine.shared.link.query::<()>(&flush).await.unwrap();
    engine.remove(&id("r"), true).await.unwrap();
    assert_eq!(loads(&engine).await, []);
}
