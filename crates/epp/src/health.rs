//! Readiness, as every prober asks for it: gRPC health and the admin port.

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::proto::{Health, HealthCheckRequest, HealthCheckResponse, HealthServer, ServingStatus};

/// What must be true before requests are welcome; names of `/readyz`.
const PARTS: [&str; 2] = [Part::Discovery.name(), Part::Metrics.name()];

/// Services that are served while this EPP is ready. gateways and probes ask by any of these names.
const READY_NAMES: [&str; 4] = [
    "",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
];

/// Served as long as the process answers.
const LIVE_NAME: &str = "liveness";

/// A condition of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The pool exists and its members are known. False again when the pool is deleted.
    Discovery,
    /// Every member was scraped once, or had the time for it.
    Metrics,
    /// The Lease of the pool is held. Only in leader mode: there from when it is first set.
    Leader,
}

/// Readiness of this process. Cheap to clone; every change reaches all watchers.
#[derive(Clone, Debug)]
pub struct Readiness {
    admin: process::Health,
    ready: Arc<watch::Sender<bool>>,
    warm: Arc<watch::Sender<Warm>>,
}

/// The parts beside [`Part::Leader`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Warm {
    discovery: bool,
    metrics: bool,
}

/// The gRPC health service, one implementation for both ports.
#[derive(Clone, Debug)]
pub(crate) struct HealthService {
    ready: watch::Receiver<bool>,
    /// Its end ends all watches, which would otherwise hold their connections for ever.
    stop: watch::Receiver<bool>,
}

// === impl Part ===

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Discovery => "discovery",
            Self::Metrics => "metrics",
            Self::Leader => "leader",
        }
    }
}

// === impl Readiness ===

impl Readiness {
    /// Not ready yet.
    pub fn new() -> Self {
        Self {
            admin: process::Health::new(&PARTS),
            ready: Arc::new(watch::Sender::new(false)),
            warm: Arc::default(),
        }
    }

    /// For the admin port.
    pub fn admin(&self) -> process::Health {
        self.admin.clone()
    }

    /// Says of one part whether it is ready.
    pub fn set(&self, part: Part, ready: bool) {
        self.admin.set(part.name(), ready);
        self.warm.send_if_modified(|warm| {
            let before = *warm;
            match part {
                Part::Discovery => warm.discovery = ready,
                Part::Metrics => warm.metrics = ready,
                Part::Leader => {}
            }
            before != *warm
        });
        self.publish();
    }

    /// Waits until it could answer requests, or could not: whether it leads does not matter.
    pub(crate) async fn until_warm(&self, warm: bool) {
        let mut parts = self.warm.subscribe();
        let is_warm = |parts: &Warm| parts.discovery && parts.metrics;
        // No error: the sender is of this value.
        let _ = parts.wait_for(|parts| is_warm(parts) == warm).await;
    }

    /// Not ready from now on.
    pub fn drain(&self) {
        self.admin.drain();
        self.publish();
    }

    /// Not ready from now on, and to be restarted.
    pub fn fail(&self, reason: String) {
        self.admin.fail(reason);
        self.publish();
    }

    /// Whether requests are welcome.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// The gRPC side; watches end when `stop` becomes true or its sender is gone.
    pub fn service(&self, stop: watch::Receiver<bool>) -> HealthServer<impl Health + use<>> {
        HealthServer::new(HealthService {
            ready: self.ready.subscribe(),
            stop,
        })
    }

    fn publish(&self) {
        let admin = &self.admin;
        self.ready.send_if_modified(|ready| {
            let before = std::mem::replace(ready, admin.is_ready());
            before != *ready
        });
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

// === impl HealthService ===

impl HealthService {
    fn is_known(service: &str) -> bool {
        service == LIVE_NAME || READY_NAMES.contains(&service)
    }
}

fn response(service: &str, ready: bool) -> HealthCheckResponse {
    let serving = ready || service == LIVE_NAME;
    let status = if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    HealthCheckResponse {
        status: status.into(),
    }
}

fn unknown(service: &str) -> Status {
    Status::not_found(format!(
        "service {service:?} is unknown: ask for {LIVE_NAME:?} or one of {READY_NAMES:?}"
    ))
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !Self::is_known(&service) {
            return Err(unknown(&service));
        }
        Ok(Response::new(response(&service, *self.ready.borrow())))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        if !Self::is_known(&service) {
            return Err(unknown(&service));
        }
        let mut stop = self.stop.clone();
        let stopped = async move {
            // An error means that the sender is gone: the end as well.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        // `liveness` never changes: only its first message counts.
        let changes = if service == LIVE_NAME { 1 } else { usize::MAX };
        let updates = WatchStream::new(self.ready.clone())
            .take(changes)
            .chain(stream::pending())
            .map(move |ready| Ok(response(&service, ready)))
            .take_until(stopped);
        Ok(Response::new(Box::pin(updates)))
    }
}
