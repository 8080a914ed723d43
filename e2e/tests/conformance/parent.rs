//! ParentMode: an entry names the Gateways of the exporting cluster that serve the pool, and no endpoint picker.
//!
//! Nobody runs these Gateways. Their status, and that of the pool, is what their controller would write.

use anyhow::{Context, Result, ensure};
use crd::{ImportedCluster, InferencePoolImport, RoutingMode, annotations, gateway::Gateway};
use e2e::watching::{becomes, within};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::scene::{Scene, Stage};

const POOL: &str = "pool";
const GATEWAY: &str = "front";
/// Nobody listens there: addresses for documentation.
pub(crate) const ADDRESS: &str = "198.51.100.9";
const OTHER_ADDRESS: &str = "198.51.100.10";

pub(crate) async fn an_entry_names_the_gateway_that_serves_the_pool(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(0).await?;
            scene.pool(0, POOL, 8000).await?;
            serve(scene, 0, POOL, &[(GATEWAY, ADDRESS)]).await?;
            // it has no route to the pool
            gateway(scene, 0, "elsewhere", OTHER_ADDRESS).await?;
            export_by_parents(scene, 0, POOL).await?;
            for at in scene.others(0) {
                let import = by_parent(scene, at, ADDRESS).await?;
                for entry in import.clusters() {
                    let mut services = entry.parents.iter().flat_map(|parent| &parent.service);
                    let has_port = services.any(|service| {
                        let mut ports = service.ports.iter();
                        ports.any(|port| port.number == 80)
                    });
                    ensure!(has_port, "{entry:?}");
                }
            }
            scene.unexport(0, POOL).await?;
            scene.gone(&scene.others(0).collect::<Vec<_>>(), POOL).await
        })
        .await
}

pub(crate) async fn another_address_of_a_gateway_reaches_the_imports(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(0).await?;
            scene.pool(0, POOL, 8000).await?;
            serve(scene, 0, POOL, &[(GATEWAY, ADDRESS)]).await?;
            export_by_parents(scene, 0, POOL).await?;
            for at in scene.others(0) {
                by_parent(scene, at, ADDRESS).await?;
            }
            write_status(scene, 0, GATEWAY, OTHER_ADDRESS).await?;
            for at in scene.others(0) {
                by_parent(scene, at, OTHER_ADDRESS).await?;
            }
            Ok(())
        })
        .await
}

