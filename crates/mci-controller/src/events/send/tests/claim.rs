//! Who does not lead tells nothing.

use lease::ByHand;

use super::*;

#[tokio::test(start_paused = true)]
async fn losing_the_claim_ends_an_event_between_its_calls() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::<Outbox>::start_with(clock, claim);
    hand.hold(Duration::from_hours(1));
    // the first call is a patch, then it would be created
    offer_again(&mut server, Reason::Exported).await;
    let (seen, send) = server.next().await;
    assert_eq!(seen.method, "PATCH");
    hand.give_up();
    send.send_response(response(404, None));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
    // it runs out by itself: after the uid of our Lease
    hand.hold(Duration::from_secs(3));
    server.offer(mk_of_lease("a"));
    let (seen, send) = server.next().await;
    assert_eq!(seen.method, "GET");
    sleep(Duration::from_secs(3)).await;
    send.send_response(response(200, None));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
    // another may have told what waited for so long
    hand.hold(Duration::from_mins(10));
    server.offer(mk_notice(Reason::ImportConflict));
    assert_eq!(server.answer(201).await.body["reason"], "ImportConflict");
    assert!(server.is_quiet(Duration::from_mins(5)).await);
}

#[tokio::test(start_paused = true)]
async fn events_outlast_a_short_time_without_the_lease() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::<Outbox>::start_with(clock, claim);
    hand.hold(Duration::from_hours(1));
    // one in flight, one that waits, and one that came too soon
    server.offer(mk_notice(Reason::ImportConflict));
    server.answer(201).await;
    server.offer(Notice {
        note: "others".to_owned(),
        ..mk_notice(Reason::ImportConflict)
    });
    server.offer(mk_notice(Reason::Exported));
    server.offer(mk_notice(Reason::NamespaceMissing));
    let (seen, _send) = server.next().await;
    assert_eq!(seen.body["reason"], "Exported");
    hand.give_up();
    assert!(server.is_quiet(Duration::from_mins(2)).await);
    hand.hold(Duration::from_hours(1));
    for reason in ["Exported", "NamespaceMissing", "ImportConflict"] {
        let seen = server.answer(201).await;
        assert_eq!(seen.body["reason"], reason);
        let came = seen.body["lastTimestamp"].clone();
        assert_eq!(came, "1970-01-01T00:16:40Z", "its own time");
    }
    assert_eq!(clock.now(), Moment::from_millis(300_000));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}

#[tokio::test(start_paused = true)]
async fn an_event_of_an_earlier_term_is_not_of_this_one() {
    let clock = Clock::start();
    let (hand, claim) = ByHand::new(clock);
    let mut server = Server::<Outbox>::start_with(clock, claim);
    hand.hold(Duration::from_hours(1));
    offer_again(&mut server, Reason::Exported).await;
    let (_, send) = server.next().await;
    hand.give_up();
    hand.hold(Duration::from_hours(1));
    // what would have it created
    send.send_response(response(404, None));
    let again = server.answer(200).await;
    assert_eq!(again.method, "PATCH", "it begins anew");
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}
