//! Isthmus in two clusters by its charts alone: with the rights that they give and no others, and where no pod is let in that
//! Pod Security admission would not let in at its strictest level.

use std::{cell::Cell, collections::BTreeSet, io::Write as _, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use crd::InferencePoolImport;
use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::json;
use testbed::{Cluster, Manifests, Requests, eventually, isthmus};
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    helm::{CRDS, Chart, POOL, SYSTEM},
    release::{answered, asking_meanwhile, follow_notes},
    stand::{SOON, Stand},
};

const NAMESPACE: &str = "shared";
const CRD: &str = "inferencepoolimports.inference.networking.x-k8s.io";

/// The cluster of the controller, which is a member itself. Its Envoys end soon, so that nobody waits for them.
const HOME: &str = "clusterName=west,controller.enabled=true,controller.selfName=west,\
    controller.image.registry=registry.example.com,gateway.image.registry=registry.example.com,\
    gateway.gatewayClass.parameters.drainSeconds=10";
const DRAIN: Duration = Duration::from_secs(10);
/// The controller, the gateway and the Envoys that it makes are all replaced. Taken back, it is of the Envoys a field less.
const CHANGE: &str = "logLevel=debug,controller.replicas=2,\
    gateway.gatewayClass.parameters.resources.requests.cpu=100m,\
    gateway.gatewayClass.parameters.resources.requests.memory=256Mi,\
    gateway.gatewayClass.parameters.resources.limits.memory=1Gi";
/// So many take 5 s, longer than Envoys leave clients a connection; and longer than the upgrade and [`DRAIN`].
const TOKENS: u32 = 1000;
const TOO_MANY_TOKENS: u32 = 40_000;

const EXPORTED: &str = "
image: {hub: registry.example.com/isthmus}
inferencePool: {export: {enabled: true}}
inferenceExtension: {service: {type: LoadBalancer}}
worker:
  kind: sim
  replicas: 2
  model: llama
  extraArgs: [--inter-token-latency=5ms, --kv-cache-size=4096]
