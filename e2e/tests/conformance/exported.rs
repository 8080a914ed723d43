//! The condition Exported, which tells a pool's owner how its export fares.

use anyhow::{Result, ensure};
use crd::{
    Condition, annotations,
    conditions::{self, EXPORTED},
    inference_pool::InferencePool,
};
use e2e::watching::{becomes, holds};
use serde_json::json;

use crate::scene::Stage;

const POOL: &str = "pool";

pub(crate) async fn a12_the_pool_says_whether_it_is_exported(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            for at in scene.others(0) {
                scene.imported(at, POOL, &[0]).await?;
            }
            let pools = scene.pools(0);
            let exported = becomes(&pools, POOL, "Exported is true", |pool| {
                let pool = pool.ok_or("no pool")?;
                let exported = exported_of(pool).ok_or("no condition Exported")?;
                let is_current = exported.observed_generation == pool.metadata.generation;
                if exported.status == "True" && is_current {
                    Ok(exported.clone())
                } else {
                    Err(format!("{exported:?}"))
                }
            })
            .await?;
            ensure!(exported.reason == "Exported", "{exported:?}");

            scene.unexport(0, POOL).await?;
            let says_no = |pool: Option<&InferencePool>| {
                let pool = pool.ok_or("no pool")?;
                match exported_of(pool) {
                    // the entry may go, or stay and say that nothing is asked for
                    None => Ok(()),
                    Some(exported) if exported.status == "False" => Ok(()),
                    Some(exported) => Err(format!("{exported:?}")),
                }
            };
            becomes(&pools, POOL, "Exported is not true any more", says_no).await?;
            holds(&pools, POOL, "Exported is not true any more", says_no).await
        })
        .await
}

pub(crate) async fn a12_an_unknown_value_exports_nothing(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(0).await?;
            let wrong = [
                ("case", json!({annotations::EXPORT: "clusterset"})),
                ("value", json!({annotations::EXPORT: "Everywhere"})),
                (
                    "mode",
                    json!({
                        annotations::EXPORT: annotations::EXPORT_CLUSTER_SET,
                        annotations::EXPORT_MODE: "MagicMode",
                    }),
                ),
                ("alone", json!({annotations::EXPORT_MODE: "EndpointMode"})),
            ];
            for (name, value) in &wrong {
                scene.pool(0, name, 8000).await?;
                scene.annotate(0, name, value.clone()).await?;
            }
            scene.sees_an_export(0).await?;
            let all: Vec<usize> = (0..scene.count()).collect();
            let seen = wrong.iter().map(async |(name, _)| {
                scene.absent(&all, name).await?;
                let pools = scene.pools(0);
                holds(
                    &pools,
                    name,
                    "a pool that does not say it is exported",
                    |pool| match exported_of(pool.ok_or("no pool")?) {
                        Some(exported) if exported.status == "True" => Err(format!("{exported:?}")),
                        _ => Ok(()),
                    },
                )
                .await
            });
            futures::future::try_join_all(seen).await?;
            Ok(())
        })
        .await
}

/// The condition in whichever entry has it: what an entry refers to is the controller's choice.
pub(crate) fn exported_of(pool: &InferencePool) -> Option<&Condition> {
    let parents = pool.status.as_ref()?.parents.as_ref()?;
    parents
        .iter()
        .filter_map(|parent| parent.conditions.as_ref())
        .find_map(|conditions| conditions::find(conditions, EXPORTED))
}
