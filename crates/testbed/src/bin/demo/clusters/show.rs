//! Requests, and who answered them.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use testbed::{Inside, Requests, Testbed, isthmus};
use tokio::time::Instant;

use crate::screen::short;

/// Pod name to cluster name.
pub(crate) type Pods = BTreeMap<String, String>;

/// Sends `count` requests one after another and prints a table of who answered.
pub(crate) async fn requests(requests: &Requests, pods: &Pods, count: usize) -> Result<()> {
    println!(
        "  {:<8} {:<8} {:<30} {:<7} {:>8}",
        "REQUEST", "CLUSTER", "POD", "STATUS", "LATENCY"
    );
    for number in 1..=count {
        let answer = requests
            .chat(isthmus::POOL, &format!("request {number}"))
            .await?;
        let pod = answer.pod().unwrap_or("-");
        let status = answer.status.as_u16();
        println!(
            "  {number:<8} {:<8} {pod:<30} {status:<7} {:>8}",
            cluster_of(pods, pod),
            short(answer.latency)
        );
        ensure!(answer.status == 200, "request {number}: {}", answer.text());
    }
    Ok(())
}

/// Streams one answer and prints when its tokens came.
pub(crate) async fn stream(requests: &Requests, pods: &Pods) -> Result<()> {
    let start = Instant::now();
    let mut stream = requests
        .chat_stream(isthmus::POOL, "tell me a story", 40)
        .await?;
    let pod = stream.pod().unwrap_or("-").to_owned();
    let (mut first, mut events) = (None, 0_u32);
    while let Some(event) = stream.next_event().await.map_err(anyhow::Error::msg)? {
        if event == "[DONE]" {
            break;
        }
        events += 1;
        first.get_or_insert(start.elapsed());
    }
    println!(
        "  {} {pod}: first event after {}, {events} events in {}",
        cluster_of(pods, &pod),
        first.map_or_else(|| "-".to_owned(), short),
        short(start.elapsed()),
    );
    Ok(())
}

/// Sends `count` requests and counts the answers of each cluster.
pub(crate) async fn count(
    requests: &Requests,
    pods: &Pods,
    count: usize,
) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        let answer = requests.chat(isthmus::POOL, "hello").await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        let cluster = cluster_of(pods, answer.pod().unwrap_or("-"));
        *counts.entry(cluster.to_owned()).or_default() += 1;
    }
    Ok(counts)
}

/// As [`count`], with all requests at once.
pub(crate) async fn count_at_once(
    requests: &Requests,
    pods: &Pods,
    count: usize,
) -> Result<BTreeMap<String, usize>> {
    let one = async |nth: usize| {
        let answer = requests
            .chat(isthmus::POOL, &format!("request {nth}"))
            .await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        Ok(cluster_of(pods, answer.pod().unwrap_or("-")).to_owned())
    };
    let mut counts = BTreeMap::new();
    for cluster in try_join_all((0..count).map(one)).await? {
        *counts.entry(cluster).or_default() += 1;
    }
    Ok(counts)
}

/// `east 101, west 99`.
pub(crate) fn counted(counts: &BTreeMap<String, usize>) -> String {
    let counts: Vec<_> = counts
        .iter()
        .map(|(cluster, count)| format!("{cluster} {count}"))
        .collect();
    counts.join(", ")
}

/// How to look around in what `--keep` left up.
pub(crate) fn kept(inside: &Inside, testbed: &Testbed, url: &str) -> Result<()> {
    let kubeconfig = testbed.merged_kubeconfig()?;
    let enter = inside.enter_command();
    let kubectl = testbed.tools().kubectl.display();
    println!(
        "\nThe clusters stay up until Ctrl-C. Their addresses exist in a network namespace of their own;"
    );
    println!("in another terminal, this makes kubectl reach them:\n");
    println!(
        "  alias kubectl='{enter} env KUBECONFIG={} {kubectl}'",
        kubeconfig.display()
    );
    for cluster in testbed.clusters() {
        println!("  kubectl --context {} get pods -A", cluster.name());
    }
    println!("\nand this sends a request:\n");
    println!("  {enter} curl {url}/v1/chat/completions -H 'content-type: application/json' \\");
    println!(r#"    -d '{{"model":"llama","messages":[{{"role":"user","content":"hello"}}]}}'"#);
    println!("\nLogs of every process: {}", testbed.logs_dir().display());
    Ok(())
}

/// Which cluster a model server is in.
pub(crate) fn cluster_of<'a>(pods: &'a Pods, pod: &str) -> &'a str {
    pods.get(pod).map_or("?", String::as_str)
}
