//! Credentials out of a kubeconfig, and which of them we refuse (spec 5.2).
//!
//! A kubeconfig comes from outside: it must not run programs, read files, impersonate or be used without TLS. No error here
//! quotes the file, so no secret of it reaches a log.

use std::fmt;

use foreign_text::{Limits, read};
use futures::FutureExt;
use kube::{
    Config,
    config::{
        AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster,
        NamedContext,
    },
};
use xxhash_rust::xxh3::xxh3_64;
use zeroize::Zeroizing;

use crate::client::{self, BadMaterial, MemberTurns, Ways};
use mci_model::index::member::Refusal;

/// Largest kubeconfig that is read, in bytes.
pub(crate) const MAX_BYTES: usize = 1024 * 1024;

/// A kubeconfig of one cluster has some twenty values, and needs no alias.
const LIMITS: Limits = Limits {
    text: MAX_BYTES,
    expanded: MAX_BYTES,
    values: 1 << 14,
};

/// What a client of a member is made of: server, certificates, token. `Debug` shows the server alone. Equal if made from
/// the same text.
#[derive(Clone)]
pub struct Credentials {
    config: Config,
    /// Hash of what they were made from.
    fingerprint: u64,
    /// Used instead of one that the configuration gives.
    #[cfg(any(test, feature = "fixtures"))]
    scripted: Option<kube::Client>,
}

/// Why a kubeconfig is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    /// More bytes than are read.
    #[error("the kubeconfig is larger than 1 MiB: that of one cluster is expected")]
    TooLarge,
    /// Of a file.
    #[error("the file cannot be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// Where, as " (line 1, column 2)"; empty where that is not known.
    #[error(
        "no kubeconfig{0}: YAML with clusters, users, contexts and current-context is expected"
    )]
    Malformed(String),
    /// No current context.
    #[error(
        "current-context is missing, or names no context of the kubeconfig: set it to one of them"
    )]
    NoContext,
    /// No server.
    #[error("the current context names no cluster of the kubeconfig, or one without a server")]
    NoCluster,
    /// No URL of a server.
    #[error("the server is no https:// URL of a host and an optional path")]
    BadServer,
    /// What does not decode.
    #[error("a certificate, key or token is not valid")]
    BadMaterial,
    /// A proxy is asked for.
    #[error("proxy-url is not supported: give an address that is reached directly")]
    Proxy,
    /// What is refused, by its name in the kubeconfig.
    #[error("{0} is refused: give the token or the certificates as data in the kubeconfig")]
    Insecure(&'static str),
}

// === impl Credentials ===

impl Credentials {
    /// Reads and checks a kubeconfig; its current context counts, nothing else of it is ever used.
    /// # Errors
    /// Why it is refused.
    pub fn parse(bytes: &[u8], allow_plain_http: bool) -> Result<Self, KubeconfigError> {
        if bytes.len() > MAX_BYTES {
            return Err(KubeconfigError::TooLarge);
        }
        let kubeconfig: Kubeconfig = read(bytes, LIMITS).map_err(|error| {
            let place = error
                .place()
                .map(|at| format!(" (line {}, column {})", at.line, at.column));
            KubeconfigError::Malformed(place.unwrap_or_default())
        })?;
        let (cluster, user) = select(&kubeconfig)?;
        check_cluster(cluster, allow_plain_http)?;
        if let Some(user) = user {
            check_user(user)?;
        }
        let has_proxy = cluster.proxy_url.is_some();
        Self::build(kubeconfig, has_proxy, xxh3_64(bytes))
    }

    /// What a credential plugin issued for a cluster.
    /// # Errors
    /// Why the cluster or what was issued is refused.
    pub(crate) fn issued(
        cluster: Cluster,
        user: AuthInfo,
        allow_plain_http: bool,
    ) -> Result<Self, KubeconfigError> {
        check_cluster(&cluster, allow_plain_http)?;
        check_user(&user)?;
        let text = Zeroizing::new(
            serde_json::to_vec(&(&cluster, &user)).map_err(|_| KubeconfigError::BadMaterial)?,
        );
        let has_proxy = cluster.proxy_url.is_some();
        let name = || "member".to_owned();
        let kubeconfig = Kubeconfig {
            clusters: vec![NamedCluster {
                name: name(),
                cluster: Some(cluster),
                ..NamedCluster::default()
            }],
            auth_infos: vec![NamedAuthInfo {
                name: name(),
                auth_info: Some(user),
                ..NamedAuthInfo::default()
            }],
            contexts: vec![NamedContext {
                name: name(),
                context: Some(Context {
                    cluster: name(),
                    user: Some(name()),
                    ..Context::default()
                }),
                ..NamedContext::default()
            }],
            current_context: Some(name()),
            ..Kubeconfig::default()
        };
        Self::build(kubeconfig, has_proxy, xxh3_64(&text))
    }

    /// Of the home cluster, which the operator reaches as they like.
    pub(crate) fn of_home(config: Config) -> Self {
        let fingerprint = xxh3_64(config.cluster_url.to_string().as_bytes());
        Self::made(config, fingerprint)
    }

