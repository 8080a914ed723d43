//! An import as a pool without pods.

use anyhow::{Context, Result};

use crate::{
    page, picks,
    stand::{FAR, OF_GATEWAY_API, Stand},
};

/// In the page's manifests: the endpoint picker of the exporting cluster, and its model servers.
const PICKER: &str = "192.0.2.10";
const SERVERS: [&str; 2] = ["192.0.2.21", "192.0.2.22"];
/// What the other cluster has.
const VALUES: &str = "inferencePool: {modelServers: {matchLabels: {app: llama-far}}}";

/// The pods of another namespace stand for those of another cluster: istiod knows of them what the page's manifests say.
pub(crate) async fn an_import_is_served_as_a_pool_without_pods(stand: &Stand) -> Result<()> {
    let two = ["--set", "worker.replicas=2"];
    stand.release_in(FAR, VALUES, "llama", &two).await?;
    let servers = stand.servers(FAR).await?;
    let mut manifests =
        page::block("An import as a pool without pods")?.replace(PICKER, &stand.picker(FAR).await?);
    for (named, server) in SERVERS.iter().zip(&servers) {
        let (address, _) = server.endpoint.split_once(':').context("no port")?;
        manifests = manifests.replace(named, address);
    }
    stand.cluster.apply_yaml(&manifests).await?;
    let gateway = stand.requests(OF_GATEWAY_API).await?;
    let outcome = picks::are_served(&gateway, "llama", &servers).await;
    // its route is more specific than that of the pool here
    stand.forget("llama-import").await?;
    outcome
}
