//! The home cluster itself.

use anyhow::Result;
use serde_json::json;
use testbed::isthmus;

use super::{GONE, SOON, entry_of, member_is, restore, set_files};
use e2e::{apart::Apart, environment::Environment};

/// West is no file and no Secret, but home: it imports what east exports, and exports to it, with no kubeconfig and no
/// rights but those of `config/rbac`.
pub(crate) async fn home_is_a_member_by_its_own_account(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let (east, west) = (&environment.east, &environment.west);
    let apart = Apart::new();
    let outcome = async {
        set_files(environment, &["east"]).await?;
        // as a file it has left, so what follows is not of that one
        environment.no_import(GONE).await?;
        isthmus::change_controller(west, |pod| {
            if let Some(flags) = pod["containers"][0]["args"].as_array_mut() {
                flags.push(json!("--self-name=hub"));
            }
        })
        .await?;
        member_is(environment, "hub", "a member that works", SOON, |row| {
            row["source"] == "home" && row["active"]["reason"] == "Active"
        })
        .await?;
        entry_of(environment, "east").await?;
        environment.serving().await?;
        apart.add_namespace(east).await?;
        apart.add_pool(west).await?;
        apart.imported(east, "hub").await?;
        apart
            .says(west, "the export of home is told", |exported| {
                exported.status == "True" && exported.reason == "Exported"
            })
            .await?;
        apart.delete_pool(west).await?;
        apart.no_import(east).await
    }
    .await;
    // what it bears as home goes before it is a file again
    restore(environment, &apart).await?;
    outcome?;
    environment.settle().await
}
