//! What our controller does beyond the proposal: exact contents, reasons, labels.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crd::{Condition, ImportedCluster, RoutingMode, annotations, conditions};
use e2e::watching::{APPEARS, becomes, holds, within};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;
use testbed::{Requests, eventually, isthmus};

use crate::{
    absence::external,
    exported::exported_of,
    scene::{PICKER, PICKER_PORT, Scene, Stage},
};

const POOL: &str = "pool";

pub(crate) async fn an_export_without_a_mode_is_in_endpoint_mode(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(0).await?;
            scene.pool(0, POOL, 8000).await?;
            let wanted = json!({annotations::EXPORT: annotations::EXPORT_CLUSTER_SET});
            scene.annotate(0, POOL, wanted).await?;
            let import = scene.imported(1, POOL, &[0]).await?;
            let mode = import.clusters().first().map(|entry| entry.routing_mode);
            ensure!(mode == Some(RoutingMode::EndpointMode), "{mode:?}");
            Ok(())
        })
        .await
}

pub(crate) async fn a01_an_entry_holds_all_that_is_known_of_the_picker(
    stage: &Stage,
) -> Result<()> {
    stage
        .play(async |scene| {
            let address = scene.exporter(0, POOL, 8000).await?;
            let pools = scene.pools(0);
            let pool = within("getting the pool", pools.get(POOL)).await?;
            let entry = ready_entry(scene, 1).await?;
            let mut seen = json!(entry);
            // the networks depend on whether the user who added the member named them
            seen.as_object_mut().map(|entry| entry.remove("podCIDRs"));
            for condition in seen["conditions"].as_array_mut().into_iter().flatten() {
                condition["lastTransitionTime"] = json!(null);
                condition["message"] = json!(null);
            }
            let condition = |type_: &str| {
                json!({
                    "type": type_, "status": "True", "reason": type_, "message": null,
                    "observedGeneration": pool.metadata.generation, "lastTransitionTime": null,
                })
            };
            let expected = json!({
                "name": scene.name(0),
                "routingMode": "EndpointMode",
                "appProtocol": "http",
                "targetPortNumber": 8000,
                "targetPorts": [{"number": 8000}],
                "endpointPicker": {
                    "name": PICKER,
                    "service": [{
                        "type": "ClusterIP",
                        "addresses": [address],
                        "ports": [{
                            "number": PICKER_PORT, "name": "grpc-ext-proc",
                            "protocol": "TCP", "appProtocol": "http2",
                        }],
                    }],
                    "health": {"port": 9003},
                    "metrics": {"port": 9090},
                    "failureMode": "FailClose",
                },
                "conditions": [
                    condition("Accepted"),
                    condition("ResolvedRefs"),
                    condition("Ready"),
                    condition("Reachable"),
                ],
            });
            ensure!(
                seen == expected,
                "seen:     {seen:#}\nexpected: {expected:#}"
            );
            Ok(())
        })
        .await
}

pub(crate) async fn a05_an_external_name_is_named_as_the_reason(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            external(scene, 0).await?;
            scene.export(0, POOL).await?;
            let import = scene.imported(1, POOL, &[0]).await?;
            let entry = import.clusters().first().context("no entry")?;
            says(
                &entry.conditions,
                "Accepted",
                "False",
                "UnsupportedServiceType",
            )?;
            says(import.conditions(), "Accepted", "False", "NoValidCluster")?;
            exported(scene, 0, "False", "NotSupported", &[]).await?;
            Ok(())
        })
        .await
}

