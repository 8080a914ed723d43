//! Deadlines, with the clock in the test's hand.

use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use prometheus_client::{encoding::text::encode, registry::Registry};
use rstest::rstest;
use scheduling::Member;
use tokio::{
    io::{AsyncWriteExt, duplex},
    sync::mpsc,
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    budget::Budget,
    config::{Compat, Config, CurrentConfig, Parsers, Prefix},
    director::{Director, Options, Pool},
    extproc::{BodyMode, Limits, Settings},
    extproc::{overdue::OpenStreams, reader::Reader},
    fixtures::mk_member,
    llm::LlmFilter,
    metrics::Metrics,
    proto::{
        BodySendMode, HeaderMap, HeaderValue, HttpBody, HttpHeaders, ProtocolConfiguration,
        Request, Response,
    },
};
use moment::Clock;

mod external;
mod llm;
mod prefixes;
mod sessions;
mod transcoding;

type Messages = mpsc::Sender<Result<ProcessingRequest, Status>>;

type Stream = Replies<ReceiverStream<Result<ProcessingRequest, Status>>>;

fn mk_stream() -> (Messages, Stream) {
    mk_stream_counted_in(&mut Registry::default())
}

fn mk_stream_counted_in(registry: &mut Registry) -> (Messages, Stream) {
    let shared = mk_shared(&["a"], small_config(), registry);
    open(&shared, 1)
}

/// A new stream of a proxy that can try `list` endpoints.
fn open(shared: &Arc<Shared>, list: u8) -> (Messages, Stream) {
    let (messages, stream) = mpsc::channel(8);
    let stream = ReceiverStream::new(stream);
    let replies = Replies::new(stream, list, RoundTrip::default(), Arc::clone(shared));
    (messages, replies)
}

/// With these pods, at 10.0.0.1, 10.0.0.2 and so on.
fn mk_shared(pods: &[&str], config: Config, registry: &mut Registry) -> Arc<Shared> {
    mk_shared_of(1000, pods, config, registry)
}

/// Bodies may have so many bytes, and take as many together.
fn mk_shared_of(bytes: u32, pods: &[&str], config: Config, registry: &mut Registry) -> Arc<Shared> {
    let members = pods
        .iter()
        .zip(1..)
        .map(|(pod, host)| mk_member(pod, format!("10.0.0.{host}:8000").parse().unwrap()));
    mk_shared_with(members.collect(), bytes, config, registry)
}

fn mk_shared_with(
    members: Vec<Member>,
    bytes: u32,
    config: Config,
    registry: &mut Registry,
) -> Arc<Shared> {
    let pool = Pool::default();
    pool.replace(members, Moment::START);
    let config = CurrentConfig::new(config);
    let director = Director::new(pool, config, Options::default(), Clock::start());
    mk_shared_around(director, bytes, registry)
}

fn mk_shared_around(director: Director, bytes: u32, registry: &mut Registry) -> Arc<Shared> {
    let metrics = Metrics::register(registry);
    metrics.register_flow_control(registry, "llm");
    Arc::new(Shared {
        director: Arc::new(director),
        metrics,
        settings: Settings {
            limits: Limits {
                max_body: bytes.into(),
                body_timeout: Duration::from_mins(1),
                budget: Budget::new(bytes.into()),
                default_mode: BodyMode::FullDuplexStreamed,
            },
            clear_route_cache: true,
            max_message: 1000,
            max_reply: 1000,
            drained: CancellationToken::new(),
        },
        reader: Reader::default(),
        open: OpenStreams::default(),
        sees_responses: std::sync::atomic::AtomicBool::default(),
        tracing: None,
    })
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
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        raw_value: Bytes::new(),
    };
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: vec![header],
        }),
        end_of_stream,
    }
}

