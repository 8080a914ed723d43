//! The other reading of the proposal: each member that has the namespace has the import, an exporter too.

use anyhow::Result;

use crate::{exported, exports, scene::Stage};

pub(crate) async fn a01_an_export_appears_in_every_cluster_and_goes_with_its_annotation(
    stage: &Stage,
) -> Result<()> {
    exports::a01_an_export_appears_in_every_other_cluster_and_goes_with_its_annotation(stage).await
}

pub(crate) async fn a02_of_two_exporters_the_one_that_leaves_takes_its_entry_alone(
    stage: &Stage,
) -> Result<()> {
    exports::a02_of_two_exporters_the_one_that_leaves_takes_its_entry_alone(stage).await
}

pub(crate) async fn a12_the_pool_says_whether_it_is_exported(stage: &Stage) -> Result<()> {
    exported::a12_the_pool_says_whether_it_is_exported(stage).await
}
