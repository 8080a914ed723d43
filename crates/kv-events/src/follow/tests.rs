use bytes::Bytes;
use kv_router::Limits;
use zmtp::{Error, Message};

use super::*;
use crate::observer::ReplayResult;

struct Blind;

impl Observer for Blind {
    fn state(&self, _state: StreamState, _reason: Option<&str>) {}
    fn disconnected(&self, _error: &Error) {}
    fn received(&self, _received: &Received) {}
    fn malformed(&self, _reason: &'static str) {}
    fn gap(&self, _missing: u64) {}
    fn forgotten(&self) {}
    fn replayed(&self, _result: ReplayResult) {}
}

#[tokio::test]
async fn a_message_that_waits_for_a_replay_keeps_none_of_what_it_came_with() {
    let workers = Arc::new(Workers::new(Limits::default(), 64 << 20));
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let engine = Engine {
        events: nowhere,
        replay: Some(nowhere),
    };
    let blocks = workers.add().unwrap();
    let mut follower = Follower::new(engine, blocks, workers, Blind);
    follower.on(Happened::Link(LinkEvent::Connected)).await;
    let ended = Happened::Replay(1, ReplayEvent::Ended);
    follower.on(ended).await;
    for number in [5_u64, 6] {
        let read = [&[7; 1000][..], &number.to_be_bytes(), &[0x90]].concat();
        let read = Bytes::from(read);
        let frames = [
            read.slice(..1000),
            read.slice(1000..1008),
            read.slice(1008..),
        ];
        let message = LinkEvent::Message(Message::from(frames));
        follower.on(Happened::Link(message)).await;
        // the first is not known to wait before the stream has it
        assert!(number == 5 || read.is_unique(), "{number} is kept");
    }
    assert_eq!(
        (follower.state, follower.held.0),
        (StreamState::Replaying, 1009 + 1)
    );
}

#[test]
fn messages_that_wait_for_a_replay_are_bounded_in_bytes() {
    let mut held = Held::default();
    let third = MAX_HELD / 3;
    assert!(held.has_room_for(MAX_HELD, false));
    assert!(held.has_room_for(third, false));
    assert!(held.has_room_for(third, true) && held.has_room_for(third, true));
    assert!(!held.has_room_for(third, true));
    assert!(held.has_room_for(third, false) && held.has_room_for(third, true));
}
