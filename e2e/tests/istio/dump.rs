//! What an Envoy is configured with, read from its `config_dump`, and the fixture that was made of one.

use anyhow::{Context, Result, ensure};
use e2e::compare::strip;
use serde_json::{Value, json};

/// A gateway as istiod configures it, with static endpoints. Other tests run it in an Envoy without istiod.
const FIXTURE: &str = include_str!("../../fixtures/istio/way-b-static-envoy.json");
const LISTENER: &str = "0.0.0.0_8080";
const ROUTES: &str = "http.8080";
/// What is the same for all objects of a dump, and says nothing of them.
const TYPE: &str = "@type";

/// The part of a gateway that has to do with a pool: a listener with its routes, and clusters.
#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) listener: Value,
    pub(crate) clusters: Vec<Value>,
}

/// The fixture.
pub(crate) fn fixture() -> Result<Part> {
    let fixture: Value = serde_json::from_str(FIXTURE)?;
    let resources = &fixture["static_resources"];
    let clusters = resources["clusters"].as_array().context("no clusters")?;
    let mut clusters = clusters.clone();
    for cluster in &mut clusters {
        // addresses are those of the run that it was made in
        strip(cluster, "load_assignment");
    }
    Ok(Part {
        listener: resources["listeners"][0].clone(),
        clusters,
    })
}

/// The same part of this dump: the listener with its routes in it, and clusters with these names, whose endpoints are static.
///
/// # Errors
/// Says what is not there yet.
pub(crate) fn part<'a>(dump: &Value, names: impl IntoIterator<Item = &'a str>) -> Result<Part> {
    let listeners = entries(dump, "dynamic_listeners");
    let listener = listeners
        .iter()
        .map(|entry| &entry["active_state"]["listener"])
        .find(|listener| listener["name"] == LISTENER);
    let mut listener = listener.context("no listener yet")?.clone();
    without_type(&mut listener);
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager["route_config"] = routes(dump)?;
    strip(manager, "rds");
    let clusters = names.into_iter().map(|name| {
        let mut cluster = cluster(dump, name)?.clone();
        without_type(&mut cluster);
        cluster["type"] = json!("STATIC");
        strip(&mut cluster, "eds_cluster_config");
        Ok(cluster)
    });
    Ok(Part {
        clusters: clusters.collect::<Result<_>>()?,
        listener,
    })
}

/// The routes of the listener.
pub(crate) fn routes(dump: &Value) -> Result<Value> {
    let routes = entries(dump, "dynamic_route_configs");
    let mut routes = routes.iter().map(|entry| &entry["route_config"]);
    let found = routes.find(|routes| routes["name"] == ROUTES);
    let mut routes = found.context("no routes yet")?.clone();
    without_type(&mut routes);
    Ok(routes)
}

/// The route of this name.
pub(crate) fn route(dump: &Value, name: &str) -> Result<Value> {
    let routes = routes(dump)?;
    let hosts = routes["virtual_hosts"].as_array();
    let mut all = hosts
        .into_iter()
        .flatten()
        .flat_map(|host| host["routes"].as_array().into_iter().flatten());
    let found = all.find(|route| route["name"] == name);
    found
        .cloned()
        .with_context(|| format!("no route {name} yet: {routes}"))
}

fn cluster<'a>(dump: &'a Value, name: &str) -> Result<&'a Value> {
    let mut clusters = entries(dump, "dynamic_active_clusters").into_iter();
    let found = clusters.find(|entry| entry["cluster"]["name"] == name);
    let found = found.with_context(|| format!("no cluster {name} yet"))?;
    Ok(&found["cluster"])
}

/// The objects of one kind, of all sections of the dump.
fn entries<'a>(dump: &'a Value, kind: &str) -> Vec<&'a Value> {
    let sections = dump["configs"].as_array().into_iter().flatten();
    let entries = sections.flat_map(|section| section[kind].as_array().into_iter().flatten());
    entries.collect()
}

fn without_type(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(TYPE);
    }
}

/// Where two values differ, a line each.
pub(crate) fn differences(seen: &Part, expected: &Part) -> Vec<String> {
    let mut found = Vec::new();
    differ("listener", &seen.listener, &expected.listener, &mut found);
    for (seen, expected) in seen.clusters.iter().zip(&expected.clusters) {
        let name = expected["name"].as_str().unwrap_or_default();
        differ(name, seen, expected, &mut found);
    }
    found
}

fn differ(at: &str, seen: &Value, expected: &Value, found: &mut Vec<String>) {
    match (seen, expected) {
        (Value::Object(seen), Value::Object(expected)) => {
            let mut keys: Vec<&String> = seen.keys().chain(expected.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let none = &Value::Null;
                let (seen, expected) = (seen.get(key), expected.get(key));
                let at = format!("{at}.{key}");
                differ(&at, seen.unwrap_or(none), expected.unwrap_or(none), found);
            }
        }
        (Value::Array(seen), Value::Array(expected)) if seen.len() == expected.len() => {
            for (nth, (seen, expected)) in seen.iter().zip(expected).enumerate() {
                differ(&format!("{at}[{nth}]"), seen, expected, found);
            }
        }
        _ if seen == expected => {}
        _ => found.push(format!("{at}: {seen}, and in the fixture {expected}")),
    }
}

/// What a dump of the fixture's own parts would be read as, with one value changed.
pub(crate) fn the_fixture_is_read_as_a_dump_is() -> Result<()> {
    let fixture = fixture()?;
    let mut listener = fixture.listener.clone();
    listener[TYPE] = json!("listener");
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    let routes = manager["route_config"].take();
    strip(manager, "route_config");
    manager["rds"] = json!({"route_config_name": ROUTES});
    let clusters = fixture.clusters.iter().map(|cluster| {
        let mut cluster = cluster.clone();
        cluster["type"] = json!("EDS");
        cluster["eds_cluster_config"] = json!({"service_name": cluster["name"]});
        json!({"cluster": cluster})
    });
    let clusters: Vec<Value> = clusters.collect();
    let dump = json!({"configs": [
        {"dynamic_active_clusters": clusters},
        {"dynamic_listeners": [{"active_state": {"listener": listener}}]},
        {"dynamic_route_configs": [{"route_config": routes}]},
    ]});
    let names = fixture
        .clusters
        .iter()
        .filter_map(|one| one["name"].as_str());
    let mut read = part(&dump, names)?;
    let found = differences(&read, &fixture);
    ensure!(found.is_empty(), "{found:?}");
    read.clusters[1]["connect_timeout"] = json!("1s");
    let found = differences(&read, &fixture);
    ensure!(
        found.len() == 1 && found[0].contains("connect_timeout: \"1s\""),
        "{found:?}"
    );
    Ok(())
}
