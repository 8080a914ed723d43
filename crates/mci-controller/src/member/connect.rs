//! The first calls on a new connection: the identity of the cluster. And the probe.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use mci_inventory::client::{CertificateProblem, certificate_problem};
use tokio::time::timeout;

use super::fault_of;
use crate::{
    clusterset,
    index::member::Fault,
    name::opaque,
    text::{MAX_MESSAGE, clipped},
};

/// The whole connect: TCP, TLS and a few calls.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One probe. Two in a row that fail are 13 s after the last good one at most.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// What the server reports about its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Uid of its `kube-system` namespace: the cluster's identity.
    pub(super) uid: String,
    /// The ClusterSet named by its ClusterProperty.
    pub(super) clusterset: Option<String>,
    /// Kubernetes version, for logs.
    pub(super) version: String,
}

/// Why there is no contact.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("no answer within {0:?}: expected an API server at the kubeconfig's address")]
    Timeout(Duration),
    #[error("the server does not answer as an API server does: {0}")]
    Call(String, Option<u16>),
    #[error("the certificate of the server is rejected: {1}")]
    Certificate(CertificateProblem, String),
    #[error("its kube-system namespace has no uid, or none of at most 128 bytes")]
    NoIdentity,
    #[error("certificates or keys do not decode: expected PEM with a certificate and its key")]
    Undecodable,
    #[error("they may not {0}, which the ones in use may: grant these (config/rbac)")]
    LostRights(String),
}

/// Connects and reads the identity of the cluster.
pub(super) async fn connect(client: &Client) -> Result<Identity, ConnectError> {
    let calls = async {
        let version = client.apiserver_version().await.map_err(describe)?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = namespaces
            .get_metadata("kube-system")
            .await
            .map_err(describe)?;
        let uid = opaque(system.metadata.uid).ok_or(ConnectError::NoIdentity)?;
        let clusterset = clusterset::declared(client).await.map_err(describe)?;
        Ok(Identity {
            uid,
            clusterset,
            version: clipped(&version.git_version, MAX_MESSAGE).to_owned(),
        })
    };
    timeout(CONNECT_TIMEOUT, calls)
        .await
        .unwrap_or(Err(ConnectError::Timeout(CONNECT_TIMEOUT)))
}

/// Whether the server still answers.
pub(super) async fn probe(client: &Client) -> Result<(), ConnectError> {
    let call = async { client.apiserver_version().await.map_err(describe) };
    timeout(PROBE_TIMEOUT, call)
        .await
        .unwrap_or(Err(ConnectError::Timeout(PROBE_TIMEOUT)))
        .map(drop)
}

pub(super) fn describe(error: kube::Error) -> ConnectError {
    if let kube::Error::Api(status) = &error {
        let text = format!("{} {}", status.code, clipped(&status.message, MAX_MESSAGE));
        return ConnectError::Call(text, Some(status.code));
    }
    let certificate = certificate_problem(&error);
    // the root cause alone: the outer errors repeat it
    let text = anyhow::Error::from(error).root_cause().to_string();
    let text = clipped(&text, MAX_MESSAGE).to_owned();
    match certificate {
        Some(problem) => ConnectError::Certificate(problem, text),
        None => ConnectError::Call(text, None),
    }
}

// === impl ConnectError ===

impl ConnectError {
    /// Whether the credentials are not accepted.
    pub(super) fn is_unauthorised(&self) -> bool {
        matches!(self, Self::Call(_, Some(401)))
    }

    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Call(_, status) => fault_of(*status),
            Self::Certificate(CertificateProblem::Untrusted, _) => Fault::CertificateUntrusted,
            Self::Certificate(CertificateProblem::Expired, _) => Fault::CertificateExpired,
            Self::Certificate(CertificateProblem::NameMismatch, _) => {
                Fault::CertificateNameMismatch
            }
            Self::Timeout(_) | Self::NoIdentity | Self::Undecodable => Fault::ConnectionLost,
            Self::LostRights(_) => Fault::AuthFailed,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use rustls::CertificateError;

    use super::*;

    #[test]
    fn a_rejected_certificate_is_a_fault_of_its_own() {
        let tls = |why| rustls::Error::InvalidCertificate(why);
        let reason = |error: rustls::Error| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
            describe(kube::Error::Service(error.into()))
                .fault()
                .reason()
        };
        for (error, expected) in [
            (tls(CertificateError::UnknownIssuer), "CertificateUntrusted"),
            (tls(CertificateError::BadSignature), "CertificateUntrusted"),
            (tls(CertificateError::Expired), "CertificateExpired"),
            (tls(CertificateError::NotValidYet), "CertificateExpired"),
            (
                tls(CertificateError::NotValidForName),
                "CertificateNameMismatch",
            ),
            (rustls::Error::HandshakeNotComplete, "ConnectionLost"),
        ] {
            assert_eq!(reason(error.clone()), expected, "{error}");
        }
    }

    #[test]
    fn a_servers_message_is_clipped() {
        let status = Status::failure(&"x".repeat(2 << 20), "Forbidden").with_code(403);
        let error = describe(kube::Error::Api(Box::new(status)));
        assert_eq!(error.fault(), Fault::AuthFailed);
        assert!(error.to_string().len() < 400, "{}", error.to_string().len());
    }
}
