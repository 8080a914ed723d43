//! What a gateway has decided for an import: its page `/debug/selection`.

use std::fmt;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use testbed::{Cluster, Requests, isthmus};

/// The page of one gateway.
pub(crate) struct Selection(Requests);

/// What a cluster of the import gets.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) cluster: String,
    /// Share of new requests, in permille.
    pub(crate) permille: u64,
    /// Mean number of waiting requests of its endpoints; nothing where its metrics are not read.
    pub(crate) queue: Option<f64>,
    /// The gateway's own words.
    pub(crate) why: String,
}

/// `east 500, south 500`.
#[derive(Clone, Debug)]
pub(crate) struct Shares(Vec<Share>);

// === impl Selection ===

impl Selection {
    /// Finds the gateway of a cluster, which has one.
    pub(crate) async fn of(cluster: &Cluster) -> Result<Self> {
        let pods: Api<Pod> = Api::namespaced(cluster.client(), isthmus::NAMESPACE);
        let label = format!("app.kubernetes.io/name={}", isthmus::GATEWAY);
        let pods = pods.list(&ListParams::default().labels(&label)).await;
        let pods = pods.context("listing the gateway's pods")?;
        let mut addresses = pods.items.into_iter().filter_map(|pod| pod.status?.pod_ip);
        let address = addresses
            .next()
            .context("the gateway has no pod with an address")?;
        Ok(Self(Requests::new(format!("http://{address}:8080"))))
    }

    /// What the clusters of the sample pool's import get.
    pub(crate) async fn shares(&self) -> Result<Shares, String> {
        let page = self.0.get("/debug/selection").await;
        let page = page.map_err(|error| error.to_string())?.json();
        let import = format!("{}/{}", isthmus::POOL_NAMESPACE, isthmus::POOL);
        let clusters = page[import.as_str()]["clusters"].as_object();
        let clusters = clusters.ok_or_else(|| format!("nothing of {import} in {page}"))?;
        let shares = clusters.iter().map(|(name, cluster)| Share {
            cluster: name.clone(),
            permille: cluster["share"].as_u64().unwrap_or(0),
            queue: cluster["metrics"]["queue"].as_f64(),
            why: cluster["why"].as_str().unwrap_or_default().to_owned(),
        });
        Ok(Shares(shares.collect()))
    }
}

// === impl Shares ===

impl Shares {
    pub(crate) fn of(&self, cluster: &str) -> Option<&Share> {
        self.0.iter().find(|share| share.cluster == cluster)
    }

    /// Whether the metrics of all clusters are read.
    pub(crate) fn are_measured(&self) -> bool {
        self.0.iter().all(|share| share.queue.is_some())
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, share) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", share.cluster, share.permille)?;
        }
        Ok(())
    }
}
