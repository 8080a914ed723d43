//! A pair of clusters in which Isthmus runs, seen as any user sees them: by kubeconfigs, and by the URL of a gateway.
//!
//! Whose clusters they are, what installed the programs and what runs them is not known here. The pool is `llm/llama` in
//! both, as of `config/samples` or of a release `llama` of the chart; west has the Gateway `llm/inference`.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use anyhow::{Context, Result, ensure};
use crd::{
    Condition, InferencePoolImport, conditions, http_route::HttpRoute,
    inference_pool::InferencePool,
};
use http::Request;
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Pod, Service},
};
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use testbed::{Cluster, Requests, eventually, isthmus};
use tokio::time::timeout;

/// An answer that takes longer is a hang to a user, whatever its status.
pub const NO_ANSWER: Duration = Duration::from_secs(10);
/// Several steps of several programs, after a fault, on a busy machine.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);
/// One page of a pod, by way of its cluster's API server.
const PAGE_LIMIT: Duration = Duration::from_secs(20);

/// Two clusters with Isthmus: west imports what east exports.
pub struct Pair {
    /// Exports the sample pool.
    pub east: Cluster,
    /// Imports it; a gateway runs there.
    pub west: Cluster,
    /// Through west's gateway.
    pub gateway: Requests,
    /// Host and port of west's gateway.
    pub gateway_address: String,
}

// === impl Pair ===

impl Pair {
    /// Of clusters and the URL of west's gateway, without a path.
    #[must_use]
    pub fn new(east: Cluster, west: Cluster, url: &str) -> Self {
        let url = url.trim_end_matches('/');
        let authority = url.trim_start_matches("http://");
        let port = authority
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        Self {
            east,
            west,
            gateway: Requests::new(url),
            gateway_address: match port {
                Some(_) => authority.to_owned(),
                None => format!("{authority}:80"),
            },
        }
    }

