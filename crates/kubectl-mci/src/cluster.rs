//! One cluster, through a context of the kubeconfig: each call has a deadline, and an error that names the cluster, the
//! object and the next step.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    },
    config::KubeConfigOptions,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use mci_inventory::client::{CertificateProblem, certificate_problem};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{cause::cause, contexts::Contexts};

/// Field manager of all that the plugin writes.
pub(crate) const FIELD_MANAGER: &str = "kubectl-mci";
/// One call. A list of all imports of a member may take seconds.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// All that one command reads of one cluster.
const CLUSTER_LIMIT: Duration = Duration::from_mins(1);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A login in a browser takes a while.
const LOGIN_LIMIT: Duration = Duration::from_mins(1);
/// Variables by which kubectl finds a proxy.
const PROXIES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
/// The namespace whose uid is the cluster's.
const IDENTITY: &str = "kube-system";

/// A cluster and how it is reached. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// What it is called: its name in the ClusterSet where that is known, else its context.
    pub(crate) name: String,
    pub(crate) context: String,
    client: Client,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{cluster}: no client: {problem}; see `kubectl --context {context} version`")]
    NoClient {
        cluster: String,
        context: String,
        problem: String,
    },
    #[error(
        "{cluster}: cannot {what}: no answer within {CALL_LIMIT:?}; see `kubectl --context {context} version`"
    )]
    Timeout {
        cluster: String,
        context: String,
        what: String,
    },
    #[error(
        "{cluster}: cannot {what}: {problem}; see whether context {context} leads to a running cluster: `kubectl --context {context} version`"
    )]
    NoAnswer {
        cluster: String,
        context: String,
        what: String,
        problem: String,
        /// The server answered with a certificate that is rejected.
        certificate: Option<CertificateProblem>,
    },
    #[error("{cluster}: cannot {what}: {message}; {next}")]
    Refused {
        cluster: String,
        what: String,
        code: u16,
        message: String,
        next: String,
    },
}

/// An object of a manifest, and where it is read and written.
struct Named {
    api: Api<DynamicObject>,
    label: String,
    name: String,
}

// === impl Cluster ===

impl Cluster {
    /// Makes a client; nothing is sent yet, but a credential plugin of the kubeconfig may run, for at most [`LOGIN_LIMIT`].
    pub(crate) async fn connect(
        contexts: &Contexts,
        context: &str,
        name: &str,
    ) -> Result<Self, CallError> {
        let failed = |problem: String| CallError::NoClient {
            cluster: name.to_owned(),
            context: context.to_owned(),
            problem,
        };
        let options = KubeConfigOptions {
            context: Some(context.to_owned()),
            ..KubeConfigOptions::default()
        };
        let kubeconfig = contexts.kubeconfig().clone();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.map_err(|error| failed(cause(&error)))?;
        // a proxy of the environment would be used for hosts of NO_PROXY too
        let proxy = contexts.cluster(context).ok();
        if proxy.is_none_or(|cluster| cluster.proxy_url.is_none()) {
            config.proxy_url = None;
        }
        let config = Self::bounded(config);
        let client = within(LOGIN_LIMIT, || {
            Client::try_from(config).map_err(|error| cause(&error))
        });
        Ok(Self {
            name: name.to_owned(),
            context: context.to_owned(),
            client: client.await.map_err(failed)?,
        })
    }

    /// The same, but that nothing of it is repeated or waits for long.
    pub(crate) fn bounded(mut config: Config) -> Config {
        config.connect_timeout = Some(CONNECT_LIMIT);
        // a call that is repeated up to 15 times has no deadline
        config.default_retry = false;
        config
    }

    /// A cluster behind a client of the caller's.
    pub(crate) fn behind(client: Client, name: &str, context: &str) -> Self {
        Self {
            name: name.to_owned(),
            context: context.to_owned(),
            client,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client(), namespace)
    }

