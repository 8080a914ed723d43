//! From annotations to imports: which cluster gets which, and when it goes.

use anyhow::{Result, ensure};
use crd::{InferencePoolImport, RoutingMode, conditions};
use e2e::watching::holds;
use futures::future::try_join_all;

use crate::scene::{PICKER, PICKER_PORT, Stage};

const POOL: &str = "pool";

pub(crate) async fn a01_an_export_appears_in_every_other_cluster_and_goes_with_its_annotation(
    stage: &Stage,
) -> Result<()> {
    stage
        .play(async |scene| {
            let address = scene.exporter(0, POOL, 8000).await?;
            let others: Vec<usize> = scene.others(0).collect();
            let imported = others
                .iter()
                .map(async |&at| scene.imported(at, POOL, &[0]).await);
            for import in try_join_all(imported).await? {
                leads_to(&import, scene.name(0), &address, 8000)?;
            }
            scene.alone(0, POOL).await?;

            scene.unexport(0, POOL).await?;
            let all: Vec<usize> = (0..scene.count()).collect();
            scene.gone(&all, POOL).await
        })
        .await
}

pub(crate) async fn a02_of_two_exporters_the_one_that_leaves_takes_its_entry_alone(
    stage: &Stage,
) -> Result<()> {
    stage
        .play(async |scene| {
            for at in [0, 1] {
                scene.exporter(at, POOL, 8000).await?;
            }
            scene.imported(0, POOL, &[1]).await?;
            let mut uids = vec![scene.imported(1, POOL, &[0]).await?.metadata.uid];
            for at in 2..scene.count() {
                let import = scene.imported(at, POOL, &[0, 1]).await?;
                uids.push(import.metadata.uid);
            }

            scene.unexport(1, POOL).await?;
            for (at, uid) in (1..).zip(uids) {
                let import = scene.imported(at, POOL, &[0]).await?;
                ensure!(
                    import.metadata.uid == uid,
                    "the import in {} was made anew",
                    scene.name(at)
                );
            }
            scene.alone(0, POOL).await?;

            scene.unexport(0, POOL).await?;
            let all: Vec<usize> = (0..scene.count()).collect();
            scene.gone(&all, POOL).await
        })
        .await
}

pub(crate) async fn a03_a_pool_that_is_not_exported_adds_no_entry_beside_one_that_is(
    stage: &Stage,
) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(1).await?;
            scene.pool(1, POOL, 8000).await?;
            scene.exporter(0, POOL, 8000).await?;
            let others: Vec<usize> = scene.others(0).collect();
            let seen = others.iter().map(async |&at| {
                scene.imported(at, POOL, &[0]).await?;
                let what = format!("import {POOL} in {} of one cluster", scene.name(at));
                let imports = scene.imports(at);
                holds(&imports, POOL, &what, |import| {
                    scene.is_of(import, &[0]).map(|_| ())
                })
                .await
            });
            try_join_all(seen).await?;
            scene.alone(0, POOL).await
        })
        .await
}

pub(crate) async fn a10_a_namespace_that_comes_later_gets_its_import(stage: &Stage) -> Result<()> {
    let late = stage.subject.members().len() - 1;
    let early: Vec<usize> = (0..late).collect();
    stage
        .play_in(&early, async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            for &at in early.iter().filter(|&&at| at != 0) {
                scene.imported(at, POOL, &[0]).await?;
            }
            scene.add_namespace(late).await?;
            scene.imported(late, POOL, &[0]).await?;
            Ok(())
        })
        .await
}

/// Whether the import's entry of this cluster says where its picker is and what it picks from.
fn leads_to(
    import: &InferencePoolImport,
    cluster: &str,
    address: &str,
    target_port: u16,
) -> Result<()> {
    let [entry] = import.clusters() else {
        // upstream's shape names clusters and leaves addresses to others
        return Ok(());
    };
    ensure!(entry.name == cluster, "{entry:?}");
    ensure!(entry.routing_mode == RoutingMode::EndpointMode, "{entry:?}");
    ensure!(entry.target_port_number == target_port, "{entry:?}");
    let picker = entry.endpoint_picker.as_ref();
    ensure!(
        picker.is_some_and(|picker| picker.name == PICKER),
        "{entry:?}"
    );
    let mut services = picker.iter().flat_map(|picker| &picker.service);
    ensure!(
        services.any(|service| {
            let ports = service.ports.iter();
            service.addresses.iter().any(|listed| listed == address)
                && ports.into_iter().any(|port| port.number == PICKER_PORT)
        }),
        "no service of it is {address}:{PICKER_PORT}: {entry:?}"
    );
    ensure!(
        conditions::is_true(import.conditions(), conditions::ACCEPTED),
        "{:?}",
        import.conditions()
    );
    Ok(())
}
