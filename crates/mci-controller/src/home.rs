//! Finds the home cluster and connects to it.
//!
//! Its kubeconfig is the operator's own and may hold anything that kubectl accepts. Only its form is checked at start; the
//! first contact is retried until it succeeds.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use process::ConfigError;
use tokio::time::{sleep, timeout};

use crate::client::MAX_WATCH;
use mci_inventory::Home;
use watch::backoff;

/// How to reach home.
#[derive(Clone)]
pub(crate) struct HomeConfig {
    config: Config,
    namespace: String,
}

/// Why the identity of the home cluster is unknown.
#[derive(Debug, thiserror::Error)]
enum HomeError {
    #[error("no answer within {0:?}: expected the home cluster's API server")]
    Timeout(Duration),
    #[error("{0}")]
    Call(String),
    #[error("its kube-system namespace has no uid: expected a Kubernetes API server")]
    NoIdentity,
}

/// The namespace if neither flag nor service account names one.
const DEFAULT_NAMESPACE: &str = "isthmus-system";
/// As for members: a TCP and TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time without data on a connection: the server ends a watch without events earlier.
const READ_TIMEOUT: Duration = Duration::from_secs(50);
const _: () = assert!(READ_TIMEOUT.as_secs() > MAX_WATCH.as_secs());
/// The whole first contact: a handshake and one call.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

// === impl HomeConfig ===

impl HomeConfig {
    /// The kubeconfig of the flag, else the service account of this pod, else the file that `KUBECONFIG` names; none of
    /// them: no home.
    /// # Errors
    /// When the one that exists cannot be used.
    pub(crate) async fn find(
        kubeconfig: Option<&Path>,
        namespace: Option<&str>,
    ) -> Result<Option<Self>, ConfigError> {
        let (config, own_namespace) = match kubeconfig {
            Some(path) => {
                let flag = format!("--home-kubeconfig {}", path.display());
                let read = Kubeconfig::read_from(path);
                (load(read, &flag).await?, None)
            }
            None => match Config::incluster() {
                Ok(config) => {
                    let own = config.default_namespace.clone();
                    (config, Some(own))
                }
                Err(error) => {
                    if !matches!(error, InClusterError::ReadEnvironmentVariable(_)) {
                        tracing::warn!(%error, "this is a pod, but its service account cannot be used");
                    }
                    match Kubeconfig::from_env().transpose() {
                        Some(read) => (load(read, "KUBECONFIG").await?, None),
                        None => return Ok(None),
                    }
                }
            },
        };
        let namespace = namespace.map(ToOwned::to_owned).or(own_namespace);
        Ok(Some(Self::new(
            config,
            namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        )))
    }

    fn new(mut config: Config, namespace: String) -> Self {
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // the layer repeats 429, 503 and 504 inside one call, past every deadline of ours
        config.default_retry = false;
        Self { config, namespace }
    }

    /// Connects; retries without end.
    /// # Errors
    /// When certificates, keys or the credential plugin of the kubeconfig cannot be used.
    pub(crate) async fn connect(&self) -> Result<Home, ConfigError> {
        let client = Client::try_from(self.config.clone()).map_err(|error| {
            ConfigError::new(
                format!("credentials of the home cluster: {error}"),
                "certificates, keys, a token or a credential plugin that can be used",
                "--home-kubeconfig /etc/isthmus/home.kubeconfig",
            )
        })?;
        let server = self.config.cluster_url.to_string();
        let uid = contact(&client, &server).await;
        tracing::info!(server, namespace = self.namespace, uid, "home cluster");
        Ok(Home {
            client,
            config: self.config.clone(),
            namespace: self.namespace.clone(),
            uid,
        })
    }
}

async fn load(
    read: Result<Kubeconfig, KubeconfigError>,
    source: &str,
) -> Result<Config, ConfigError> {
    let refused = |error: KubeconfigError| {
        let problem = match error {
            // it quotes the file with its secrets
            KubeconfigError::Parse(_) => "not the YAML of a kubeconfig".to_owned(),
            other => other.to_string(),
        };
        ConfigError::new(
            format!("{source}: {problem}"),
            "a kubeconfig whose current context leads to the home cluster",
            "--home-kubeconfig /etc/isthmus/home.kubeconfig",
        )
    };
    let kubeconfig = read.map_err(refused)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(refused)
}

