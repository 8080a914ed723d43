//! Objectives, rewrites and models of a pool: kinds that a cluster may have or not.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use http::{HeaderMap, HeaderValue};
use serde_json::json;
use testbed::{Answer, Cluster, eventually, isthmus};

use e2e::environment::Environment;
use e2e::pair::sum_metric;

const CRDS: &str = include_str!("objects/crds.yaml");
const OBJECTS: &str = include_str!("objects/objects.yaml");
/// The default configuration, except for a request header that is trusted.
const TRUSTING: &str = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, isthmus: {trustedHeaders: [objective]}}";
const REWRITES_CRD: &str = "crd/inferencemodelrewrites.llm-d.ai";
/// The picker looks for the kinds each 30 s, give or take a fifth; and the machine is busy.
const LOOKED_FOR: Duration = Duration::from_mins(1);
const SOON: Duration = Duration::from_secs(30);

/// Leads to west's own pool.
const ROUTE: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: objects, namespace: llm}
spec:
  parentRefs: [{name: inference}]
  rules:
  - matches: [{path: {type: Exact, value: /v1/completions}}]
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llama}]
";

pub(crate) async fn they_count_once_their_crds_are_installed_and_outlive_them(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let west = &environment.west;
    west.apply_yaml(ROUTE).await?;
    let outcome = async {
        // the tests' clients name objectives themselves
        configure(west, &format!("CONFIG_TEXT={TRUSTING}")).await?;
        installed(environment).await?;
        used(environment).await?;
        gone(environment).await
    }
    .await;
    // what was kept with its CRD stays until the picker does
    west.kubectl(&[
        "delete",
        "httproute",
        "objects",
        "-n",
        isthmus::POOL_NAMESPACE,
    ])
    .await?;
    delete_crds(west).await?;
    configure(west, "CONFIG_TEXT-").await?;
    outcome
}

/// Changes the picker's environment, which restarts it.
async fn configure(west: &Cluster, change: &str) -> Result<()> {
    let namespace = isthmus::POOL_NAMESPACE;
    let set = [
        "set",
        "env",
        "deployment/llama-epp",
        change,
        "-n",
        namespace,
    ];
    west.kubectl(&set).await?;
    isthmus::available(west, namespace, "llama-epp").await?;
    Ok(())
}

/// CRDs and objects, under a picker that has found none.
async fn installed(environment: &Environment) -> Result<()> {
    let west = &environment.west;
    eventually(
        "west's servers answer, and know no gold",
        SOON,
        async || {
            let (llama, gold) = (
                ask(environment, "llama").await?,
                ask(environment, "gold").await?,
            );
            if llama.status == 200 && gold.status == 404 && gold.pod().is_some() {
                Ok(())
            } else {
                Err(format!("llama {}, gold {}", told(&llama), told(&gold)))
            }
        },
    )
    .await?;

    west.apply_yaml(CRDS).await?;
    west.kubectl(&[
        "wait",
        "--for=condition=established",
        "--timeout=20s",
        REWRITES_CRD,
    ])
    .await?;
    eventually("the objects are taken", SOON, async || {
        let applied = west.apply_yaml(OBJECTS).await;
        applied.map_err(|error| error.to_string())
    })
    .await?;
    Ok(())
}

async fn used(environment: &Environment) -> Result<()> {
    eventually(
        "gold is served by llama, under its own name",
        LOOKED_FOR,
        async || {
            let gold = ask(environment, "gold").await?;
            if gold.status == 200 && gold.json()["model"] == "gold" {
                Ok(())
            } else {
                Err(told(&gold))
            }
        },
    )
    .await?;
    eventually(
        "the picker refuses a model that is not listed",
        LOOKED_FOR,
        async || {
            let other = ask(environment, "other").await?;
            if other.status == 404 && other.pod().is_none() {
                Ok(())
            } else {
                Err(told(&other))
            }
        },
    )
    .await?;
    // of the objective, and without one of the model; that of another pool is none
    for (objective, model, priority) in [
        ("urgent", "gold", "7"),
        ("of-another-pool", "llama", "1"),
        ("none", "gold", "0"),
    ] {
        let what = format!("objective {objective}, model {model}: priority {priority}");
        eventually(&what, LOOKED_FOR, async || {
            let before = requests_of(environment, priority).await?;
            let answer = ask_as(environment, model, objective).await?;
            let after = requests_of(environment, priority).await?;
            if answer.status == 200 && after > before {
                Ok(())
            } else {
                Err(format!("{}; {before} before, {after} after", told(&answer)))
            }
        })
        .await?;
    }
    Ok(())
}

