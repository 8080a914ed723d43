//! What the Router is told of a booking, and what requests in the stage count as.

use super::*;
use processor_api::ReservationId;

const CHAT: &str = r#"{"model":"m","messages":[]}"#;

impl Bed {
    fn id(&self) -> ReservationId {
        let id = self.scripted.question()["reservation_id"].clone();
        id.as_str().unwrap().parse().unwrap()
    }
}

/// By the worker that was picked, another one of the list, another member, or a stranger.
#[rstest]
#[case(A)]
#[case(B)]
#[case(C)]
#[case("10.9.9.9:8000")]
#[tokio::test(start_paused = true)]
async fn the_router_is_told_who_served_and_when_it_is_over(#[case] by: &str) {
    let reply = ProcessReply {
        fallbacks: vec![B.to_owned()],
        ..mk_reply(Some(A))
    };
    let bed = Bed::replying(reply, routing());
    let mut passed = bed.pass_list(2, &[], CHAT).await.unwrap();
    passed.responds(by).await;
    assert_eq!(bed.scripted.take_reports(), [], "no byte yet");
    passed.response_body("data: {}\n\n", false).await;
    let first = LifeCycle::PrefillComplete(bed.id(), by.parse().unwrap());
    assert_eq!(bed.scripted.take_reports(), [first]);
    passed.response_body("data: [DONE]\n\n", false).await;
    assert_eq!(bed.scripted.take_reports(), [], "once");
    passed.response_body("", true).await;
    assert_eq!(bed.scripted.take_reports(), [LifeCycle::End(bed.id())]);
    drop(passed);
    assert_eq!(bed.scripted.take_reports(), [], "once");
}

#[derive(Clone, Copy, Debug)]
enum End {
    Reset,
    HalfClose,
    Drain,
}

/// In the stage, after its pick, and during the response.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_booking_ends_wherever_its_request_does(
    #[values(0, 1, 2)] steps: u8,
    #[values(End::Reset, End::HalfClose, End::Drain)] end: End,
) {
    let bed = Bed::replying(mk_reply(Some(A)), routing());
    let (messages, mut replies) = open(&bed.shared, 1);
    send(&messages, mk_head(&[], false)).await;
    send(&messages, mk_whole(CHAT)).await;
    if steps == 0 {
        assert!(replies.next().now_or_never().is_none(), "it waits");
        bed.assert_has(&["epp_external_pending 1"]);
    } else {
        next(&mut replies).await;
        next(&mut replies).await;
    }
    if steps == 2 {
        send(
            &messages,
            Request::ResponseHeaders(mk_headers(":status", "200", false)),
        )
        .await;
        next(&mut replies).await;
    }
    assert_eq!(bed.scripted.take_reports(), []);
    match end {
        End::Reset => {}
        End::HalfClose => drop(messages),
        End::Drain => bed.shared.settings.drained.cancel(),
    }
    if !matches!(end, End::Reset) {
        while replies
            .next()
            .now_or_never()
            .is_some_and(|reply| reply.is_some())
        {}
    }
    drop(replies);
    assert_eq!(bed.scripted.take_reports(), [LifeCycle::End(bed.id())]);
    assert_eq!(loads(&bed.shared), [(0, 0); 3]);
    assert!(bed.saturation() < f64::EPSILON);
    let cancelled = u8::from(steps == 0);
    bed.assert_has(&[
        "epp_external_pending 0",
        &format!("epp_external_requests_total{{outcome=\"cancelled\"}} {cancelled}"),
    ]);
}

/// Each of them counts as waiting at its share of the members, and at no endpoint.
#[tokio::test(start_paused = true)]
async fn a_burst_in_the_stage_does_not_pass_the_ceiling() {
    let mut config = small_config();
    config.flow_control.enabled = true;
    config.detector = scheduling::Detector::Concurrency {
        mode: scheduling::ConcurrencyMode::Requests,
        max_requests: 2.0,
        max_tokens: 1e9,
        headroom: 0.0,
    };
    let scripted = Scripted::silent();
    scripted
        .answers
        .lock()
        .push_back((WAIT, Ok(mk_reply(None))));
    let bed = Bed::with(scripted, Switches::default(), config);
    let mut streams = Vec::new();
    for _ in 0..10 {
        let (messages, mut replies) = open(&bed.shared, 1);
        send(&messages, mk_head(&[], false)).await;
        send(&messages, mk_whole(CHAT)).await;
        assert!(replies.next().now_or_never().is_none(), "it waits");
        streams.push((messages, replies));
    }
    assert_eq!(
        bed.scripted.questions.lock().len(),
        6,
        "two for each of three"
    );
    assert_eq!(loads(&bed.shared), [(0, 0); 3], "for saturation alone");
    let director = Arc::clone(&bed.shared.director);
    let mut queue = std::pin::pin!(director.run_queue());
    assert!(queue.as_mut().now_or_never().is_none());
    assert_eq!(bed.scripted.questions.lock().len(), 6, "nobody overtakes");
    drop(streams.remove(5));
    assert!(queue.as_mut().now_or_never().is_none());
    assert!(streams[5].1.next().now_or_never().is_none());
    assert_eq!(
        bed.scripted.questions.lock().len(),
        7,
        "one left, one comes"
    );
    next(&mut streams[0].1).await;
    assert_eq!(
        loads(&bed.shared)
            .iter()
            .map(|(count, _)| count)
            .sum::<u32>(),
        1
    );
    assert!(
        (bed.saturation() - 1.0).abs() < 1e-9,
        "{}",
        bed.saturation()
    );
}
