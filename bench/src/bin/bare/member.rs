//! One member: one connection, and requests that are made once.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use crd::annotations::{IMPORT_GROUP, IMPORT_PLURAL, MCI_CONTROLLER, POOL_GROUP};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, Connection, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::{
    Config,
    client::ConfigExt,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A member that requests can be sent to.
pub(crate) struct Member {
    name: String,
    send: SendRequest<Full<Bytes>>,
    base: Uri,
    apply: Uri,
    headers: HeaderMap,
}

/// What carries the requests; ends with the connection.
pub(crate) type Carrier = Connection<TokioIo<TlsStream<TcpStream>>, Full<Bytes>, TokioExecutor>;

const APPLY: HeaderValue = HeaderValue::from_static("application/apply-patch+yaml");
/// As the controller asks: of a success nothing is needed.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
/// Of a refusal, for its message.
const MAX_REFUSAL: usize = 64 * 1024;

// === impl Member ===

impl Member {
    /// Connects to the API server of a kubeconfig, which is the member's name.
    pub(crate) async fn connect(
        file: &Path,
        namespace: &str,
        name: &str,
    ) -> Result<(Self, Carrier)> {
        let kubeconfig = Kubeconfig::read_from(file)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        let base = config.cluster_url.clone();
        let host = base.host().context("a URL without a host")?.to_owned();
        ensure!(
            base.scheme_str() == Some("https"),
            "HTTP/2 is spoken over TLS alone"
        );
        let mut tls = config.rustls_client_config()?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect((host.as_str(), base.port_u16().unwrap_or(443))).await?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(std::sync::Arc::new(tls))
            .connect(ServerName::try_from(host)?, stream)
            .await?;
        let (send, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;

        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, APPLY);
        headers.insert(header::ACCEPT, METADATA_ONLY);
        if let Some(token) = &config.auth_info.token {
            let value = format!("Bearer {}", token.expose_secret());
            headers.insert(header::AUTHORIZATION, value.parse()?);
        }
        let version = crd::import::VERSION;
        let apply = format!(
            "/apis/{IMPORT_GROUP}/{version}/namespaces/{namespace}/{IMPORT_PLURAL}/{name}/status?fieldManager={MCI_CONTROLLER}&force=false"
        );
        let member = Self {
            name: file
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            send,
            apply: at(&base, &apply)?,
            base,
            headers,
        };
        Ok((member, connection))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// All changes of imports from now on.
    pub(crate) async fn watch_imports(&self) -> Result<Incoming> {
        let version = crd::import::VERSION;
        self.watch(&format!("/apis/{IMPORT_GROUP}/{version}/{IMPORT_PLURAL}"))
            .await
    }

    /// All changes of pools from now on.
    pub(crate) async fn watch_pools(&self) -> Result<Incoming> {
        self.watch(&format!("/apis/{POOL_GROUP}/v1/inferencepools"))
            .await
    }

    async fn watch(&self, path: &str) -> Result<Incoming> {
        let uri = at(&self.base, &format!("{path}?watch=true&resourceVersion=0"))?;
        let mut request = Request::builder().uri(uri).body(Full::default())?;
        if let Some(token) = self.headers.get(header::AUTHORIZATION) {
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, token.clone());
        }
        let answer = self.send.clone().send_request(request).await?;
        ensure!(answer.status().is_success(), "{path}: {}", answer.status());
        Ok(answer.into_body())
    }

    /// Applies the body to the import's status, and drops the answer.
    pub(crate) async fn apply(&self, body: Bytes) -> Result<()> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::PATCH;
        *request.uri_mut() = self.apply.clone();
        *request.headers_mut() = self.headers.clone();
        let answer = self.send.clone().send_request(request).await?;
        let (parts, mut body) = answer.into_parts();
        if !parts.status.is_success() {
            let text = Limited::new(body, MAX_REFUSAL).collect().await;
            let text = text.map(Collected::to_bytes).unwrap_or_default();
            let name = &self.name;
            bail!(
                "{name}: {}: {}",
                parts.status,
                String::from_utf8_lossy(&text)
            );
        }
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(())
    }
}

fn at(base: &Uri, path: &str) -> Result<Uri> {
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path)?);
    Ok(Uri::from_parts(parts)?)
}
