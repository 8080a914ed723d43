//! Engines that send what they should not.

use std::sync::mpsc::{self, TryRecvError};

use kv_router::StreamState;
use tokio::time::Instant;

use crate::support::{Followed, LIMIT, RealEngine, padding, stored, stored_of};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_malformed_is_skipped_and_what_was_known_is_forgotten() {
    let mut engine = RealEngine::start(false);
    let followed = Followed::start(engine.address());
    engine.subscribed();
    engine.publish(0, &stored(1, 1, 0));
    followed.knows(1, 1, 1).await;
    let RealEngine {
        peer, publisher, ..
    } = &mut engine;
    peer.send(publisher, &[b"one frame"]).unwrap();
    // the batch claims 10^9 events, of which any may be a removal
    let huge = [0x92, 0xc0, 0xdd, 0x3b, 0x9a, 0xca, 0x00];
    engine.publish(1, &huge);
    engine.publish(2, &stored(2, 1, 0));
    followed.knows(2, 1, 1).await;
    let log = followed.seen.log();
    assert_eq!(log.malformed, ["frames", "oversized"]);
    assert_eq!((followed.overlap(1, 1), log.forgotten), (0, 1), "{log:?}");
    followed.is_in(StreamState::Partial).await;
    let reason = log.reasons.last().cloned().flatten();
    assert_eq!(reason.as_deref(), Some("an event could not be read"));
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
async fn blocks_of_another_size_are_skipped_and_a_state_only_where_there_are_no_others() {
    let mut engine = RealEngine::start(true);
    let followed = Followed::start(engine.address());
    engine.subscribed();
    engine.publish(0, &stored_of(2, 1, 0, 64));
    followed.is_in(StreamState::BlockSizeMismatch).await;
    let reason = followed.seen.log().reasons.last().cloned().flatten();
    let expected = "the engine's blocks have 64 ids, which is another size than 4 ids";
    assert!(reason.is_some_and(|it| it.starts_with(expected)));
    engine.publish(1, &stored(1, 1, 0));
    followed.knows(1, 1, 1).await;
    engine.publish(2, &stored_of(2, 1, 0, 64));
    followed.is("applied", |log| log.numbers == [0, 1, 2]).await;
    followed.is_in(StreamState::Live).await;
    assert_eq!(followed.overlap(1, 1), 1);
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
