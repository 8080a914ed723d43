//! What a test or a demo needs of a cluster, and no more than any cluster has: client, kubeconfig, kubectl.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tokio::time::timeout;

use crate::apply;
use crate::error::TestbedError;
use crate::kubeconfig::{Credentials, make_kubeconfig};

/// Longer than any run.
const TOKEN_LIFETIME_S: i64 = 24 * 3600;
/// One request or one kubectl command.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A cluster, seen through a kubeconfig: one of the testbed's, or any other. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    name: String,
    client: Client,
    kubeconfig: PathBuf,
    /// Of the kubeconfig; absent: its current one.
    context: Option<String>,
    kubectl: PathBuf,
}

// === impl Cluster ===

impl Cluster {
    /// Any cluster a kubeconfig file leads to, by its current context; `name` is what the caller calls it.
    ///
    /// # Errors
    /// When the file cannot be read or used.
    pub async fn from_kubeconfig(
        name: &str,
        path: &Path,
        kubectl: &Path,
    ) -> Result<Self, TestbedError> {
        Self::from_options(name, path, None, kubectl).await
    }

    /// The cluster that one context of a kubeconfig file leads to, called like the context.
    ///
    /// # Errors
    /// When the file cannot be read or used, or has no such context.
    pub async fn from_context(
        context: &str,
        path: &Path,
        kubectl: &Path,
    ) -> Result<Self, TestbedError> {
        Self::from_options(context, path, Some(context), kubectl).await
    }

    async fn from_options(
        name: &str,
        path: &Path,
        context: Option<&str>,
        kubectl: &Path,
    ) -> Result<Self, TestbedError> {
        let invalid = |problem: String| TestbedError::Kubeconfig {
            cluster: name.to_owned(),
            problem,
        };
        let config = Kubeconfig::read_from(path).map_err(|error| invalid(error.to_string()))?;
        let options = KubeConfigOptions {
            context: context.map(str::to_owned),
            ..KubeConfigOptions::default()
        };
        let mut config = kube::Config::from_custom_kubeconfig(config, &options)
            .await
            .map_err(|error| invalid(error.to_string()))?;
        // an environment's proxy is not for addresses of this machine
        config.proxy_url = None;
        Ok(Self {
            name: name.to_owned(),
            client: Client::try_from(config).map_err(|error| invalid(error.to_string()))?,
            kubeconfig: path.to_owned(),
            context: context.map(str::to_owned),
            kubectl: kubectl.to_owned(),
        })
    }

    /// What the cluster is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An administrator's client; each call of it should have a deadline.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig file.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// Applies every document of `yaml` by server-side apply (field manager `testbed`, forced): CRDs first, which are
    /// waited for, then namespaces, then the rest in order. Without a namespace an object goes to `default`.
    ///
    /// # Errors
    /// At the first document that is refused, with its kind and name; what stood before it is applied.
    pub async fn apply_yaml(&self, yaml: &str) -> Result<(), TestbedError> {
        Ok(apply::apply_yaml(&self.client, yaml).await?)
    }

    /// As [`Cluster::apply_yaml`], from a file.
    ///
    /// # Errors
    /// As [`Cluster::apply_yaml`], or when the file cannot be read.
    pub async fn apply_file(&self, path: &Path) -> Result<(), TestbedError> {
        Ok(apply::apply_file(&self.client, path).await?)
    }

    /// Runs kubectl against this cluster and returns its standard output.
    ///
    /// # Errors
    /// With its standard error when it fails, or when it takes more than 30 s.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String, TestbedError> {
        let failed = |problem: String| TestbedError::Kubectl {
            cluster: self.name.clone(),
            arguments: arguments.join(" "),
            problem,
        };
        let mut command = tokio::process::Command::new(&self.kubectl);
        let context = self
            .context
            .iter()
            .flat_map(|context| ["--context", context]);
        command
            .args(context)
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        match timeout(REQUEST_LIMIT, command.output()).await {
            Ok(Ok(output)) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(Ok(output)) => Err(failed(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            )),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no end after {REQUEST_LIMIT:?}"))),
        }
    }

    /// The text of a kubeconfig whose user is a ServiceAccount, with a token that lives a day; what it may do is what
    /// RBAC grants that account. Server and certificate authority are those of this cluster's own kubeconfig.
    ///
    /// # Errors
    /// When the account does not exist or the API server does not answer.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<String, TestbedError> {
        let failed = |problem: String| TestbedError::Request {
            cluster: self.name.clone(),
            what: format!("token of ServiceAccount {namespace}/{name}"),
            problem,
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_LIFETIME_S),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let answer = timeout(
            REQUEST_LIMIT,
            accounts.create_token_request(name, &params, &request),
        )
        .await
        .map_err(|elapsed| failed(elapsed.to_string()))?
        .map_err(|error| failed(error.to_string()))?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();

        let (server, authority) = self.server().map_err(failed)?;
        Ok(make_kubeconfig(
            &self.name,
            &server,
            &authority,
            name,
            Credentials::Token(&token),
        ))
    }

    /// The server's URL and its certificate authority, PEM.
    pub(crate) fn server(&self) -> Result<(String, String), String> {
        use base64::Engine as _;
        let config = Kubeconfig::read_from(&self.kubeconfig).map_err(|error| error.to_string())?;
        let context = self.context.as_ref().or(config.current_context.as_ref());
        let mut contexts = config.contexts.into_iter();
        let context =
            contexts.find_map(|named| named.context.filter(|_| Some(&named.name) == context));
        let context = context.ok_or("the kubeconfig has no such context")?;
        let mut clusters = config.clusters.into_iter();
        let cluster =
            clusters.find_map(|named| named.cluster.filter(|_| named.name == context.cluster));
        let cluster = cluster.ok_or("the kubeconfig has no cluster")?;
        let authority = match (
            cluster.certificate_authority_data,
            cluster.certificate_authority,
        ) {
            (Some(data), _) => base64::prelude::BASE64_STANDARD
                .decode(data)
                .map_err(|error| error.to_string())?,
            (None, Some(path)) => std::fs::read(path).map_err(|error| error.to_string())?,
            (None, None) => return Err("the kubeconfig has no certificate authority".to_owned()),
        };
        let authority = String::from_utf8(authority).map_err(|error| error.to_string())?;
        Ok((cluster.server.unwrap_or_default(), authority))
    }
}
