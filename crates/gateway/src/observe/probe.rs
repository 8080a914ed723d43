//! Whether an endpoint picker, or a parent, answers.

use std::net::SocketAddr;
use std::time::Duration;

use futures::{StreamExt, stream};
use tls::{Alpn, Trust};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::dial::{self, AT_ONCE, DialError, Targets};

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
    /// A connection and a handshake under this name. Whom the certificate is of does not matter: Envoys verify it by other CAs than
    /// those of this program.
    Tls { name: String },
}

// === impl Probe ===

impl Probe {
    /// As soon as one of the targets answers; an error once all have failed.
    pub(super) async fn run(&self, system: &Trust) -> Result<(), &'static str> {
        let targets = self.targets.resolve().await;
        let tries = targets.into_iter();
        let tries = tries.map(|(_, at)| self.one(at, system));
        let mut tries = stream::iter(tries).buffer_unordered(AT_ONCE);
        let mut last = "it has no address that may be dialled";
        while let Some(result) = tries.next().await {
            match result {
                Ok(()) => return Ok(()),
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    async fn one(&self, at: SocketAddr, system: &Trust) -> Result<(), &'static str> {
        match &self.method {
            Method::Grpc { service } => grpc(at, service).await,
            Method::Tcp => dial::tcp(at).await.map(drop),
            Method::Tls { name } => match dial::tls(at, name, system, Alpn::Http).await {
                Ok(_) | Err(DialError::Certificate) => Ok(()),
                Err(DialError::Failed(why)) => Err(why),
            },
        }
    }
}

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
