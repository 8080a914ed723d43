use std::time::Duration;

use token_cache::{Put, Settings, Store, StoreError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
    time::Instant,
};

use crate::setup::{Kind, LONG, Setup, mk_entry, mk_key, parse};

const WITHIN: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_killed_redis_costs_no_time_and_is_used_again_when_it_is_back() {
    let mut setup = Setup::new(Kind::Redis).await;
    setup.redis().kill();
    let start = Instant::now();
    for _ in 0..20 {
        let error = setup.store.fetch(mk_key(), WITHIN).await.unwrap_err();
        let known = matches!(error, StoreError::Unavailable(_) | StoreError::Open);
        assert!(known, "{error:?}");
    }
    assert!(start.elapsed() < LONG / 10, "{:?}", start.elapsed());
    setup.redis().restart().unwrap();
    setup.works().await;
    let put = setup.store.put(mk_key(), mk_entry([1]), LONG).await;
    assert_eq!(put, Ok(Put::Stored));
}

#[tokio::test]
async fn a_paused_redis_costs_five_operations_their_time_and_the_others_none() {
    let mut setup = Setup::new(Kind::Redis).await;
    setup.redis().pause();
    let start = Instant::now();
    let mut late = 0;
    for _ in 0..100 {
        match setup.store.fetch(mk_key(), WITHIN).await {
            Err(StoreError::Late) => late += 1,
            Err(StoreError::Unavailable(_) | StoreError::Open) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(late, 5);
    assert!(
        start.elapsed() < WITHIN * 5 + LONG / 10,
        "{:?}",
        start.elapsed()
    );
    setup.redis().resume();
    setup.works().await;
}

/// Redis was never there.
#[tokio::test]
async fn a_cache_that_nobody_serves_is_said_at_once() {
    let (store, upkeep) = Store::open(parse("redis://127.0.0.1:1"), Settings::default()).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(upkeep.run());
    let start = Instant::now();
    let error = store.put(mk_key(), mk_entry([1]), LONG).await.unwrap_err();
    assert_eq!(error.reason(), "unavailable");
    assert!(start.elapsed() < LONG / 2);
}

#[tokio::test]
async fn a_fetch_is_tried_once_more_where_the_connection_broke() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut request = [0; 1024];
        let (mut first, _) = listener.accept().await.unwrap();
        let _read = first.read(&mut request).await;
        drop(first);
        let (mut second, _) = listener.accept().await.unwrap();
        let _read = second.read(&mut request).await;
        let reply = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        second.write_all(reply).await.unwrap();
    });
    let (store, _) = Store::open(parse(&endpoint), Settings::default()).unwrap();
    assert_eq!(store.fetch(mk_key(), LONG).await, Ok(None));
}

#[tokio::test]
async fn a_fetch_over_http_never_takes_longer_than_it_may() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (store, _) = Store::open(parse(&endpoint), Settings::default()).unwrap();
    let start = Instant::now();
    assert_eq!(store.fetch(mk_key(), WITHIN).await, Err(StoreError::Late));
    let took = start.elapsed();
    assert!((WITHIN..LONG / 2).contains(&took), "{took:?}");
}
