//! Clusters in which nothing is installed.

use anyhow::{Result, ensure};

use crate::stand::Stand;

pub(crate) async fn check_names_the_next_step_where_nothing_is_installed(
    stand: &Stand,
) -> Result<()> {
    let ended = stand.mci("check --contexts east,west").await?;
    ensure!(ended.code == Some(1), "{ended:#?}");
    for words in [
        "no controller in isthmus-system",
        "no member: no Secret of isthmus-system is one",
        "no CRD of InferencePool:",
        "no CRD of InferencePoolImport:",
        "kubectl mci join east --context east",
    ] {
        ensure!(
            ended.out.contains(words),
            "{words:?} is not in {}",
            ended.out
        );
    }
    ensure!(!ended.out.contains('\u{1b}'), "colours, and no terminal");

    let unknown = stand.mci("check --contexts east,north").await?;
    ensure!(unknown.code == Some(2), "{unknown:#?}");
    ensure!(unknown.err.contains("it has 2: west, east"), "{unknown:#?}");

    // a dry run needs nothing, and does nothing
    let yaml = stand.done("join east --dry-run").await?;
    ensure!(yaml.contains("kind: ClusterRoleBinding"), "{yaml}");
    let roles = stand
        .east
        .kubectl(&["get", "clusterroles", "-o", "name"])
        .await?;
    ensure!(!roles.contains("isthmus"), "{roles}");
    Ok(())
}
