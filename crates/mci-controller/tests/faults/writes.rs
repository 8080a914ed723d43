//! Writes that are refused, slow or undone.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use apiserver_sim::{Call, Fault, POOLS, Rule, SERVICES, Server, Verb, condition};
use crd::annotations::MCI_CONTROLLER;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::bed::{Bed, NS, SOON, check, stays, until};

const GATEWAY: &str = "example.net/gateway";
/// A slow write.
const SLOW: Duration = Duration::from_secs(2);
const IMPORTS: &str = "inferencepoolimports";

fn parents(server: &Server) -> Vec<Value> {
    let pool = server.get(&POOLS, NS, "llm").unwrap_or_default();
    let parents = pool.pointer("/status/parents").and_then(Value::as_array);
    parents.cloned().unwrap_or_default()
}

fn of<'a>(parents: &'a [Value], controller: &str) -> Option<&'a Value> {
    parents
        .iter()
        .find(|parent| parent["controllerName"] == controller)
}

/// Writes of ours that met one of the gateway's.
fn refused(server: &Server) -> usize {
    let calls = server.calls().into_iter();
    calls
        .filter(|call| call.verb == Verb::Update && call.code == 409)
        .count()
}

/// A gateway changes its own entry, in one atomic read and write.
fn gateway_writes(server: &Server, message: &str) {
    server.edit(&POOLS, NS, "llm", |pool| {
        let accepted = json!({
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let entry = json!({"parentRef": {"name": "gw"}, "controllerName": GATEWAY, "conditions": [accepted]});
        match pool.pointer_mut("/status/parents").and_then(Value::as_array_mut) {
            Some(parents) => {
                parents.retain(|parent| parent["controllerName"] != GATEWAY);
                parents.push(entry);
            }
            None => pool["status"] = json!({"parents": [entry]}),
        }
    });
}

fn annotate(server: &Server, export: &str) {
    server.edit(&POOLS, NS, "llm", |pool| {
        pool["metadata"]["annotations"][apiserver_sim::EXPORT] = export.into();
    });
}

pub(crate) async fn t09_our_entry_and_a_busy_gateways_persist() -> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    let a = bed.server("a");
    // a read and a write of the controller span half of the gateway's period, until they have met
    let late = Rule::all(Fault::Late(Duration::from_millis(4)));
    let late = a.add_fault(late.resource("inferencepools"));
    a.export(NS, "llm");
    let mut due = Instant::now();
    let mut ours_since = None;
    let mut round = 0_u32;
    while round < 200 || ours_since.is_none() || refused(a) == 0 {
        ensure!(
            round < 700,
            "ours since round {ours_since:?}, {} conflicts",
            refused(a)
        );
        // on a machine so busy that 20 ms never suffice for a read and a write, the gateway is in less of a hurry
        due += Duration::from_millis(if round < 500 { 20 } else { 200 });
        sleep_until(due).await;
        gateway_writes(a, &format!("round {round}"));
        let found = parents(a);
        match (of(&found, MCI_CONTROLLER), ours_since) {
            (Some(_), None) => ours_since = Some(round),
            (None, Some(since)) => bail!("ours came in round {since} and went in {round}"),
            _ => {}
        }
        if refused(a) > 0 {
            a.remove_fault(late);
        }
        // a change for us to write, each time at another moment of the gateway's period: one of them has the gateway write
        // between our read and our write
        if round % 20 == 10 {
            sleep_until(due + Duration::from_millis(u64::from(round / 20 * 3 % 20))).await;
        }
        match round % 40 {
            10 => annotate(a, "Bad"),
            30 => annotate(a, "ClusterSet"),
            _ => {}
        }
        let found = parents(a);
        ensure!(of(&found, GATEWAY).is_some(), "round {round}: {found:?}");
        round += 1;
    }
    annotate(a, "ClusterSet");
    gateway_writes(a, "the last");
    until("both entries show the last change", SOON, || {
        let found = parents(a);
        let gateways = of(&found, GATEWAY);
        let last = gateways.is_some_and(|one| one["conditions"][0]["message"] == "the last");
        let ours = of(&found, MCI_CONTROLLER).and_then(|one| condition(one, "Exported"));
        check(last && ours.as_deref() == Some("True/Exported"), || {
            format!("{found:?}")
        })
    })
    .await
}

fn writes_since(server: &Server, start: Instant) -> Vec<Call> {
    let calls = server.calls().into_iter();
    calls
        .filter(|call| call.is_write() && call.resource == IMPORTS && call.at >= start)
        .collect()
}

pub(crate) async fn t10_retry_after_is_obeyed() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    let b = bed.server("b");
    let begin = Instant::now();
    let fault = b.add_fault(
        Rule::all(Fault::Refused {
            code: 429,
            retry_after: Some(5),
        })
        .verb(Verb::Patch)
        .resource(IMPORTS),
    );
    bed.server("a").export(NS, "first");
    let refused = until("a write is refused", SOON, || {
        let answered = writes_since(b, begin)
            .into_iter()
            .find(|call| call.code == 429);
        answered.context("no write")
    })
    .await?;
    let until_then = refused.at + Duration::from_secs(5);
    for number in 0..5 {
        bed.server("a").export(NS, &format!("pool-{number}"));
    }
    let almost = until_then - Duration::from_millis(50);
    stays(
        "silence after the one write",
        almost.saturating_duration_since(Instant::now()),
        || {
            let seen = writes_since(b, begin);
            check(seen.len() == 1, || format!("{seen:?}"))
        },
    )
    .await?;
    // others do not wait for it
    let elsewhere = bed.server("c").entries(NS, "pool-4");
    ensure!(elsewhere == ["a"], "c waited, too: {elsewhere:?}");
    let throttled = "mci_patches_total{cluster=\"b\",result=\"throttled\"}";
    ensure!(bed.counter(throttled).await? == 1, "not counted");
    b.remove_fault(fault);
    for number in 0..5 {
        bed.entries("b", &format!("pool-{number}"), &["a"]).await?;
    }
    bed.entries("b", "first", &["a"]).await
}

pub(crate) async fn t11_events_during_a_slow_write_are_one_write() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    let b = bed.server("b");
    bed.quiet().await?;
    let begin = Instant::now();
    b.add_fault(
        Rule::all(Fault::Late(SLOW))
            .verb(Verb::Patch)
            .resource(IMPORTS),
    );
    for number in 1..=100 {
        bed.server("a")
            .edit(&SERVICES, NS, apiserver_sim::EPP, |service| {
                service["status"]["loadBalancer"]["ingress"][0]["ip"] =
                    format!("198.51.100.{number}").into();
            });
        // each is an event of its own
        sleep(Duration::from_millis(1)).await;
    }
    let spread = begin.elapsed();
    until("the last address arrives", SOON, || {
        let import = bed
            .import("b", "llm")
            .map_or_else(String::new, |import| import.to_string());
        check(import.contains("198.51.100.100"), || import.clone())
    })
    .await?;
    let seen = writes_since(b, begin);
    // the one that the first event began, and one for each that ended while events still came
    let slow = SLOW.as_secs_f64();
    let most = 1.0 + (spread.as_secs_f64() / slow).ceil();
    ensure!(
        seen.len() as f64 <= most,
        "{} writes, {spread:?} of events: {seen:?}",
        seen.len()
    );
    let fast = writes_since(bed.server("c"), begin);
    ensure!(
        fast.len() > 5,
        "c is not slow and got only {} writes",
        fast.len()
    );
    Ok(())
}
