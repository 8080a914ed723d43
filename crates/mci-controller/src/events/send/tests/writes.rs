//! Events beside the writes of a member.

use bytes::Bytes;

use super::*;
use crate::write::{
    Queue,
    action::{Action, Slot, Work},
};

/// Tries a write of a queue, as a writer does.
fn write(queue: &Queue, clock: Clock, outcome: Outcome) {
    let slot = Slot::Import(mk_key("llm"));
    let work = Work {
        action: Action::Patch(Bytes::new()),
        content: 1,
        base: String::new(),
        not_before: None,
        since: clock.now(),
        summary: None,
    };
    queue.offer(slot.clone(), work, clock.now());
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
    server.answer_with(429, Some("300")).await;
    sleep(Duration::from_millis(1)).await;
    let stats = server.postbox.stats(server.clock.now());
    assert!(!stats.breaker_open);
    assert_eq!((stats.limit, stats.in_flight), (32, 0));
    // at once
    write(&server.postbox, server.clock, Outcome::Done);
    assert!(server.is_quiet(Duration::from_secs(299)).await);
}