    fn build(
        kubeconfig: Kubeconfig,
        has_proxy: bool,
        fingerprint: u64,
    ) -> Result<Self, KubeconfigError> {
        // it waits for nothing: all of it is data
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .now_or_never()
            .and_then(Result::ok)
            .ok_or(KubeconfigError::BadMaterial)?;
        if has_proxy {
            return Err(KubeconfigError::Proxy);
        }
        // kube takes proxies from the environment too: a member's address is meant as it is
        config.proxy_url = None;
        Ok(Self::made(config, fingerprint))
    }

    fn made(config: Config, fingerprint: u64) -> Self {
        Self {
            config,
            fingerprint,
            #[cfg(any(test, feature = "fixtures"))]
            scripted: None,
        }
    }

    /// A new client, without a connection yet; its lists wait for these turns.
    /// # Errors
    /// When certificates or keys do not decode.
    pub fn client(&self, turns: MemberTurns) -> Result<Ways, BadMaterial> {
        #[cfg(any(test, feature = "fixtures"))]
        if let Some(client) = &self.scripted {
            return Ok(client.clone().into());
        }
        client::make(&self.config, turns)
    }

    /// Credentials that lead nowhere.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn for_tests() -> Self {
        let url = http::Uri::from_static("https://192.0.2.1:6443");
        Self {
            config: Config::new(url),
            fingerprint: 0,
            scripted: None,
        }
    }

    /// Credentials that lead to this client's server.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn scripted(client: kube::Client) -> Self {
        Self {
            scripted: Some(client),
            ..Self::for_tests()
        }
    }

    /// Credentials of which no client can be made.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn undecodable() -> Self {
        let mut it = Self::for_tests();
        it.config.root_cert = Some(vec![b"no certificate".to_vec()]);
        it
    }

    /// What a client is configured with, for a caller with clients of its own.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The API server's URL, for people; there is no secret in it.
    pub fn server(&self) -> String {
        self.config.cluster_url.to_string()
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.server())
    }
}

fn select(kubeconfig: &Kubeconfig) -> Result<(&Cluster, Option<&AuthInfo>), KubeconfigError> {
    let context = kubeconfig
        .current_context
        .as_ref()
        .and_then(|name| kubeconfig.contexts.iter().find(|one| one.name == *name))
        .and_then(|one| one.context.as_ref())
        .ok_or(KubeconfigError::NoContext)?;
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|one| one.name == context.cluster)
        .and_then(|one| one.cluster.as_ref())
        .ok_or(KubeconfigError::NoCluster)?;
    let user = context.user.as_ref().and_then(|name| {
        let named = kubeconfig.auth_infos.iter().find(|one| one.name == *name);
        named.and_then(|one| one.auth_info.as_ref())
    });
    Ok((cluster, user))
}

pub(super) fn check_cluster(
    cluster: &Cluster,
    allow_plain_http: bool,
) -> Result<(), KubeconfigError> {
    let server = cluster
        .server
        .as_deref()
        .ok_or(KubeconfigError::NoCluster)?;
    let url: http::Uri = server.parse().map_err(|_| KubeconfigError::BadServer)?;
    match url.scheme_str() {
        Some("https") => {}
        Some("http") if allow_plain_http => {}
        Some("http") => return Err(KubeconfigError::Insecure("an http:// server")),
        _ => return Err(KubeconfigError::BadServer),
    }
    // both may hold secrets, and the URL is shown
    let authority = url.authority().map_or("", http::uri::Authority::as_str);
    if authority.contains('@') {
        return Err(KubeconfigError::Insecure("a user in the server's URL"));
    }
    if url.query().is_some() {
        return Err(KubeconfigError::Insecure("a query in the server's URL"));
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Err(KubeconfigError::Insecure("insecure-skip-tls-verify"));
    }
    if cluster.certificate_authority.is_some() {
        return Err(KubeconfigError::Insecure(
            "certificate-authority (a file path)",
        ));
    }
    Ok(())
}

fn check_user(user: &AuthInfo) -> Result<(), KubeconfigError> {
    let refused = [
        (user.exec.is_some(), "exec"),
        (user.auth_provider.is_some(), "auth-provider"),
        (user.token_file.is_some(), "tokenFile"),
        (
            user.client_certificate.is_some(),
            "client-certificate (a file path)",
        ),
        (user.client_key.is_some(), "client-key (a file path)"),
        (
            user.username.is_some() || user.password.is_some(),
            "basic authentication",
        ),
        (
            user.impersonate.is_some()
                || user.impersonate_uid.is_some()
                || user.impersonate_groups.is_some()
                || user.impersonate_user_extra.is_some(),
            "impersonation",
        ),
    ];
    match refused.iter().find(|(present, _)| *present) {
        Some((_, what)) => Err(KubeconfigError::Insecure(what)),
        None => Ok(()),
    }
}

// === impl KubeconfigError ===

impl KubeconfigError {
    /// How the member shows it.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Insecure(_) => Refusal::InsecureCredentials,
            _ => Refusal::BadCredentials,
        }
    }
}

#[cfg(test)]
mod tests;