";

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: inference, namespace: shared}
spec:
  gatewayClassName: isthmus
  listeners: [{name: http, protocol: HTTP, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llama, namespace: shared}
spec:
  parentRefs: [{name: inference}]
  rules:
  - backendRefs: [{group: inference.networking.x-k8s.io, kind: InferencePoolImport, name: pool}]
";

pub(crate) async fn a_pool_is_reached_from_another_cluster_and_outlives_the_release_there(
    stand: &Stand,
) -> Result<()> {
    let (helm, east, west) = (&stand.helm, &stand.cluster, &stand.home);
    let said = helm_on(stand, west, SYSTEM, "install", &["--set", HOME]).await?;
    follow_notes(stand, west, &said, "rollout").await?;
    join(stand).await?;

    let mut values = tempfile::NamedTempFile::new()?;
    values.write_all(EXPORTED.as_bytes())?;
    let values = values.path().to_string_lossy().into_owned();
    let pool = POOL.path();
    let pool = [
        "install",
        "pool",
        &*pool.to_string_lossy(),
        "--values",
        &values,
        "--namespace",
        NAMESPACE,
        "--wait",
        "--timeout",
        "2m",
    ];
    helm.run(east, &pool).await?;
    west.apply_yaml(ROUTE).await?;
    let url = isthmus::gateway_url(west, NAMESPACE, "inference").await?;
    let requests = Requests::new(&url);
    eventually("a request reaches the pool in east", SOON, async || {
        let answer = answered(&requests).await;
        answer.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await?;

    let call = |verb: &str, namespace: &str| (verb.to_owned(), namespace.to_owned());
    let secrets = [
        call("create", isthmus::NAMESPACE),
        call("get", isthmus::NAMESPACE),
        call("get", NAMESPACE),
        call("patch", NAMESPACE),
    ];
    eventually(
        "the gateway keeps its authority and Envoys' Secrets",
        SOON,
        async || {
            let used =
                secrets_that_the_gateway_used(stand).map_err(|error| format!("{error:#}"))?;
            if used == BTreeSet::from(secrets.clone()) {
                Ok(())
            } else {
                Err(format!("{used:?}"))
            }
        },
    )
    .await?;

    let upgrade = async {
        let change = ["--reset-then-reuse-values", "--set", CHANGE];
        let said = helm_on(stand, west, SYSTEM, "upgrade", &change).await?;
        envoys_run_with(west, Some("1Gi")).await?;
        Ok(said)
    };
    let upgrade = asking_meanwhile(&requests, Box::pin(streaming_meanwhile(&url, upgrade)));
    let (upgraded, cut) = tokio::join!(upgrade, is_cut_after_the_drain(west, &url));
    upgraded?;
    cut?;
    let budget = "jsonpath={.items[*].metadata.name} {.items[*].spec.maxUnavailable}";
    let budget = ["get", "pdb", "-n", NAMESPACE, "-o", budget];
    let budget = west.kubectl(&budget).await?;
    ensure!(budget == "inference-isthmus 1", "{budget}");
    ensure!(controllers(west).await? == Some(2));

    // what cannot be changes nothing
    let refused = ["--reset-then-reuse-values", "--set", "member.enabled=false"];
    let Err(error) = helm_on(stand, west, SYSTEM, "upgrade", &refused).await else {
        bail!("controller.selfName without the rights of a member was not refused");
    };
    ensure!(
        error.to_string().contains("controller.selfName is west"),
        "{error:#}"
    );
    ensure!(controllers(west).await? == Some(2));

    let back = async {
        let rollback = [
            "rollback",
            "isthmus",
            "1",
            "--namespace",
            isthmus::NAMESPACE,
            "--wait",
        ];
        let said = helm.run(west, &rollback).await?;
        envoys_run_with(west, None).await?;
        Ok(said)
    };
    asking_meanwhile(&requests, Box::pin(streaming_meanwhile(&url, back))).await?;
    ensure!(controllers(west).await? == Some(1));

    uninstalled_but_for_the_imports(stand).await?;
    answered(&requests).await?;
    // what stayed is taken over again
    helm_on(stand, west, CRDS, "install", &[]).await?;
    helm.run(
        east,
        &["uninstall", "pool", "--namespace", NAMESPACE, "--wait"],
    )
    .await?;
    Ok(())
}

/// Verbs and namespaces of what the gateway has done with single Secrets.
///
/// # Errors
/// When one of its calls, of whatever kind, was denied.
fn secrets_that_the_gateway_used(stand: &Stand) -> Result<BTreeSet<(String, String)>> {
    let account = format!(
        "system:serviceaccount:{0}:{1}",
        isthmus::NAMESPACE,
        isthmus::GATEWAY
    );
    let calls = stand.testbed.calls(stand.home.name())?.into_iter();
    let calls: Vec<_> = calls.filter(|call| call.user == account).collect();
    let denied: Vec<_> = calls.iter().filter(|call| call.denied).collect();
    ensure!(denied.is_empty(), "{denied:?}");
    let single = calls.into_iter().filter(|call| {
        let is_single = !["list", "watch"].contains(&&*call.verb);
        call.resource == "secrets" && is_single
    });
    Ok(single.map(|call| (call.verb, call.namespace)).collect())
}

/// Uninstalls the system and the definitions at home; the `InferencePoolImport` stays.
async fn uninstalled_but_for_the_imports(stand: &Stand) -> Result<()> {
    let (helm, west) = (&stand.helm, &stand.home);
    for chart in [SYSTEM, CRDS] {
        let uninstall = [
            "uninstall",
            chart.name,
            "--namespace",
            isthmus::NAMESPACE,
            "--wait",
        ];
        helm.run(west, &uninstall).await?;
    }
    let left = [
        "get",
        "clusterroles,clusterrolebindings,gatewayclasses",
        "-o",
        "name",
    ];
    let left = west.kubectl(&left).await?;
    ensure!(!left.contains("isthmus"), "{left}");
    let imports: Api<InferencePoolImport> = Api::namespaced(west.client(), NAMESPACE);
    ensure!(
        imports
            .get("pool")
            .await?
            .metadata
            .deletion_timestamp
            .is_none()
    );
    Ok(())
}

pub(crate) async fn a_crd_of_a_newer_bundle_is_left_as_it_is(stand: &Stand) -> Result<()> {
    let cluster = &stand.cluster;
    let annotate = async |version: &str| {
        let version = format!("inference.networking.k8s.io/bundle-version={version}");
        let annotate = ["annotate", "--overwrite", "crd", CRD, &version];
        cluster.kubectl(&annotate).await
    };
    let outcome = async {
        for version in ["v99.0.0", "main-dev"] {
            annotate(version).await?;
            let Err(error) = helm_on(stand, cluster, CRDS, "upgrade", &[]).await else {
                bail!("{version} was overwritten");
            };
            let wanted = format!("the cluster has {CRD} of bundle version {version}, which");
            ensure!(error.to_string().contains(&wanted), "{error:#}");
        }
        let forced = ["--set", "overwriteNewer=true", "--force-conflicts"];
        helm_on(stand, cluster, CRDS, "upgrade", &forced).await?;
        // and of its own version it is put there again
        helm_on(stand, cluster, CRDS, "upgrade", &[]).await?;
        anyhow::Ok(())
    };
    outcome.await
}

/// As the bundle of the inference extension brings it, applied by kubectl.
pub(crate) async fn a_crd_of_others_is_taken_over_when_asked(stand: &Stand) -> Result<()> {
    let cluster = &stand.home;
    let crds = ["uninstall", CRDS.name, "--namespace", isthmus::NAMESPACE];
    stand.helm.run(cluster, &crds).await?;
    cluster.kubectl(&["delete", "crd", CRD]).await?;
    let theirs = Manifests::find().await?.upstream_import;
    let theirs = theirs.to_string_lossy();
    cluster.kubectl(&["apply", "-f", &theirs]).await?;
    let Err(error) = helm_on(stand, cluster, CRDS, "install", &[]).await else {
        bail!("it was taken over without a word");
    };
    ensure!(
        error.to_string().contains("invalid ownership metadata"),
        "{error:#}"
    );
    let asked = ["--take-ownership", "--force-conflicts"];
    helm_on(stand, cluster, CRDS, "install", &asked).await?;
    let fields = [
        "get",
        "crd",
        CRD,
        "-o",
        "jsonpath={.spec.versions[0].schema}",
    ];
    let fields = cluster.kubectl(&fields).await?;
    ensure!(fields.contains("endpointPicker"), "{fields}");
    Ok(())
}

/// `helm install` or `upgrade` of a chart of the namespace of the controller and the gateway, which is waited for.
pub(crate) async fn helm_on(
    stand: &Stand,
    cluster: &Cluster,
    chart: Chart,
    verb: &str,
    more: &[&str],
) -> Result<String> {
    let directory = chart.path();
    let directory = directory.to_string_lossy();
    let begin = [
        verb,
        chart.name,
        &*directory,
        "--namespace",
        isthmus::NAMESPACE,
        "--wait",
        "--timeout",
        "2m",
    ];
    stand.helm.run(cluster, &[&begin, more].concat()).await
}

/// East becomes a member by the account that the release there made, and a Secret with its kubeconfig in west.
async fn join(stand: &Stand) -> Result<()> {
    let kubeconfig = stand
        .cluster
        .service_account_kubeconfig(isthmus::NAMESPACE, isthmus::CONTROLLER)
        .await?;
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "east",
            "namespace": isthmus::NAMESPACE,
            "labels": {"isthmus.dev/member": "true"},
            "annotations": {
                "isthmus.dev/pod-cidrs": isthmus::POD_CIDRS,
                "isthmus.dev/export-namespaces": "*",
            },
        },
        "stringData": {"kubeconfig": kubeconfig},
    });
    Ok(stand.home.apply_yaml(&secret.to_string()).await?)
}

