//! Starts with the imports of an earlier controller.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apiserver_sim::{IMPORTS, Verb};
use serde_json::{Value, json};

use crate::bed::{Bed, NS, SOON, check, stays, until};

const QUICK_START: [&str; 2] = ["--initial-sync-timeout", "1s"];

fn without_contact(import: Option<Value>) -> Option<Value> {
    let mut import = import?;
    let status = import.get_mut("status")?;
    // the head counts what is ready
    for field in ["conditions", "controllers"] {
        if let Some(status) = status.as_object_mut() {
            status.remove(field);
        }
    }
    for entry in status.get_mut("clusters")?.as_array_mut()? {
        if let Some(conditions) = entry.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|one| one["type"] != "Reachable" && one["type"] != "Ready");
        }
    }
    Some(import)
}

pub(crate) async fn t02_a_start_without_a_member_keeps_its_entries() -> Result<()> {
    let mut bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.server("b").export(NS, "llm");
    bed.entries("c", "llm", &["a", "b"]).await?;
    bed.entries("b", "llm", &["a"]).await?;
    bed.stop().await?;
    let before = [bed.import("b", "llm"), bed.import("c", "llm")];

    bed.server("a").stop();
    bed.flags(&QUICK_START);
    bed.start().await?;
    bed.shows("c", "llm", "a", "Reachable", "False/ConnectionLost", SOON)
        .await?;
    bed.shows("b", "llm", "a", "Reachable", "False/ConnectionLost", SOON)
        .await?;
    let kept = || {
        let now = [bed.import("b", "llm"), bed.import("c", "llm")];
        let same = now.clone().map(without_contact) == before.clone().map(without_contact);
        check(same, || format!("{now:?} instead of {before:?}"))
    };
    stays("all but Reachable and Ready", Duration::from_secs(3), kept).await?;

    bed.server("a").restart().await?;
    let limit = Duration::from_secs(45);
    until("all is as it was", limit, || {
        let now = [bed.import("b", "llm"), bed.import("c", "llm")];
        check(now == before, || format!("{now:?} instead of {before:?}"))
    })
    .await
}

pub(crate) async fn t03_an_orphan_is_deleted_once() -> Result<()> {
    let mut bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "gone");
    bed.server("a").export(NS, "stays");
    for pool in ["gone", "stays"] {
        bed.entries("b", pool, &["a"]).await?;
        bed.entries("c", pool, &["a"]).await?;
    }
    bed.stop().await?;
    bed.server("a").unexport(NS, "gone");
    let deletions = |name| bed_deletions(&bed, name);
    let before = deletions("b");
    bed.start().await?;
    bed.entries("b", "gone", &[]).await?;
    bed.entries("c", "gone", &[]).await?;
    stays("one deletion", Duration::from_secs(2), || {
        let now = bed_deletions(&bed, "b") - before;
        check(now == 1, || format!("{now} deletions"))
    })
    .await?;
    ensure!(bed.server("b").get(&IMPORTS, NS, "gone").is_none());
    bed.entries("b", "stays", &["a"]).await
}

fn bed_deletions(bed: &Bed, server: &str) -> u64 {
    bed.server(server)
        .count(Verb::Delete, "inferencepoolimports")
}

pub(crate) async fn t04_imports_of_others_are_left_alone() -> Result<()> {
    let mut bed = Bed::new(&["a", "b"])?;
    let b = bed.server("b");
    let import = |name: &str, labels: Value| {
        json!({"metadata": {"namespace": NS, "name": name, "labels": labels},
            "status": {"clusters": [{"name": "x", "routingMode": "EndpointMode", "targetPortNumber": 1}]}})
    };
    let foreign = json!({"app.kubernetes.io/managed-by": "isthmus-mci-controller",
        "isthmus.dev/clusterset": "default", "isthmus.dev/controller-instance": "another"});
    b.put(&IMPORTS, import("foreign", foreign.clone()));
    b.put(&IMPORTS, import("nobodys", json!({})));
    b.put(&IMPORTS, import("in-the-way", foreign));
    let names = ["foreign", "nobodys", "in-the-way"];
    let before: Vec<_> = names.iter().map(|name| b.get(&IMPORTS, NS, name)).collect();
    bed.server("a").export(NS, "in-the-way");
    bed.server("a").export(NS, "free");
    bed.start().await?;
    bed.entries("b", "free", &["a"]).await?;
    stays("the imports of others", Duration::from_secs(3), || {
        let now: Vec<_> = names
            .iter()
            .map(|name| bed.server("b").get(&IMPORTS, NS, name))
            .collect();
        check(now == before, || format!("{now:?}"))
    })
    .await?;
    let calls = bed.server("b").calls();
    let touched: Vec<_> = calls
        .iter()
        .filter(|call| call.is_write() && names.contains(&call.name.as_str()))
        .collect();
    ensure!(touched.is_empty(), "{touched:?}");
    let found = bed.server("a").exported_condition(NS, "in-the-way");
    ensure!(
        found
            .as_deref()
            .is_some_and(|found| found.starts_with("False/")),
        "{found:?}"
    );
    Ok(())
}

/// The entries of a member that does not answer are carried over from each importer's own import.
pub(crate) async fn t27_a_forged_import_fools_only_its_owner() -> Result<()> {
    let mut bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    bed.entries("c", "llm", &["a"]).await?;
    bed.stop().await?;
    bed.server("a").stop();
    let forged = "203.0.113.66";
    bed.server("b").edit(&IMPORTS, NS, "llm", |import| {
        let addresses = "/status/clusters/0/endpointPicker/service/0/addresses/0";
        if let Some(address) = import.pointer_mut(addresses) {
            *address = forged.into();
        }
    });
    let text = |name: &str| bed_text(&bed, name);
    ensure!(text("b").contains(forged), "{}", text("b"));
    bed.flags(&QUICK_START);
    bed.start().await?;
    bed.shows("c", "llm", "a", "Reachable", "False/ConnectionLost", SOON)
        .await?;
    stays("what c imports", Duration::from_secs(3), || {
        let now = bed_text(&bed, "c");
        check(now.contains("192.0.2.1") && !now.contains(forged), || {
            now.clone()
        })
    })
    .await?;
    bed.server("a").restart().await?;
    until("b has the present state", Duration::from_secs(45), || {
        let now = bed_text(&bed, "b");
        check(now.contains("192.0.2.1") && !now.contains(forged), || {
            now.clone()
        })
    })
    .await
    .context("after a came back")
}

fn bed_text(bed: &Bed, server: &str) -> String {
    bed.import(server, "llm")
        .map_or_else(String::new, |import| import.to_string())
}
