//! Spans as a collector gets them: a scripted receiver of OTLP against the real server.

use std::{net::SocketAddr, time::Duration};

use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use epp::{Acceptor, Setup, SpanMetrics, Tracing};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, status::StatusCode},
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, transport::Server};

use crate::{
    LIMIT,
    peer::{BODY, Epp, Peer, mk_body, mk_headers},
};

/// Gives on what arrives.
struct Receiver(mpsc::Sender<(String, Span)>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attribute(&attributes, "service.name").unwrap_or_default();
            for span in resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans)
            {
                self.0.send((service.clone(), span)).await.unwrap();
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

struct Bed {
    epp: Epp,
    spans: mpsc::Receiver<(String, Span)>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Bed {
    async fn start(members: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, spans) = mpsc::channel(100);
        let mut bed = Self::with_collector(members, address, spans).await;
        bed.tasks.spawn(async move {
            let served = Server::builder()
                .add_service(TraceServiceServer::new(Receiver(sender)))
                .serve_with_incoming(TcpListenerStream::new(listener));
            served.await.unwrap();
        });
        bed
    }

    async fn with_collector(
        members: &[&str],
        collector: SocketAddr,
        spans: mpsc::Receiver<(String, Span)>,
    ) -> Self {
        let setup = Setup {
            endpoint: collector.to_string(),
            sampler: None,
            sampler_arg: None,
            queue: 100,
            batch: 10,
            delay: Duration::from_millis(10),
            timeout: Duration::from_secs(5),
        };
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let epp = Epp::start_traced(members, Acceptor::plaintext(), |registry| {
            let metrics = SpanMetrics::register(registry, "epp");
            let (tracing, export) = Tracing::begin(&setup, "llm", metrics).unwrap();
            let stop = stop.clone();
            tasks.spawn(export.run(stop));
            Some(tracing)
        });
        let epp = epp.await;
        Self {
            epp,
            spans,
            stop,
            tasks,
        }
    }

    async fn next(&mut self) -> (String, Span) {
        let next = timeout(LIMIT, self.spans.recv()).await;
        next.expect("a span in time").expect("the receiver lives")
    }

    /// The next spans, by name.
    async fn spans<const N: usize>(&mut self) -> [Span; N] {
        let mut spans = Vec::new();
        for _ in 0..N {
            spans.push(self.next().await.1);
        }
        spans.sort_by(|one, other| one.name.cmp(&other.name));
        spans.try_into().unwrap()
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|one| one.key == key)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn of(span: &Span, key: &str) -> Option<String> {
    attribute(&span.attributes, key)
}

async fn post(peer: &mut Peer, trace: &str, flags: &str) {
    let parent = format!("00-{trace}-00f067aa0ba902b7-{flags}");
    peer.post_with("/v1/chat/completions", &[("traceparent", &parent)])
        .await;
    peer.body(BODY, true).await;
    peer.next().await;
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[tokio::test]
async fn a_sampled_request_is_a_span_of_its_parent_with_its_pick() {
    let mut bed = Bed::start(&["10.0.0.1:8000"]).await;
    let mut peer = bed.epp.open().await;
    post(&mut peer, TRACE, "01").await;
    peer.next().await; // the body
    let headers = mk_headers(&[(":status", "503")], false);
    peer.send(Request::ResponseHeaders(headers)).await;
    peer.next().await;
    peer.send(Request::ResponseBody(mk_body("", true))).await;
    peer.next().await;
    let [pick, request] = bed.spans().await;
    assert_eq!(
        (&*pick.name, &*request.name),
        ("epp.pick", "gateway.request")
    );
    assert_eq!(
        request.trace_id,
        0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes()
    );
    assert_eq!(
        request.parent_span_id,
        0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()
    );
    assert_eq!(pick.trace_id, request.trace_id);
    assert_eq!(pick.parent_span_id, request.span_id);
    assert!(request.start_time_unix_nano <= pick.start_time_unix_nano);
    assert!(pick.end_time_unix_nano <= request.end_time_unix_nano);
    for span in [&pick, &request] {
        assert_eq!(of(span, "epp.pool").as_deref(), Some("llm"));
        assert_eq!(of(span, "epp.endpoint").as_deref(), Some("10.0.0.1:8000"));
    }
    assert_eq!(of(&request, "gen_ai.request.model").as_deref(), Some("m"));
    let status = of(&request, "http.response.status_code");
    assert_eq!(status.as_deref(), Some("503"));
    assert_eq!(request.status.unwrap().code(), StatusCode::Error);
}

#[tokio::test]
async fn a_refused_request_says_why_and_one_that_is_not_sampled_says_nothing() {
    let mut bed = Bed::start(&[]).await;
    post(&mut bed.epp.open().await, &TRACE.replace('4', "5"), "00").await;
    post(&mut bed.epp.open().await, TRACE, "01").await;
    let (service, first) = bed.next().await;
    assert_eq!(service, "epp");
    let (_, second) = bed.next().await;
    for span in [first, second] {
        let parent_is_ours = span.trace_id.first() == Some(&0x4b);
        assert!(parent_is_ours, "of the one that is not sampled: {span:?}");
        assert_eq!(of(&span, "epp.reason").as_deref(), Some("no-endpoints"));
        assert_eq!(span.status.unwrap().code(), StatusCode::Error);
    }
}

#[tokio::test]
async fn what_is_left_is_sent_at_the_end_and_what_a_dead_collector_loses_is_counted() {
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = dead.local_addr().unwrap();
    drop(dead);
    let (_sender, spans) = mpsc::channel(1);
    let mut bed = Bed::with_collector(&[], address, spans).await;
    post(&mut bed.epp.open().await, TRACE, "01").await;
    bed.stop.cancel();
    timeout(LIMIT, bed.tasks.join_next())
        .await
        .expect("it ends")
        .unwrap()
        .unwrap();
    let page = bed.epp.metrics();
    let line = "epp_spans_total{result=\"failed\"} 2\n";
    assert!(page.contains(line), "{line} is not in {page}");
}
