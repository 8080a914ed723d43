//! TLS of a port whose certificate its program makes itself, for the clients of one CA.

use std::sync::Arc;

use rustls::server::danger::ClientCertVerifier;

use super::{
    Acceptor, Alpn, Fixed, Served, TlsError, TlsVersion,
    clients::verifier,
    metrics::PortTls,
    pair::{Pair, PairPem},
};

/// Both ends are of one program's making: they speak the newest version, and gRPC.
const FIXED: Fixed = Fixed {
    min_version: TlsVersion::Tls13,
    alpn: Alpn::H2,
};

/// Replaces the certificate of a port that lets in only clients of one CA.
#[derive(Clone, Debug)]
pub struct MadeTls {
    clients: Arc<dyn ClientCertVerifier>,
    served: Served,
    metrics: PortTls,
}

// === impl MadeTls ===

impl MadeTls {
    /// Accepts connections with this certificate and key, both PEM, from clients with a certificate of `client_ca`.
    ///
    /// # Errors
    /// [`TlsError`] when a part cannot be used.
    pub fn begin(
        client_ca: &[u8],
        chain: Vec<u8>,
        key: Vec<u8>,
        metrics: PortTls,
    ) -> Result<(Acceptor, Self), TlsError> {
        let clients = verifier(client_ca, &[]).map_err(TlsError::ClientCa)?;
        let pair = Pair::parse(&PairPem { chain, key }).map_err(TlsError::Pair)?;
        let config = FIXED.config(&pair, Some(&clients));
        let served = Served::new(config.map_err(TlsError::Unusable)?);
        metrics.serves_until(pair.not_after());
        let acceptor = Acceptor::tls(served.clone(), metrics.clone());
        let made = Self {
            clients,
            served,
            metrics,
        };
        Ok((acceptor, made))
    }

    /// Serves new connections with another certificate and key.
    ///
    /// # Errors
    /// [`TlsError`] when they cannot be used; the former ones are served on.
    pub fn replace(&self, chain: Vec<u8>, key: Vec<u8>) -> Result<(), TlsError> {
        let pair = Pair::parse(&PairPem { chain, key }).map_err(TlsError::Pair)?;
        let config = FIXED.config(&pair, Some(&self.clients));
        self.served.replace(config.map_err(TlsError::Unusable)?);
        self.metrics.serves_until(pair.not_after());
        Ok(())
    }
}