pub(crate) async fn a06_of_one_cluster_under_two_names_the_first_is_a_member(
    stage: &Stage,
) -> Result<()> {
    const SECOND: &str = "zz-again";
    let controls = stage.subject.controls().context("no testbed")?;
    let outcome = stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            let others: Vec<usize> = scene.others(0).collect();
            for &at in &others {
                scene.imported(at, POOL, &[0]).await?;
            }
            let mut kubeconfigs = controls.kubeconfigs.clone();
            let first = &kubeconfigs[scene.name(0)];
            kubeconfigs.insert(SECOND.to_owned(), first.clone());
            isthmus::set_members(&controls.home, &kubeconfigs).await?;
            // kubelets, and the testbed's node, take their time with a Secret's files
            let limit = APPEARS + Duration::from_mins(1);
            eventually("the second name is refused", limit, async || {
                let metrics = controller_metrics(stage).await;
                let metrics = metrics.map_err(|error| format!("{error:#}"))?;
                let states = metrics
                    .lines()
                    .filter(|line| line.starts_with("mci_member_state") && line.contains(SECOND));
                let states: Vec<&str> = states.collect();
                let refused = states
                    .iter()
                    .any(|line| line.contains("DuplicateCluster") && line.ends_with(" 1"));
                if refused {
                    Ok(())
                } else {
                    Err(format!("{states:?}"))
                }
            })
            .await?;
            for &at in &others {
                let what = format!("import {POOL} in {} of one cluster", scene.name(at));
                holds(&scene.imports(at), POOL, &what, |import| {
                    scene.is_of(import, &[0]).map(|_| ())
                })
                .await?;
            }
            // the first goes on: what it exports still comes and goes
            scene.unexport(0, POOL).await?;
            scene.gone(&others, POOL).await?;
            scene.export(0, POOL).await?;
            for &at in &others {
                scene.imported(at, POOL, &[0]).await?;
            }
            Ok(())
        })
        .await;
    isthmus::set_members(&controls.home, &controls.kubeconfigs).await?;
    outcome
}

pub(crate) async fn a07_other_target_ports_are_told_as_inconsistent(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            scene.exporter(1, POOL, 9000).await?;
            for at in 2..scene.count() {
                let import = scene.imported(at, POOL, &[0, 1]).await?;
                let reason = "TargetPortsDiffer";
                says(import.conditions(), conditions::CONSISTENT, "False", reason)?;
            }
            // of one entry there is nothing to say
            let import = scene.imported(0, POOL, &[1]).await?;
            let consistent = conditions::find(import.conditions(), conditions::CONSISTENT);
            ensure!(consistent.is_none(), "{consistent:?}");
            Ok(())
        })
        .await
}

pub(crate) async fn a09_imports_bear_the_labels_of_their_owner(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            let import = scene.imported(1, POOL, &[0]).await?;
            let labels = import.metadata.labels.unwrap_or_default();
            let owner = labels.get(annotations::MANAGED_BY).map(String::as_str);
            ensure!(
                owner == Some(annotations::MANAGED_BY_CONTROLLER),
                "{labels:?}"
            );
            for label in [annotations::CLUSTERSET, annotations::CONTROLLER_INSTANCE] {
                let value = labels.get(label);
                ensure!(value.is_some_and(|value| !value.is_empty()), "{labels:?}");
            }
            let nobodys = import.metadata.finalizers.unwrap_or_default();
            ensure!(nobodys.is_empty(), "{nobodys:?}");
            Ok(())
        })
        .await
}

pub(crate) async fn a10_a_missing_namespace_is_named(stage: &Stage) -> Result<()> {
    let late = stage.subject.members().len() - 1;
    let early: Vec<usize> = (0..late).collect();
    stage
        .play_in(&[0], async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            let others: Vec<&str> = scene.others(0).map(|at| scene.name(at)).collect();
            exported(scene, 0, "False", "NamespaceMissing", &others).await?;
            for &at in early.iter().filter(|&&at| at != 0) {
                scene.add_namespace(at).await?;
                scene.imported(at, POOL, &[0]).await?;
            }
            if late > 1 {
                // who lacks the namespace is named, and not counted
                let message = format!("{} NamespaceMissing", scene.name(late));
                exported(scene, 0, "True", "Exported", &[&message]).await?;
            }
            scene.add_namespace(late).await?;
            scene.imported(late, POOL, &[0]).await?;
            let all = format!("exported to {late}/{late}");
            let exported = exported(scene, 0, "True", "Exported", &[&all]).await?;
            ensure!(!exported.message.contains("Missing"), "{exported:?}");
            Ok(())
        })
        .await
}

