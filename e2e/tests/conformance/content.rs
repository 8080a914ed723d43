//! What an import says, and what it keeps to itself.

use anyhow::{Result, ensure};
use crd::InferencePoolImport;
use e2e::watching::{becomes, within};
use kube::api::{ApiResource, DynamicObject};
use serde_json::json;

use crate::scene::{Stage, pool};

const POOL: &str = "pool";

pub(crate) async fn a07_pools_with_other_target_ports_are_both_kept(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            scene.exporter(1, POOL, 9000).await?;
            for at in 0..scene.count() {
                let from: Vec<usize> = [0, 1].into_iter().filter(|&from| from != at).collect();
                let import = scene.imported(at, POOL, &from).await?;
                for entry in import.clusters() {
                    let wanted = if entry.name == scene.name(0) {
                        8000
                    } else {
                        9000
                    };
                    ensure!(entry.target_port_number == wanted, "{entry:?}");
                }
            }
            Ok(())
        })
        .await
}

/// Metadata is the owner's: it may hold what other clusters are not to know, or what means something else there.
pub(crate) async fn a08_nothing_of_the_pools_metadata_is_passed_on(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            const MARK: &str = "not-for-others";
            scene.picker(0).await?;
            let mut private = pool(POOL, 8000);
            private["metadata"]["labels"] = json!({"example.net/not-for-others-label": MARK});
            private["metadata"]["annotations"] =
                json!({"example.net/not-for-others-annotation": MARK});
            private["spec"]["selector"] = json!({"matchLabels": {"not-for-others-selector": MARK}});
            let _pool: crd::inference_pool::InferencePool = scene.create(0, private).await?;
            scene.export(0, POOL).await?;
            for at in scene.others(0) {
                scene.imported(at, POOL, &[0]).await?;
                let kind = ApiResource::erase::<InferencePoolImport>(&());
                let client = scene.imports(at).into_client();
                let raw: kube::Api<DynamicObject> =
                    kube::Api::namespaced_with(client, &scene.namespace, &kind);
                let import = within("getting the import", raw.get(POOL)).await?;
                let text = serde_json::to_string(&import)?;
                ensure!(!text.contains(MARK), "{text}");
            }
            Ok(())
        })
        .await
}

pub(crate) async fn a11_a_recreated_pool_starts_afresh(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            let others: Vec<usize> = scene.others(0).collect();
            for &at in &others {
                scene.imported(at, POOL, &[0]).await?;
            }
            // at once: the import may stay, but nothing of the old pool in it
            scene.delete_pool(0, POOL).await?;
            let pool = scene.pool(0, POOL, 9000).await?;
            scene.export(0, POOL).await?;
            for &at in &others {
                let what = format!("import {POOL} in {} of the new pool", scene.name(at));
                becomes(&scene.imports(at), POOL, &what, |import| {
                    let import = scene.is_of(import, &[0])?;
                    let mut entries = import.clusters().iter();
                    let old = entries.find(|entry| {
                        let marks = entry.conditions.iter();
                        let mut marks = marks.filter_map(|mark| mark.observed_generation);
                        entry.target_port_number != 9000
                            || marks.any(|mark| Some(mark) > pool.metadata.generation)
                    });
                    old.map_or(Ok(()), |entry| Err(format!("{entry:?}")))
                })
                .await?;
            }
            // and without haste: in between there is no import
            scene.delete_pool(0, POOL).await?;
            scene.gone(&others, POOL).await?;
            scene.pool(0, POOL, 7000).await?;
            scene.absent(&others, POOL).await?;
            scene.export(0, POOL).await?;
            for &at in &others {
                let import = scene.imported(at, POOL, &[0]).await?;
                let mut entries = import.clusters().iter();
                ensure!(
                    entries.all(|entry| entry.target_port_number == 7000),
                    "{:?}",
                    import.clusters()
                );
            }
            Ok(())
        })
        .await
}
