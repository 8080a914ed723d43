//! Requests, where they went, and what the Metadata-Center has of them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::{join_all, try_join_all};
use testbed::standalone::{MODEL, Standalone};
use testbed::{Requests, Stream, eventually};
use tokio::time::Instant;

use super::{CLUSTER, REPAIRED};
use crate::screen::short;

/// The same beginning, so often.
const REPEATS: usize = 6;
/// Different prompts at a time.
const AT_ONCE: usize = 100;
/// Idle endpoints differ by at most so many requests when several endpoint pickers choose at once.
const SPREAD: usize = 2;
/// Answers that go on while the Metadata-Center is away.
const LONG: usize = 12;
/// Tokens of such an answer: longer than anything here takes.
const LONG_TOKENS: u32 = 6000;
/// Requests while the Metadata-Center is away.
const MEANWHILE: usize = 60;

/// What runs where.
pub(crate) fn parts(standalone: &Standalone, took: Duration) {
    let servers = standalone.servers();
    println!("  model servers    {} (simulated)", servers.len());
    for nth in 0..standalone.pickers() {
        println!("  endpoint picker  {}/metrics", standalone.picker_url(nth));
    }
    println!(
        "  Metadata-Center  {} (state in Redis)",
        standalone.center_url()
    );
    println!("  Envoy            {}", standalone.url());
    println!("  ready after {}", short(took));
}

/// The demo's parts, one after the other; fails where something does not hold.
pub(crate) async fn all(standalone: &Standalone) -> Result<()> {
    let requests = Requests::new(standalone.url());
    repeated(&requests).await?;
    at_once(&requests).await?;
    without_center(standalone, &requests).await
}

