//! CRDs and namespaces come and go.

use std::time::Duration;

use anyhow::{Result, ensure};
use apiserver_sim::{IMPORTS, NAMESPACES, POOLS};
use serde_json::json;

use crate::bed::{Bed, NS, SOON, check, stays, until};

/// The API server tells each pool as deleted before the kind is gone (K8): that proves nothing.
pub(crate) async fn t01_deleting_the_pools_crd_withdraws_nothing() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    bed.server("a").delete_crd(&POOLS);
    bed.says("b", "llm", "a", "Reachable", "False/CRDMissing", SOON)
        .await?;
    let kept = || {
        check(bed.server("b").entries(NS, "llm") == ["a"], || {
            format!("{:?}", bed.import("b", "llm"))
        })
    };
    stays("the entry", Duration::from_secs(3), kept).await?;
    bed.says("c", "llm", "a", "Ready", "True/Ready", SOON)
        .await?;
    let series = "mci_withdrawals_total{reason=\"PoolDeleted\"}";
    ensure!(bed.counter(series).await? == 0);

    bed.server("a").install_crd(&POOLS);
    bed.server("a").export(NS, "llm");
    // a kind that is not served is looked for each 30 s
    bed.says(
        "b",
        "llm",
        "a",
        "Reachable",
        "True/Reachable",
        Duration::from_secs(45),
    )
    .await?;
    bed.server("a").delete(&POOLS, NS, "llm");
    bed.entries("b", "llm", &[]).await
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
    until(
        "the pool says that nobody has its namespace",
        SOON,
        exported,
    )
    .await?;
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
    until("the pool says so again", SOON, exported).await?;

    b.put(&NAMESPACES, json!({"metadata": {"name": late}}));
    until("the import is back", SOON, listed).await
}
