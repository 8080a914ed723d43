//! Deadlines, with the clock in the test's hand.

use std::time::Duration;

use futures::StreamExt;
use prometheus_client::registry::Registry;
use scheduling::{EndpointId, Member, Profile};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    budget::Budget,
    director::{Director, Pool},
    extproc::{BodyMode, Limits, Settings},
    metrics::Metrics,
    proto::{HeaderMap, HeaderValue, HttpBody, HttpHeaders, Request, Response},
};
use moment::Clock;

type Messages = mpsc::Sender<Result<ProcessingRequest, Status>>;

fn mk_stream() -> (
    Messages,
    Replies<ReceiverStream<Result<ProcessingRequest, Status>>>,
) {
    let pool = Pool::default();
    pool.replace(vec![Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: "a".into(),
            rank: 0,
            uid: "1".into(),
        },
        address: "10.0.0.1:8000".parse().unwrap(),
        engine: "".into(),
    }]);
    let shared = Shared {
        director: Director {
            pool,
            profile: Profile::default(),
            clock: Clock::start(),
            honour_subset: true,
        },
        metrics: Metrics::register(&mut Registry::default()),
        settings: Settings {
            limits: Limits {
                max_body: 1000,
                body_timeout: Duration::from_mins(1),
                budget: Budget::new(1000),
                default_mode: BodyMode::FullDuplexStreamed,
            },
            clear_route_cache: true,
            max_message: 1000,
            max_reply: 1000,
            drained: CancellationToken::new(),
        },
    };
    let (messages, stream) = mpsc::channel(8);
    (
        messages,
        Replies::new(ReceiverStream::new(stream), 1, Arc::new(shared)),
    )
}

async fn send(messages: &Messages, request: Request) {
    let message = ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    };
    messages.send(Ok(message)).await.unwrap();
}

fn mk_headers(key: &str, value: &str, end_of_stream: bool) -> HttpHeaders {
    let header = HeaderValue {
        key: key.into(),
        value: value.into(),
        raw_value: Vec::new(),
    };
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: vec![header],
        }),
        end_of_stream,
        ..HttpHeaders::default()
    }
}

fn mk_body(text: &str) -> Request {
    Request::RequestBody(HttpBody {
        body: text.into(),
        ..HttpBody::default()
    })
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_gets_408_a_minute_after_its_last_part() {
    let (messages, mut replies) = mk_stream();
    let start = Instant::now();
    send(
        &messages,
        Request::RequestHeaders(mk_headers(":path", "/v1/completions", false)),
    )
    .await;
    let parts = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(40)).await;
            send(&messages, mk_body("{")).await;
        }
    };
    let (reply, ()) = tokio::join!(replies.next(), parts);
    let Some(Response::ImmediateResponse(response)) = reply.unwrap().unwrap().response else {
        panic!("not immediate")
    };
    assert_eq!(response.status.unwrap().code, 408);
    let waited = start.elapsed();
    assert!(
        (Duration::from_mins(3)..Duration::from_secs(181)).contains(&waited),
        "{waited:?}"
    );
    assert!(replies.next().await.is_none(), "closed in order");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_closes_is_left_after_five_seconds() {
    let (messages, mut replies) = mk_stream();
    send(
        &messages,
        Request::RequestHeaders(mk_headers(":path", "/v1/models", true)),
    )
    .await;
    send(
        &messages,
        Request::ResponseHeaders(mk_headers(":status", "200", true)),
    )
    .await;
    assert!(matches!(
        replies.next().await.unwrap().unwrap().response,
        Some(Response::RequestHeaders(_))
    ));
    assert!(matches!(
        replies.next().await.unwrap().unwrap().response,
        Some(Response::ResponseHeaders(_))
    ));
    let start = Instant::now();
    assert!(replies.next().await.is_none());
    let waited = start.elapsed();
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(6)).contains(&waited),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_generation_has_no_deadline() {
    let (messages, mut replies) = mk_stream();
    send(
        &messages,
        Request::RequestHeaders(mk_headers(":path", "/v1/models", true)),
    )
    .await;
    replies.next().await.unwrap().unwrap();
    let quiet = tokio::time::timeout(Duration::from_hours(1), replies.next()).await;
    assert!(quiet.is_err(), "still open: {quiet:?}");
    send(
        &messages,
        Request::ResponseHeaders(mk_headers(":status", "200", false)),
    )
    .await;
    assert!(replies.next().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_read_is_said_to_the_peer() {
    let (messages, mut replies) = mk_stream();
    messages
        .send(Err(Status::out_of_range("too large")))
        .await
        .unwrap();
    assert_eq!(
        replies.next().await.unwrap().unwrap_err().code(),
        Code::OutOfRange
    );
    assert!(replies.next().await.is_none());
}
