use kv_router::{Limits, Policy, Preset};
use moment::Clock;

use super::*;
use crate::{
    metrics::Metrics,
    pool::tests::{mk_member, mk_pool},
    service::Parts,
};

fn mk_seen() -> SeenBy {
    let pool = Arc::new(mk_pool(Limits::default()));
    let (worker, _) = pool
        .replace(&[mk_member("a", "1", 1, 0)], 1)
        .added
        .remove(0);
    let policy = Policy {
        weights: Preset::Isthmus.weights(),
        temperature: 0.0,
        busy_tokens: None,
    };
    let service = Service::new(Parts {
        pool,
        policy,
        clock: Clock::start(),
        metrics: Metrics::default(),
        follows_events: true,
        routes: None,
    });
    let rank = Arc::clone(&worker.ranks[0]);
    SeenBy {
        service,
        worker,
        rank,
        logged: Mutex::default(),
    }
}

#[tokio::test]
async fn a_reason_is_that_of_the_state_and_without_a_connection_that_of_the_last_try() {
    let seen = mk_seen();
    let reason = || seen.rank.events.reason();
    seen.state(StreamState::Partial, Some("messages were lost"));
    assert_eq!(reason().as_deref(), Some("messages were lost"));
    let closed = ConnectionError::Closed;
    seen.disconnected(&closed);
    seen.state(StreamState::Connecting, None);
    assert_eq!(reason(), Some(closed.to_string()));
    seen.state(StreamState::Live, None);
    assert_eq!(reason(), None);
}

/// The states in the order of their beginnings, and what is logged of each.
#[tokio::test(start_paused = true)]
async fn what_does_not_end_by_itself_is_logged_once_each_time_and_so_is_its_end() {
    let mut logged = Logged::default();
    let mut state = |state, reason| logged.state(state, reason, Instant::now());
    let (lost, late) = (Some("lost"), Some("late"));
    let warning = Some(Entry::Warning);
    assert_eq!(state(StreamState::NoEvents, None), None);
    assert_eq!(state(StreamState::Live, None), None);
    assert_eq!(state(StreamState::Partial, lost), warning);
    assert_eq!(state(StreamState::Replaying, None), None);
    assert_eq!(state(StreamState::Partial, lost), None);
    assert_eq!(state(StreamState::Partial, late), warning);
    assert_eq!(state(StreamState::BlockSizeMismatch, late), warning);
    assert_eq!(state(StreamState::Live, None), Some(Entry::Recovered));
    assert_eq!(state(StreamState::Live, None), None);
    assert_eq!(state(StreamState::Partial, late), warning);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_connection_is_logged_after_half_a_minute() {
    let mut logged = Logged::default();
    let connecting = StreamState::Connecting;
    assert_eq!(logged.state(connecting, None, Instant::now()), None);
    tokio::time::advance(CONNECTING / 2).await;
    assert_eq!(logged.disconnected(Instant::now()), None);
    tokio::time::advance(CONNECTING / 2).await;
    assert_eq!(logged.disconnected(Instant::now()), Some(Entry::Warning));
    assert_eq!(logged.disconnected(Instant::now()), None);
    let live = StreamState::Live;
    let entry = logged.state(live, None, Instant::now());
    assert_eq!(entry, Some(Entry::Recovered));
    // from the beginning of the next outage
    logged.state(connecting, None, Instant::now());
    assert_eq!(logged.disconnected(Instant::now()), None);
}
