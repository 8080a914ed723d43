//! A release of the chart, from its installation to its end.

use std::{io::Write as _, path::Path};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::Value;
use testbed::{Answer, Cluster, Requests, eventually};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{
    cases,
    helm::chart,
    stand::{SOON, Stand},
};

/// Whose definitions are no part of a testbed. The part `istio` has an API server with those of Istio.
const UNSERVED: [&str; 4] = [
    "DestinationRule",
    "EnvoyFilter",
    "PrometheusRule",
    "ServiceMonitor",
];
/// What a release may leave nothing of.
const KINDS: &str = "deployments,replicasets,pods,services,configmaps,serviceaccounts,roles,rolebindings,\
    networkpolicies,poddisruptionbudgets,inferencepools,inferencemodels.inference.networking.x-k8s.io,httproutes";

/// The pool that is installed: two endpoint pickers share load through a Metadata-Center with its state in a Redis
/// (the image is Valkey's; the program in it is the Redis or Valkey of this machine).
const VALUES: &str = "
image: {hub: registry.example.com/isthmus}
inferenceExtension:
  replicas: 2
  llmFilterConfig: |
    protocol: openai
    model_mapping_rule:
      llama: {rules: [{cluster: llm/llama}]}
metadataCenter:
  enabled: true
  replicas: 2
  backend: redis
  redis: {deploy: true}
worker:
  kind: sim
  replicas: 2
  model: llama
httpRoute:
  create: true
  inferenceGatewayNamespace: gateways
";

