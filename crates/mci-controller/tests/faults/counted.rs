//! Metrics.

use anyhow::{Result, ensure};
use apiserver_sim::{GATEWAYS, POOLS, exported_pool};
use crd::annotations::EXPORT_MODE;

use crate::bed::{Bed, NS};

pub(crate) async fn what_is_written_and_withdrawn_is_counted() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    for pool in ["deleted", "changed"] {
        bed.server("a").export(NS, pool);
    }
    for importer in ["b", "c"] {
        for pool in ["deleted", "changed"] {
            bed.entries(importer, pool, &["a"]).await?;
        }
        let series = format!("mci_patches_total{{cluster=\"{importer}\",result=\"ok\"}}");
        bed.counted(&series, 2).await?;
    }
    // each import, in each member
    bed.counted("mci_propagation_seconds_count", 4).await?;
    // Exported of each pool
    bed.counted("mci_patches_total{cluster=\"a\",result=\"ok\"}", 2)
        .await?;
    ensure!(bed.metric_sum("mci_withdrawals_total").await? == 0);

    bed.server("a").delete(&POOLS, NS, "deleted");
    bed.server("a").unexport(NS, "changed");
    for importer in ["b", "c"] {
        for pool in ["deleted", "changed"] {
            bed.entries(importer, pool, &[]).await?;
        }
    }
    for reason in ["PoolDeleted", "AnnotationGone"] {
        let series = format!("mci_withdrawals_total{{reason=\"{reason}\"}}");
        ensure!(bed.counter(&series).await? == 1, "{series}");
    }
    ensure!(bed.metric_sum("mci_withdrawals_total").await? == 2);
    ensure!(bed.metric_sum("mci_withheld_withdrawals_total").await? == 0);
    Ok(())
}

pub(crate) async fn kinds_that_only_parent_mode_needs_are_counted_where_they_are_missing()
-> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    let a = bed.server("a");
    a.delete_crd(&GATEWAYS);
    let mut pool = exported_pool(NS, "llm");
    pool["metadata"]["annotations"][EXPORT_MODE] = "ParentMode".into();
    a.put(&POOLS, pool);
    bed.entries("b", "llm", &["a"]).await?;
    let series = "mci_watch_restarts_total{cluster=\"a\",kind=\"gateways\",reason=\"KindMissing\"}";
    bed.counted(series, 1).await?;
    let others = "mci_watch_restarts_total{cluster=\"a\",kind=\"httproutes\"";
    ensure!(bed.metric_sum(others).await? == 0);
    Ok(())
}