/// Reads the identity of the cluster; retries without end.
async fn contact(client: &Client, server: &str) -> String {
    let mut failures = 0_u32;
    loop {
        match timeout(CONTACT_TIMEOUT, identity(client)).await {
            Ok(Ok(uid)) => return uid,
            Ok(Err(error)) => tracing::warn!(server, %error, "no contact with the home cluster"),
            Err(_) => {
                let error = HomeError::Timeout(CONTACT_TIMEOUT);
                tracing::warn!(server, %error, "no contact with the home cluster");
            }
        }
        failures = failures.saturating_add(1);
        let wait = backoff(failures, RETRY_MIN, RETRY_MAX, &mut rand::rng());
        sleep(wait).await;
    }
}

async fn identity(client: &Client) -> Result<String, HomeError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = namespaces
        .get_metadata("kube-system")
        .await
        // the root cause alone: the outer errors repeat it
        .map_err(|error| HomeError::Call(anyhow::Error::from(error).root_cause().to_string()))?;
    system.metadata.uid.ok_or(HomeError::NoIdentity)
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::Instant;

    use super::*;

    const KUBECONFIG: &str = "current-context: it\n\
        contexts: [{name: it, context: {cluster: c, user: u, namespace: other}}]\n\
        clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n\
        users: [{name: u, user: {token: t0ps3cr3t}}]\n";

    async fn find(text: &str, namespace: Option<&str>) -> Result<Option<HomeConfig>, ConfigError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        HomeConfig::find(Some(file.path()), namespace).await
    }

    #[tokio::test]
    async fn a_kubeconfig_leads_home_and_the_flag_names_the_namespace() {
        let home = find(KUBECONFIG, None).await.expect("valid").expect("home");
        assert_eq!(home.namespace, "isthmus-system");
        assert_eq!(home.config.cluster_url.to_string(), "https://127.0.0.1:1/");
        assert!(!home.config.default_retry);
        let home = find(KUBECONFIG, Some("mine")).await.expect("valid");
        assert_eq!(home.expect("home").namespace, "mine");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_leads_nowhere_is_named_without_its_secrets() {
        let broken = KUBECONFIG.replace("cluster: c,", "cluster: x,");
        for text in ["]{ t0ps3cr3t", &broken] {
            let error = find(text, None).await.err().expect("refused").to_string();
            assert!(error.contains("--home-kubeconfig /"), "{error}");
            assert!(!error.contains("t0ps3cr3t"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn contact_is_tried_until_the_identity_of_home_is_known() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let started = Instant::now();
        let mut asking = std::pin::pin!(contact(&client, "https://home"));
        let mut calls = 0;
        let script = async {
            for answer in ["hang", "refuse", "none", "answer"] {
                let (request, send) = handle.next_request().await.expect("a request");
                assert_eq!(request.uri().path(), "/api/v1/namespaces/kube-system");
                calls += 1;
                let (status, body) = match answer {
                    "hang" => {
                        // held until the deadline has passed
                        sleep(CONTACT_TIMEOUT + Duration::from_millis(1)).await;
                        continue;
                    }
                    "refuse" => (
                        403,
                        r#"{"kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":"no"}"#,
                    ),
                    "none" => (200, r#"{"metadata":{"name":"kube-system"}}"#),
                    _ => (200, r#"{"metadata":{"name":"kube-system","uid":"u-1"}}"#),
                };
                let response = Response::builder().status(status);
                let body = Body::from(body.as_bytes().to_vec());
                send.send_response(response.body(body).expect("a response"));
            }
        };
        let (uid, ()) = tokio::join!(&mut asking, script);
        assert_eq!((uid.as_str(), calls), ("u-1", 4));
        let waited = started.elapsed();
        assert!(waited >= CONTACT_TIMEOUT + RETRY_MIN * 3, "{waited:?}");
    }
}
