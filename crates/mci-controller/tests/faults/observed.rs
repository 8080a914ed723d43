//! Events and explanations for users and operators.

use anyhow::{Context, Result, ensure};
use apiserver_sim::{CORE_EVENTS, POOLS, Server};

use crate::bed::{Bed, NS, SOON, check, until, until_async};

/// Reasons of the events in a cluster, sorted.
fn reasons(server: &Server) -> Vec<String> {
    let events = server.list(&CORE_EVENTS).into_iter();
    let mut reasons: Vec<String> = events
        .filter_map(|event| event["reason"].as_str().map(ToOwned::to_owned))
        .collect();
    reasons.sort();
    reasons
}

/// The events about a pool, as they are.
fn events_of(server: &Server, pool: &str) -> Vec<serde_json::Value> {
    let events = server.list(&CORE_EVENTS).into_iter();
    events
        .filter(|event| event["involvedObject"]["name"] == pool)
        .collect()
}

pub(crate) async fn an_export_is_reported_once_where_describe_finds_it_and_explained() -> Result<()>
{
    let mut bed = Bed::running(&["a", "b"]).await?;
    let (status, _) = bed.admin(&format!("/debug/explain/{NS}/llm")).await?;
    ensure!(status == 404, "{status}");
    bed.server("a").export(NS, "llm");
    until("the export is reported", SOON, || {
        let found = reasons(bed.server("a"));
        check(found.iter().any(|reason| reason == "Exported"), || {
            let seen = bed.server("a");
            let condition = seen.exported_condition(NS, "llm");
            format!("{condition:?}, {:?}", seen.list(&CORE_EVENTS))
        })
    })
    .await?;
    let pool = bed.server("a").get(&POOLS, NS, "llm").context("a pool")?;
    let events = bed.server("a").list(&CORE_EVENTS);
    let exported = events.iter().find(|event| event["reason"] == "Exported");
    let event = exported.context("an event")?;
    let about = &event["involvedObject"];
    ensure!(about["uid"] == pool["metadata"]["uid"], "{event}");
    ensure!(
        about["kind"] == "InferencePool" && about["name"] == "llm",
        "{event}"
    );
    ensure!(event["metadata"]["namespace"] == NS, "{event}");
    until_async("each member is explained", SOON, async || {
        let page = bed.explained("llm").await?;
        let exporter = &page["exporters"][0];
        ensure!(
            exporter["cluster"] == "a" && exporter["evidence"] == "Exported",
            "{page}"
        );
        let importers = page["importers"].as_array().context("a list")?;
        let row = importers.iter().find(|one| one["cluster"] == "b");
        let b = row.context("b is missing")?;
        ensure!(b["state"] == "Applied" && b["queued"] == false, "{page}");
        Ok(())
    })
    .await?;
    // a controller that starts again repeats nothing
    let before = events_of(bed.server("a"), "llm");
    bed.stop().await?;
    bed.start().await?;
    let version = bed.server("b").writes("inferencepoolimports");
    bed.server("a").export(NS, "other");
    bed.entries("b", "other", &["a"]).await?;
    until("the new export is reported", SOON, || {
        let found = reasons(bed.server("a"));
        let count = found.iter().filter(|reason| *reason == "Exported").count();
        check(count == 2, || format!("{found:?}"))
    })
    .await?;
    ensure!(
        bed.server("b").writes("inferencepoolimports") > version,
        "not written"
    );
    let of_llm = events_of(bed.server("a"), "llm");
    ensure!(of_llm == before, "{before:?} is now {of_llm:?}");
    Ok(())
}

pub(crate) async fn a_bad_annotation_is_reported_with_what_to_do() -> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    bed.server("a").put(&POOLS, {
        let mut pool = apiserver_sim::exported_pool(NS, "llm");
        pool["metadata"]["annotations"][apiserver_sim::EXPORT] = "cluster-set".into();
        pool
    });
    until("it is reported", SOON, || {
        let events = bed.server("a").list(&CORE_EVENTS);
        let found = events.iter().any(|event| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "InvalidExportAnnotation"
                && event["type"] == "Warning"
                && message.contains("use ClusterSet")
        });
        check(found, || format!("{events:?}"))
    })
    .await?;
    let page = bed.explained("llm").await?;
    ensure!(
        page["exporters"][0]["evidence"] == "AnnotationInvalid",
        "{page}"
    );
    Ok(())
}
