//! Promises that are not in the table of faults, each on a running controller.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apiserver_sim::{EPP, Flavour, IMPORTS, NAMESPACES, SERVICES, condition, load_balancer};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{Bed, NS, SOON, check, stays, until, until_async};

/// Section 8, "import CRD absent": a pause, reported in `Exported`, and all imports once the CRD exists.
pub(crate) async fn an_import_crd_that_is_missing_pauses_its_member_alone() -> Result<()> {
    let mut bed = Bed::new(&["a", "b", "c"])?;
    bed.server("b").delete_crd(&IMPORTS);
    bed.server("a").export(NS, "llm");
    bed.start().await?;
    bed.entries("c", "llm", &["a"]).await?;
    exported(&bed, "llm", "False/PartiallyExported").await?;
    ensure!(bed.server("b").writes("inferencepoolimports") == 0);

    bed.server("b").install_import_crd(Flavour::Superset);
    bed.entries("b", "llm", &["a"]).await?;
    exported(&bed, "llm", "True/Exported").await?;

    // later it goes, with all its imports (K8)
    bed.server("b").delete_crd(&IMPORTS);
    bed.server("a").export(NS, "more");
    bed.entries("c", "more", &["a"]).await?;
    exported(&bed, "llm", "False/PartiallyExported").await?;
    ensure!(bed.server("c").entries(NS, "llm") == ["a"]);
    bed.server("b").install_import_crd(Flavour::Superset);
    bed.entries("b", "llm", &["a"]).await?;
    bed.entries("b", "more", &["a"]).await
}

/// Waits until the pool in `a` has this condition `Exported`.
async fn exported(bed: &Bed, pool: &str, wanted: &str) -> Result<()> {
    exported_in(bed, NS, pool, wanted).await
}

async fn exported_in(bed: &Bed, namespace: &str, pool: &str, wanted: &str) -> Result<()> {
    let what = format!("{pool} has Exported={wanted}");
    until(&what, SOON, || {
        let found = bed.server("a").exported_condition(namespace, pool);
        check(found.as_deref() == Some(wanted), || format!("{found:?}"))
    })
    .await
}

/// Section 4.7.
pub(crate) async fn a_withdrawn_entry_drains_for_as_long_as_asked() -> Result<()> {
    const DRAIN: Duration = Duration::from_secs(6);
    let mut bed = Bed::new(&["a", "b"])?;
    bed.flags(&["--drain-seconds", "6"]);
    bed.start().await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    let drains = async |bed: &Bed| {
        bed.server("a").unexport(NS, "llm");
        bed.shows("b", "llm", "a", "Ready", "False/Draining", SOON)
            .await
    };
    // a new export calls it off
    drains(&bed).await?;
    bed.server("a").export(NS, "llm");
    bed.shows("b", "llm", "a", "Ready", "True/Ready", SOON)
        .await?;
    // a restart goes on with it, and does not begin again
    let begun = Instant::now();
    drains(&bed).await?;
    let entry = bed.server("b").entry(NS, "llm", "a").context("an entry")?;
    ensure!(entry["drainUntil"].is_string(), "{entry}");
    bed.stop().await?;
    bed.start().await?;
    bed.entries("b", "llm", &[]).await?;
    let drained = begun.elapsed();
    // stored in whole seconds
    let least = DRAIN.saturating_sub(Duration::from_secs(1));
    ensure!(drained >= least && drained < 2 * DRAIN, "{drained:?}");
    Ok(())
}

/// Section 8, "home API down": none sent, inventory kept. A claim is good for 10 s after it was last renewed (4.8).
pub(crate) async fn a_leader_that_loses_home_writes_nothing_until_it_is_back() -> Result<()> {
    const CLAIM: Duration = Duration::from_secs(10);
    let mut bed = Bed::new(&["a", "b", "home"])?;
    bed.settle("home")?;
    bed.start().await?;
    bed.server("a").export(NS, "before");
    bed.entries("b", "before", &["a"]).await?;
    // metrics are renewed each second
    bed.counted("mci_leader", 1).await?;
    bed.server("home").stop();
    let stopped = Instant::now();
    until_async("it leads no more", SOON, async || {
        let leads = bed.metric_sum("mci_leader").await?;
        ensure!(leads == 0, "{leads}");
        Ok(())
    })
    .await?;
    ensure!(stopped.elapsed() < CLAIM + Duration::from_secs(5));
    bed.server("a").export(NS, "meanwhile");
    stays("no new import", Duration::from_secs(3), || {
        let found = bed.server("b").entries(NS, "meanwhile");
        check(found.is_empty(), || format!("{found:?}"))
    })
    .await?;
    ensure!(bed.server("b").entries(NS, "before") == ["a"]);
    bed.server("home").restart().await?;
    bed.entries("b", "meanwhile", &["a"]).await
}

