//! A member that cannot be used is reported, and nothing else suffers.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use testbed::{eventually, isthmus};

use e2e::environment::Environment;

const SOON: Duration = Duration::from_secs(30);

pub(crate) async fn a_garbage_kubeconfig_leaves_the_other_members_alone(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let mut members = environment.members();
    members.insert(
        "north".to_owned(),
        "apiVersion: v1\nclusters: {{{".to_owned(),
    );
    members.insert("Not_A_Name".to_owned(), members["east"].clone());
    isthmus::set_members(&environment.west, &members).await?;
    let result = async {
        eventually("the controller reports the bad members", SOON, async || {
            let metrics = environment
                .controller_metrics()
                .await
                .map_err(|error| format!("{error:#}"))?;
            let lines: Vec<_> = metrics
                .lines()
                .filter(|line| line.starts_with("mci_member_"))
                .collect();
            let north = lines
                .iter()
                .any(|line| line.contains("north") && line.contains("BadCredentials"));
            // a name that is none can be no label of a metric: it is on the page of members
            let page = environment.controller_page("/debug/clusters").await;
            let page = page.map_err(|error| format!("{error:#}"))?;
            let page: Value = serde_json::from_str(&page).map_err(|error| error.to_string())?;
            let mut unused = page["unused"].as_array().into_iter().flatten();
            let nameless = unused.any(|one| {
                one["name"] == "Not_A_Name" && one["active"]["reason"] == "BadCredentials"
            });
            if north && nameless {
                Ok(())
            } else {
                Err(format!("{}\n{page:#}", lines.join("\n")))
            }
        })
        .await?;
        // the others go on: a withdrawal and an export still pass
        isthmus::withdraw(&environment.east).await?;
        environment.no_import(SOON).await?;
        isthmus::export(&environment.east).await?;
        environment.serving().await
    }
    .await;
    isthmus::set_members(&environment.west, &environment.members()).await?;
    result
}
