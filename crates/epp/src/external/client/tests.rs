use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
};
use http::Request;
use parking_lot::Mutex;
use processor_api::ReservationId;
use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;
use tokio::{net::TcpListener, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::*;

const ERROR: &str = r#"{"error":{"message":"no","type":"bad-request","code":400}}"#;

#[rstest]
#[case(200, r#"{"token_count":3}"#, None, false)]
#[case(200, "hello", Some(StageFailure::Invalid), true)]
#[case(200, r#"{"token_value":"[1.5]"}"#, Some(StageFailure::Invalid), true)]
#[case(
    200,
    r#"{"token_value":"[4294967296]"}"#,
    Some(StageFailure::Invalid),
    true
)]
#[case(204, "", Some(StageFailure::Invalid), true)]
#[case(400, ERROR, Some(StageFailure::Client("no".to_owned())), false)]
#[case(400, "<html>", Some(StageFailure::Invalid), true)]
#[case(404, ERROR, Some(StageFailure::UnknownModel), false)]
#[case(413, ERROR, Some(StageFailure::TooLarge), false)]
#[case(422, ERROR, Some(StageFailure::Unsupported), false)]
#[case(429, ERROR, Some(StageFailure::Unavailable), true)]
#[case(503, ERROR, Some(StageFailure::Unavailable), true)]
#[case(500, ERROR, Some(StageFailure::Invalid), true)]
fn each_response_has_its_place_in_the_table(
    #[case] status: u16,
    #[case] body: &'static str,
    #[case] want: Option<StageFailure>,
    #[case] may_have_booked: bool,
) {
    let status = StatusCode::from_u16(status).unwrap();
    let read = reading(status, &Bytes::from(body), 100);
    let no_reply = read.err();
    assert_eq!(no_reply.as_ref().map(NoReply::failure), want);
    let booked = no_reply.is_some_and(|no_reply| no_reply.may_have_booked());
    assert_eq!(booked, may_have_booked);
}

#[rstest]
#[case(CallError::Open, "breaker-open", StageFailure::Unavailable, false)]
#[case(CallError::Busy, "busy", StageFailure::Unavailable, false)]
#[case(
    CallError::Connect(String::new()),
    "unreachable",
    StageFailure::Unavailable,
    false
)]
#[case(CallError::Late, "timeout", StageFailure::Timeout, true)]
#[case(
    CallError::Broken(String::new()),
    "invalid-reply",
    StageFailure::Invalid,
    true
)]
#[case(CallError::TooLarge, "invalid-reply", StageFailure::Invalid, true)]
fn each_call_without_a_response_has_its_place_too(
    #[case] error: CallError,
    #[case] reason: &str,
    #[case] want: StageFailure,
    #[case] may_have_booked: bool,
) {
    let no_reply = no_reply(&error);
    assert_eq!((no_reply.reason(), no_reply.failure()), (reason, want));
    assert_eq!(no_reply.may_have_booked(), may_have_booked);
}

#[test]
fn reports_are_calls_beside_process() {
    let id = ReservationId::random(&mut StdRng::seed_from_u64(1));
    let text = |report| {
        let call = call_of(report).unwrap();
        let body = String::from_utf8(call.body.concat()).unwrap();
        format!("{} {} {body}", call.method, call.path)
    };
    let worker = "[fd00::1]:8000".parse().unwrap();
    assert_eq!(
        text(LifeCycle::PrefillComplete(id, worker)),
        format!("POST /route/{id}/prefill_complete {{\"worker_address\":\"[fd00::1]:8000\"}}")
    );
    assert_eq!(text(LifeCycle::End(id)), format!("DELETE /route/{id} "));
    assert_eq!(
        text(LifeCycle::Keepalive(vec![id])),
        format!("POST /route/keepalive {{\"reservation_ids\":[\"{id}\"]}}")
    );
}

/// What came, as `METHOD path`, and the bodies.
type Seen = Arc<Mutex<Vec<(String, Bytes)>>>;

/// Answers `POST /x/process` with a reply of so many ids, and all else with 204.
async fn serve(ids: usize, tasks: &mut JoinSet<()>) -> (BaseUrl, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/x/process", listener.local_addr().unwrap());
    let seen = Seen::default();
    let recorded = Arc::clone(&seen);
    let value = processor_api::write_ids(&vec![7; ids]);
    let router = Router::new().fallback(move |request: Request<Body>| async move {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let line = format!("{} {}", head.method, head.uri.path());
        let is_question = line == "POST /x/process";
        recorded.lock().push((line, body));
        if is_question {
            assert_eq!(head.headers["x-isthmus-api"], "1");
            assert!(head.headers.contains_key("x-isthmus-deadline-ms"));
            (StatusCode::OK, format!("{{\"token_value\":\"{value}\"}}"))
        } else {
            (StatusCode::NO_CONTENT, String::new())
        }
    });
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (base.parse().unwrap(), seen)
}

fn mk_client(base: BaseUrl, tasks: &mut JoinSet<()>) -> Client {
    let settings = ClientSettings {
        base,
        timeout: Duration::from_secs(5),
        max_in_flight: 1,
        max_reply: 16 << 20,
        tls: None,
    };
    let (client, sending) = Client::new(settings, Counter::default());
    tasks.spawn(sending.run(CancellationToken::new()));
    client
}

/// Also one that is so large that it is read beside the threads of streams.
#[rstest]
#[case::small(3)]
#[case::large(1 << 20)]
#[tokio::test]
async fn questions_and_reports_go_to_the_url_of_the_flag(#[case] ids: usize) {
    let mut tasks = JoinSet::new();
    let (base, seen) = serve(ids, &mut tasks).await;
    let client = mk_client(base, &mut tasks);
    let question = Outgoing {
        headers: HeaderMap::new(),
        body: vec!["{\"request_".into(), "body\":{}}".into()],
    };
    let (first, second) = tokio::join!(client.process(question.clone()), client.process(question));
    assert_eq!(first.unwrap().token_count, Some(ids));
    assert_eq!(second, Err(NoReply::Skipped(Skip::Busy)), "one at once");
    let id = ReservationId::random(&mut StdRng::seed_from_u64(1));
    client.report(LifeCycle::End(id));
    let end = (format!("DELETE /x/route/{id}"), Bytes::new());
    let deadline = Instant::now() + Duration::from_secs(10);
    while !seen.lock().contains(&end) {
        assert!(Instant::now() < deadline, "{:?}", seen.lock());
        tokio::task::yield_now().await;
    }
    let question = ("POST /x/process".to_owned(), "{\"request_body\":{}}".into());
    assert_eq!(*seen.lock(), [question, end]);
}

#[tokio::test]
async fn nobody_there_is_unreachable_until_the_breaker_opens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = mk_client(base.parse().unwrap(), &mut JoinSet::new());
    let question = || Outgoing {
        headers: HeaderMap::new(),
        body: Vec::new(),
    };
    for _ in 0..5 {
        assert!(!client.is_open());
        assert_eq!(client.process(question()).await, Err(NoReply::Unreachable));
    }
    assert!(client.is_open());
    let skipped = Err(NoReply::Skipped(Skip::BreakerOpen));
    assert_eq!(client.process(question()).await, skipped);
}
