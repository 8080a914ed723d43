//! The EPP under test, and the proxy's end of a stream.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use envoy_types::pb::envoy::{
    config::core::v3::{HeaderMap, HeaderValue},
    extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
    service::ext_proc::v3::{
        HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
        body_mutation::Mutation, external_processor_client::ExternalProcessorClient,
        processing_request::Request, processing_response::Response,
    },
};
use epp::{
    Acceptor, BodyMode, Budget, Clock, Config, CurrentConfig, Director, ExtProc, ExtProcServer,
    Limits, Metrics, Options, Pool, Prefix, Readiness, ServeError, Settings, Tracing,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use scheduling::{EndpointId, Member, Moment};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Streaming, transport::Channel};

use super::LIMIT;

/// More than one, also where there is one core.
const THREADS: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");

pub(crate) const BODY: &str =
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

/// An EPP without Kubernetes; its server ends with it.
pub(crate) struct Epp {
    pub(crate) address: SocketAddr,
    pub(crate) pool: Pool,
    pub(crate) clock: Clock,
    pub(crate) readiness: Readiness,
    pub(crate) registry: Registry,
    pub(crate) goaway: CancellationToken,
    pub(crate) drained: CancellationToken,
    pub(crate) server: JoinSet<Result<(), ServeError>>,
}

impl Epp {
    pub(crate) async fn start(members: &[&str]) -> Self {
        Self::start_with(members, Acceptor::plaintext()).await
    }

    pub(crate) async fn start_with(members: &[&str], acceptor: Acceptor) -> Self {
        Self::start_traced(members, acceptor, |_| None).await
    }

    /// `tracing` registers its metrics beside the others.
    pub(crate) async fn start_traced(
        members: &[&str],
        acceptor: Acceptor,
        tracing: impl FnOnce(&mut Registry) -> Option<Tracing>,
    ) -> Self {
        Self::start_by(Options::default(), members, acceptor, tracing).await
    }

    pub(crate) async fn start_by(
        options: Options,
        members: &[&str],
        acceptor: Acceptor,
        tracing: impl FnOnce(&mut Registry) -> Option<Tracing>,
    ) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let tracing = tracing(&mut registry);
        let pool = Pool::default();
        let members = members.iter().map(|address| mk_member(address));
        pool.replace(members.collect(), Moment::START);
        let clock = Clock::start();
        let director = Director::new(pool.clone(), small_config(), options, clock);
        let director = Arc::new(director);
        let (goaway, drained) = (CancellationToken::new(), CancellationToken::new());
        let settings = Settings {
            limits: Limits {
                max_body: 1 << 20,
                body_timeout: Duration::from_mins(1),
                budget: Budget::new(1 << 20),
                default_mode: BodyMode::FullDuplexStreamed,
            },
            clear_route_cache: true,
            max_message: 16 << 20,
            max_reply: 16 << 20,
            drained: drained.clone(),
        };
        let readiness = Readiness::new();
        let server = ExtProcServer {
            service: ExtProc::traced(director, metrics, settings, tracing),
            readiness: readiness.clone(),
            acceptor,
            max_streams: 1000,
            threads: THREADS,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(server.serve(listener, goaway.clone()));
        Self {
            address,
            pool,
            clock,
            readiness,
            registry,
            goaway,
            drained,
            server: tasks,
        }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address))
            .unwrap()
            .connect()
            .await
            .unwrap()
    }

    pub(crate) async fn open(&self) -> Peer {
        self.open_with(None).await
    }

    pub(crate) async fn open_with(&self, list: Option<&str>) -> Peer {
        Self::open_over(self.channel().await, list).await
    }

    pub(crate) async fn open_over(channel: Channel, list: Option<&str>) -> Peer {
        let (requests, stream) = mpsc::channel(16);
        let mut request = tonic::Request::new(ReceiverStream::new(stream));
        if let Some(list) = list {
            request
                .metadata_mut()
                .insert("x-isthmus-max-endpoints", list.parse().unwrap());
        }
        let replies = ExternalProcessorClient::new(channel)
            .process(request)
            .await
            .unwrap()
            .into_inner();
        Peer {
            requests: Some(requests),
            replies,
            sent_mode: false,
        }
    }

    /// Requests in flight at all members.
    pub(crate) fn in_flight(&self) -> u32 {
        self.pool
            .snapshot()
            .endpoints()
            .map(|endpoint| endpoint.load().in_flight())
            .sum()
    }

    pub(crate) async fn until_in_flight(&self, count: u32) {
        let watching = async {
            while self.in_flight() != count {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, watching)
            .await
            .unwrap_or_else(|_| panic!("{} in flight, not {count}", self.in_flight()));
    }

    pub(crate) fn metrics(&self) -> String {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        page
    }
}

