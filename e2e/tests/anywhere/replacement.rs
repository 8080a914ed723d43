//! Pods that are replaced, as any rollout or eviction does it.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use testbed::{eventually, isthmus};
use tokio::time::Instant;

use e2e::pair::{NO_ANSWER, Pair};

/// To pull an image that is there, start, be ready, be seen, and drain: on real nodes as well.
const REPLACED: Duration = Duration::from_mins(2);

pub(crate) async fn no_request_fails_while_a_model_server_is_replaced(pair: &Pair) -> Result<()> {
    pair.settle().await?;
    let before = pair.pods(&pair.east).await?;
    let victim = before.keys().next().context("no model server")?;
    delete(pair, victim, &["--wait=false"]).await?;
    let mut sent = 0;
    let replaced = eventually(
        "its successor answers, and it no more",
        REPLACED,
        async || {
            let mut answered = BTreeSet::new();
            for _ in 0..20 {
                // each another prompt: one that is known goes to where it is cached
                sent += 1;
                let text = format!("request {sent}");
                let answer = pair.gateway.chat("llama", &text).await;
                let failed = match answer {
                    Ok(answer) if answer.status == 200 => {
                        answered.extend(answer.pod().map(str::to_owned));
                        continue;
                    }
                    Ok(answer) => format!("{}: {}", answer.status, answer.text()),
                    Err(error) => error.to_string(),
                };
                // ends the wait
                return Ok(Err(format!("{text}: {failed}")));
            }
            let new = answered.iter().any(|pod| !before.contains_key(pod));
            let ended = gone(pair, victim).await?;
            if new && ended && !answered.contains(victim) {
                Ok(Ok(()))
            } else {
                Err(format!("{victim} was deleted, answers of {answered:?}"))
            }
        },
    );
    replaced.await?.map_err(anyhow::Error::msg)
}

pub(crate) async fn requests_are_answered_again_once_killed_endpoint_pickers_are_replaced(
    pair: &Pair,
) -> Result<()> {
    pair.settle().await?;
    let before = pair.pickers(&pair.east).await?;
    ensure!(!before.is_empty(), "no endpoint picker in east");
    for picker in before.keys() {
        delete(pair, picker, &["--force", "--grace-period=0"]).await?;
    }
    // while there is none a request may fail, but each gets an answer, and then they succeed again by themselves
    let mut longest = Duration::ZERO;
    eventually(
        "another picker, and ten good answers",
        REPLACED,
        async || {
            let pickers = pair.pickers(&pair.east).await;
            let pickers = pickers.map_err(|error| format!("{error:#}"))?;
            if pickers.keys().any(|picker| before.contains_key(picker)) {
                return Err(format!("not deleted yet: {pickers:?}"));
            }
            for number in 0..10 {
                let asked = Instant::now();
                let answer = pair.gateway.chat("llama", "hello").await;
                longest = longest.max(asked.elapsed());
                let answer = answer.map_err(|error| error.to_string())?;
                if answer.status != 200 {
                    let (status, text) = (answer.status, answer.text());
                    return Err(format!("request {number}: {status}: {text}"));
                }
            }
            Ok(())
        },
    )
    .await?;
    ensure!(longest < NO_ANSWER, "a request waited {longest:?}");
    pair.serving().await
}

/// Whether the pod has ended, and not only begun to.
async fn gone(pair: &Pair, pod: &str) -> Result<bool, String> {
    let namespace = isthmus::POOL_NAMESPACE;
    let get = [
        "get",
        "pod",
        pod,
        "-n",
        namespace,
        "--ignore-not-found",
        "-o",
        "name",
    ];
    let left = pair.east.kubectl(&get).await;
    Ok(left.map_err(|error| error.to_string())?.is_empty())
}

async fn delete(pair: &Pair, pod: &str, flags: &[&str]) -> Result<()> {
    let delete = ["delete", "pod", pod, "-n", isthmus::POOL_NAMESPACE];
    pair.east.kubectl(&[&delete[..], flags].concat()).await?;
    Ok(())
}