/// A CRD, which keeps its objects in force, and then objects, which are deleted.
async fn gone(environment: &Environment) -> Result<()> {
    let west = &environment.west;
    west.kubectl(&["delete", REWRITES_CRD, "--timeout=25s"])
        .await?;
    eventually("the picker sees that the kind is gone", SOON, async || {
        let page = page(environment).await?;
        let synced = page.lines().find(|line| {
            line.starts_with("epp_discovery_synced") && line.contains("InferenceModelRewrite")
        });
        match synced {
            Some(line) if line.ends_with(" 0") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    for _ in 0..10 {
        let gold = ask(environment, "gold").await.map_err(anyhow::Error::msg)?;
        ensure!(gold.status == 200, "with its CRD gone: {}", told(&gold));
    }

    // somebody's deletion is one
    let delete = [
        "delete",
        "inferencemodel",
        "--all",
        "-n",
        isthmus::POOL_NAMESPACE,
    ];
    west.kubectl(&delete).await?;
    eventually("every model may be asked for again", SOON, async || {
        let other = ask(environment, "other").await?;
        if other.status == 404 && other.pod().is_some() {
            Ok(())
        } else {
            Err(told(&other))
        }
    })
    .await?;
    Ok(())
}

/// E17: what the picker knows outlasts the API server that it knows it from.
pub(crate) async fn no_request_fails_while_the_api_server_of_the_pool_stands_still(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let pods = environment.pods(&environment.east).await?;
    environment.pause_api(&environment.east).await?;
    let outcome = async {
        let mut seen = BTreeSet::new();
        for number in 0..200 {
            // each another prompt: one that is known goes to where it is cached
            let text = format!("request {number}");
            let answer = environment.gateway.chat("llama", &text).await?;
            ensure!(answer.status == 200, "{text}: {}", told(&answer));
            seen.extend(answer.pod().map(str::to_owned));
        }
        let missing: Vec<_> = pods.keys().filter(|pod| !seen.contains(*pod)).collect();
        ensure!(missing.is_empty(), "never picked: {missing:?}");
        anyhow::Ok(())
    }
    .await;
    environment.resume_api(&environment.east).await?;
    outcome.context("while the API server stood still")?;
    environment.serving().await
}

async fn delete_crds(cluster: &Cluster) -> Result<()> {
    for crd in [
        REWRITES_CRD,
        "crd/inferencemodels.inference.networking.x-k8s.io",
        "crd/inferenceobjectives.inference.networking.x-k8s.io",
    ] {
        let delete = ["delete", crd, "--ignore-not-found", "--timeout=25s"];
        cluster.kubectl(&delete).await?;
    }
    Ok(())
}

async fn ask(environment: &Environment, model: &str) -> Result<Answer, String> {
    ask_as(environment, model, "none").await
}

async fn ask_as(environment: &Environment, model: &str, objective: &str) -> Result<Answer, String> {
    let mut headers = HeaderMap::new();
    let objective = HeaderValue::from_str(objective).map_err(|error| error.to_string())?;
    headers.insert("x-llm-d-inference-objective", objective);
    let body = json!({"model": model, "prompt": "hello", "max_tokens": 1}).to_string();
    let asked = environment.gateway.post("/v1/completions", headers, body);
    asked.await.map_err(|error| error.to_string())
}

fn told(answer: &Answer) -> String {
    let pod = answer.pod().unwrap_or("nobody");
    format!("{} from {pod}: {}", answer.status, answer.text())
}

/// Metrics of west's picker.
async fn page(environment: &Environment) -> Result<String, String> {
    let page = environment.epp_metrics(&environment.west).await;
    page.map_err(|error| format!("{error:#}"))
}

/// Requests of this priority that west's picker has seen.
async fn requests_of(environment: &Environment, priority: &str) -> Result<f64, String> {
    let label = format!("priority=\"{priority}\"");
    let page = page(environment).await?;
    let lines = page.lines().filter(|line| line.contains(&label));
    let lines: Vec<_> = lines.collect();
    Ok(sum_metric(&lines.join("\n"), "llm_d_epp_request_total"))
}
