//! Silence, broken watches, lost credentials.

use std::time::Duration;

use anyhow::{Result, ensure};
use apiserver_sim::{Ending, IMPORTS, NAMESPACES, POOLS, SERVICES};
use tokio::time::Instant;

use crate::bed::{Bed, NS, check, stays, until};

/// How long an export of `b` takes to be listed in all of `others`, for each of some pools.
async fn propagation(bed: &Bed, prefix: &str, others: &[&str]) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for number in 0..20 {
        let pool = format!("{prefix}-{number}");
        let start = Instant::now();
        bed.server("b").export(NS, &pool);
        for other in others {
            bed.entries(other, &pool, &["b"]).await?;
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

pub(crate) async fn t05_a_member_that_never_answers_is_marked_and_delays_nobody() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c", "d"]).await?;
    bed.server("a").export(NS, "llm");
    for other in ["b", "c", "d"] {
        bed.entries(other, "llm", &["a"]).await?;
    }
    let before = propagation(&bed, "before", &["c", "d"]).await?;
    let silent = Instant::now();
    bed.server("a").hang();
    let after = propagation(&bed, "after", &["c", "d"]).await?;
    bed.says(
        "c",
        "llm",
        "a",
        "Reachable",
        "False/ConnectionLost",
        Duration::from_secs(20),
    )
    .await?;
    let marked = silent.elapsed();
    ensure!(marked <= Duration::from_secs(15), "marked after {marked:?}");
    let later = propagation(&bed, "later", &["c", "d"]).await?;
    // a tick of the machine, not a deadline of the silent member, whose least is 3 s
    let slack = Duration::from_millis(500);
    let worst = |times: &[Duration]| times.last().copied().unwrap_or_default();
    for times in [&after, &later] {
        ensure!(
            worst(times) <= worst(&before) + slack,
            "{times:?} against {before:?}"
        );
    }
    // and it is caught up with
    bed.server("a").thaw();
    bed.says(
        "c",
        "llm",
        "a",
        "Reachable",
        "True/Reachable",
        Duration::from_secs(45),
    )
    .await?;
    let missed = || {
        check(bed.server("a").entries(NS, "later-19") == ["b"], || {
            format!("{:?}", bed.import("a", "later-19"))
        })
    };
    until("what it missed", Duration::from_secs(20), missed).await
}

pub(crate) async fn t07_a_watch_cut_inside_an_event_deletes_nothing() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    bed.entries("c", "llm", &["a"]).await?;
    stays("quiet", Duration::from_secs(2), || check(true, String::new)).await?;
    let before = [bed.version("b", "llm"), bed.version("c", "llm")];
    for server in bed.servers() {
        for kind in [&POOLS, &SERVICES, &NAMESPACES, &IMPORTS] {
            server.end_watches(kind, Ending::InJson);
        }
    }
    // while no watch runs
    bed.server("a").export(NS, "other");
    bed.entries("b", "other", &["a"]).await?;
    bed.entries("c", "other", &["a"]).await?;
    stays("the first import", Duration::from_secs(2), || {
        let now = [bed.version("b", "llm"), bed.version("c", "llm")];
        check(now == before, || format!("{now:?} instead of {before:?}"))
    })
    .await
}
