//! One import, entries of both routing modes (Q9): each exporter chooses for itself.

use anyhow::{Context, Result, ensure};
use crd::{ImportedCluster, RoutingMode, annotations, gateway::Gateway};
use e2e::watching::{becomes, within};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::scene::{Scene, Stage};

const POOL: &str = "pool";
const GATEWAY: &str = "front";
/// Nobody listens there: an address for documentation.
const GATEWAY_ADDRESS: &str = "198.51.100.9";

pub(crate) async fn entries_of_both_modes_stand_in_one_import(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            scene.picker(1).await?;
            scene.pool(1, POOL, 8000).await?;
            gateway(scene, 1).await?;
            let wanted = json!({
                annotations::EXPORT: annotations::EXPORT_CLUSTER_SET,
                annotations::EXPORT_MODE: "ParentMode",
            });
            scene.annotate(1, POOL, wanted).await?;
            for at in 0..scene.count() {
                let from: Vec<usize> = [0, 1].into_iter().filter(|&from| from != at).collect();
                let what = format!("import {POOL} in {} of both modes", scene.name(at));
                becomes(&scene.imports(at), POOL, &what, |import| {
                    let import = scene.is_of(import, &from)?;
                    import.clusters().iter().try_for_each(|entry| {
                        let as_wanted = if entry.name == scene.name(0) {
                            asks_a_picker(entry)
                        } else {
                            asks_a_parent(entry, &scene.namespace)
                        };
                        as_wanted.then_some(()).ok_or_else(|| format!("{entry:?}"))
                    })
                })
                .await?;
            }

            // a change of mode replaces the entry's content, not the import
            let before = scene.imported(2, POOL, &[0, 1]).await?;
            scene.export(1, POOL).await?;
            let what = "both entries in EndpointMode";
            let after = becomes(&scene.imports(2), POOL, what, |import| {
                let import = scene.is_of(import, &[0, 1])?;
                if import.clusters().iter().all(asks_a_picker) {
                    Ok(import)
                } else {
                    Err(format!("{:?}", import.clusters()))
                }
            })
            .await?;
            ensure!(
                before.metadata.uid == after.metadata.uid,
                "the import was made anew"
            );
            Ok(())
        })
        .await
}

fn asks_a_picker(entry: &ImportedCluster) -> bool {
    entry.routing_mode == RoutingMode::EndpointMode
        && entry.endpoint_picker.is_some()
        && entry.parents.is_empty()
}

fn asks_a_parent(entry: &ImportedCluster, namespace: &str) -> bool {
    let [parent] = &*entry.parents else {
        return false;
    };
    let mut addresses = parent.service.iter().flat_map(|service| &service.addresses);
    entry.routing_mode == RoutingMode::ParentMode
        && entry.endpoint_picker.is_none()
        && (&*parent.name, &*parent.namespace) == (GATEWAY, namespace)
        && addresses.any(|address| address == GATEWAY_ADDRESS)
}

/// A Gateway that nobody runs, with the status that its controller would write, there and on the pool.
async fn gateway(scene: &Scene<'_>, at: usize) -> Result<()> {
    let gateway: Gateway = scene
        .create(
            at,
            json!({
                "metadata": {"name": GATEWAY},
                "spec": {
                    "gatewayClassName": "nobody",
                    "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
                },
            }),
        )
        .await?;
    let generation = gateway.metadata.generation;
    let status = json!({
        "addresses": [{"type": "IPAddress", "value": GATEWAY_ADDRESS}],
        "conditions": [
            condition("Accepted", generation),
            condition("Programmed", generation),
        ],
        "listeners": [{
            "name": "http",
            "attachedRoutes": 1,
            "supportedKinds": [{"group": annotations::GATEWAY_GROUP, "kind": "HTTPRoute"}],
            "conditions": [condition("Accepted", generation), condition("Programmed", generation)],
        }],
    });
    let gateways = scene.api::<Gateway>(at);
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"status": status}));
    within(
        "writing the Gateway's status",
        gateways.patch_status(GATEWAY, &params, &patch),
    )
    .await?;

    let pools = scene.pools(at);
    let pool = within("getting the pool", pools.get(POOL)).await?;
    ensure!(
        pool.status.is_none_or(|status| status
            .parents
            .unwrap_or_default()
            .iter()
            .all(|parent| parent.parent_ref.kind.as_deref() != Some("Gateway"))),
        "somebody else took up the pool"
    );
    let parents = json!([{
        "parentRef": {
            "group": annotations::GATEWAY_GROUP, "kind": "Gateway",
            "namespace": scene.namespace, "name": GATEWAY,
        },
        "controllerName": "example.net/gateway",
        "conditions": [condition("Accepted", pool.metadata.generation)],
    }]);
    let patch = Patch::Merge(json!({"status": {"parents": parents}}));
    let written = pools.patch_status(POOL, &params, &patch);
    let written = within("writing the pool's status", written).await?;
    written.status.context("the pool has no status")?;
    Ok(())
}

fn condition(type_: &str, generation: Option<i64>) -> Value {
    json!({
        "type": type_, "status": "True", "reason": type_, "message": "",
        "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}