/// While Envoys end, none of the answers that begin is cut.
async fn streaming_meanwhile(
    url: &str,
    change: impl Future<Output = Result<String>>,
) -> Result<String> {
    let end = CancellationToken::new();
    let streaming = async {
        let mut pace = interval(Duration::from_secs(1));
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = end.cancelled() => break,
                _ = pace.tick() => open.push(streamed(url, TOKENS)),
                Some(outcome) = open.next() => outcome?,
            }
        }
        while let Some(outcome) = open.next().await {
            outcome?;
        }
        anyhow::Ok(())
    };
    let changing = async {
        let _end = end.clone().drop_guard();
        change.await
    };
    let (streamed, changed) = tokio::join!(streaming, changing);
    streamed.context("an answer that takes 5 s")?;
    changed
}

/// One that takes longer than a stopped Envoy serves on goes on until that ends.
async fn is_cut_after_the_drain(cluster: &Cluster, url: &str) -> Result<()> {
    let streaming = async {
        let outcome = streamed(url, TOO_MANY_TOKENS).await;
        (outcome, Instant::now())
    };
    // no later than it was stopped
    let stopping = async {
        let selector = "gateway.networking.k8s.io/gateway-name=inference";
        let stopped = "jsonpath={.items[*].metadata.deletionTimestamp}";
        let pods = [
            "get", "pods", "-n", NAMESPACE, "-l", selector, "-o", stopped,
        ];
        let not_yet = Cell::new(Instant::now());
        eventually("the first Envoy is stopped", SOON, async || {
            let begin = Instant::now();
            let stopped = cluster.kubectl(&pods).await;
            let stopped = stopped.map_err(|error| error.to_string())?;
            if stopped.is_empty() {
                not_yet.set(begin);
                Err("none yet".to_owned())
            } else {
                Ok(())
            }
        })
        .await?;
        anyhow::Ok(not_yet.get())
    };
    let ((outcome, ended), stopped) = tokio::join!(streaming, stopping);
    ensure!(outcome.is_err(), "{TOO_MANY_TOKENS} tokens came");
    let after = ended.saturating_duration_since(stopped?);
    ensure!(after > DRAIN, "{outcome:?} after {after:?}");
    Ok(())
}

