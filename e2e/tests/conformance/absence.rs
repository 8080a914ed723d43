//! What must not be imported. Each test sees another export go through before it believes an absence.

use anyhow::{Result, ensure};
use crd::conditions;
use e2e::watching::holds;
use serde_json::json;

use crate::scene::{Stage, pool};

const POOL: &str = "pool";

pub(crate) async fn a04_a_pool_that_is_not_exported_has_no_import(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(0).await?;
            scene.pool(0, POOL, 8000).await?;
            scene.sees_an_export(0).await?;
            let all: Vec<usize> = (0..scene.count()).collect();
            scene.absent(&all, POOL).await
        })
        .await
}

/// Whether it is listed as refused or not at all is open; a name that the importing cluster would resolve by itself
/// must not be given to it (CVE-2021-25740).
pub(crate) async fn a05_an_external_name_is_never_passed_on(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.picker(0).await?;
            external(scene, 0).await?;
            scene.export(0, POOL).await?;
            scene.sees_an_export(0).await?;
            for at in scene.others(0) {
                let what = format!("import {POOL} in {} without addresses", scene.name(at));
                holds(&scene.imports(at), POOL, &what, |import| {
                    let entries = import.map_or(&[][..], |import| import.clusters());
                    let mut services = entries
                        .iter()
                        .filter_map(|entry| entry.endpoint_picker.as_ref())
                        .flat_map(|picker| &picker.service);
                    let refused = entries
                        .iter()
                        .all(|entry| conditions::is_false(&entry.conditions, conditions::ACCEPTED));
                    if refused && services.all(|service| service.addresses.is_empty()) {
                        Ok(())
                    } else {
                        Err(format!("{entries:?}"))
                    }
                })
                .await?;
            }
            Ok(())
        })
        .await
}

/// A pool that is not exported yet, with a picker whose Service is no more than a name.
pub(crate) async fn external(scene: &crate::scene::Scene<'_>, at: usize) -> Result<()> {
    const EXTERNAL: &str = "elsewhere";
    let service: k8s_openapi::api::core::v1::Service = scene
        .create(
            at,
            json!({
                "metadata": {"name": EXTERNAL},
                "spec": {
                    "type": "ExternalName",
                    "externalName": "picker.example.net",
                    "ports": [{"name": "grpc-ext-proc", "port": crate::scene::PICKER_PORT}],
                },
            }),
        )
        .await?;
    ensure!(
        service.spec.is_some(),
        "the Service came back without a spec"
    );
    let mut pool = pool(POOL, 8000);
    pool["spec"]["endpointPickerRef"]["name"] = json!(EXTERNAL);
    let _pool: crd::inference_pool::InferencePool = scene.create(at, pool).await?;
    Ok(())
}
