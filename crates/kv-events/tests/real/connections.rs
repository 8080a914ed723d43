//! Engines that go, and that come back as others.

use std::time::Duration;

use kv_events::ReplayResult;
use kv_router::StreamState;
use tokio::time::Instant;

use crate::support::{Followed, RealEngine, stored};

/// An engine and its stream, live with two blocks of prompt 1.
async fn live(has_replay: bool) -> (RealEngine, Followed) {
    let mut engine = RealEngine::start(has_replay);
    let followed = Followed::start(engine.address());
    followed.is_in(StreamState::NoEvents).await;
    engine.subscribed();
    engine.publish(0, &stored(1, 1, 0));
    engine.publish(1, &stored(1, 2, 1));
    followed.knows(1, 2, 2).await;
    (engine, followed)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_published_before_is_known_while_it_is_silent() {
    let mut engine = RealEngine::start(true);
    engine.keep(0, &stored(1, 1, 0));
    engine.keep(1, &stored(1, 2, 1));
    let followed = Followed::start(engine.address());
    followed.knows(1, 2, 2).await;
    followed.is_in(StreamState::Live).await;
    engine.subscribed();
    engine.publish(2, &stored(1, 3, 2));
    followed.knows(1, 3, 3).await;
    let log = followed.seen.log();
    assert_eq!((log.gap, log.numbers), (0, vec![0, 1, 2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_engine_that_was_replaced_matches() {
    let (engine, followed) = live(false).await;
    let mut other = engine.restart();
    let start = Instant::now();
    other.subscribed();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "subscribed after {took:?}");
    other.publish(0, &stored(2, 1, 0));
    followed.knows(2, 1, 1).await;
    assert_eq!(followed.overlap(1, 2), 0);
    followed.is_in(StreamState::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_goes_on_after_a_lost_connection_keeps_its_blocks() {
    let (mut engine, followed) = live(true).await;
    engine.reopen();
    engine.subscribed();
    engine.publish(2, &stored(1, 3, 2));
    followed.knows(1, 3, 3).await;
    let log = followed.seen.log();
    assert_eq!(
        (log.forgotten, !log.disconnected.is_empty()),
        (0, true),
        "{log:?}"
    );
    assert_eq!(log.replays, [ReplayResult::Complete], "that of its start");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_connection_any_other_number_has_all_forgotten_and_replayed() {
    let (mut engine, followed) = live(true).await;
    engine.reopen();
    engine.keep(2, &stored(1, 3, 2));
    engine.subscribed();
    engine.publish(3, &stored(2, 1, 0));
    followed.knows(1, 3, 3).await;
    followed.knows(2, 1, 1).await;
    let log = followed.seen.log();
    assert_eq!((log.forgotten, log.gap), (1, 0), "{log:?}");
    assert_eq!(log.numbers, [0, 1, 0, 1, 2, 3]);
}

/// Not multi-threaded, so that time can be stopped when the engine is gone.
#[tokio::test]
async fn blocks_of_an_engine_that_stays_away_are_forgotten() {
    let (engine, followed) = live(true).await;
    drop(engine);
    followed
        .is("no connection", |log| !log.disconnected.is_empty())
        .await;
    assert_eq!(followed.overlap(1, 2), 2);
    tokio::time::pause();
    followed.knows(1, 2, 0).await;
    followed.is_in(StreamState::Connecting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_stopped_gives_its_blocks_back() {
    let (_engine, followed) = live(false).await;
    let (workers, slot) = (followed.workers.clone(), followed.slot);
    let blocks = followed.stop().await;
    assert_eq!((blocks.len(), blocks.slot()), (2, slot));
    workers.remove(blocks);
    assert_eq!(workers.index.sweep(100), 2);
}
