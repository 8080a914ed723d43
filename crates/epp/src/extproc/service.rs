//! The ext_proc service.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll},
};

use futures::future::{Ready, ready};
use scheduling::MAX_LIST;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    body::Body,
    codec::{Codec, EncodeBody, SingleMessageCompressionOverride},
    codegen::{
        Body as HttpBody, Service, StdError,
        http::{self, HeaderValue},
    },
    server::NamedService,
};
use tonic_prost::ProstCodec;

use super::{
    exchange::Limits,
    messages::Messages,
    overdue::{LOOK_EVERY, OpenStreams},
    reader::Reader,
    stream::Replies,
};
use crate::{
    connection::RoundTrip,
    director::Director,
    metrics::Metrics,
    proto::{ProcessingRequest, ProcessingResponse},
    spans::Tracing,
};

/// gRPC metadata by which a gateway says how many endpoints it can try in order.
const MAX_ENDPOINTS: &str = "x-isthmus-max-endpoints";

/// How the messages of a request are compressed.
const ENCODING: &str = "grpc-encoding";
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
/// Not at all.
const IDENTITY: &str = "identity";
/// The type of all answers.
const GRPC: &str = "application/grpc";

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// What is the same for all streams.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bounds of a stream.
    pub limits: Limits,
    /// Ask the proxy to choose its route anew after the pick.
    pub clear_route_cache: bool,
    /// Largest message taken, in bytes.
    pub max_message: usize,
    /// Largest message sent, in bytes.
    pub max_reply: usize,
    /// Cancelled when the streams that are left must end.
    pub drained: CancellationToken,
}

/// Serves `envoy.service.ext_proc.v3.ExternalProcessor`.
#[derive(Clone)]
pub struct ExtProc(Arc<Shared>);

pub(super) struct Shared {
    pub(super) director: Arc<Director>,
    pub(super) metrics: Metrics,
    pub(super) settings: Settings,
    pub(super) reader: Reader,
    /// Of the same thread.
    pub(super) open: OpenStreams,
    /// Whether a proxy sent the headers of a response, and so will send those of others.
    pub(super) sees_responses: AtomicBool,
    pub(super) tracing: Option<Tracing>,
}

// === impl ExtProc ===

impl ExtProc {
    /// A service for the pool of `director`.
    pub fn new(director: Arc<Director>, metrics: Metrics, settings: Settings) -> Self {
        Self::traced(director, metrics, settings, None)
    }

    /// The same with spans of requests, if `tracing` makes them.
    pub fn traced(
        director: Arc<Director>,
        metrics: Metrics,
        settings: Settings,
        tracing: Option<Tracing>,
    ) -> Self {
        Self(Arc::new(Shared {
            director,
            metrics,
            settings,
            reader: Reader::default(),
            open: OpenStreams::default(),
            sees_responses: AtomicBool::new(false),
            tracing,
        }))
    }

    /// The same service for the streams of one thread: what these touch with each message is theirs alone.
    pub(crate) fn on_thread(&self) -> Self {
        let Shared {
            director,
            metrics,
            settings,
            reader,
            open: _,
            sees_responses: _,
            tracing,
        } = &*self.0;
        let mut settings = settings.clone();
        // Each look at a token takes its lock.
        settings.drained = settings.drained.child_token();
        Self(Arc::new(Shared {
            director: Arc::clone(director),
            metrics: metrics.clone(),
            settings,
            reader: reader.clone(),
            open: OpenStreams::default(),
            sees_responses: AtomicBool::new(false),
            tracing: tracing.clone(),
        }))
    }

    /// Looks after the streams of this thread whose peers take no answers, for ever.
    pub(crate) async fn watch(&self) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.0.open.look(self.0.director.clock().now());
        }
    }

    /// Answers a stream.
    fn process<B>(&self, request: http::Request<B>) -> http::Response<Body>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let (parts, body) = request.into_parts();
        let encoding = parts.headers.get(ENCODING);
        if encoding.is_some_and(|encoding| encoding != IDENTITY) {
            let mut refused =
                Status::unimplemented("messages cannot be compressed: send them as they are")
                    .into_http();
            let accepted = HeaderValue::from_static(IDENTITY);
            refused.headers_mut().insert(ACCEPT_ENCODING, accepted);
            return refused;
        }
        let round_trip = parts.extensions.get::<RoundTrip>();
        let round_trip = round_trip.cloned().unwrap_or_default();
        let list = parts.headers.get(MAX_ENDPOINTS);
        let list = list
            .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok())
            .unwrap_or(1);
        let list = u8::try_from(list).unwrap_or(MAX_LIST).clamp(1, MAX_LIST);
        let Settings {
            limits,
            max_message,
            max_reply,
            ..
        } = &self.0.settings;
        let messages = Messages::new(body, *max_message, &limits.budget);
        let replies = Replies::new(messages, list, round_trip, Arc::clone(&self.0));
        let encoder = ProstCodec::<ProcessingResponse, ProcessingRequest>::default().encoder();
        let compression = SingleMessageCompressionOverride::default();
        let body = EncodeBody::new_server(encoder, replies, None, compression, Some(*max_reply));
        let mut response = http::Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(GRPC));
        response
    }
}

impl NamedService for ExtProc {
    const NAME: &'static str = "envoy.service.ext_proc.v3.ExternalProcessor";
}

impl<B> Service<http::Request<B>> for ExtProc
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        ready(Ok(if request.uri().path() == PROCESS {
            self.process(request)
        } else {
            Status::unimplemented("this service has one method: Process").into_http()
        }))
    }
}
