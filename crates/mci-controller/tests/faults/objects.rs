//! CRDs and namespaces that are created and deleted.

use std::time::Duration;

use anyhow::{Result, ensure};
use apiserver_sim::{Ending, Flavour, IMPORTS, NAMESPACES, POOLS, Verb};
use serde_json::json;

use crate::bed::{Bed, NS, SOON, check, stays, until};

/// The API server reports each pool as deleted before the kind is gone (K8): that is no evidence.
pub(crate) async fn t01_deleting_the_pools_crd_withdraws_nothing() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    bed.server("a").delete_crd(&POOLS);
    bed.shows("b", "llm", "a", "Reachable", "False/CRDMissing", SOON)
        .await?;
    let kept = || {
        check(bed.server("b").entries(NS, "llm") == ["a"], || {
            format!("{:?}", bed.import("b", "llm"))
        })
    };
    stays("the entry", Duration::from_secs(3), kept).await?;
    bed.shows("c", "llm", "a", "Ready", "True/Ready", SOON)
        .await?;
    let withdrawn = "mci_withdrawals_total{reason=\"PoolDeleted\"}";
    ensure!(bed.counter(withdrawn).await? == 0);
    let withheld = "mci_withheld_withdrawals_total{reason=\"PoolAbsent\"}";
    ensure!(bed.counter(withheld).await? == 1, "not counted as withheld");

    bed.server("a").install_crd(&POOLS);
    bed.server("a").export(NS, "llm");
    // a kind that is not served is retried each 30 s
    bed.shows(
        "b",
        "llm",
        "a",
        "Reachable",
        "True/Reachable",
        Duration::from_secs(45),
    )
    .await?;
    bed.server("a").delete(&POOLS, NS, "llm");
    bed.entries("b", "llm", &[]).await?;
    ensure!(
        bed.counter(withdrawn).await? == 1,
        "not counted as withdrawn"
    );
    ensure!(bed.counter(withheld).await? == 1);
    Ok(())
}

/// A namespace that is missing, appears, ends and is gone.
pub(crate) async fn t19_imports_follow_a_namespace() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    let (a, b) = (bed.server("a"), bed.server("b"));
    let late = "late";
    a.add_epp(late, "192.0.2.9");
    a.export(late, "llm");
    let exported = || {
        let found = a.exported_condition(late, "llm");
        check(found.as_deref() == Some("False/NamespaceMissing"), || {
            format!("{found:?}")
        })
    };
    until("Exported is NamespaceMissing", SOON, exported).await?;
    ensure!(b.writes("inferencepoolimports") == 0, "{:?}", b.calls());

    b.put(&NAMESPACES, json!({"metadata": {"name": late}}));
    let listed = || {
        let found = b.entries(late, "llm");
        check(found == ["a"], || format!("{found:?}"))
    };
    until("the import follows the namespace", SOON, listed).await?;

    b.terminate_namespace(late);
    // as the namespace controller does while the namespace is ending
    b.delete(&IMPORTS, late, "llm");
    let count = || b.writes("inferencepoolimports");
    let before = count();
    let calm = || {
        check(count() <= before + 2, || {
            format!("{} writes", count() - before)
        })
    };
    stays(
        "few writes into an ending namespace",
        Duration::from_secs(3),
        calm,
    )
    .await?;
    b.delete_namespace(late);
    stays("few writes into none", Duration::from_secs(3), calm).await?;
    ensure!(b.get(&IMPORTS, late, "llm").is_none());
    until("the pool is Exported again", SOON, exported).await?;

    b.put(&NAMESPACES, json!({"metadata": {"name": late}}));
    until("the import is back", SOON, listed).await
}

/// The same while no watch runs that could report the deletions.
pub(crate) async fn t01_a_pools_crd_that_goes_unseen_withdraws_nothing() -> Result<()> {
    let mut bed = Bed::running(&["a", "b"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    bed.server("a").stop();
    bed.server("a").delete_crd(&POOLS);
    bed.server("a").restart().await?;
    bed.shows("b", "llm", "a", "Reachable", "False/CRDMissing", SOON)
        .await?;
    stays("the entry", Duration::from_secs(2), || {
        let found = bed.server("b").entries(NS, "llm");
        check(found == ["a"], || format!("{found:?}"))
    })
    .await?;
    // and over a restart
    bed.stop().await?;
    bed.start().await?;
    stays("the entry after a restart", Duration::from_secs(3), || {
        let found = bed.server("b").entries(NS, "llm");
        check(found == ["a"], || format!("{found:?}"))
    })
    .await
}

/// K6, K7: under upstream's CRD only `controllers` can be written; under ours all is back.
pub(crate) async fn t18_upstreams_crd_takes_our_fields_and_ours_brings_them_back() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    let b = bed.server("b");
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    b.install_import_crd(Flavour::Upstream);
    b.end_watches(&IMPORTS, Ending::Quiet);
    // a change to write: the exporting clusters are the one field that upstream's shape has
    bed.server("c").export(NS, "llm");
    until("the controllers name both", SOON, || {
        let import = b.get(&IMPORTS, NS, "llm").unwrap_or_default();
        let names = import.pointer("/status/controllers/0/exportingClusters");
        let count = names
            .and_then(serde_json::Value::as_array)
            .map_or(0, Vec::len);
        check(count == 2, || import.to_string())
    })
    .await?;
    let calm = b.count(Verb::Patch, "inferencepoolimports");
    stays("no loop of errors", Duration::from_secs(5), || {
        let now = b.count(Verb::Patch, "inferencepoolimports");
        check(now <= calm + 2, || format!("{} patches", now - calm))
    })
    .await?;
    b.install_import_crd(Flavour::Superset);
    bed.entries("b", "llm", &["a", "c"]).await
}
