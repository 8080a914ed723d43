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
