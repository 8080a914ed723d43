//! ParentMode: other clusters come through the exporting cluster's own Gateways, run by our gateway and real Envoys.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crd::{ImportedCluster, InferencePoolImport, Parent, RoutingMode, conditions};
use e2e::watching::{becomes, holds_during};
use http::{HeaderMap, HeaderValue, header};
use kube::Api;
use serde_json::json;
use testbed::{Cluster, Requests, eventually, isthmus};
use tokio_util::sync::CancellationToken;

use e2e::compare::{condition, same, strip, without_messages};
use e2e::environment::Environment;
use e2e::front;
use e2e::pair::{import, pool_condition};

/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const MODE: &str = "inference.networking.x-k8s.io/export-mode";

pub(crate) async fn a_pool_is_imported_with_the_gateways_that_lead_to_it(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let east = &environment.east;
    let address = front::install(east).await?;
    isthmus::annotate(east, &format!("{MODE}=ParentMode")).await?;
    let entry = eventually("a ready entry with parents", SOON, async || {
        let entry = entry(&environment.west).await?;
        let ready = conditions::is_true(&entry.conditions, conditions::READY);
        if entry.routing_mode == RoutingMode::ParentMode && ready {
            Ok(entry)
        } else {
            Err(format!("{entry:?}"))
        }
    })
    .await?;

    let generation = environment.pool_generation(east).await?;
    let expected = json!({
        "name": "east",
        "routingMode": "ParentMode",
        "appProtocol": "http",
        "targetPortNumber": 8000,
        "targetPorts": [{"number": 8000}],
        "podCIDRs": [isthmus::POD_CIDRS],
        "parents": [{
            "name": "front",
            "namespace": "llm",
            "service": [{
                "type": "LoadBalancer",
                "addresses": [address],
                "ports": [{"number": 80, "name": "web", "protocol": "TCP", "appProtocol": "http"}],
            }],
            "hostnames": [front::HOST],
            "listeners": [{"name": "web", "port": 80, "protocol": "HTTP", "hostname": "*.example.com"}],
            "conditions": [
                condition("Programmed", "True", "Programmed", generation),
                condition("HostnamesKnown", "True", "HostnamesKnown", generation),
                condition("LoopFree", "True", "NoLoop", generation),
            ],
        }],
        "conditions": [
            condition("Accepted", "True", "Accepted", generation),
            condition("ResolvedRefs", "True", "ResolvedRefs", generation),
            condition("Ready", "True", "Ready", generation),
            condition("Reachable", "True", "Reachable", generation),
        ],
    });
    let mut seen = json!(entry);
    strip(&mut seen, "lastTransitionTime");
    same(
        "entries",
        &without_messages(&seen),
        &without_messages(&expected),
    )?;
    eventually("Exported is True", SOON, async || {
        match pool_condition(east, conditions::EXPORTED).await? {
            Some(exported) if exported.status == "True" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    // what the entry says is all that a client in another cluster needs
    answered_through(environment, &entry.parents[0]).await?;
    // west's gateway does the same for its own clients, who name a host that east's Gateway does not have
    environment.serving().await?;

    // the Gateway's last route to the pool goes, and the Gateway gives the pool up: the entry stays and says so
    east.kubectl(&["delete", "httproute", "front", "-n", "llm"])
        .await?;
    eventually("an entry without parents", SOON, async || {
        let entry = self::entry(&environment.west).await?;
        let ready = conditions::find(&entry.conditions, conditions::READY);
        let said = ready.is_some_and(|ready| ready.reason == "ParentNotProgrammed");
        if said && entry.parents.is_empty() {
            Ok(())
        } else {
            Err(format!("{entry:?}"))
        }
    })
    .await?;
    front::remove(east).await
}

pub(crate) async fn a_mode_switch_replaces_the_entry_in_place_and_costs_no_request(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let (east, west) = (&environment.east, &environment.west);
    front::install(east).await?;
    let before = import(west)
        .await
        .map_err(anyhow::Error::msg)?
        .context("no import")?;
    let imports: Api<InferencePoolImport> = Api::namespaced(west.client(), isthmus::POOL_NAMESPACE);
    let is_whole = |import: Option<&InferencePoolImport>| {
        let import = import.ok_or("no import")?;
        match import.clusters() {
            [entry] if of_one_mode(entry) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    let switching = Box::pin(without_a_loss(environment, &imports));
    let what = "an entry of one mode";
    let after = holds_during(&imports, isthmus::POOL, what, switching, is_whole).await?;
    ensure!(
        before.metadata.uid == after.metadata.uid,
        "the import was made anew"
    );
    front::remove(east).await
}

/// Switches while requests are sent, each of which must be answered.
async fn without_a_loss(
    environment: &Environment,
    imports: &Api<InferencePoolImport>,
) -> Result<InferencePoolImport> {
    /// Far fewer than a client sends in the time that two switches take.
    const AT_LEAST: usize = 20;
    let done = CancellationToken::new();
    let switching = async {
        let _done = done.clone().drop_guard();
        switch_there_and_back(environment, imports).await
    };
    let traffic = async {
        let mut sent = 0;
        while !done.is_cancelled() {
            let answered = environment.answered(1).await;
            answered.with_context(|| format!("after {sent} requests while the mode changes"))?;
            sent += 1;
        }
        anyhow::Ok(sent)
    };
    let (after, answered) = tokio::join!(switching, traffic);
    let (after, answered) = (after?, answered?);
    ensure!(answered >= AT_LEAST, "only {answered} requests were sent");
    Ok(after)
}

/// To ParentMode and back, each until requests are answered; the import in EndpointMode.
async fn switch_there_and_back(
    environment: &Environment,
    imports: &Api<InferencePoolImport>,
) -> Result<InferencePoolImport> {
    for mode in ["ParentMode", "EndpointMode"] {
        isthmus::annotate(&environment.east, &format!("{MODE}={mode}")).await?;
        let wanted = if mode == "ParentMode" {
            RoutingMode::ParentMode
        } else {
            RoutingMode::EndpointMode
        };
        becomes(imports, isthmus::POOL, mode, |import| {
            let import = import.ok_or("no import")?;
            match import.clusters() {
                [entry]
                    if entry.routing_mode == wanted
                        && conditions::is_true(&entry.conditions, conditions::READY) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        environment.serving().await?;
    }
    Ok(imports.get(isthmus::POOL).await?)
}

pub(crate) async fn each_exporter_chooses_its_mode(environment: &Environment) -> Result<()> {
    environment.settle().await?;
    let (east, west) = (&environment.east, &environment.west);
    front::install(east).await?;
    isthmus::annotate(east, &format!("{MODE}=ParentMode")).await?;
    isthmus::export(west).await?;
    for (importer, mode) in [
        (west, RoutingMode::ParentMode),
        (east, RoutingMode::EndpointMode),
    ] {
        let what = format!("an entry in {mode:?} in {}", importer.name());
        eventually(&what, SOON, async || {
            let entry = entry(importer).await?;
            let ready = conditions::is_true(&entry.conditions, conditions::READY);
            if entry.routing_mode == mode && ready && of_one_mode(&entry) {
                Ok(())
            } else {
                Err(format!("{entry:?}"))
            }
        })
        .await?;
    }
    front::remove(east).await?;
    isthmus::withdraw(west).await?;
    Ok(())
}

/// Whether an entry says what belongs to its mode, and nothing of the other.
fn of_one_mode(entry: &ImportedCluster) -> bool {
    match entry.routing_mode {
        RoutingMode::EndpointMode => entry.endpoint_picker.is_some() && entry.parents.is_empty(),
        RoutingMode::ParentMode => entry.endpoint_picker.is_none() && !entry.parents.is_empty(),
    }
}

/// The only entry of the sample pool's import.
async fn entry(importer: &Cluster) -> Result<ImportedCluster, String> {
    let import = import(importer).await?.ok_or("no import")?;
    match import.clusters() {
        [entry] => Ok(entry.clone()),
        other => Err(format!("{other:?}")),
    }
}

/// Sends a request as a gateway of another cluster would: to what the parent says, for the host that it names.
async fn answered_through(environment: &Environment, parent: &Parent) -> Result<()> {
    let service = parent.service.first().context("no service")?;
    let address = service.addresses.first().context("no address")?;
    let port = service.ports.first().context("no port")?.number;
    let host = parent.hostnames.first().context("no host name")?;
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_str(host)?);
    let gateway = Requests::new(format!("http://{address}:{port}"));
    let body = r#"{"model":"llama","messages":[{"role":"user","content":"hi"}],"max_tokens":1}"#;
    let path = "/v1/chat/completions";
    let pods = environment.pods(&environment.east).await?;
    eventually("an answer of east", SOON, async || {
        let answer = gateway.post(path, headers.clone(), body).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.pod() {
            Some(pod) if answer.status == 200 && pods.contains_key(pod) => Ok(()),
            _ => Err(format!("{}: {}", answer.status, answer.text())),
        }
    })
    .await?;
    Ok(())
}