async fn repeated(requests: &Requests) -> Result<()> {
    println!(
        "\nA prompt again and again, whichever endpoint picker has the request: it goes where it is cached"
    );
    println!(
        "  {:<10} {:<10} {:>16} {:>9}",
        "REQUEST", "SERVER", "CACHED", "LATENCY"
    );
    let story = prompt("a lighthouse keeper", 60);
    let mut first = None;
    for nth in 1..=REPEATS {
        let answer = requests.chat(MODEL, &story).await?;
        ensure!(answer.status == 200, "{}", answer.text());
        let usage = &answer.json()["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0);
        let tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
        let server = answer.pod().unwrap_or("-").to_owned();
        println!(
            "  {nth:<10} {server:<10} {:>16} {:>9}",
            format!("{cached} of {tokens}"),
            short(answer.latency)
        );
        let first = first.get_or_insert_with(|| server.clone());
        ensure!(
            *first == server,
            "{server} has nothing of it cached, {first} has"
        );
        ensure!(
            nth == 1 || cached > 0,
            "nothing was cached: {}",
            answer.text()
        );
    }
    Ok(())
}

async fn at_once(requests: &Requests) -> Result<()> {
    println!(
        "\n{AT_ONCE} different prompts at once: three endpoint pickers choose, and none takes what another just took"
    );
    let sent = (0..AT_ONCE).map(async |nth| {
        requests
            .chat(MODEL, &prompt(&format!("number {nth}"), 20))
            .await
    });
    let mut counts = BTreeMap::<String, usize>::new();
    for answer in try_join_all(sent).await? {
        ensure!(answer.status == 200, "{}", answer.text());
        *counts
            .entry(answer.pod().unwrap_or("-").to_owned())
            .or_default() += 1;
    }
    let line: Vec<String> = counts
        .iter()
        .map(|(server, count)| format!("{server} {count}"))
        .collect();
    println!("  {}", line.join(", "));
    let most = counts.values().max().copied().unwrap_or(0);
    let least = counts.values().min().copied().unwrap_or(0);
    println!("  most - least: {}", most - least);
    ensure!(most - least <= SPREAD, "more than {SPREAD} apart");
    Ok(())
}

async fn without_center(standalone: &Standalone, requests: &Requests) -> Result<()> {
    println!("\n{LONG} long answers begin; the Metadata-Center is killed and later started again");
    let begin = (0..LONG).map(async |nth| {
        let mut stream = requests
            .chat_stream(
                MODEL,
                &prompt(&format!("the long number {nth}"), 10),
                LONG_TOKENS,
            )
            .await?;
        ensure!(
            stream.status == 200,
            "a stream was answered {}",
            stream.status
        );
        stream.next_event().await.map_err(anyhow::Error::msg)?;
        anyhow::Ok(stream)
    });
    let streams: Vec<Stream> = try_join_all(begin).await?;
    let counted = agrees(standalone, LONG).await?;
    println!("  it counts {LONG} requests after {}", short(counted));

    standalone.kill_center().await;
    let start = Instant::now();
    let sent = (0..MEANWHILE).map(async |nth| {
        requests
            .chat(MODEL, &prompt(&format!("meanwhile {nth}"), 5))
            .await
    });
    let answers = join_all(sent).await;
    let good = answers
        .iter()
        .flatten()
        .filter(|answer| answer.status == 200)
        .count();
    println!(
        "  killed: {good} of {MEANWHILE} requests meanwhile were answered 200, in {}",
        short(start.elapsed())
    );
    ensure!(good == MEANWHILE, "requests failed");
    ensure!(
        standalone
            .metric("llm_degraded")
            .await
            .map_err(anyhow::Error::msg)?
            .is_some_and(|it| it > 0.0),
        "no endpoint picker says that it is on its own"
    );

    standalone.restart_center().await?;
    let counted = agrees(standalone, LONG).await?;
    println!(
        "  started again: it counts {LONG} requests after {}",
        short(counted)
    );
    let drained = streams.len();
    drop(streams);
    let counted = agrees(standalone, 0).await?;
    println!(
        "  the {drained} clients hang up: it counts 0 after {}",
        short(counted)
    );
    Ok(())
}

/// Waits until the Metadata-Center counts so many requests, and says how long that took.
async fn agrees(standalone: &Standalone, wanted: usize) -> Result<Duration> {
    let start = Instant::now();
    let center = Requests::new(standalone.center_url());
    eventually("the same totals", REPAIRED, async || {
        let counted = total(&center).await.map_err(|error| format!("{error:#}"))?;
        if counted == wanted {
            Ok(())
        } else {
            Err(format!(
                "the Metadata-Center counts {counted} requests, there are {wanted}"
            ))
        }
    })
    .await?;
    Ok(start.elapsed())
}

/// The requests of all endpoints, as the Metadata-Center has them.
async fn total(center: &Requests) -> Result<usize> {
    let answer = center
        .get(&format!("/v1/load/stats?cluster={CLUSTER}"))
        .await?;
    let json = answer.json();
    if json["status"] != "OK" {
        bail!("{}", answer.text());
    }
    let endpoints = json["data"].as_array().cloned().unwrap_or_default();
    let counts = endpoints
        .iter()
        .filter_map(|it| it["queued_req_num"].as_u64());
    usize::try_from(counts.sum::<u64>()).context("a count")
}

/// What `--keep` left up, and calls to try.
pub(crate) fn kept(standalone: &Standalone) {
    let (url, center) = (standalone.url(), standalone.center_url());
    println!("\nEverything stays up until Ctrl-C.\n");
    println!("  files and logs    {}", standalone.files().display());
    println!("\nA request, what the Metadata-Center knows, and its API:\n");
    println!(
        r#"  curl -i {url}/v1/chat/completions -d '{{"model":"{MODEL}","messages":[{{"role":"user","content":"hello"}}]}}'"#
    );
    println!("  curl '{center}/v1/load/stats?cluster={CLUSTER}'");
    println!("  curl {center}/v1/clusters");
    println!("  curl {center}/openapi.json");
}

/// A prompt whose length is in lines of some 15 tokens.
fn prompt(about: &str, lines: usize) -> String {
    let line = format!("Tell a story about {about}, in some detail and in plain words. ");
    line.repeat(lines)
}
