//! From an annotation to an import, and back.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use crd::{InferencePoolImport, conditions};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use testbed::{eventually, isthmus};

use e2e::{
    compare::{condition, same, strip, without_messages},
    pair::{NO_ANSWER, Pair, import, pool_condition},
};

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn an_export_appears_in_the_other_cluster_with_its_exact_status(
    pair: &Pair,
) -> Result<()> {
    pair.settle().await?;
    isthmus::withdraw(&pair.east).await?;
    pair.no_import(SOON).await?;

    isthmus::export(&pair.east).await?;
    let seen = eventually("a ready import in west", SOON, async || {
        let import = import(&pair.west).await?.ok_or("no import")?;
        if conditions::is_true(import.conditions(), conditions::READY) {
            Ok(import)
        } else {
            Err(format!("{:?}", import.status))
        }
    })
    .await?;

    let generation = seen.metadata.generation;
    let on_top = json!([
        condition("Accepted", "True", "Accepted", generation),
        condition("Ready", "True", "Ready", generation),
    ]);
    let expected = json!([entry_of_east(pair).await?]);
    let mut status = without_times(&seen)?;
    let networks = &status["clusters"][0]["podCIDRs"];
    ensure!(
        networks
            .as_array()
            .is_some_and(|networks| !networks.is_empty()),
        "home does not say where east's pods are: {networks}"
    );
    strip(&mut status["clusters"], "podCIDRs");
    same(
        "clusters",
        &without_messages(&status["clusters"]),
        &without_messages(&expected),
    )?;
    same(
        "conditions",
        &without_messages(&status["conditions"]),
        &without_messages(&on_top),
    )?;
    let ready = conditions::find(seen.conditions(), conditions::READY);
    ensure!(
        ready.is_some_and(|ready| ready.message == "1/1 ready: east"),
        "{ready:?}"
    );
    let ours = seen
        .controller(crd::annotations::MCI_CONTROLLER)
        .context("no entry of the controller")?;
    ensure!(
        ours.exporting_clusters.len() == 1 && ours.exporting_clusters[0].name == "east",
        "exporting clusters: {:?}",
        ours.exporting_clusters
    );
    ensure!(
        conditions::same(&ours.conditions, seen.conditions()),
        "the controller's entry says other than the import: {:?}",
        ours.conditions
    );
    ensure!(
        import(&pair.east)
            .await
            .map_err(anyhow::Error::msg)?
            .is_none(),
        "an import in the exporting cluster itself"
    );
    eventually("Exported on the pool", SOON, async || {
        let exported = pool_condition(&pair.east, conditions::EXPORTED).await?;
        let exported = exported.ok_or("no condition Exported")?;
        if exported.reason == "Exported" && exported.status == "True" {
            Ok(())
        } else {
            Err(format!("{exported:?}"))
        }
    })
    .await?;
    Ok(())
}

pub(crate) async fn kubectl_shows_the_import_with_its_columns(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let table = pair.west.kubectl(&["get", "ipimp", "-n", "llm"]).await?;
    let mut lines = table.lines();
    let head: Vec<_> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(head == ["NAME", "READY", "SUMMARY", "AGE"], "{table}");
    let row = lines.next().unwrap_or_default();
    ensure!(
        row.starts_with("llama") && row.contains("True") && row.contains("1/1 ready: east"),
        "{table}"
    );
    Ok(())
}

