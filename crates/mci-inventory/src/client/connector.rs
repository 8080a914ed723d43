//! TCP and TLS to a member.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use kube::{
    Config,
    client::{ConfigExt, RustlsTlsError},
};
use rustls::client::Resumption;
use tokio::time::timeout;
use tower::{BoxError, Service};

/// How long a TCP and TLS handshake may take; the whole connect has 10 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence before the first probe of a link; with the probes a dead one is found in 14 s at most.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;
/// Bytes sent and not acknowledged for so long end the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Sessions kept for resumption. A client speaks to one server; the library keeps 256.
const SESSIONS: usize = 4;

/// Gives up a handshake that takes too long, whoever waits for it.
#[derive(Clone, Debug)]
pub(super) struct Hasty<C>(C);

/// # Errors
/// When certificates or keys do not decode.
pub(super) fn connector(
    config: &Config,
) -> Result<Hasty<HttpsConnector<HttpConnector>>, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let mut tls = config.rustls_client_config()?;
    tls.resumption = Resumption::in_memory_sessions(SESSIONS);
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into();
        let name =
            name.map_err(|error| kube::Error::RustlsTls(RustlsTlsError::InvalidServerName(error)))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(Hasty(builder.enable_all_versions().wrap_connector(tcp)))
}

// === impl Hasty ===

impl<C> Service<Uri> for Hasty<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
    C::Response: Send,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            match timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(format!("no connection within {CONNECT_TIMEOUT:?}").into()),
            }
        })
    }
}
