//! Whether an endpoint picker, or a parent, answers.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tls::{Alpn, Trust};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::world::Bundle;

use super::dial::{self, DialError, Pace, Targets};
use super::resolve::Resolver;

/// Targets that are tried at the same time, and how often as many within one probe.
const AT_ONCE: usize = 4;
const BATCHES: u32 = 2;

/// Bytes of an answer of gRPC health, which is one number.
const MAX_ANSWER: usize = 1024;

/// A probe of one cluster. It succeeds if one of the targets answers: of several endpoint pickers one may be the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) targets: Targets,
    pub(crate) method: Method,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// gRPC health without TLS, of the service with this name.
    Grpc { service: String },
    /// A connection.
    Tcp,
    /// Nothing is dialled: that there are addresses is enough, as none of them may be dialled.
    Assumed,
    /// A connection and a handshake, with a certificate for this name by such an authority: Envoys refuse others.
    Tls { name: String, signed: SignedBy },
}

/// Whose certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SignedBy {
    System,
    Authorities(Authorities),
}

/// Those of a policy. They are read when they are needed first.
#[derive(Clone, Debug)]
pub(crate) struct Authorities {
    bundle: Bundle,
    trust: Arc<OnceLock<Option<Trust>>>,
}

// === impl Probe ===

impl Probe {
    /// As soon as one of the targets answers; an error once all have failed.
    pub(super) async fn run(
        &mut self,
        system: &Trust,
        resolver: &Resolver,
    ) -> Result<(), &'static str> {
        if self.method == Method::Assumed {
            return Ok(());
        }
        let pace = Pace {
            at_once: AT_ONCE,
            batches: BATCHES,
            time: self.timeout,
        };
        let method = &self.method;
        let one = |_host, at| method.probe(at, system);
        self.targets.race(resolver, pace, one).await
    }
}

// === impl Method ===

impl Method {
    async fn probe(&self, at: SocketAddr, system: &Trust) -> Result<(), &'static str> {
        match self {
            Self::Grpc { service } => grpc(at, service).await,
            Self::Tcp => dial::tcp(at).await.map(drop),
            Self::Assumed => Ok(()),
            Self::Tls { name, signed } => {
                let trust = match signed {
                    SignedBy::System => system,
                    SignedBy::Authorities(own) => own
                        .trust()
                        .ok_or("the authorities of its BackendTLSPolicy cannot be read")?,
                };
                match dial::tls(at, name, trust, Alpn::Http).await {
                    // Envoy may take it all the same
                    Ok(_) | Err(DialError::UnusualCertificate) => Ok(()),
                    Err(error) => Err(error.text()),
                }
            }
        }
    }
}

// === impl Authorities ===

impl Authorities {
    pub(crate) fn new(bundle: Bundle) -> Self {
        Self {
            bundle,
            trust: Arc::default(),
        }
    }

    fn trust(&self) -> Option<&Trust> {
        let made = self.trust.get_or_init(|| {
            let pem = self.bundle.pem()?;
            Trust::of_pem(Some(pem.into_bytes()), None).ok()
        });
        made.as_ref()
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.bundle == other.bundle
    }
}

impl Eq for Authorities {}

async fn grpc(at: SocketAddr, service: &str) -> Result<(), &'static str> {
    let endpoint =
        Endpoint::from_shared(format!("http://{at}")).map_err(|_| "its address is none")?;
    let channel = endpoint.connect().await.map_err(|_| "no connection")?;
    let mut client = HealthClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = client.check(request).await;
    let answer = answer.map_err(|_| "gRPC health answers with an error")?;
    if answer.into_inner().status() == ServingStatus::Serving {
        Ok(())
    } else {
        Err("gRPC health says that it does not serve")
    }
}
