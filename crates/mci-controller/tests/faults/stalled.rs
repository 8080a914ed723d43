//! Answers that begin and do not end, while other requests to the server work.

use std::time::Duration;

use anyhow::{Result, ensure};
use apiserver_sim::{Ending, Fault, POOLS, Rule, Server, Verb, condition};
use tokio::time::Instant;

use crate::bed::{Bed, NS, SOON, check, until};

const POOLS_PLURAL: &str = "inferencepools";
/// Slack for a busy machine, with all tests at once.
const SLACK: Duration = Duration::from_secs(6);

/// Injects this fault into the next watches of pools; returns once one of them is affected.
async fn stall_watches(server: &Server, rule: Rule) -> Result<Instant> {
    let watches = || server.count(Verb::Watch, POOLS_PLURAL);
    let before = watches();
    server.add_fault(rule.verb(Verb::Watch).resource(POOLS_PLURAL));
    server.end_watches(&POOLS, Ending::Quiet);
    until("the pools are watched again", SOON, || {
        check(watches() > before, || watches().to_string())
    })
    .await?;
    Ok(Instant::now())
}

/// Only the watch of pools hangs. If it sent its headers, nothing fails, and it is restarted 5 s after the server should
/// have ended it (40 s). Otherwise it fails after 10 s, and again; once that lasts 15 s while probes pass, contact is lost,
/// and all is relisted.
pub(crate) async fn an_export_behind_a_watch_that_hangs_is_seen_while_all_else_answers()
-> Result<()> {
    let buffered = async {
        let bed = Bed::running(&["a", "b"]).await?;
        let a = bed.server("a");
        a.export(NS, "before");
        bed.entries("b", "before", &["a"]).await?;
        let hung = stall_watches(a, Rule::all(Fault::HeadersOnly).times(1)).await?;
        a.export(NS, "llm");
        let bound = Duration::from_secs(45) + SLACK;
        let seen = || {
            let entry = bed.server("b").entry(NS, "before", "a").unwrap_or_default();
            let reachable = condition(&entry, "Reachable");
            if reachable.as_deref() != Some("True/Reachable") {
                return Ok(Err(format!("it flapped: {reachable:?}")));
            }
            let found = bed.server("b").entries(NS, "llm");
            check(found == ["a"], || format!("{found:?}")).map(Ok)
        };
        let outcome = until("what a buffering proxy hid", bound, seen).await?;
        outcome.map_err(|flap| anyhow::anyhow!("{flap} after {:?}", hung.elapsed()))
    };
    let silent = async {
        let bed = Bed::running(&["a", "b", "c"]).await?;
        let a = bed.server("a");
        a.export(NS, "before");
        bed.entries("b", "before", &["a"]).await?;
        stall_watches(a, Rule::all(Fault::Never)).await?;
        a.export(NS, "llm");
        // other members are not affected
        bed.server("c").export(NS, "other");
        bed.entries("b", "other", &["c"]).await?;
        // two answers that do not begin, a second between them, a probe, and the wait before a connect
        let bound = Duration::from_secs(10 + 1 + 10 + 5 + 1) + SLACK;
        until("what the watch did not report", bound, || {
            let [old, new] = ["before", "llm"].map(|pool| bed.server("b").entries(NS, pool));
            check(old == ["a"] && new == ["a"], || format!("{old:?} {new:?}"))
        })
        .await?;
        let series = "mci_watch_restarts_total{cluster=\"a\",kind=\"inferencepools\",reason=\"ConnectionLost\"}";
        ensure!(bed.counter(series).await? >= 1, "not counted");
        ensure!(bed.metric_sum("mci_withdrawals_total").await? == 0);
        Ok(())
    };
    tokio::try_join!(buffered, silent).map(|_| ())
}

/// A list that stops after its headers, and then one that stops half-way: neither is evidence.
pub(crate) async fn a_list_that_hangs_or_breaks_off_is_made_again_and_withdraws_nothing()
-> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    let a = bed.server("a");
    let old: Vec<String> = (0..20).map(|number| format!("old-{number:02}")).collect();
    for pool in &old {
        a.export(NS, pool);
    }
    for pool in &old {
        bed.entries("b", pool, &["a"]).await?;
    }
    bed.quiet().await?;
    for fault in [Fault::HeadersOnly, Fault::Truncated] {
        let rule = Rule::all(fault).verb(Verb::List).resource(POOLS_PLURAL);
        a.add_fault(rule.times(1));
    }
    let lists = a.count(Verb::List, POOLS_PLURAL);
    let begin = Instant::now();
    a.expire(&POOLS);
    a.export(NS, "meanwhile");
    bed.server("c").export(NS, "other");
    bed.entries("b", "other", &["c"]).await?;
    ensure!(
        begin.elapsed() < Duration::from_secs(10),
        "the others waited: {:?}",
        begin.elapsed()
    );
    // a page has 20 s; each failure is followed by a wait, and the second perhaps by a new session
    let bound = Duration::from_secs(20 + 5 + 10) + SLACK;
    let kept = || {
        let gone = old
            .iter()
            .find(|pool| bed.server("b").entries(NS, pool) != ["a"]);
        if let Some(gone) = gone {
            return Ok(Err(format!("{gone} is gone")));
        }
        let found = bed.server("b").entries(NS, "meanwhile");
        check(found == ["a"], || format!("{found:?}")).map(Ok)
    };
    let outcome = until("the pools are listed in full", bound, kept).await?;
    outcome.map_err(|gone| anyhow::anyhow!("{gone} after {:?}", begin.elapsed()))?;
    let lists = a.count(Verb::List, POOLS_PLURAL) - lists;
    ensure!(lists >= 3, "{lists} lists");
    ensure!(bed.metric_sum("mci_withdrawals_total").await? == 0);
    Ok(())
}