    /// Waits for one call, at most so long.
    pub(crate) async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, CallError> {
        match timeout(CALL_LIMIT, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failed(what, &error)),
            Err(_) => Err(CallError::Timeout {
                cluster: self.name.clone(),
                context: self.context.clone(),
                what: what.to_owned(),
            }),
        }
    }

    /// Waits for several calls that belong together.
    pub(crate) async fn in_time<T>(
        &self,
        calls: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, String> {
        match timeout(CLUSTER_LIMIT, calls).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) => Err(format!(
                "{}: it answers too slowly: not all of it was read within {CLUSTER_LIMIT:?}",
                self.name
            )),
        }
    }

    pub(crate) async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let what = format!("read {} {namespace}/{name}", K::kind(&()));
        self.call(&what, self.api::<K>(namespace).get_opt(name))
            .await
    }

    /// One object without a namespace.
    pub(crate) async fn get_global<K>(&self, name: &str) -> Result<Option<K>, CallError>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let what = format!("read {} {name}", K::kind(&()));
        let api: Api<K> = Api::all(self.client());
        self.call(&what, api.get_opt(name)).await
    }

    /// All of a kind, in a namespace or, with none, in all.
    pub(crate) async fn list<K>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<Vec<K>, CallError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api: Api<K> =
            namespace.map_or_else(|| Api::all(self.client()), |name| self.api::<K>(name));
        let place = namespace.map_or_else(String::new, |name| format!(" of {name}"));
        let what = format!("list {}{place}", K::plural(&()));
        Ok(self.call(&what, api.list(params)).await?.items)
    }

    /// The cluster's identity; none where it has none.
    pub(crate) async fn uid(&self) -> Result<Option<String>, CallError> {
        let namespace: Option<Namespace> = self.get_global(IDENTITY).await?;
        Ok(namespace.and_then(|namespace| namespace.uid()))
    }

    /// The body of what a GET of this path answers.
    pub(crate) async fn page(&self, what: &str, path: &str) -> Result<String, CallError> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError);
        let client = self.client();
        let call = async { client.request_text(request?).await };
        self.call(what, call).await
    }

    /// Applies an object by server-side apply; returns how it is called.
    pub(crate) async fn apply(&self, object: &Value, force: bool) -> Result<String, CallError> {
        let Named { api, label, name } = self.named(object);
        let mut params = PatchParams::apply(FIELD_MANAGER);
        params.force = force;
        let patch = Patch::Apply(object);
        let call = api.patch(&name, &params, &patch);
        self.call(&format!("apply {label}"), call).await?;
        Ok(label)
    }

    /// Sets an annotation of an object that is there, or takes it away.
    pub(crate) async fn annotate(
        &self,
        object: &Value,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), CallError> {
        let Named { api, label, name } = self.named(object);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let call = api.patch(&name, &params, &patch);
        self.call(&format!("annotate {label}"), call).await?;
        Ok(())
    }

    /// The object of this kind and name, if it is there.
    pub(crate) async fn find(&self, object: &Value) -> Result<Option<DynamicObject>, CallError> {
        let Named { api, label, name } = self.named(object);
        let call = api.get_opt(&name);
        self.call(&format!("get {label}"), call).await
    }

    /// Deletes an object, if it is there; returns how it is called.
    pub(crate) async fn delete(&self, object: &Value) -> Result<Option<String>, CallError> {
        let Named { api, label, name } = self.named(object);
        let params = DeleteParams::default();
        let call = api.delete(&name, &params);
        match self.call(&format!("delete {label}"), call).await {
            Ok(_) => Ok(Some(label)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An object as it stands in a manifest.
    fn named(&self, object: &Value) -> Named {
        let text = |pointer: &str| {
            let value = object.pointer(pointer).and_then(Value::as_str);
            value.unwrap_or_default()
        };
        let (version, kind) = (text("/apiVersion"), text("/kind"));
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let namespace = text("/metadata/namespace");
        let api = if namespace.is_empty() {
            Api::all_with(self.client(), &resource)
        } else {
            Api::namespaced_with(self.client(), namespace, &resource)
        };
        Named {
            api,
            label: label(object),
            name: text("/metadata/name").to_owned(),
        }
    }

    fn failed(&self, what: &str, error: &kube::Error) -> CallError {
        let context = &self.context;
        let status = match error {
            kube::Error::Api(status) => status,
            other => {
                return CallError::NoAnswer {
                    cluster: self.name.clone(),
                    context: context.clone(),
                    what: what.to_owned(),
                    problem: format!("{}{}", cause(other), proxy_hint(other)),
                    certificate: certificate_problem(other),
                };
            }
        };
        let next = match status.code {
            401 => format!("log in again: context {context} has no valid credentials"),
            403 => format!("the user of context {context} needs that right"),
            404 => format!("see `kubectl --context {context} api-resources`"),
            409 => "see who else writes it (`kubectl get --show-managed-fields -o yaml`), or take it over with --force-conflicts"
                .to_owned(),
            422 => "the cluster's version of this kind may be another".to_owned(),
            _ => "try again".to_owned(),
        };
        CallError::Refused {
            cluster: self.name.clone(),
            what: what.to_owned(),
            code: status.code,
            message: status.message.clone(),
            next,
        }
    }
}

// === impl CallError ===

impl CallError {
    /// Whether the API server does not know the kind.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// Whether the API server knows who asks, and that they may not.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. })
    }

    /// Whether the credentials are at fault, so that the cluster was not seen.
    pub(crate) fn is_of_credentials(&self) -> bool {
        self.is_unauthorized() || self.is_forbidden() || matches!(self, Self::NoClient { .. })
    }

    /// Why the certificate of the server is rejected, if that is why the call failed.
    pub(crate) fn certificate(&self) -> Option<CertificateProblem> {
        match self {
            Self::NoAnswer { certificate, .. } => *certificate,
            _ => None,
        }
    }

    /// What went wrong, without what to do.
    pub(crate) fn problem(&self) -> String {
        match self {
            Self::NoClient { problem, .. } | Self::NoAnswer { problem, .. } => problem.clone(),
            Self::Timeout { .. } => format!("no answer within {CALL_LIMIT:?}"),
            Self::Refused { message, .. } => message.clone(),
        }
    }

    /// Whether the API server takes the credentials for none of its own.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { code: 401, .. })
    }
}

