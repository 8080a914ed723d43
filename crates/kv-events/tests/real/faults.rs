//! Engines that send what they should not.

use std::sync::mpsc::{self, TryRecvError};

use kv_router::StreamState;
use tokio::time::Instant;

use crate::support::{Followed, LIMIT, RealEngine, padding, stored, stored_of};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_malformed_is_skipped_and_the_rest_applied() {
    let mut engine = RealEngine::start(false);
    let followed = Followed::start(engine.address());
    engine.subscribed();
    let RealEngine {
        peer, publisher, ..
    } = &mut engine;
    peer.send(publisher, &[b"one frame"]).unwrap();
    // 10^9 events are claimed
    let huge = [0x92, 0xc0, 0xdd, 0x3b, 0x9a, 0xca, 0x00];
    engine.publish(0, &huge);
    engine.publish(1, &stored(1, 1, 0));
    followed.knows(1, 1, 1).await;
    assert_eq!(followed.seen.log().malformed, ["frames", "oversized"]);
    followed.is_in(StreamState::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_above_eight_mebibytes_ends_the_connection() {
    let mut engine = RealEngine::start(false);
    let followed = Followed::start(engine.address());
    engine.subscribed();
    engine.send(0, &padding((8 << 20) - 100));
    followed.is("applied", |log| log.numbers == [0]).await;
    engine.send(1, &padding(8 << 20));
    followed
        .is("refused", |log| log.disconnected == ["too-large"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_another_size_are_a_state_and_no_match() {
    let mut engine = RealEngine::start(true);
    let followed = Followed::start(engine.address());
    engine.subscribed();
    engine.publish(0, &stored(1, 1, 0));
    followed.knows(1, 1, 1).await;
    engine.publish(1, &stored_of(2, 1, 0, 64));
    followed.is_in(StreamState::BlockSizeMismatch).await;
    followed.knows(1, 1, 0).await;
}

/// One thread for both, so that either could have it all.
#[tokio::test]
async fn an_engine_that_floods_delays_no_other() {
    let mut flood = RealEngine::start(false);
    let mut calm = RealEngine::start(false);
    let flooded = Followed::start(flood.address());
    let followed = Followed::start_in(calm.address(), &flooded.workers);
    followed
        .is("subscribed", |log| {
            log.states.contains(&StreamState::NoEvents)
        })
        .await;
    calm.subscribed();
    flooded
        .is("subscribed", |log| {
            log.states.contains(&StreamState::NoEvents)
        })
        .await;
    flood.subscribed();
    let (stop, stopped) = mpsc::channel::<()>();
    let flooding = std::thread::spawn(move || {
        let RealEngine {
            peer, publisher, ..
        } = &mut flood;
        let start = Instant::now();
        // what libzmq drops of them is made up for by the next
        for first in (0..).step_by(1000) {
            peer.repeat(publisher, first, 1000, &padding(2_000))
                .unwrap();
            if stopped.try_recv() != Err(TryRecvError::Empty) {
                return true;
            }
            if start.elapsed() > LIMIT {
                break;
            }
        }
        false
    });
    flooded.is("a flood", |log| log.numbers.len() > 100).await;
    calm.publish(0, &stored(1, 1, 0));
    followed.knows(1, 1, 1).await;
    followed
        .is("its age", |log| matches!(log.ages[..], [Some(_)]))
        .await;
    drop(stop);
    assert!(flooding.join().unwrap(), "not before the flood was over");
}
