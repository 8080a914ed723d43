//! The ext_proc service.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll},
};

use futures::future::{BoxFuture, Ready, ready};
use scheduling::MAX_LIST;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::{Body as HttpBody, Service, StdError, http},
    server::{Grpc, NamedService, StreamingService},
};
use tonic_prost::ProstCodec;

use super::{
    exchange::Limits,
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

    fn replies(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Replies<Streaming<ProcessingRequest>> {
        let round_trip = request.extensions().get::<RoundTrip>();
        let round_trip = round_trip.cloned().unwrap_or_default();
        let list = request.metadata().get(MAX_ENDPOINTS);
        let list = list
            .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok())
            .unwrap_or(1);
        let list = u8::try_from(list).unwrap_or(MAX_LIST).clamp(1, MAX_LIST);
        Replies::new(request.into_inner(), list, round_trip, Arc::clone(&self.0))
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
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != PROCESS {
                return Ok(
                    Status::unimplemented("this service has one method: Process").into_http(),
                );
            }
            let Settings {
                max_message,
                max_reply,
                ..
            } = service.0.settings;
            let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
            let mut grpc =
                Grpc::new(codec).apply_max_message_size_config(Some(max_message), Some(max_reply));
            Ok(grpc.streaming(Process(service), request).await)
        })
    }
}

/// The service's one method.
struct Process(ExtProc);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Replies<Streaming<ProcessingRequest>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        ready(Ok(Response::new(self.0.replies(request))))
    }
}
