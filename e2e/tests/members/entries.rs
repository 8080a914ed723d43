//! Checks the entry of east in the sample's import in west, and that it does not change.

use std::time::Duration;

use anyhow::{Context, Result};
use crd::{ImportedCluster, InferencePoolImport, conditions};
use e2e::{
    environment::Environment,
    pair::import,
    watching::{HELD, holds_for},
};
use kube::Api;
use testbed::{Cluster, eventually, isthmus};

/// The limit for several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The sample's import.
pub(crate) async fn sample(cluster: &Cluster) -> Result<InferencePoolImport> {
    let import = import(cluster).await.map_err(anyhow::Error::msg)?;
    import.context("no import")
}

/// Checks that the sample's import stays the same object with the same entries, all of them in use.
pub(crate) async fn stays(environment: &Environment, before: &InferencePoolImport) -> Result<()> {
    stays_for(environment, HELD, before, &[]).await
}

/// Like [`stays`], for this long. An entry may become `Ready=False` for one of these reasons.
pub(crate) async fn stays_for(
    environment: &Environment,
    long: Duration,
    before: &InferencePoolImport,
    reasons: &[&str],
) -> Result<()> {
    let imports: Api<InferencePoolImport> =
        Api::namespaced(environment.west.client(), isthmus::POOL_NAMESPACE);
    keeps_entries(&imports, long, before, reasons).await
}

/// Sees for this long that an import stays the same object with the same entries. None may become `Ready=False`, as an entry does
/// that drains, but for one of these reasons: gateways send no requests there. `Ready=Unknown` is what silence makes of it.
pub(crate) async fn keeps_entries(
    imports: &Api<InferencePoolImport>,
    long: Duration,
    before: &InferencePoolImport,
    reasons: &[&str],
) -> Result<()> {
    let bare = |entries: &[ImportedCluster]| -> Vec<ImportedCluster> {
        let entries = entries.iter().map(|entry| ImportedCluster {
            conditions: Vec::new(),
            ..entry.clone()
        });
        entries.collect()
    };
    let wanted = bare(before.clusters());
    let name = before.metadata.name.as_deref().context("no name")?;
    let what = format!("the import {name} stays");
    holds_for(imports, name, &what, long, |import| {
        let import = import.ok_or("NO IMPORT")?;
        if import.metadata.uid != before.metadata.uid {
            return Err("the import was made anew".to_owned());
        }
        for entry in import.clusters() {
            let ready = conditions::find(&entry.conditions, conditions::READY);
            let ready = ready.filter(|ready| !reasons.contains(&&*ready.reason));
            if let Some(ready) = ready.filter(|ready| ready.status == "False") {
                return Err(format!("{} is to get no requests: {ready:?}", entry.name));
            }
        }
        let entries = bare(import.clusters());
        if entries == wanted {
            Ok(())
        } else {
            Err(format!("{entries:?}, was {wanted:?}"))
        }
    })
    .await
}

/// Waits until the condition of east's entry has this value.
pub(crate) async fn entry_says(
    environment: &Environment,
    type_: &str,
    status: &str,
    reason: &str,
) -> Result<crd::Condition> {
    let what = format!("{type_} is {status} for {reason}");
    let seen = eventually(&what, SOON, async || {
        let import = import(&environment.west).await?.ok_or("NO IMPORT")?;
        let mut entries = import.clusters().iter();
        let entry = entries
            .find(|entry| entry.name == "east")
            .ok_or("NO ENTRY")?;
        let found = conditions::find(&entry.conditions, type_).ok_or("no such condition")?;
        if (&*found.status, &*found.reason) == (status, reason) {
            Ok(found.clone())
        } else {
            Err(format!("{found:?}"))
        }
    });
    Ok(seen.await?)
}