/// What the API server says of fields, types and Pod Security.
pub(crate) async fn an_api_server_takes_each_case(stand: &Stand) -> Result<()> {
    for case in cases::all()? {
        let mut served = tempfile::NamedTempFile::new()?;
        for object in case.objects(&stand.helm)? {
            let kind = object["kind"].as_str().context("a kind")?;
            if !UNSERVED.contains(&kind) {
                writeln!(served, "---\n{object}")?;
            }
        }
        let file = served.path().to_string_lossy().into_owned();
        let mut kubectl = Command::new(&stand.testbed.tools().kubectl);
        kubectl
            .args([
                "apply",
                "--server-side",
                "--dry-run=server",
                // some are in the cluster as helm's
                "--force-conflicts",
                "--validate=strict",
                "-f",
                &file,
            ])
            .env("KUBECONFIG", stand.cluster.kubeconfig_path())
            .kill_on_drop(true);
        let output = tokio::time::timeout(SOON, kubectl.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", case.name);
        ensure!(!said.contains("Warning"), "{}: {said}", case.name);
    }
    Ok(())
}

pub(crate) async fn a_release_is_installed_upgraded_rolled_back_and_uninstalled(
    stand: &Stand,
) -> Result<()> {
    let (helm, cluster) = (&stand.helm, &stand.cluster);
    let chart = chart();
    let chart = &*chart.to_string_lossy();
    let mut values = tempfile::NamedTempFile::new()?;
    values.write_all(VALUES.as_bytes())?;
    let values = values.path().to_string_lossy().into_owned();
    let wait = ["--namespace", "llm", "--wait", "--timeout", "2m"];

    let install = [&["install", "pool", chart, "--values", &values][..], &wait].concat();
    let said = helm.run(cluster, &install).await?;
    let address = follow_notes(stand, &stand.cluster, &said, "").await?;
    ensure!(
        stand.gateway == format!("http://{address}"),
        "{address}, not {}",
        stand.gateway
    );
    let requests = Requests::new(&stand.gateway);
    eventually(
        "a request through the Gateway is answered",
        SOON,
        async || {
            answered(&requests)
                .await
                .map_err(|error| format!("{error:#}"))
        },
    )
    .await?;
    shared(stand, &requests).await?;

    let change = "worker.replicas=3,blockSize=32,inferenceExtension.flags.max-request-body=16MiB";
    let change = ["upgrade", "pool", chart, "--reuse-values", "--set", change];
    asking_meanwhile(&requests, helm.run(cluster, &[&change[..], &wait].concat())).await?;
    is_running(stand, 3, true).await?;

    // what cannot work changes nothing
    for (set, reason) in [
        (
            "router.enabled=true",
            "router.enabled needs processor.enabled",
        ),
        (
            "inferenceExtension.service.type=Headless",
            "the Service pool-epp has a cluster address, which cannot be changed",
        ),
    ] {
        let refused = ["upgrade", "pool", chart, "--namespace", "llm"];
        let refused = [&refused[..], &["--reuse-values", "--set", set]].concat();
        let Err(error) = helm.run(cluster, &refused).await else {
            bail!("{set} was not refused");
        };
        ensure!(error.to_string().contains(reason), "{error:#}");
    }
    is_running(stand, 3, true).await?;

    helm.run(cluster, &[&["rollback", "pool", "1"][..], &wait].concat())
        .await?;
    is_running(stand, 2, false).await?;
    answered(&requests).await?;

    helm.run(cluster, &[&["uninstall", "pool"][..], &wait].concat())
        .await?;
    let left = [
        "get",
        KINDS,
        "-n",
        "llm",
        "-l",
        "app.kubernetes.io/instance=pool",
        "-o",
        "name",
    ];
    eventually("nothing of the release is left", SOON, async || {
        let left = cluster
            .kubectl(&left)
            .await
            .map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await?;
    // what was there before stays
    cluster
        .kubectl(&["get", "-n", "gateways", "gateway", "inference-gateway"])
        .await?;
    cluster
        .kubectl(&["get", "crd", "inferencepools.inference.networking.k8s.io"])
        .await?;
    Ok(())
}

/// No request fails while something is changed and several clients send requests, each one after the other.
pub(crate) async fn asking_meanwhile(
    requests: &Requests,
    change: impl Future<Output = Result<String>>,
) -> Result<()> {
    const CLIENTS: usize = 4;
    let end = CancellationToken::new();
    let client = async || {
        let mut asked = 0_u32;
        while !end.is_cancelled() {
            let answered = answered(requests).await;
            answered.with_context(|| format!("request {asked} of the upgrade"))?;
            asked += 1;
        }
        ensure!(asked > 0, "no request was sent meanwhile");
        anyhow::Ok(())
    };
    let asking = try_join_all((0..CLIENTS).map(|_| client()));
    let changing = async {
        let outcome = change.await;
        end.cancel();
        outcome
    };
    let (asked, changed) = tokio::join!(asking, changing);
    changed?;
    asked?;
    Ok(())
}

pub(crate) async fn answered(requests: &Requests) -> Result<Answer> {
    let answer = requests.chat("llama", "Which pool is this?").await?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
    let pod = answer.pod().unwrap_or_default();
    ensure!(pod.starts_with("pool-worker-"), "answered by {pod:?}");
    Ok(answer)
}

/// Runs the commands of the notes, as they stand there, but for the request: it needs a client of HTTP, and these tests have
/// one. Only those about `whom`. Returns the address that the request would go to.
pub(crate) async fn follow_notes(
    stand: &Stand,
    cluster: &Cluster,
    said: &str,
    whom: &str,
) -> Result<String> {
    let (_, notes) = said.split_once("NOTES:").context("no notes")?;
    let lines = notes.lines().filter_map(|line| line.strip_prefix("  "));
    let commands = lines.filter(|line| {
        line.starts_with("ADDRESS=") || (line.starts_with("kubectl ") && line.contains(whom))
    });
    let commands: Vec<&str> = commands.collect();
    ensure!(!commands.is_empty(), "no commands in the notes: {notes}");
    let script = format!("ADDRESS=\n{}\necho \"$ADDRESS\"", commands.join("\n"));
    let kubectl = stand.testbed.tools().kubectl.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(kubectl.into_iter().chain(std::env::split_paths(&path)))?;
    let mut bash = Command::new("bash");
    bash.args(["-eEuo", "pipefail", "-c", &script])
        .env("KUBECONFIG", cluster.kubeconfig_path())
        .env("PATH", path)
        .kill_on_drop(true);
    let output = tokio::time::timeout(SOON, bash.output()).await??;
    let out = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{notes}: {error}");
    Ok(out.lines().last().unwrap_or_default().to_owned())
}

/// The endpoint pickers find the Metadata-Center, which finds its Redis, by the names that the chart gives them.
async fn shared(stand: &Stand, requests: &Requests) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stand.cluster.client(), "llm");
    let label = "isthmus.dev/component=metadata-center";
    eventually("the Metadata-Center is asked for picks", SOON, async || {
        let answer = answered(requests).await;
        answer.map_err(|error| format!("{error:#}"))?;
        let pods = pods.list(&ListParams::default().labels(label)).await;
        let mut seen = Vec::new();
        // either of the two may be the one that was asked
        for pod in pods.map_err(|error| error.to_string())? {
            let name = pod.name_any();
            let page = format!("/api/v1/namespaces/llm/pods/{name}:8081/proxy/metrics");
            let page = stand.cluster.kubectl(&["get", "--raw", &page]).await;
            let page = page.map_err(|error| error.to_string())?;
            let requests = |line: &&str| line.starts_with("metadata_center_requests_total");
            seen.extend(page.lines().filter(requests).map(str::to_owned));
        }
        if seen
            .iter()
            .any(|line| line.contains("/v1/pick\",status=\"200\""))
        {
            Ok(())
        } else {
            Err(seen.join("\n"))
        }
    })
    .await?;
    Ok(())
}

/// So many workers are ready, and the endpoint pickers run with or without the flag of the upgrade.
async fn is_running(stand: &Stand, workers: usize, upgraded: bool) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(stand.cluster.client(), "llm");
    let epp = deployments.get("pool-epp").await?;
    let flags =
        serde_json::to_value(&epp)?["spec"]["template"]["spec"]["containers"][0]["args"].take();
    let flags: Vec<&str> = flags
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    ensure!(
        flags.contains(&"--max-request-body=16MiB") == upgraded,
        "{flags:?}"
    );
    let pods: Api<Pod> = Api::namespaced(stand.cluster.client(), "llm");
    let label = "isthmus.dev/component=worker";
    eventually("the workers are there", SOON, async || {
        let pods = pods.list(&ListParams::default().labels(label)).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        if names.len() == workers {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await?;
    Ok(())
}
