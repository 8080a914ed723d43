//! TLS of the ports: whose certificate is served, which clients are let in; and of the connections that a program makes. All
//! of it changes with its files while the program runs.
//!
//! ```text
//!  tls.crt, tls.key ─► Pair ────┐
//!                               ├─► Served (ServerConfig) ◄── Acceptor ◄── TCP connections
//!  client CA, names ─► Clients ─┘
//!          ▲ read again each 5 s and on SIGHUP: TlsReload
//!
//!  CAs, own tls.crt, tls.key ─► Trust (ClientConfig) ◄── who connects
//!          ▲ likewise: TrustReload
//! ```

mod accept;
mod clients;
mod files;
mod info;
mod made;
mod metrics;
mod pair;
#[cfg(any(test, feature = "test-util"))]
pub mod test_pki;
mod trust;

use std::{fmt, str::FromStr, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::pem,
    server::{NoServerSessionStorage, danger::ClientCertVerifier},
    sign::SingleCertAndKey,
    version::{TLS12, TLS13},
};

pub use accept::{Acceptor, HandshakeError, HandshakeLimits, MaybeTls};
pub use clients::{CaError, San, SanError};
pub use files::{TlsError, TlsFiles, TlsReload};
pub use info::CertificateInfo;
pub use made::MadeTls;
pub use metrics::{PortTls, TlsMetrics};
pub use pair::PairError;
pub use trust::{Trust, TrustError, TrustFiles, TrustReload};

use pair::Pair;

static FROM_TLS12: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
static FROM_TLS13: [&SupportedProtocolVersion; 1] = [&TLS13];

/// The oldest version of TLS that is spoken, named as the ecosystem does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// `VersionTLS12`.
    #[default]
    Tls12,
    /// `VersionTLS13`.
    Tls13,
}

/// Application protocols of a port, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2, for gRPC.
    H2,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 and HTTP/1.1.
    Http,
}

/// What new connections are accepted with; those that are open keep what they have.
#[derive(Clone, Debug)]
struct Served(Arc<ArcSwap<ServerConfig>>);

/// What of it never changes.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    min_version: TlsVersion,
    alpn: Alpn,
}

/// The one provider of cryptography.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// What is wrong with a PEM, without the bytes that its own message quotes.
fn pem_problem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "an END line is missing, as in half a file".into(),
        pem::Error::NoItemsFound => "there is none".into(),
        other => other.to_string(),
    }
}

// === impl TlsVersion ===

impl TlsVersion {
    /// It and all that is newer.
    fn and_newer(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Tls12 => &FROM_TLS12,
            Self::Tls13 => &FROM_TLS13,
        }
    }
}

impl FromStr for TlsVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "VersionTLS12" => Ok(Self::Tls12),
            "VersionTLS13" => Ok(Self::Tls13),
            _ => Err(format!("{text:?} is none of VersionTLS12 and VersionTLS13")),
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls12 => "VersionTLS12",
            Self::Tls13 => "VersionTLS13",
        })
    }
}

// === impl Alpn ===

impl Alpn {
    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::H2 => vec![b"h2".to_vec()],
            Self::Http1 => vec![b"http/1.1".to_vec()],
            Self::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }
}

// === impl Served ===

impl Served {
    fn new(config: ServerConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(config)))
    }

    fn replace(&self, config: ServerConfig) {
        self.0.store(Arc::new(config));
    }

    fn load(&self) -> Arc<ServerConfig> {
        self.0.load_full()
    }
}

// === impl Fixed ===

impl Fixed {
    /// A configuration that serves `pair`, to `clients` alone if there are any.
    fn config(
        self,
        pair: &Pair,
        clients: Option<&Arc<dyn ClientCertVerifier>>,
    ) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(self.min_version.and_newer())?;
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
            None => builder.with_no_client_auth(),
        };
        let resolver = Arc::new(SingleCertAndKey::from(pair.key()));
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = self.alpn.protocols();
        // the client of a resumed session is not verified again
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}