/// Section 4.3, "Guard": most members silent at once are not taken for gone, whatever the operator grants to one.
pub(crate) async fn most_members_silent_at_once_are_held_by_the_guard() -> Result<()> {
    let mut bed = Bed::new(&["a", "b", "c"])?;
    bed.flags(&["--stale-after", "1s", "--withdraw-after", "2s"]);
    bed.start().await?;
    bed.server("a").export(NS, "llm");
    bed.server("b").export(NS, "llm");
    bed.entries("c", "llm", &["a", "b"]).await?;
    bed.server("a").stop();
    bed.server("b").stop();
    for cluster in ["a", "b"] {
        bed.shows(
            "c",
            "llm",
            cluster,
            "Reachable",
            "False/ConnectionLost",
            SOON,
        )
        .await?;
    }
    ensure!(bed.metric_sum("mci_isolation_guard").await? == 1);
    stays("both entries, ready", Duration::from_secs(5), || {
        let entries = ["a", "b"].map(|cluster| bed.server("c").entry(NS, "llm", cluster));
        let ready = |entry: &Option<Value>| condition(entry.as_ref()?, "Ready");
        let ready: Vec<_> = entries.iter().map(ready).collect();
        check(
            ready.iter().all(|one| one.as_deref() == Some("True/Ready")),
            || format!("{ready:?}"),
        )
    })
    .await?;
    bed.counted(
        "mci_withheld_withdrawals_total{reason=\"WithdrawAfter\"}",
        2,
    )
    .await
}

/// The one way in which silence ends an export, and only where the operator asked for it.
pub(crate) async fn a_silent_member_is_withdrawn_after_the_time_that_the_operator_set() -> Result<()>
{
    let mut bed = Bed::new(&["a", "b", "c"])?;
    bed.flags(&["--stale-after", "1s", "--withdraw-after", "4s"]);
    bed.start().await?;
    bed.server("a").export(NS, "llm");
    bed.server("b").export(NS, "llm");
    bed.entries("c", "llm", &["a", "b"]).await?;
    bed.server("a").stop();
    bed.shows("c", "llm", "a", "Ready", "Unknown/Stale", SOON)
        .await?;
    bed.entries("c", "llm", &["b"]).await?;
    bed.counted("mci_withdrawals_total{reason=\"WithdrawAfter\"}", 1)
        .await?;
    bed.server("a").restart().await?;
    bed.shows("c", "llm", "a", "Ready", "True/Ready", 2 * SOON)
        .await
}

/// `--strict-exported`: a member without the namespace counts.
pub(crate) async fn a_missing_namespace_counts_where_the_operator_is_strict() -> Result<()> {
    const NARROW: &str = "narrow";
    let mut bed = Bed::new(&["a", "b", "c"])?;
    bed.server("a").add_epp(NARROW, "192.0.2.9");
    bed.server("a").export(NARROW, "llm");
    let namespace = json!({"metadata": {"name": NARROW}});
    bed.server("b").put(&NAMESPACES, namespace);
    bed.start().await?;
    exported_in(&bed, NARROW, "llm", "True/Exported").await?;
    bed.stop().await?;
    bed.flags(&["--strict-exported"]);
    bed.start().await?;
    exported_in(&bed, NARROW, "llm", "False/PartiallyExported").await
}

/// Section 4.6: an import without labels, of which nobody owns what we write, is adopted as it is.
pub(crate) async fn an_import_without_labels_is_adopted_in_place() -> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    let b = bed.server("b");
    let metadata = json!({"namespace": NS, "name": "llm", "annotations": {"by": "hand"}});
    b.put(&IMPORTS, json!({"metadata": metadata}));
    let uid = |import: &Value| import.pointer("/metadata/uid").cloned();
    let before = b.get(&IMPORTS, NS, "llm").context("an import")?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    let after = b.get(&IMPORTS, NS, "llm").context("no import")?;
    ensure!(uid(&before).is_some() && uid(&before) == uid(&after));
    let label = "/metadata/labels/app.kubernetes.io~1managed-by";
    let label = after.pointer(label).and_then(Value::as_str);
    ensure!(label == Some("isthmus-mci-controller"), "{after}");
    ensure!(
        after.pointer("/metadata/annotations/by") == Some(&json!("hand")),
        "{after}"
    );
    // ours to take away, too
    bed.server("a").unexport(NS, "llm");
    until("the import is gone", SOON, || {
        let found = b.get(&IMPORTS, NS, "llm");
        check(found.is_none(), || format!("{found:?}"))
    })
    .await
}

/// Section 4.1: the entry stays while its endpoint picker's Service is missing, with the reason why it is not ready.
pub(crate) async fn an_endpoint_pickers_service_may_go_and_return() -> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    bed.server("a").export(NS, "llm");
    bed.shows("b", "llm", "a", "Ready", "True/Ready", SOON)
        .await?;
    bed.server("a").delete(&SERVICES, NS, EPP);
    for type_ in ["ResolvedRefs", "Ready"] {
        bed.shows("b", "llm", "a", type_, "False/BackendNotFound", SOON)
            .await?;
    }
    let entry = bed.server("b").entry(NS, "llm", "a").context("an entry")?;
    let addresses = entry.pointer("/endpointPicker/service/0/addresses");
    ensure!(addresses.is_none(), "the address of before: {entry}");
    let service = load_balancer(NS, EPP, "192.0.2.77");
    bed.server("a").put(&SERVICES, service);
    bed.shows("b", "llm", "a", "Ready", "True/Ready", SOON)
        .await?;
    let entry = bed.server("b").entry(NS, "llm", "a").context("an entry")?;
    let addresses = entry.pointer("/endpointPicker/service/0/addresses");
    ensure!(addresses == Some(&json!(["192.0.2.77"])), "{entry}");
    Ok(())
}
