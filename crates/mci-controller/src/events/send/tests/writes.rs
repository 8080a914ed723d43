//! Events beside the writes of a member.

use bytes::Bytes;

use super::*;
use crate::write::{
    Queue,
    action::{Action, Slot, Work},
};

fn mk_work(since: Moment) -> Work {
    Work {
        action: Action::Patch(Bytes::new()),
        content: 1,
        base: String::new(),
        not_before: None,
        since,
        summary: None,
    }
}

/// Tries a write of a queue, as a writer does.
fn write(queue: &Queue, clock: Clock, outcome: Outcome) {
    let slot = Slot::Import(mk_key("llm"));
    queue.offer(slot.clone(), mk_work(clock.now()), clock.now());
    let (slot, _) = queue.take(clock.now()).expect("due");
    queue.finish(&slot, outcome, clock.now());
}

/// A member whose breaker is open, with a write that will be tried.
async fn open_breaker(server: &Server<Queue>) {
    for _ in 0..20 {
        if server.postbox.stats(server.clock.now()).breaker_open {
            return;
        }
        write(
            &server.postbox,
            server.clock,
            Outcome::Retry(Failure::Timeout),
        );
        sleep(Duration::from_secs(31)).await;
    }
    panic!("it stays closed: {:?}", server.postbox);
}

#[tokio::test(start_paused = true)]
async fn events_wait_while_writes_do() {
    // it asks them for silence
    let mut server = Server::<Queue>::start();
    let asked = Duration::from_mins(1);
    write(
        &server.postbox,
        server.clock,
        Outcome::Throttled(Some(asked)),
    );
    server.offer(mk_notice(Reason::Exported));
    assert!(server.is_quiet(Duration::from_secs(59)).await);
    server.answer(201).await;
    // the breaker is open: the write tries first, however long that takes
    let mut server = Server::<Queue>::start();
    open_breaker(&server).await;
    server.offer(mk_notice(Reason::Exported));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
    write(&server.postbox, server.clock, Outcome::Done);
    assert_eq!(server.answer(201).await.body["reason"], "Exported");
}

#[tokio::test(start_paused = true)]
async fn where_no_write_is_left_to_try_a_silent_server_an_event_goes() {
    let mut server = Server::<Queue>::start();
    open_breaker(&server).await;
    server.offer(mk_notice(Reason::Exported));
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    server.postbox.withdraw(&Slot::Import(mk_key("llm")));
    assert_eq!(server.answer(201).await.body["reason"], "Exported");
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_events_is_nothing_to_writes() {
    let mut server = Server::<Queue>::start();
    for reason in SIX {
        server.offer(mk_notice(reason));
        server.hang().await;
    }
    server.offer(mk_notice(Reason::NotSupported));
    // of a plugin that limits events alone
    server.answer_with(429, None).await;
    sleep(Duration::from_millis(1)).await;
    let stats = server.postbox.stats(server.clock.now());
    assert!(!stats.breaker_open);
    assert_eq!((stats.limit, stats.in_flight), (32, 0));
    // at once
    write(&server.postbox, server.clock, Outcome::Done);
    assert_eq!(server.answer(201).await.body["reason"], "NotSupported");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_an_event_for_silence_gets_it_from_writes_too() {
    for (status, asked, silence) in [
        (429, Some("7"), 7),
        (503, Some("86400"), 300),
        // what is not throttling says nothing of writes
        (500, Some("7"), 0),
        (429, None, 0),
    ] {
        let mut server = Server::<Queue>::start();
        server.offer(mk_notice(Reason::Exported));
        server.answer_with(status, asked).await;
        sleep(Duration::from_millis(1)).await;
        let now = server.clock.now();
        server
            .postbox
            .offer(Slot::Import(mk_key("llm")), mk_work(now), now);
        let free = server.postbox.next_due().expect("a write waits");
        let wait = free.since(now);
        let expected = Duration::from_secs(silence);
        assert!(
            wait <= expected && wait + Duration::from_millis(5) > expected,
            "{status} {asked:?}: {wait:?}"
        );
        let stats = server.postbox.stats(now);
        assert_eq!((stats.limit, stats.breaker_open), (32, false));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_throttles_events_alone_takes_writes_between_them() {
    let mut server = Server::<Queue>::start();
    server.offer(mk_notice(Reason::Exported));
    let silence = Duration::from_mins(5);
    let mut last = server.answer_with(429, Some("300")).await.at;
    for seconds in [5, 10, 20, 40] {
        sleep(Duration::from_millis(1)).await;
        let now = server.clock.now();
        let slot = Slot::Import(mk_key("llm"));
        server.postbox.offer(slot, mk_work(now), now);
        sleep_until(last + silence + Duration::from_millis(5)).await;
        let (slot, _) = server.postbox.take(server.clock.now()).expect("due");
        let now = server.clock.now();
        server.postbox.finish(&slot, Outcome::Done, now);
        let seen = server.answer_with(429, Some("300")).await;
        let between = seen.at.duration_since(last + silence);
        assert_eq!(between.as_secs(), seconds);
        last = seen.at;
    }
}