    /// Puts the sample pool into its known state: exported from east in the default mode, not from west, and the route leads to the
    /// import alone, which east answers.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn settle(&self) -> Result<()> {
        isthmus::apply_route(&self.west).await?;
        isthmus::withdraw(&self.west).await?;
        isthmus::annotate(&self.east, "inference.networking.x-k8s.io/export-mode-").await?;
        isthmus::export(&self.east).await?;
        self.serving().await
    }

    /// Waits until the import is ready, and east answers so many requests in a row that no other route explains it.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn serving(&self) -> Result<()> {
        /// Under an even split a run of 12 is a chance of 1 in 4096 a look.
        const IN_A_ROW: usize = 12;
        eventually(
            "the import is ready and east answers",
            SETTLE_LIMIT,
            async || {
                let import = import(&self.west).await?.ok_or("no import")?;
                if !conditions::is_true(import.conditions(), conditions::READY) {
                    return Err(format!("{:?}", import.conditions()));
                }
                let east = self
                    .pods(&self.east)
                    .await
                    .map_err(|error| format!("{error:#}"))?;
                for _ in 0..IN_A_ROW {
                    let answer = self.gateway.chat("llama", "hello").await;
                    let answer = answer.map_err(|error| error.to_string())?;
                    if answer.status != 200 {
                        return Err(format!("{}: {}", answer.status, answer.text()));
                    }
                    if !answer.pod().is_some_and(|pod| east.contains_key(pod)) {
                        return Err(format!("answered by {:?}, not by east", answer.pod()));
                    }
                }
                Ok(())
            },
        )
        .await?;
        Ok(())
    }

    /// Sends so many requests, each of which must be answered 200.
    ///
    /// # Errors
    /// With the first that was not.
    pub async fn answered(&self, requests: usize) -> Result<()> {
        for number in 0..requests {
            let answer = self.gateway.chat("llama", "hello").await?;
            ensure!(
                answer.status == 200,
                "request {number}: {}: {}",
                answer.status,
                answer.text()
            );
        }
        Ok(())
    }

    /// Names of the ready pods with this label.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn ready_pods(
        &self,
        cluster: &Cluster,
        namespace: &str,
        label: &str,
    ) -> Result<Vec<String>, String> {
        let pods = list(cluster, namespace, label).await?;
        let ready = pods.into_iter().filter(is_ready);
        Ok(ready.filter_map(|pod| pod.metadata.name).collect())
    }

    /// Waits until west has no import of the sample pool.
    ///
    /// # Errors
    /// When it does not come to that in time, with what was seen last.
    pub async fn no_import(&self, limit: Duration) -> Result<()> {
        eventually("no import in west", limit, async || {
            match import(&self.west).await? {
                None => Ok(()),
                Some(import) => Err(format!("{:?}", import.status)),
            }
        })
        .await?;
        Ok(())
    }

    /// The sample pool's model servers, name to IP address; without those that are being deleted.
    ///
    /// # Errors
    /// When there are none, or an API server refuses or does not answer.
    pub async fn pods(&self, cluster: &Cluster) -> Result<BTreeMap<String, String>> {
        let pool = pool(cluster).await.map_err(anyhow::Error::msg)?;
        let labels = pool.spec.selector.match_labels;
        let pods = living(cluster, &labels).await?;
        ensure!(!pods.is_empty(), "{} has no model servers", cluster.name());
        Ok(pods)
    }

    /// The sample pool's endpoint pickers, name to IP address; without those that are being deleted.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn pickers(&self, cluster: &Cluster) -> Result<BTreeMap<String, String>> {
        let labels = self.picker_service(cluster).await?.spec;
        let labels = labels.and_then(|spec| spec.selector).unwrap_or_default();
        living(cluster, &labels).await
    }

    /// The Service of the sample pool's endpoint pickers.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn picker_service(&self, cluster: &Cluster) -> Result<Service> {
        let pool = pool(cluster).await.map_err(anyhow::Error::msg)?;
        let picker = pool.spec.endpoint_picker_ref;
        let name = picker.context("the pool has no endpoint picker")?.name;
        let service = object(cluster, isthmus::POOL_NAMESPACE, &name).await;
        let service = service.map_err(anyhow::Error::msg)?;
        service.with_context(|| format!("no Service {name} in {}", cluster.name()))
    }

    /// Pods with this label, name to IP address.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn pods_of(
        &self,
        cluster: &Cluster,
        namespace: &str,
        label: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        Ok(addresses(list(cluster, namespace, label).await?))
    }

    /// Generation of the sample pool.
    ///
    /// # Errors
    /// When there is no pool.
    pub async fn pool_generation(&self, cluster: &Cluster) -> Result<Option<i64>> {
        let pool = pool(cluster).await.map_err(anyhow::Error::msg)?;
        Ok(pool.metadata.generation)
    }

    /// Metrics of all of the sample pool's endpoint pickers.
    ///
    /// # Errors
    /// When one does not answer.
    pub async fn epp_metrics(&self, cluster: &Cluster) -> Result<String> {
        let mut pages = String::new();
        for pod in self.pickers(cluster).await?.into_keys() {
            pages.push_str(&self.page(cluster, &pod, 9090, "/metrics").await?);
        }
        Ok(pages)
    }

    /// A page of a pod of the sample pool's namespace, by way of the API server: the pod's own address need not be reachable.
    ///
    /// # Errors
    /// When one of the two does not answer, or with another status than 200.
    pub async fn page(
        &self,
        cluster: &Cluster,
        pod: &str,
        port: u16,
        path: &str,
    ) -> Result<String> {
        let namespace = isthmus::POOL_NAMESPACE;
        let url = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}");
        let what = format!("{path} of {pod} in {}", cluster.name());
        let request = Request::get(url).body(Vec::new())?;
        let page = timeout(PAGE_LIMIT, cluster.client().request_text(request)).await;
        let page = page.with_context(|| format!("{what}: no answer within {PAGE_LIMIT:?}"))?;
        page.context(what)
    }

    /// The condition of the sample route under its Gateway.
    ///
    /// # Errors
    /// When an API server refuses or does not answer.
    pub async fn route_condition(&self, type_: &str) -> Result<Option<Condition>, String> {
        let route: Option<HttpRoute> =
            object(&self.west, isthmus::POOL_NAMESPACE, isthmus::POOL).await?;
        let parents = route
            .and_then(|route| route.status)
            .map(|status| status.parents)
            .unwrap_or_default();
        let conditions = parents.into_iter().next().map(|parent| parent.conditions);
        Ok(conditions.and_then(|conditions| conditions::find(&conditions, type_).cloned()))
    }
}