pub(crate) async fn a_change_of_mode_replaces_the_entry_there_and_back(
    stage: &Stage,
) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            serve(scene, 0, POOL, &[(GATEWAY, ADDRESS)]).await?;
            let before = scene.imported(1, POOL, &[0]).await?;
            export_by_parents(scene, 0, POOL).await?;
            by_parent(scene, 1, ADDRESS).await?;
            scene.export(0, POOL).await?;
            let what = format!("import {POOL} in EndpointMode again");
            let after = becomes(&scene.imports(1), POOL, &what, |import| {
                let import = scene.is_of(import, &[0])?;
                all_entries(&import, asks_a_picker)?;
                Ok(import)
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

/// Waits until the entry of the first cluster names the Gateway at this address, and no other.
async fn by_parent(scene: &Scene<'_>, at: usize, address: &str) -> Result<InferencePoolImport> {
    let what = format!(
        "import {POOL} in {} with a Gateway at {address}",
        scene.name(at)
    );
    becomes(&scene.imports(at), POOL, &what, |import| {
        let import = scene.is_of(import, &[0])?;
        all_entries(&import, |entry| {
            asks_a_parent(entry, &scene.namespace, GATEWAY, address)
        })?;
        Ok(import)
    })
    .await
}

/// In upstream's shape there are no entries, so nothing of them is asked for.
fn all_entries(
    import: &InferencePoolImport,
    fits: impl Fn(&ImportedCluster) -> bool,
) -> Result<(), String> {
    let mut entries = import.clusters().iter();
    entries
        .find(|entry| !fits(entry))
        .map_or(Ok(()), |entry| Err(format!("{entry:?}")))
}

/// Whether the entry is in EndpointMode, and has nothing of the other mode.
pub(crate) fn asks_a_picker(entry: &ImportedCluster) -> bool {
    entry.routing_mode == RoutingMode::EndpointMode
        && entry.endpoint_picker.is_some()
        && entry.parents.is_empty()
}

/// Whether the entry is in ParentMode with this Gateway alone, and has nothing of the other mode.
pub(crate) fn asks_a_parent(
    entry: &ImportedCluster,
    namespace: &str,
    gateway: &str,
    address: &str,
) -> bool {
    let [parent] = &*entry.parents else {
        return false;
    };
    let mut addresses = parent.service.iter().flat_map(|service| &service.addresses);
    entry.routing_mode == RoutingMode::ParentMode
        && entry.endpoint_picker.is_none()
        && (&*parent.name, &*parent.namespace) == (gateway, namespace)
        && addresses.any(|one| one == address)
}

/// Exports a pool in ParentMode.
pub(crate) async fn export_by_parents(scene: &Scene<'_>, at: usize, pool: &str) -> Result<()> {
    let wanted = json!({
        annotations::EXPORT: annotations::EXPORT_CLUSTER_SET,
        annotations::EXPORT_MODE: "ParentMode",
    });
    scene.annotate(at, pool, wanted).await
}

/// Creates Gateways, by name and address, that serve the pool; the pool's status says so.
pub(crate) async fn serve(
    scene: &Scene<'_>,
    at: usize,
    pool: &str,
    gateways: &[(&str, &str)],
) -> Result<()> {
    for (name, address) in gateways {
        gateway(scene, at, name, address).await?;
    }
    let pools = scene.pools(at);
    let found = within("getting the pool", pools.get(pool)).await?;
    ensure!(
        found.status.is_none_or(|status| status
            .parents
            .unwrap_or_default()
            .iter()
            .all(|parent| parent.parent_ref.kind.as_deref() != Some("Gateway"))),
        "somebody else took up the pool"
    );
    let generation = found.metadata.generation;
    let parents = gateways.iter().map(|(name, _)| {
        json!({
            "parentRef": {
                "group": annotations::GATEWAY_GROUP, "kind": "Gateway",
                "namespace": scene.namespace, "name": name,
            },
            "controllerName": "example.net/gateway",
            "conditions": [condition("Accepted", generation)],
        })
    });
    let parents: Vec<Value> = parents.collect();
    let patch = Patch::Merge(json!({"status": {"parents": parents}}));
    let params = PatchParams::default();
    let written = pools.patch_status(pool, &params, &patch);
    let written = within("writing the pool's status", written).await?;
    written.status.context("the pool has no status")?;
    Ok(())
}

/// Creates a Gateway that nobody runs, with the status that its controller would write.
async fn gateway(scene: &Scene<'_>, at: usize, name: &str, address: &str) -> Result<()> {
    let _gateway: Gateway = scene
        .create(
            at,
            json!({
                "metadata": {"name": name},
                "spec": {
                    "gatewayClassName": "nobody",
                    "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
                },
            }),
        )
        .await?;
    write_status(scene, at, name, address).await
}

async fn write_status(scene: &Scene<'_>, at: usize, name: &str, address: &str) -> Result<()> {
    let gateways = scene.api::<Gateway>(at);
    let gateway = within("getting the Gateway", gateways.get(name)).await?;
    let generation = gateway.metadata.generation;
    let conditions = ["Accepted", "Programmed"].map(|type_| condition(type_, generation));
    let status = json!({
        "addresses": [{"type": "IPAddress", "value": address}],
        "conditions": conditions,
        "listeners": [{
            "name": "http",
            "attachedRoutes": 1,
            "supportedKinds": [{"group": annotations::GATEWAY_GROUP, "kind": "HTTPRoute"}],
            "conditions": conditions,
        }],
    });
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"status": status}));
    within(
        "writing the Gateway's status",
        gateways.patch_status(name, &params, &patch),
    )
    .await?;
    Ok(())
}

fn condition(type_: &str, generation: Option<i64>) -> Value {
    json!({
        "type": type_, "status": "True", "reason": type_, "message": "",
        "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}
