//! Members that are added, removed or mistaken for others.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use apiserver_sim::{POOLS, Verb};
use tokio::time::Instant;

use crate::bed::{Bed, NS, SOON, check, stays, until, until_async};

pub(crate) async fn t16_one_cluster_under_two_names_is_active_once() -> Result<()> {
    let mut bed = Bed::new(&["a", "b"])?;
    bed.admit_as("z", "a")?;
    bed.flags(&["--initial-sync-timeout", "2s"]);
    bed.start().await?;
    bed.server("a").export(NS, "llm");
    let names = until_async("one of the two is refused", SOON, async || {
        let rows = bed.clusters().await?;
        let reason = |name: &str| {
            rows.get(name)
                .and_then(|row| row.pointer("/active/reason")?.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        match (reason("a").as_str(), reason("z").as_str()) {
            ("DuplicateCluster", "Active") => Ok("z"),
            ("Active", "DuplicateCluster") => Ok("a"),
            _ => bail!("{rows:?}"),
        }
    })
    .await?;
    bed.entries("b", "llm", &[names]).await?;
    stays("one entry", Duration::from_secs(3), || {
        let found = bed.server("b").entries(NS, "llm");
        check(found == [names], || format!("{found:?}"))
    })
    .await
}

/// Removed while silent: its entries are withdrawn at once, it is forgotten within 30 s, and nothing waits for it. Added
/// again: its objects are adopted as they are.
pub(crate) async fn t20_and_t21_an_unreachable_member_is_forgotten_and_adopted_again() -> Result<()>
{
    let bed = Bed::running(&["a", "b", "c", "d"]).await?;
    for exporter in ["a", "b"] {
        bed.server(exporter).export(NS, "llm");
    }
    bed.server("b").export(NS, "other");
    bed.entries("c", "llm", &["a", "b"]).await?;
    bed.entries("a", "llm", &["b"]).await?;
    bed.entries("a", "other", &["b"]).await?;
    let exported = || {
        let found = bed.server("a").exported_condition(NS, "llm");
        check(found.as_deref() == Some("True/Exported"), || {
            format!("{found:?}")
        })
    };
    until("a's pool is exported", SOON, exported).await?;

    bed.server("a").hang();
    bed.dismiss("a")?;
    // two scans of the directory
    let gone = || {
        check(bed.server("c").entries(NS, "llm") == ["b"], || {
            format!("{:?}", bed.import("c", "llm"))
        })
    };
    until("its entries go", Duration::from_secs(15), gone).await?;
    let removed = Instant::now();
    bed.server("b").export(NS, "meanwhile");
    bed.entries("c", "meanwhile", &["b"]).await?;
    ensure!(
        removed.elapsed() < Duration::from_secs(5),
        "the others waited: {:?}",
        removed.elapsed()
    );
    until_async("it is forgotten", Duration::from_secs(32), async || {
        let rows = bed.clusters().await?;
        ensure!(!rows.contains_key("a"), "{rows:?}");
        Ok(())
    })
    .await?;
    bed.server("b").delete(&POOLS, NS, "meanwhile");
    bed.entries("c", "meanwhile", &[]).await?;

    // T21
    let before = [bed.version("a", "llm"), bed.version("a", "other")];
    let a = bed.server("a");
    let count = || a.writes("inferencepoolimports") + a.count(Verb::Update, "inferencepools");
    let writes = count();
    a.thaw();
    bed.admit("a")?;
    bed.entries("c", "llm", &["a", "b"]).await?;
    stays("all that it held", Duration::from_secs(3), || {
        let now = [bed.version("a", "llm"), bed.version("a", "other")];
        check(now == before && count() == writes, || {
            format!("{} writes, {now:?}", count() - writes)
        })
    })
    .await?;
    exported().map_err(anyhow::Error::msg)
}

pub(crate) async fn t25_members_that_vanish_together_are_held() -> Result<()> {
    let mut bed = Bed::new(&["a", "b", "c", "d"])?;
    // two scans find them gone, and what is held must outlast what the test looks at
    bed.flags(&["--removal-hold", "12s"]);
    bed.start().await?;
    for exporter in ["a", "b", "c"] {
        bed.server(exporter).export(NS, "llm");
    }
    bed.entries("d", "llm", &["a", "b", "c"]).await?;
    for member in ["a", "b", "c"] {
        bed.dismiss(member)?;
    }
    stays("the entries of all", Duration::from_secs(10), || {
        let found = bed.server("d").entries(NS, "llm");
        check(found.len() == 3, || format!("{found:?}"))
    })
    .await?;
    // those that one scan found gone before the others did were not most yet
    let withheld = "mci_withheld_withdrawals_total{reason=\"MemberRemoved\"}";
    let withdrawn = "mci_withdrawals_total{reason=\"MemberRemoved\"}";
    ensure!(bed.counter(withheld).await? > 0, "not counted as withheld");
    ensure!(bed.counter(withdrawn).await? == 0);
    let found = || {
        check(bed.server("d").entries(NS, "llm").is_empty(), || {
            format!("{:?}", bed.import("d", "llm"))
        })
    };
    until("the hold ends", Duration::from_secs(30), found).await?;
    ensure!(
        bed.counter(withdrawn).await? == 3,
        "not counted as withdrawn"
    );
    Ok(())
}