pub(crate) async fn a12_the_message_counts_the_clusters(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            let others = scene.count() - 1;
            let all = format!("exported to {others}/{others}");
            exported(scene, 0, "True", "Exported", &[&all]).await?;
            let pools = scene.pools(0);
            let pool = within("getting the pool", pools.get(POOL)).await?;
            let parents = pool.status.and_then(|status| status.parents);
            let ours = parents.into_iter().flatten().find(|parent| {
                parent.controller_name.as_deref() == Some(annotations::MCI_CONTROLLER)
            });
            let reference = ours.context("no entry of the controller")?.parent_ref;
            ensure!(
                reference.kind.as_deref() == Some(annotations::IMPORT_KIND)
                    && reference.group.as_deref() == Some(annotations::IMPORT_GROUP)
                    && reference.namespace.as_deref() == Some(&*scene.namespace)
                    && reference.name == POOL,
                "{reference:?}"
            );

            let wrong = json!({annotations::EXPORT: "Everywhere"});
            scene.annotate(0, POOL, wrong).await?;
            let parts = ["Everywhere", annotations::EXPORT_CLUSTER_SET];
            exported(scene, 0, "False", "NotSupported", &parts).await?;

            scene.unexport(0, POOL).await?;
            becomes(
                &scene.pools(0),
                POOL,
                "no condition Exported",
                |pool| match exported_of(pool.ok_or("no pool")?) {
                    None => Ok(()),
                    Some(exported) => Err(format!("{exported:?}")),
                },
            )
            .await
        })
        .await
}

/// Waits for a ready entry of the first cluster.
async fn ready_entry(scene: &Scene<'_>, at: usize) -> Result<ImportedCluster> {
    becomes(&scene.imports(at), POOL, "a ready entry", |import| {
        let import = scene.is_of(import, &[0])?;
        let entry = import.clusters().first().ok_or("no entry")?;
        if conditions::is_true(&entry.conditions, conditions::READY) {
            Ok(entry.clone())
        } else {
            Err(format!("{entry:?}"))
        }
    })
    .await
}

/// Waits until the pool's condition says this, and in its message all of `parts`.
async fn exported(
    scene: &Scene<'_>,
    at: usize,
    status: &str,
    reason: &str,
    parts: &[&str],
) -> Result<Condition> {
    let what = format!("Exported is {status} for {reason}");
    becomes(&scene.pools(at), POOL, &what, |pool| {
        let exported = exported_of(pool.ok_or("no pool")?).ok_or("no condition Exported")?;
        let fits = exported.status == status
            && exported.reason == reason
            && parts.iter().all(|part| exported.message.contains(part));
        if fits {
            Ok(exported.clone())
        } else {
            Err(format!("{exported:?}"))
        }
    })
    .await
}

fn says(conditions: &[Condition], type_: &str, status: &str, reason: &str) -> Result<()> {
    let found = conditions::find(conditions, type_);
    let found = found.with_context(|| format!("no condition {type_}: {conditions:?}"))?;
    ensure!(
        (&*found.status, &*found.reason) == (status, reason),
        "{found:?}"
    );
    Ok(())
}

async fn controller_metrics(stage: &Stage) -> Result<String> {
    let controls = stage.subject.controls().context("no testbed")?;
    let pods: Api<Pod> = Api::namespaced(controls.home.client(), isthmus::NAMESPACE);
    let label = format!("app.kubernetes.io/name={}", isthmus::CONTROLLER);
    let pods = pods.list(&ListParams::default().labels(&label)).await?;
    let address = pods
        .items
        .into_iter()
        .find_map(|pod| pod.status?.pod_ip)
        .context("no controller")?;
    let metrics = Requests::new(format!("http://{address}:8080"));
    Ok(metrics.get("/metrics").await?.text())
}
