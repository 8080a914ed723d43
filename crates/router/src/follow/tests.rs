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

fn warning(state: StreamState, reason: &str) -> Entry {
    let reason = Some(reason.to_owned());
    Entry::Warning(Problem { state, reason })
}

/// The states in the order of their beginnings, and what is logged of each.
#[tokio::test(start_paused = true)]
async fn what_does_not_end_by_itself_is_logged_with_its_reason_and_so_is_its_end() {
    let mut logged = Logged::default();
    let mut state = |state, reason| logged.state(state, reason, Instant::now());
    let (partial, mismatch) = (StreamState::Partial, StreamState::BlockSizeMismatch);
    assert_eq!(state(StreamState::NoEvents, None), None);
    assert_eq!(state(StreamState::Live, None), None);
    assert_eq!(state(partial, Some("lost")), Some(warning(partial, "lost")));
    assert_eq!(state(StreamState::Replaying, None), None);
    assert_eq!(state(partial, Some("lost")), None);
    let other = state(mismatch, Some("size"));
    assert_eq!(other, Some(warning(mismatch, "size")), "another state");
    assert_eq!(state(StreamState::Live, None), Some(Entry::Recovered));
    assert_eq!(state(StreamState::Live, None), None);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_comes_again_and_again_is_logged_once_a_minute() {
    let mut logged = Logged::default();
    let partial = StreamState::Partial;
    let mut lines = Vec::new();
    for second in 0..150_u64 {
        let (state, reason) = if second % 2 == 0 {
            (partial, Some(format!("lost {second}")))
        } else {
            (StreamState::Live, None)
        };
        let entry = logged.state(state, reason.as_deref(), Instant::now());
        lines.extend(entry.map(|entry| (second, entry)));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let expected = [0, 60, 120].map(|second| {
        let begun = warning(partial, &format!("lost {second}"));
        [(second, begun), (second + 1, Entry::Recovered)]
    });
    assert_eq!(lines, expected.concat());
}

#[tokio::test(start_paused = true)]
async fn a_state_that_came_again_too_soon_is_logged_later_if_it_stays() {
    let mut logged = Logged::default();
    let partial = StreamState::Partial;
    let mut state = |state, reason| logged.state(state, reason, Instant::now());
    assert_eq!(state(partial, Some("lost")), Some(warning(partial, "lost")));
    assert_eq!(state(StreamState::Live, None), Some(Entry::Recovered));
    assert_eq!(state(partial, Some("late")), None);
    tokio::time::advance(WARN_EACH).await;
    let overdue = logged.overdue(Instant::now());
    assert_eq!(overdue, Some(warning(partial, "late")));
    assert_eq!(logged.overdue(Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_connection_is_logged_after_half_a_minute() {
    let mut logged = Logged::default();
    let connecting = StreamState::Connecting;
    assert_eq!(logged.state(connecting, None, Instant::now()), None);
    tokio::time::advance(CONNECTING / 2).await;
    assert_eq!(logged.disconnected("refused", Instant::now()), None);
    tokio::time::advance(CONNECTING / 2).await;
    let entry = logged.disconnected("refused", Instant::now());
    assert_eq!(entry, Some(warning(connecting, "refused")));
    tokio::time::advance(2 * WARN_EACH).await;
    let again = logged.disconnected("reset", Instant::now());
    assert_eq!(again, None, "it is the same outage");
    let live = StreamState::Live;
    let entry = logged.state(live, None, Instant::now());
    assert_eq!(entry, Some(Entry::Recovered));
    // from the beginning of the next outage
    logged.state(connecting, None, Instant::now());
    assert_eq!(logged.disconnected("refused", Instant::now()), None);
}
