//! What happens when a part is gone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use testbed::{eventually, isthmus};
use tokio::time::Instant;

use e2e::environment::{CONTROLLER_PODS, Environment, PICKERS};
use e2e::pair::{NO_ANSWER, is_ready};

const SOON: Duration = Duration::from_secs(30);

pub(crate) async fn traffic_goes_on_without_the_controller(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    environment.scale_controller(0).await?;
    let result = async {
        eventually("the controller is gone", SOON, async || {
            let pods = environment
                .pods_of(&environment.west, isthmus::NAMESPACE, CONTROLLER_PODS)
                .await?;
            if pods.is_empty() {
                Ok(())
            } else {
                Err(format!("{pods:?}"))
            }
        })
        .await?;
        environment.answered(50).await
    }
    .await;
    environment.scale_controller(1).await?;
    result
}

pub(crate) async fn no_request_fails_once_a_killed_model_server_is_unready(
    environment: &Environment,
) -> Result<()> {
    /// Number of concurrent clients, and of requests of each.
    const CLIENTS: usize = 4;
    const EACH: usize = 30;
    environment.settle().await?;
    let pods = environment.pods(&environment.east).await?;
    let victim = pods
        .keys()
        .next()
        .context("no model server in east")?
        .clone();
    let api: Api<Pod> = Api::namespaced(environment.east.client(), isthmus::POOL_NAMESPACE);
    let restarts = async || {
        environment
            .restarts(&environment.east, isthmus::POOL_NAMESPACE, &victim)
            .await
    };
    let before = restarts().await.map_err(anyhow::Error::msg)?;
    let faults =
        environment
            .testbed
            .pod(environment.east.name(), isthmus::POOL_NAMESPACE, &victim)?;
    // it stays down for as long as requests are sent
    faults.kill_and_hold();
    let outcome = async {
        eventually("the killed pod is seen unready", SOON, async || {
            let pod = api.get(&victim).await.map_err(|error| error.to_string())?;
            if is_ready(&pod) {
                Err("ready, as before".to_owned())
            } else {
                Ok(())
            }
        })
        .await?;
        let clients = (0..CLIENTS).map(async |client| {
            for nth in 0..EACH {
                // each prompt differs: a known one is sent to where it is cached
                let text = format!("client {client}, request {nth}");
                let answer = environment.gateway.chat("llama", &text).await?;
                let (status, pod) = (answer.status, answer.pod());
                ensure!(status == 200, "{text}: {status}: {}", answer.text());
                ensure!(pod != Some(&victim), "{text}: answered by {victim}");
            }
            Ok(())
        });
        try_join_all(clients).await?;
        let pod = api.get(&victim).await?;
        ensure!(!is_ready(&pod), "{victim} was ready again meanwhile");
        anyhow::Ok(())
    }
    .await;
    faults.let_restart();
    outcome?;
    isthmus::available(
        &environment.east,
        isthmus::POOL_NAMESPACE,
        isthmus::MODEL_SERVERS,
    )
    .await?;
    let after = restarts().await.map_err(anyhow::Error::msg)?;
    ensure!(after > before, "{victim} was never killed");
    Ok(())
}

pub(crate) async fn traffic_resumes_after_the_endpoint_picker_restarts(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    let pods = environment
        .pods_of(&environment.east, isthmus::POOL_NAMESPACE, PICKERS)
        .await;
    let pods = pods.map_err(anyhow::Error::msg)?;
    let epp = pods.keys().next().context("no endpoint picker in east")?;
    let restarts = async || {
        environment
            .restarts(&environment.east, isthmus::POOL_NAMESPACE, epp)
            .await
    };
    let before = restarts().await.map_err(anyhow::Error::msg)?;
    environment.kill_pod(&environment.east, isthmus::POOL_NAMESPACE, epp)?;
    // while it is gone a request may fail, but each gets an answer, and then they succeed again by themselves
    let mut longest = Duration::ZERO;
    eventually("ten good answers in a row", SOON, async || {
        if restarts().await? == before {
            return Err("the endpoint picker has not been restarted yet".to_owned());
        }
        for number in 0..10 {
            let asked = Instant::now();
            let answer = environment.gateway.chat("llama", "hello").await;
            longest = longest.max(asked.elapsed());
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.status != 200 {
                return Err(format!(
                    "request {number}: {}: {}",
                    answer.status,
                    answer.text()
                ));
            }
        }
        Ok(())
    })
    .await?;
    ensure!(longest < NO_ANSWER, "a request waited {longest:?}");
    Ok(())
}

pub(crate) async fn a_cut_link_is_an_error_in_bounded_time_and_heals(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    environment.cut().await?;
    let result = async {
        // connections that are up must first be found dead: HTTP/2 keepalive takes 7 s
        let mut longest = Duration::ZERO;
        eventually("an error while the link is cut", SOON, async || {
            let asked = Instant::now();
            let answer = environment.gateway.chat("llama", "hello").await;
            longest = longest.max(asked.elapsed());
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.status == 503 {
                Ok(())
            } else {
                Err(format!("{}: {}", answer.status, answer.text()))
            }
        })
        .await?;
        ensure!(longest < NO_ANSWER, "a request waited {longest:?}");
        anyhow::Ok(())
    }
    .await;
    environment.heal().await?;
    result?;
    environment.serving().await
}

/// In all that it did in the tests before this one.
pub(crate) async fn the_controller_asked_for_nothing_that_it_may_not(
    environment: &Environment,
) -> Result<()> {
    environment.settle().await?;
    environment.denied_nothing()
}