/// What `make` makes, on a thread of its own: it may run a credential plugin, which may never end.
async fn within<T: Send + 'static>(
    limit: Duration,
    make: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match timeout(limit, tokio::task::spawn_blocking(make)).await {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!(
            "the credential plugin of the context has not ended within {limit:?}"
        )),
    }
}

/// Whether an object is part of a helm release: an upgrade of that refuses what others apply as well.
pub(crate) fn is_of_helm(object: &DynamicObject) -> bool {
    let by = object.labels().get("app.kubernetes.io/managed-by");
    by.is_some_and(|by| by == "Helm")
}

/// What to add where no server answered: kubectl may have reached it through a proxy.
fn proxy_hint(error: &kube::Error) -> &'static str {
    let is_call = matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_));
    if is_call && PROXIES.iter().any(|name| std::env::var_os(name).is_some()) {
        " (proxies of the environment are not used: set proxy-url in the kubeconfig)"
    } else {
        ""
    }
}

/// Kind, namespace and name of an object.
pub(crate) fn label(object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&metadata["name"]));
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Whether the API server knows who asks, and whether the credentials are at fault.
    #[rstest]
    #[case::log_in(401, false, true)]
    #[case::no_right(403, true, true)]
    #[case::a_proxy_without_the_cluster(404, false, false)]
    #[case::too_many(429, false, false)]
    #[case::a_proxy_of_a_dead_cluster(502, false, false)]
    fn credentials_are_at_fault_where_the_api_server_says_so(
        #[case] code: u16,
        #[case] is_forbidden: bool,
        #[case] is_of_credentials: bool,
    ) {
        let refused = CallError::Refused {
            cluster: "east".to_owned(),
            what: "list pods".to_owned(),
            code,
            message: String::new(),
            next: String::new(),
        };
        assert_eq!(refused.is_forbidden(), is_forbidden);
        assert_eq!(refused.is_of_credentials(), is_of_credentials);
    }

    #[tokio::test]
    async fn a_credential_plugin_that_hangs_is_given_up() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            // until the test has seen the end
            let _ = held.recv();
            Ok(())
        };
        let ended = within(Duration::from_millis(20), hangs).await;
        let problem = ended.expect_err("given up");
        assert!(problem.contains("has not ended within 20ms"), "{problem}");
        drop(release);
        assert_eq!(within(LOGIN_LIMIT, || Ok(1)).await, Ok(1));
    }
}
