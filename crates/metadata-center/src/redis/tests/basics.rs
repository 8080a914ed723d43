use super::*;

#[tokio::test]
async fn a_charge_counts_until_its_prefill_and_its_request_end() {
    let server = Server::start().unwrap();
    let engine = mk_engine(mk_options(&server)).await;
    assert_eq!(engine.loads(&cluster("c")).await, Ok(None));
    engine.add(mk_add("r", 1, 100), false).await.unwrap();
    engine.add(mk_add("r", 2, 200), false).await.unwrap();
    assert_eq!(
        loads(&engine).await,
        [(1, 1, 100)],
        "a known request is not charged again"
    );
    engine.prompt_done(&id("r"), false).await.unwrap();
    engine.prompt_done(&id("r"), false).await.unwrap();
    assert_eq!(loads(&engine).await, [(1, 1, 0)]);
    engine.remove(&id("r"), false).await.unwrap();
    let idle = engine.loads(&cluster("c")).await.unwrap().unwrap();
    assert_eq!((idle[0].ip, idle[0].queued_req_num), (ip(1), 0));
    assert!(idle[0].updated_time > 1_700_000_000_000_000_000, "{idle:?}");
}

/// Those that docs/metadata-center-redis.md names.
const RIGHTS: [&str; 4] = ["~mc1:*", "+@all", "-@admin", "-@dangerous"];

#[tokio::test]
async fn a_user_with_few_rights_is_enough_for_all_calls() {
    let server = Server::start().unwrap();
    let admin = mk_engine(mk_options(&server)).await;
    let mut user = redis::pipe();
    user.cmd("ACL")
        .arg("SETUSER")
        .arg("isthmus")
        .arg("on")
        .arg(">secret");
    user.arg(&RIGHTS).ignore();
    admin.shared.link.query::<()>(&user).await.unwrap();
    let url = format!("{}?user=isthmus&pass=secret", server.url());
    let engine = mk_engine(RedisOptions {
        url: url.into(),
        ..mk_options(&server)
    })
    .await;
    engine.add(mk_add("r", 1, 100), false).await.unwrap();
    engine.prompt_done(&id("r"), true).await.unwrap();
    engine.remove(&id("r"), true).await.unwrap();
    let begin = mk_batch(1, true, vec![put("x", 1, 7)], &[]);
    engine.batch(begin).await.unwrap();
    let pick = Pick {
        prompt_hash: vec![1].into(),
        ..mk_pick("p", 2)
    };
    engine.pick(&pick).await.unwrap();
    engine.purge(&cluster("c"), ip(1)).await.unwrap();
    assert_eq!(engine.cache_log().unwrap().append_errors, 0);
    assert_eq!(engine.clusters().await.unwrap()[0].requests, 2);
    engine.end_leases(&"a".parse().unwrap(), 1).await.unwrap();
    engine.sweep().await.unwrap();
    assert_eq!(engine.sizes().await.unwrap().requests, 1);
    let shown = format!("{engine:?}");
    assert!(shown.contains("link: Link"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}
