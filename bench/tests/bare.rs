//! The bare client against a small fleet, without a controller.
#![cfg(test)]

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use apiserver_sim::IMPORTS;
use bench::{Bare, Fleet, FleetOptions, NS, pool};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(30);

/// A fleet with an import in each member, the first of which exports the pool.
fn mk_fleet(logs: &TempDir) -> Result<Fleet> {
    let options = FleetOptions {
        members: 4,
        tls: true,
        late: Duration::from_millis(1),
    };
    let fleet = Fleet::start(options, Path::new("no-controller"), logs.path())?;
    fleet.export(1, 1);
    for server in fleet.servers() {
        server.put(
            &IMPORTS,
            json!({"metadata": {"namespace": NS, "name": pool(0)}}),
        );
    }
    Ok(fleet)
}

fn mk_body(address: &str) -> String {
    let entry = json!({"name": "m0000", "routingMode": "EndpointMode", "targetPortNumber": 8000,
        "labels": {"address": address}});
    let import = json!({"apiVersion": IMPORTS.api_version(), "kind": IMPORTS.kind,
        "metadata": {"namespace": NS, "name": pool(0)}, "status": {"clusters": [entry]}});
    import.to_string()
}

async fn mk_bare(fleet: &Fleet, addresses: &[&str]) -> Result<Bare> {
    let bodies: Vec<String> = addresses.iter().map(|address| mk_body(address)).collect();
    let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
    let program = Path::new(env!("CARGO_BIN_EXE_bare"));
    fleet.bare(program, exporter, &pool(0), &bodies).await
}

/// When each of the importers had the text.
async fn applied(fleet: &Fleet, text: &str) -> Result<Vec<Instant>> {
    let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
    let name = pool(0);
    fleet.applied(&name, text, &[exporter.name()], LIMIT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_is_applied_to_all_importers_and_to_nobody_else() -> Result<()> {
    let logs = tempfile::tempdir()?;
    let fleet = mk_fleet(&logs)?;
    let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
    let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
    let bare = mk_bare(&fleet, &addresses).await?;
    for address in addresses {
        fleet.touch_pool(exporter, &pool(0), address);
        let text = format!("\"{address}\"");
        assert_eq!(applied(&fleet, &text).await?.len(), 3);
    }
    assert_eq!(fleet.writes(), (9, 0));
    let own = exporter.get(&IMPORTS, NS, &pool(0)).context("an import")?;
    assert_eq!(own.get("status"), None::<&Value>);
    assert!(bare.usage()?.rss > 0);
    bare.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_held_has_arrived_long_before_it_is_stored() -> Result<()> {
    let hold = Duration::from_millis(300);
    let logs = tempfile::tempdir()?;
    let fleet = mk_fleet(&logs)?;
    let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
    let bare = mk_bare(&fleet, &["192.0.2.1", "192.0.2.2"]).await?;
    let begin = Instant::now();
    {
        let _hold = fleet.hold_writes(hold);
        fleet.touch_pool(exporter, &pool(0), "held");
        let times = applied(&fleet, "\"192.0.2.1\"").await?;
        let last = times.into_iter().max().context("a time")?;
        let sent = begin + fleet.last_arrival(begin, &pool(0));
        assert!(sent > begin && last >= sent + hold);
    }
    fleet.touch_pool(exporter, &pool(0), "not held");
    assert_eq!(applied(&fleet, "\"192.0.2.2\"").await?.len(), 3);
    bare.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_fails_says_so() -> Result<()> {
    let logs = tempfile::tempdir()?;
    let fleet = mk_fleet(&logs)?;
    let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
    let bare = mk_bare(&fleet, &[]).await?;
    fleet.touch_pool(exporter, &pool(0), "one more than there are bodies");
    let ended = bare.ended(LIMIT).await?;
    assert!(!ended.success(), "{ended}");
    let log = std::fs::read_to_string(logs.path().join("bare.log"))?;
    assert!(log.contains("more events than bodies"), "{log}");
    Ok(())
}