fn mk_body(text: &str) -> Request {
    Request::RequestBody(HttpBody {
        body: text.to_owned().into(),
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

#[rstest]
#[case::bad_request(400, "unknown")]
#[case::body_too_large(413, "unknown")]
#[case::body_timeout(408, "unknown")]
#[case::drained_before_the_pick(503, "unknown")]
#[case::no_endpoints(503, "m")]
#[tokio::test(start_paused = true)]
async fn a_refusal_counts_once_as_an_error_of_its_model(#[case] code: i32, #[case] model: &str) {
    let mut registry = Registry::default();
    let (messages, mut replies) = mk_stream_counted_in(&mut registry);
    let head = mk_headers(":path", "/v1/completions", false);
    send(&messages, Request::RequestHeaders(head)).await;
    let mut body = HttpBody {
        body: Bytes::from_static(br#"{"model":"m"}"#),
        end_of_stream: true,
    };
    match (code, model) {
        (503, "m") => drop(
            replies
                .shared
                .director
                .pool()
                .replace(Vec::new(), Moment::START),
        ),
        (503, _) => {
            body.end_of_stream = false;
            replies.shared.settings.drained.cancel();
        }
        (400, _) => body.body = Bytes::from_static(b"{}"),
        (413, _) => body.body = vec![b' '; 1001].into(),
        _ => body.end_of_stream = false,
    }
    send(&messages, Request::RequestBody(body)).await;
    let Some(Response::ImmediateResponse(response)) =
        replies.next().await.unwrap().unwrap().response
    else {
        panic!("not immediate")
    };
    assert_eq!(response.status.unwrap().code, code);
    assert!(replies.next().await.is_none());
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let errors: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("llm_d_epp_request_error_total{"))
        .collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains(&format!("{{model_name=\"{model}\",")),
        "{errors:?}"
    );
    assert!(
        errors[0].ends_with(&format!("error_code=\"{code}\"}} 1")),
        "{errors:?}"
    );
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

#[tokio::test]
async fn a_large_body_is_read_while_other_streams_go_on() {
    let (messages, mut replies) = open(
        &mk_shared_of(4 << 20, &["a"], small_config(), &mut Registry::default()),
        1,
    );
    let head = mk_headers(":path", "/v1/completions", false);
    send(&messages, Request::RequestHeaders(head)).await;
    let prompt = "x".repeat(2 << 20);
    let body = HttpBody {
        body: format!(r#"{{"model":"m","prompt":"{prompt}"}}"#).into(),
        end_of_stream: true,
    };
    send(&messages, Request::RequestBody(body)).await;
    assert!(replies.next().now_or_never().is_none(), "not read here");
    let reply = replies.next().await.unwrap().unwrap();
    assert!(matches!(reply.response, Some(Response::RequestHeaders(_))));
}

/// As the server does it: it asks for no more once the peer has no room.
#[tokio::test(start_paused = true)]
async fn a_deadline_holds_where_the_peer_takes_no_answers() {
    let (messages, mut replies) = mk_stream();
    let budget = replies.shared.settings.limits.budget.clone();
    let modes = ProtocolConfiguration {
        request_body_mode: BodySendMode::Streamed.into(),
        response_body_mode: BodySendMode::Streamed.into(),
        send_body_without_waiting_for_header_response: true,
    };
    let first = ProcessingRequest {
        request: Some(Request::RequestHeaders(mk_headers(
            ":path",
            "/v1/completions",
            false,
        ))),
        protocol_config: Some(modes),
        ..ProcessingRequest::default()
    };
    messages.send(Ok(first)).await.unwrap();
    let wait = replies.next().await.unwrap().unwrap();
    assert!(wait.override_message_timeout.is_some());
    send(&messages, mk_body("{")).await;
    assert!(replies.next().now_or_never().is_none());
    let look = || {
        let shared = &replies.shared;
        shared.open.look(shared.director.clock().now());
        budget.used()
    };
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(look(), 1, "the server may ask yet");
    tokio::time::advance(OVERDUE).await;
    assert_eq!(look(), 0);
    assert_eq!(look(), 0);
    let Some(Response::ImmediateResponse(response)) =
        replies.next().await.unwrap().unwrap().response
    else {
        panic!("not immediate")
    };
    assert_eq!(response.status.unwrap().code, 408);
    assert!(replies.next().await.is_none());
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

#[tokio::test(start_paused = true)]
async fn a_streamed_exchange_is_measured() {
    let mut registry = Registry::default();
    let (messages, mut replies) = mk_stream_counted_in(&mut registry);
    let head = mk_headers(":path", "/v1/completions", false);
    let answer = |text: &'static str, end_of_stream| {
        Request::ResponseBody(HttpBody {
            body: Bytes::from_static(text.as_bytes()),
            end_of_stream,
        })
    };
    let body = Request::RequestBody(HttpBody {
        body: Bytes::from_static(br#"{"model":"m","stream":true}"#),
        end_of_stream: true,
    });
    let usage = "data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\n";
    for (wait, message) in [
        (0, Request::RequestHeaders(head)),
        (500, body),
        (
            1000,
            Request::ResponseHeaders(mk_headers(":status", "200", false)),
        ),
        (500, answer("data: {}\n\n", false)),
        (250, answer("data: {}\n\n", false)),
        (750, answer(usage, true)),
    ] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        send(&messages, message).await;
        while let Some(Some(reply)) = replies.next().now_or_never() {
            reply.unwrap();
        }
    }
    drop(replies);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let labels = r#"model_name="m",target_model_name="m",fairness_id="default-flow",priority="0""#;
    for (name, labels, sum, count) in [
        ("request_duration_seconds", labels, "3.0", 1),
        ("request_size_bytes", labels, "27.0", 1),
        ("response_size_bytes", labels, "79.0", 1),
        ("request_input_tokens", labels, "9.0", 1),
        ("request_output_tokens", labels, "3.0", 1),
        ("request_ntpot_seconds", labels, "1.0", 1),
        ("request_streaming_tpot_seconds", labels, "0.5", 1),
        ("request_streaming_itl_seconds", labels, "1.0", 2),
        (
            "request_ttft_seconds",
            &format!("{labels},streaming=\"true\""),
            "2.0",
            1,
        ),
    ] {
        for line in [
            format!("llm_d_epp_{name}_sum{{{labels}}} {sum}\n"),
            format!("llm_d_epp_{name}_count{{{labels}}} {count}\n"),
        ] {
            assert!(page.contains(&line), "{line} is not in {page}");
        }
    }
    for line in [
        "llm_d_epp_request_processing_duration_seconds_sum 0.5\n",
        "llm_d_epp_request_processing_duration_seconds_count 1\n",
        "llm_d_epp_scheduler_e2e_duration_seconds_count 1\n",
        "epp_pick_duration_seconds_count 1\n",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_processing_of_a_whole_response_is_from_its_headers_to_its_end() {
    let mut registry = Registry::default();
    let (messages, mut replies) = mk_stream_counted_in(&mut registry);
    let end = Request::ResponseBody(HttpBody {
        body: Bytes::from_static(b"[]"),
        end_of_stream: true,
    });
    for (wait, message) in [
        (
            0,
            Request::RequestHeaders(mk_headers(":path", "/v1/models", true)),
        ),
        (
            1000,
            Request::ResponseHeaders(mk_headers(":status", "200", false)),
        ),
        (250, end),
    ] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        send(&messages, message).await;
        while let Some(Some(reply)) = replies.next().now_or_never() {
            reply.unwrap();
        }
    }
    drop(replies);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    for line in [
        "llm_d_epp_response_processing_duration_seconds_sum 0.25\n",
        "llm_d_epp_response_processing_duration_seconds_count 1\n",
        r#"llm_d_epp_request_ttft_seconds_sum{model_name="unknown",target_model_name="unknown",fairness_id="default-flow",priority="0",streaming="false"} 1.25"#,
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

/// A pool without members takes nothing.
#[rstest]
#[case::no_room(0, "RejectedCapacity")]
#[case::client_gone(1, "EvictedContextCancelled")]
#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_dispatched_counts_by_why(
    #[case] room: u64,
    #[case] outcome: &'static str,
) {
    let mut registry = Registry::default();
    let mut config = small_config();
    config.flow_control.enabled = true;
    config.flow_control.default_band.max_requests = room;
    let (messages, mut replies) = open(&mk_shared(&[], config, &mut registry), 1);
    send(
        &messages,
        Request::RequestHeaders(mk_headers(":path", "/v1/models", true)),
    )
    .await;
    let reply = replies.next().now_or_never();
    assert_eq!(reply.is_some(), room == 0, "waits: {reply:?}");
    drop(replies);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    let line = format!(
        "llm_d_epp_flow_control_requests_total{{inference_pool=\"llm\",outcome=\"{outcome}\",priority=\"0\"}} 1\n"
    );
    assert!(page.contains(&line), "{line} is not in {page}");
}

/// The default configuration with a small index.
fn small_config() -> Config {
    let prefix = Prefix {
        max_bytes: 1 << 20,
        ..Prefix::default()
    };
    Config {
        prefix,
        ..Config::default()
    }
}

#[rstest]
#[case::read("/v1/messages", true)]
#[case::not_read("/v1/completions", false)]
#[tokio::test(start_paused = true)]
async fn only_the_bodies_of_the_configured_parsers_are_read(
    #[case] path: &str,
    #[case] read: bool,
) {
    let mut config = small_config();
    config.parsers = Parsers {
        openai: false,
        anthropic: true,
        vllm_http: false,
    };
    let shared = mk_shared(&["a"], config, &mut Registry::default());
    let (messages, mut replies) = open(&shared, 1);
    let headers = mk_headers(":path", path, false);
    send(&messages, Request::RequestHeaders(headers)).await;
    let at_once = replies.next().now_or_never().is_some();
    assert_eq!(at_once, !read, "what is not read is passed on at once");
}

/// Where one is in force: without it the body has no trace id.
#[rstest]
#[case::with_a_filter(true, r#"{"error":{"message":"the model \"m\" is not served here","type":"NotFoundError","param":"model","code":404},"trace_id":"r-1"}"#)]
#[case::with_a_list(false, r#"{"error":{"code":404,"message":"the model \"m\" is not served here","type":"model-not-found"}}"#)]
#[tokio::test(start_paused = true)]
async fn a_refusal_under_an_llm_filter_has_the_trace_id(
    #[case] has_filter: bool,
    #[case] want: &str,
) {
    let mut config = small_config();
    if has_filter {
        let text = "{protocol: openai, model_mapping_rule: {other: {rules: [{cluster: c}]}}}";
        let filter = LlmFilter::parse(text, Compat::Strict).unwrap();
        config.llm_filter = Some(Arc::new(filter));
    } else {
        config.models = ["other".to_owned()].into();
    }
    let shared = mk_shared(&["a"], config, &mut Registry::default());
    let (messages, mut replies) = open(&shared, 1);
    let mut head = mk_headers(":path", "/v1/completions", false);
    let id = mk_headers("x-request-id", "r-1", false);
    let fields = head.headers.as_mut().unwrap();
    fields.headers.extend(id.headers.unwrap().headers);
    send(&messages, Request::RequestHeaders(head)).await;
    let body = HttpBody {
        body: Bytes::from_static(br#"{"model":"m"}"#),
        end_of_stream: true,
    };
    send(&messages, Request::RequestBody(body)).await;
    let Some(Response::ImmediateResponse(response)) =
        replies.next().await.unwrap().unwrap().response
    else {
        panic!("not immediate")
    };
    assert_eq!(String::from_utf8_lossy(&response.body), want);
}

/// A pick that is made is sent before the next large body is read.
#[tokio::test(start_paused = true)]
async fn a_stream_lets_writes_that_are_overdue_go_first() {
    let (messages, mut replies) = mk_stream();
    send(
        &messages,
        Request::RequestHeaders(mk_headers("x", "y", true)),
    )
    .await;
    let (ours, _theirs) = duplex(64);
    let mut gather = gather::Gather::new(ours);
    gather.write_all(b"a pick").await.unwrap();
    assert!(gather.flush().now_or_never().is_none(), "others go first");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(replies.next().now_or_never().is_none());
    assert!(replies.next().now_or_never().is_some(), "once");
    gather.flush().await.unwrap();
}

/// A subset of a thousand endpoints takes a while to read, and comes with each chunk of a body.
#[tokio::test(start_paused = true)]
async fn attributes_that_were_read_are_not_read_again() {
    let (_messages, replies) = mk_stream();
    let message = |served: &str| ProcessingRequest {
        metadata_context: Some(sessions::mk_served(served)),
        ..ProcessingRequest::default()
    };
    let mut dialog = replies.dialog.lock();
    let served = ["10.0.0.1:80", "10.0.0.1:80", "10.0.0.2:80"];
    let news = served.map(|served| dialog.has_news(&message(served)));
    assert_eq!(news, [true, false, true]);
    assert!(!dialog.has_news(&ProcessingRequest::default()), "none came");
}
