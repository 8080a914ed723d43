//! The ext_proc service.

use std::{pin::Pin, sync::Arc};

use futures::Stream;
use scheduling::MAX_LIST;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{exchange::Limits, stream::Replies};
use crate::{
    director::Director,
    metrics::Metrics,
    proto::{ExternalProcessor, ExternalProcessorServer, ProcessingRequest, ProcessingResponse},
};

/// gRPC metadata by which a gateway says how many endpoints it can try in order.
const MAX_ENDPOINTS: &str = "x-isthmus-max-endpoints";

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
    pub(super) director: Director,
    pub(super) metrics: Metrics,
    pub(super) settings: Settings,
}

// === impl ExtProc ===

impl ExtProc {
    /// A service for the pool of `director`.
    pub fn new(director: Director, metrics: Metrics, settings: Settings) -> Self {
        Self(Arc::new(Shared {
            director,
            metrics,
            settings,
        }))
    }

    /// For tonic's server.
    pub fn into_server(self) -> ExternalProcessorServer<impl ExternalProcessor> {
        let Settings {
            max_message,
            max_reply,
            ..
        } = self.0.settings;
        ExternalProcessorServer::new(self)
            .max_decoding_message_size(max_message)
            .max_encoding_message_size(max_reply)
    }
}

#[tonic::async_trait]
impl ExternalProcessor for ExtProc {
    type ProcessStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let list = request.metadata().get(MAX_ENDPOINTS);
        let list = list
            .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok())
            .unwrap_or(1);
        let list = u8::try_from(list).unwrap_or(MAX_LIST).clamp(1, MAX_LIST);
        let replies = Replies::new(request.into_inner(), list, Arc::clone(&self.0));
        Ok(Response::new(Box::pin(replies)))
    }
}