/// The import of the sample pool.
///
/// # Errors
/// When an API server refuses or does not answer.
pub async fn import(cluster: &Cluster) -> Result<Option<InferencePoolImport>, String> {
    object(cluster, isthmus::POOL_NAMESPACE, isthmus::POOL).await
}

/// A condition that the controller wrote on the sample pool.
///
/// # Errors
/// When an API server refuses or does not answer.
pub async fn pool_condition(cluster: &Cluster, type_: &str) -> Result<Option<Condition>, String> {
    let pool = pool(cluster).await?;
    Ok(of_controller(&pool).and_then(|conditions| conditions::find(conditions, type_).cloned()))
}

/// The pool's condition `Exported`.
#[must_use]
pub fn exported(pool: &InferencePool) -> Option<Condition> {
    conditions::find(of_controller(pool)?, conditions::EXPORTED).cloned()
}

/// Whether the pod says it is ready, and is not being deleted.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// Sum of all series of a metric in Prometheus text.
#[must_use]
pub fn sum_metric(text: &str, name: &str) -> f64 {
    text.lines()
        .filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn pool(cluster: &Cluster) -> Result<InferencePool, String> {
    let pool = object(cluster, isthmus::POOL_NAMESPACE, isthmus::POOL).await?;
    pool.ok_or_else(|| "no pool".to_owned())
}

fn of_controller(pool: &InferencePool) -> Option<&Vec<Condition>> {
    let parents = pool.status.as_ref()?.parents.as_ref()?;
    let ours = |name: &Option<String>| name.as_deref() == Some(crd::annotations::MCI_CONTROLLER);
    parents
        .iter()
        .find(|parent| ours(&parent.controller_name))?
        .conditions
        .as_ref()
}

/// An object, or none.
///
/// # Errors
/// When an API server refuses or does not answer.
pub(crate) async fn object<K>(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<K>, String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client(), namespace);
    api.get_opt(name).await.map_err(|error| error.to_string())
}

async fn list(cluster: &Cluster, namespace: &str, label: &str) -> Result<Vec<Pod>, String> {
    let api: Api<Pod> = Api::namespaced(cluster.client(), namespace);
    let pods = api.list(&ListParams::default().labels(label)).await;
    Ok(pods.map_err(|error| error.to_string())?.items)
}

/// Pods of the sample pool's namespace with these labels, but those that are being deleted.
async fn living(
    cluster: &Cluster,
    labels: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let equal = labels.iter().map(|(key, value)| format!("{key}={value}"));
    let selector = equal.collect::<Vec<_>>().join(",");
    let pods = list(cluster, isthmus::POOL_NAMESPACE, &selector).await;
    let mut pods = pods.map_err(anyhow::Error::msg)?;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(addresses(pods))
}

fn addresses(pods: Vec<Pod>) -> BTreeMap<String, String> {
    let named = pods.into_iter().map(|pod| {
        let address = pod.status.and_then(|status| status.pod_ip);
        let name = pod.metadata.name.unwrap_or_default();
        (name, address.unwrap_or_default())
    });
    named.collect()
}
