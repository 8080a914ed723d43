//! Clusters of the testbed, set up as anybody sets up clusters.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use testbed::{Inside, Testbed, isthmus};

/// Two clusters.
pub(crate) async fn start(inside: &Inside) -> Result<Testbed> {
    let builder = isthmus::with_programs(Testbed::builder(inside))?;
    let builder = builder.cluster("east").cluster("west");
    Ok(builder.start(|_| {}).await?)
}

/// Installs Isthmus and the pool; all that is handed over is a kubeconfig.
pub(crate) async fn install(testbed: &Testbed) -> Result<PathBuf> {
    let (east, west) = (testbed.cluster("east")?, testbed.cluster("west")?);
    let members = BTreeMap::from([
        ("east".to_owned(), isthmus::join(east).await?),
        ("west".to_owned(), isthmus::join(west).await?),
    ]);
    tokio::try_join!(
        isthmus::install_gateway(west),
        isthmus::install_controller(west, &members),
        isthmus::install_pool(east),
        isthmus::install_pool(west),
    )?;
    isthmus::install_route(west).await?;
    Ok(testbed.merged_kubeconfig()?)
}