/// An answer in events, over a connection of its own.
async fn streamed(url: &str, tokens: u32) -> Result<()> {
    let requests = Requests::new(url);
    let mut stream = requests.chat_stream("llama", "Go on.", tokens).await?;
    ensure!(stream.status == 200, "{}", stream.status);
    let mut last = None;
    while let Some(event) = stream.next_event().await.map_err(anyhow::Error::msg)? {
        last = Some(event);
    }
    ensure!(last.as_deref() == Some("[DONE]"), "the last was {last:?}");
    Ok(())
}

/// All Envoys of the Gateway have this limit of memory, and no others are there.
async fn envoys_run_with(cluster: &Cluster, limit: Option<&str>) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), NAMESPACE);
    let name = "inference-isthmus";
    eventually("the gateway has changed its Envoys", SOON, async || {
        let envoys = deployments.get(name).await;
        let envoys = envoys.map_err(|error| error.to_string())?;
        let envoys = serde_json::to_value(&envoys.spec).map_err(|error| error.to_string())?;
        let container = &envoys["template"]["spec"]["containers"][0];
        let found = container["resources"]["limits"]["memory"].as_str();
        if found == limit {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await?;
    isthmus::available(cluster, NAMESPACE, name).await?;
    // what is lost is lost when the last of the old ones ends
    eventually("the old Envoys are gone", SOON, async || {
        let selector = "gateway.networking.k8s.io/gateway-name=inference";
        let pods = ["get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name"];
        let pods = cluster.kubectl(&pods).await;
        let pods = pods.map_err(|error| error.to_string())?;
        if pods.lines().count() == 2 {
            Ok(())
        } else {
            Err(pods)
        }
    })
    .await?;
    Ok(())
}

/// How many controllers are wanted.
async fn controllers(cluster: &Cluster) -> Result<Option<i32>> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), isthmus::NAMESPACE);
    let controller = deployments.get(isthmus::CONTROLLER).await?;
    Ok(controller.spec.and_then(|spec| spec.replicas))
}
