//! Hostile members and users.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apiserver_sim::{EPP, IMPORTS, POOLS, SERVICES, condition, exported_pool};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::bed::{Bed, NS, SOON, check, stays, until};

/// Half a megabyte takes long, beside other tests.
const LATER: Duration = Duration::from_secs(45);

fn set_ingress(bed: &Bed, ingress: Value) {
    bed.server("a").edit(&SERVICES, NS, EPP, |service| {
        service["status"]["loadBalancer"]["ingress"] = ingress;
    });
}

fn addresses(entry: &Value) -> Vec<String> {
    let services = entry
        .pointer("/endpointPicker/service")
        .and_then(Value::as_array);
    let addresses = services
        .into_iter()
        .flatten()
        .filter_map(|service| service.get("addresses")?.as_array())
        .flatten();
    addresses
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

pub(crate) async fn t22_hostile_addresses_are_sanitised() -> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    let entry = || bed.server("b").entry(NS, "llm", "a").context("no entry");

    let some = json!([{"ip": "127.0.0.1"}, {"ip": "169.254.169.254"}, {"hostname": "a b"}, {"ip": "::ffff:127.0.0.1"},
        {"hostname": "localhost"}, {"hostname": "metadata.google.internal"}, {"ip": "192.0.2.77"}]);
    set_ingress(&bed, some);
    until("the one good address is left", SOON, || {
        let entry = entry().map_err(|error| error.to_string())?;
        check(addresses(&entry) == ["192.0.2.77"], || entry.to_string())
    })
    .await?;

    let many: Vec<Value> = (0..10_000_u32)
        .map(|n| json!({"ip": format!("10.{}.{}.{}", n >> 14, (n >> 7) & 127, n & 127)}))
        .collect();
    set_ingress(&bed, Value::Array(many));
    until("a few of the many are left", LATER, || {
        let entry = entry().map_err(|error| error.to_string())?;
        let found = addresses(&entry);
        check(
            !found.is_empty() && found.len() <= 64 && found[0].starts_with("10."),
            || format!("{} addresses", found.len()),
        )
    })
    .await?;
    let size = entry()?.to_string().len();
    ensure!(size <= 8 * 1024, "the entry has {size} bytes");

    set_ingress(
        &bed,
        json!([{"ip": "127.0.0.1"}, {"ip": "169.254.169.254"}, {"hostname": "a b"}]),
    );
    until("an entry without a good address is refused", LATER, || {
        let entry = entry().map_err(|error| error.to_string())?;
        let accepted = condition(&entry, "Accepted");
        let good =
            addresses(&entry).is_empty() && accepted.as_deref() == Some("False/InvalidAddress");
        check(good, || entry.to_string())
    })
    .await?;

    // names that would leave their URL never reach one
    for name in ["../x", "a/b", "UPPER", "a b"] {
        bed.server("a").put(&POOLS, exported_pool(NS, name));
    }
    bed.server("a").export(NS, "after");
    bed.entries("b", "after", &["a"]).await?;
    for server in bed.servers() {
        let strange: Vec<_> = server
            .calls()
            .into_iter()
            .filter(|call| {
                call.resource == "unknown" && call.name.contains("inferencepool")
                    || ["..", "x", "a", "b", "UPPER"].contains(&call.name.as_str())
            })
            .collect();
        ensure!(strange.is_empty(), "{strange:?}");
    }
    let imports = bed.server("b").texts(&IMPORTS);
    ensure!(
        imports.len() == 2,
        "{:?}",
        imports.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    Ok(())
}

pub(crate) async fn t23_clocks_an_hour_apart_change_nothing() -> Result<()> {
    let hour = SignedDuration::from_hours(1);
    let mut results = Vec::new();
    for (a, b) in [
        (SignedDuration::ZERO, SignedDuration::ZERO),
        (hour, -hour),
        (-hour, hour),
    ] {
        let bed = Bed::new(&["a", "b", "c"])?;
        bed.server("a").set_clock(a);
        bed.server("b").set_clock(b);
        let mut bed = bed;
        bed.start().await?;
        for exporter in ["a", "b"] {
            bed.server(exporter).export(NS, "llm");
        }
        bed.entries("c", "llm", &["a", "b"]).await?;
        bed.entries("a", "llm", &["b"]).await?;
        bed.entries("b", "llm", &["a"]).await?;
        let exported = || {
            let found = ["a", "b"].map(|name| bed.server(name).exported_condition(NS, "llm"));
            check(
                found
                    .iter()
                    .all(|one| one.as_deref() == Some("True/Exported")),
                || format!("{found:?}"),
            )
        };
        until("both pools are Exported", SOON, exported).await?;
        let settled = ["a", "b", "c"].map(|name| bed.version(name, "llm"));
        stays("nothing is written", Duration::from_secs(1), || {
            let now = ["a", "b", "c"].map(|name| bed.version(name, "llm"));
            check(now == settled, || format!("{now:?}"))
        })
        .await?;
        results.push(["a", "b", "c"].map(|name| bed.import(name, "llm")));
        bed.stop().await?;
    }
    // the instance's name follows the home cluster, which these do not have
    ensure!(
        results[0] == results[1] && results[0] == results[2],
        "{results:#?}"
    );
    Ok(())
}

pub(crate) async fn t26_edits_by_users_are_reverted_and_parents_kept() -> Result<()> {
    let bed = Bed::running(&["a", "b"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    until("the head is there", SOON, || {
        let import = bed.import("b", "llm").unwrap_or_default();
        check(
            import.pointer("/status/controllers/0/name").is_some(),
            || import.to_string(),
        )
    })
    .await?;
    let parent =
        |name: &str| json!({"parentRef": {"name": name}, "controllerName": "example.net/gateway"});
    bed.server("b").edit(&IMPORTS, NS, "llm", |import| {
        import["status"]["clusters"][0]["targetPortNumber"] = 1.into();
        import["status"]["clusters"][0]["labels"] = json!({"team": "evil"});
        if let Some(entries) = import["status"]["clusters"].as_array_mut() {
            entries.push(
                json!({"name": "intruder", "routingMode": "EndpointMode", "targetPortNumber": 1}),
            );
        }
        import["status"]["controllers"][0]["parents"] = json!([parent("in-ours")]);
        if let Some(controllers) = import["status"]["controllers"].as_array_mut() {
            controllers.push(json!({"name": "example.net/gateway", "parents": [parent("own")]}));
        }
    });
    until("the entries are ours again", SOON, || {
        let import = bed.import("b", "llm").unwrap_or_default();
        let entry = &import["status"]["clusters"][0];
        let good = bed.server("b").entries(NS, "llm") == ["a"]
            && entry["targetPortNumber"] == 8000
            && entry.get("labels").is_none();
        check(good, || import.to_string())
    })
    .await?;
    stays("the parents", Duration::from_secs(2), || {
        let import = bed.import("b", "llm").unwrap_or_default();
        let controllers = import["status"]["controllers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let parents = |name: &str| {
            let one = controllers.iter().find(|one| one["name"] == name);
            one.and_then(|one| one.pointer("/parents/0/parentRef/name"))
                .cloned()
        };
        let good = parents("example.net/gateway") == Some(json!("own"))
            && parents(crd::annotations::MCI_CONTROLLER) == Some(json!("in-ours"));
        check(good, || format!("{controllers:?}"))
    })
    .await
}

pub(crate) async fn a_fight_over_an_import_is_a_conflict_and_nobody_spins() -> Result<()> {
    let bed = Bed::running(&["a", "b", "c"]).await?;
    bed.server("a").export(NS, "llm");
    bed.entries("b", "llm", &["a"]).await?;
    let b = bed.server("b");
    let port = || {
        let entry = b.entry(NS, "llm", "a").unwrap_or_default();
        entry["targetPortNumber"].as_u64().unwrap_or_default()
    };
    let undo = || {
        b.edit(&IMPORTS, NS, "llm", |import| {
            import["status"]["clusters"][0]["targetPortNumber"] = 1.into();
        });
    };
    for round in 1..=2 {
        undo();
        let reverted = || check(port() == 8000, || format!("round {round}: {}", port()));
        until("an edit is reverted", SOON, reverted).await?;
        // the echo of what was written, before the next edit
        stays("the entry", Duration::from_millis(300), reverted).await?;
    }
    undo();
    let message = || {
        let pool = bed.server("a").get(&POOLS, NS, "llm").unwrap_or_default();
        let parents = pool.pointer("/status/parents/0/conditions/0/message");
        parents
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    until("the pool tells of the conflict", SOON, || {
        check(message().contains("b Conflict"), message)
    })
    .await?;
    ensure!(bed.server("c").entries(NS, "llm") == ["a"]);
    let writes = b.writes("inferencepoolimports");
    stays("hands off", Duration::from_secs(4), || {
        let now = b.writes("inferencepoolimports");
        check(now == writes && port() == 1, || {
            format!("{now} writes, {}", port())
        })
    })
    .await?;
    until("it is tried again", SOON, || {
        check(port() == 8000, || port().to_string())
    })
    .await
}