pub(crate) async fn a_users_edit_of_the_import_is_reverted(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let edit = json!({"status": {"clusters": [{
        "name": "east", "routingMode": "EndpointMode", "targetPortNumber": 1
    }]}});
    pair.west
        .kubectl(&[
            "patch",
            "ipimp",
            "llama",
            "-n",
            "llm",
            "--subresource=status",
            "--type=merge",
            "-p",
            &edit.to_string(),
        ])
        .await?;
    eventually("the entry as it was", SOON, async || {
        let import = import(&pair.west).await?.ok_or("no import")?;
        match import.clusters() {
            [entry] if entry.target_port_number == 8000 && entry.endpoint_picker.is_some() => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

pub(crate) async fn a_withdrawn_export_takes_the_import_and_the_route_answers_500(
    pair: &Pair,
) -> Result<()> {
    pair.settle().await?;
    isthmus::withdraw(&pair.east).await?;
    pair.no_import(SOON).await?;
    eventually("the route says BackendNotFound", SOON, async || {
        let refs = pair.route_condition("ResolvedRefs").await?;
        let refs = refs.ok_or("no condition ResolvedRefs")?;
        if refs.status == "False" && refs.reason == "BackendNotFound" {
            Ok(())
        } else {
            Err(format!("{refs:?}"))
        }
    })
    .await?;
    let answer = eventually("a 500", SOON, async || {
        let answer = pair
            .gateway
            .chat("llama", "hello")
            .await
            .map_err(|error| error.to_string())?;
        if answer.status == 500 {
            Ok(answer)
        } else {
            Err(format!("{}: {}", answer.status, answer.text()))
        }
    })
    .await?;
    ensure!(
        answer.latency < NO_ANSWER,
        "the 500 took {:?}",
        answer.latency
    );
    let exported = pool_condition(&pair.east, conditions::EXPORTED)
        .await
        .map_err(anyhow::Error::msg)?;
    ensure!(
        exported.is_none(),
        "Exported is still on the pool: {exported:?}"
    );
    Ok(())
}

/// What west is to be told of east's pool.
async fn entry_of_east(pair: &Pair) -> Result<Value> {
    let service = pair.picker_service(&pair.east).await?;
    let (type_, addresses) = published(pair, &service).await?;
    let pool_generation = pair.pool_generation(&pair.east).await?;
    let mut entry = json!({
        "name": "east",
        "routingMode": "EndpointMode",
        "appProtocol": "http",
        "targetPortNumber": 8000,
        "targetPorts": [{"number": 8000}],
        "endpointPicker": {
            "name": "llama-epp",
            "service": [{
                "type": type_,
                "addresses": addresses,
                "ports": [{"number": 9002, "name": "grpc-ext-proc", "protocol": "TCP", "appProtocol": "http2"}],
            }],
            "health": {"port": 9003},
            "failureMode": "FailClose",
        },
        "conditions": [
            condition("Accepted", "True", "Accepted", pool_generation),
            condition("ResolvedRefs", "True", "ResolvedRefs", pool_generation),
            condition("Ready", "True", "Ready", pool_generation),
            condition("Reachable", "True", "Reachable", pool_generation),
        ],
    });
    // where other clusters may have them, they are on the same Service
    let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
    if ports
        .iter()
        .any(|port| port.name.as_deref() == Some("http-metrics"))
    {
        entry["endpointPicker"]["metrics"] = json!({"port": 9090});
    }
    Ok(entry)
}

/// Type and addresses of the Service of east's picker, as other clusters are told them: of a load balancer where there is
/// one, else the Service's own, or those of its pods where it has none.
async fn published(pair: &Pair, service: &Service) -> Result<(&'static str, Vec<String>)> {
    let spec = service.spec.as_ref().context("a Service without a spec")?;
    if spec.type_.as_deref() == Some("LoadBalancer") {
        let status = service.status.as_ref();
        let balancer = status.and_then(|status| status.load_balancer.as_ref());
        let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
        let addresses = ingress.into_iter().flatten();
        let addresses = addresses.filter_map(|ingress| ingress.ip.clone());
        return Ok(("LoadBalancer", addresses.collect()));
    }
    if spec.cluster_ip.as_deref() != Some("None") {
        let addresses = spec.cluster_ips.clone();
        return Ok(("ClusterIP", addresses.unwrap_or_default()));
    }
    let mut addresses = Vec::new();
    for address in pair.pickers(&pair.east).await?.into_values() {
        addresses.push(address.parse::<IpAddr>()?);
    }
    addresses.sort_unstable();
    let addresses = addresses.iter().map(ToString::to_string);
    Ok(("ClusterIP", addresses.collect()))
}

fn without_times(import: &InferencePoolImport) -> Result<Value> {
    let mut status = serde_json::to_value(&import.status)?;
    strip(&mut status, "lastTransitionTime");
    Ok(status)
}
