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
    // another told what waited
    server.offer(mk_notice(Reason::NamespaceMissing));
    assert!(server.is_quiet(Duration::from_mins(1)).await);
    hand.hold(Duration::from_mins(10));
    server.offer(mk_notice(Reason::ImportConflict));
    assert_eq!(server.answer(201).await.body["reason"], "ImportConflict");
    assert!(server.is_quiet(Duration::from_mins(5)).await);
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
    send.send_response(response(404, None));
    assert!(server.is_quiet(Duration::from_mins(10)).await);
}