/// The proxy's end of one stream.
pub(crate) struct Peer {
    pub(crate) requests: Option<mpsc::Sender<ProcessingRequest>>,
    pub(crate) replies: Streaming<ProcessingResponse>,
    sent_mode: bool,
}

impl Peer {
    pub(crate) async fn send(&mut self, request: Request) {
        let mode = BodySendMode::FullDuplexStreamed.into();
        // As Envoy has it: in the first message alone.
        let first = !std::mem::replace(&mut self.sent_mode, true);
        let protocol_config = first.then_some(ProtocolConfiguration {
            request_body_mode: mode,
            response_body_mode: mode,
            send_body_without_waiting_for_header_response: false,
        });
        let message = ProcessingRequest {
            request: Some(request),
            protocol_config,
            ..ProcessingRequest::default()
        };
        self.requests.as_ref().unwrap().send(message).await.unwrap();
    }

    pub(crate) async fn post(&mut self, path: &str) {
        self.post_with(path, &[]).await;
    }

    /// With more headers.
    pub(crate) async fn post_with(&mut self, path: &str, more: &[(&str, &str)]) {
        let first = [(":method", "POST"), (":path", path), ("x-request-id", "1")];
        let headers = mk_headers(&[&first, more].concat(), false);
        self.send(Request::RequestHeaders(headers)).await;
    }

    pub(crate) async fn body(&mut self, text: &str, end: bool) {
        self.send(Request::RequestBody(mk_body(text, end))).await;
    }

    pub(crate) async fn next(&mut self) -> Option<Response> {
        let reply = timeout(LIMIT, self.replies.message())
            .await
            .expect("a reply in time");
        reply
            .expect("no error")
            .map(|reply| reply.response.expect("a response"))
    }

    pub(crate) async fn next_message(&mut self) -> ProcessingResponse {
        timeout(LIMIT, self.replies.message())
            .await
            .expect("a reply in time")
            .expect("no error")
            .expect("a reply")
    }

    pub(crate) async fn post_and_pick(&mut self) -> String {
        self.pick_for("hello").await
    }

    /// As [`Self::post_and_pick`] for a prompt that nobody sent before, or did.
    pub(crate) async fn pick_for(&mut self, prompt: &str) -> String {
        let body = BODY.replace("hello", prompt);
        self.post("/v1/chat/completions").await;
        self.body(&body, true).await;
        let picked = destination(&self.next().await.unwrap());
        assert_eq!(streamed(&self.next().await.unwrap()), (body, true));
        picked
    }
}

pub(crate) fn mk_member(address: &str) -> Member {
    let id = EndpointId {
        namespace: "ns".into(),
        pod: address.into(),
        rank: 0,
        uid: address.into(),
    };
    Member {
        id,
        address: address.parse().unwrap(),
        engine: "".into(),
        labels: std::sync::Arc::default(),
    }
}

pub(crate) fn mk_headers(headers: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let mk = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: (*value).into(),
    };
    let headers = Some(HeaderMap {
        headers: headers.iter().map(mk).collect(),
    });
    HttpHeaders {
        headers,
        end_of_stream,
        ..HttpHeaders::default()
    }
}

pub(crate) fn mk_body(text: &str, end_of_stream: bool) -> HttpBody {
    HttpBody {
        body: text.into(),
        end_of_stream,
        ..HttpBody::default()
    }
}

/// The picked list of a request headers response.
pub(crate) fn destination(response: &Response) -> String {
    let Response::RequestHeaders(headers) = response else {
        panic!("no headers response: {response:?}")
    };
    let mutation = headers
        .response
        .as_ref()
        .unwrap()
        .header_mutation
        .as_ref()
        .unwrap();
    let set = mutation.set_headers[0].header.as_ref().unwrap();
    assert_eq!(set.key, "x-gateway-destination-endpoint");
    String::from_utf8(set.raw_value.clone()).unwrap()
}

/// Bytes and end of a streamed body reply, of either side.
pub(crate) fn streamed(response: &Response) -> (String, bool) {
    let (Response::RequestBody(body) | Response::ResponseBody(body)) = response else {
        panic!("no body response: {response:?}")
    };
    let mutation = body
        .response
        .as_ref()
        .unwrap()
        .body_mutation
        .as_ref()
        .unwrap();
    let Some(Mutation::StreamedResponse(streamed)) = &mutation.mutation else {
        panic!("not streamed")
    };
    (
        String::from_utf8(streamed.body.clone()).unwrap(),
        streamed.end_of_stream,
    )
}

/// The default configuration with a small index.
fn small_config() -> CurrentConfig {
    let prefix = Prefix {
        max_bytes: 1 << 20,
        ..Prefix::default()
    };
    CurrentConfig::new(Config {
        prefix,
        ..Config::default()
    })
}
