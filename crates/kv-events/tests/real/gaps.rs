//! Messages that did not come.

use kv_events::ReplayResult;
use kv_router::StreamState;

use crate::support::{Followed, RealEngine, eventually, padding, stored};

/// An engine and its stream, live with one block of prompt 1. With a replay port, the stream has had an empty replay.
async fn live(has_replay: bool) -> (RealEngine, Followed) {
    let mut engine = RealEngine::start(has_replay);
    let followed = Followed::start(engine.address());
    followed.is_in(StreamState::NoEvents).await;
    engine.subscribed();
    engine.publish(0, &stored(1, 1, 0));
    followed.knows(1, 3, 1).await;
    followed.is_in(StreamState::Live).await;
    (engine, followed)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_on_the_way_is_replayed_with_and_without_a_topic() {
    let (engine, followed) = live(true).await;
    is_replayed(engine, followed).await;
    let (engine, followed) = live(true).await;
    engine.replay_without_topic();
    is_replayed(engine, followed).await;
}

async fn is_replayed(mut engine: RealEngine, followed: Followed) {
    engine.keep(1, &stored(1, 2, 1));
    engine.publish(2, &stored(1, 3, 2));
    followed.knows(1, 3, 3).await;
    followed.is_in(StreamState::Live).await;
    let log = followed.seen.log();
    assert_eq!((log.gap, log.forgotten), (1, 0), "{log:?}");
    assert_eq!(log.replays, [ReplayResult::Complete; 2]);
    assert_eq!(log.numbers, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_replay_all_before_a_gap_is_forgotten() {
    let (mut engine, followed) = live(false).await;
    engine.publish(2, &stored(2, 2, 0));
    followed.knows(2, 2, 2).await;
    followed.is_in(StreamState::Partial).await;
    assert_eq!(followed.overlap(1, 3), 0);
    let log = followed.seen.log();
    assert_eq!((log.gap, log.forgotten), (1, 1), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_begins_too_late_makes_it_relearn() {
    let (mut engine, followed) = live(true).await;
    engine.keep(1, &stored(1, 2, 1));
    engine.forget_before(2);
    engine.publish(2, &stored(2, 2, 0));
    followed.knows(2, 2, 2).await;
    followed.is_in(StreamState::Partial).await;
    assert_eq!(followed.overlap(1, 3), 0);
    let expected = [ReplayResult::Complete, ReplayResult::Partial];
    assert_eq!(followed.seen.log().replays, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_without_an_answer_is_given_up() {
    let (mut engine, followed) = live(true).await;
    engine.leave_unanswered();
    engine.publish(2, &stored(2, 2, 0));
    followed.is_in(StreamState::Replaying).await;
    engine.publish(3, &stored(3, 1, 0));
    followed.knows(3, 1, 1).await;
    assert_eq!((followed.overlap(1, 3), followed.overlap(2, 2)), (0, 2));
    followed.is_in(StreamState::Partial).await;
    let expected = [ReplayResult::Complete, ReplayResult::Abandoned];
    assert_eq!(followed.seen.log().replays, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_loses_messages_and_gets_them_back() {
    let (mut engine, followed) = live(true).await;
    engine.peer.limit(&engine.publisher, 10).unwrap();
    // more than what waits in two sockets' buffers
    let (count, padding) = (100, padding(150_000));
    let gate = followed.seen.gate.lock();
    for number in 1..=count {
        engine.keep(number, &padding);
    }
    let RealEngine {
        peer, publisher, ..
    } = &mut engine;
    peer.repeat(publisher, 1, count, &padding).unwrap();
    drop(gate);
    // the engine continues to publish, and the first of these messages may be lost too
    let mut next = count + 1;
    let publish = || {
        engine.publish(next, &stored(1, 3, 0));
        next += 1;
        (followed.overlap(1, 3), followed.seen.log())
    };
    eventually(
        "a message comes that shows the gap",
        publish,
        |(known, _)| *known == 3,
    )
    .await;
    followed.is_in(StreamState::Live).await;
    let log = followed.seen.log();
    assert!(log.gap > 0, "nothing was lost");
    assert_eq!(log.forgotten, 0, "{log:?}");
    let is_complete = |result: &ReplayResult| *result == ReplayResult::Complete;
    assert!(log.replays.iter().all(is_complete), "{log:?}");
    assert!(log.numbers.iter().copied().eq(0..log.numbers.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_whose_parent_is_unknown_has_all_replayed() {
    let (mut engine, followed) = live(true).await;
    // there was more in the first than came
    engine.forget_before(1);
    engine.keep(0, &stored(1, 2, 0));
    engine.publish(1, &stored(1, 3, 2));
    followed.knows(1, 3, 3).await;
    followed.is_in(StreamState::Live).await;
    let log = followed.seen.log();
    assert_eq!(log.replays, [ReplayResult::Complete; 2], "{log:?}");
    assert_eq!(log.forgotten, 1);
}
