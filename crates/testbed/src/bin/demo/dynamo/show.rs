//! Requests, what became of their ids, and what the Router knew.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use http::HeaderMap;
use serde_json::json;
use testbed::standalone::{External, MODEL, Part, Standalone};
use testbed::{Answer, Requests, eventually};
use tokio::time::Instant;

use crate::screen::short;

const CHAT: &str = "/v1/chat/completions";
/// Where a simulated server says what it took.
const SOURCE: &str = "x-inference-token-source";
/// The same beginning, so often.
const REPEATS: usize = 6;
/// Clients at once, and requests of each, while a part is killed.
const CLIENTS: usize = 8;
const EACH: usize = 25;
/// After a part came back: breakers probe each 5 s.
const RECOVERED: Duration = Duration::from_secs(20);

/// What runs where.
pub(crate) fn parts(standalone: &Standalone, took: Duration) -> Result<()> {
    let external = external(standalone)?;
    println!(
        "  model servers    {} (simulated; they take ids and publish KV events over ZeroMQ)",
        standalone.servers().len()
    );
    println!(
        "  Router           {}/debug/routes",
        external.router_admin_url()
    );
    println!("  Processor        {}", external.processor_url());
    println!("  endpoint picker  {}/metrics", standalone.metrics_url());
    println!("  Envoy            {}", standalone.url());
    println!("  ready after {}", short(took));
    Ok(())
}

/// The demo's parts, one after the other; fails where something does not hold.
pub(crate) async fn all(standalone: &Standalone) -> Result<()> {
    let requests = Requests::new(standalone.url());
    four_ways(&requests).await?;
    repeated(&requests).await?;
    let external = external(standalone)?;
    killed(standalone, external, &requests, Part::Processor).await?;
    killed(standalone, external, &requests, Part::Router).await
}

async fn four_ways(requests: &Requests) -> Result<()> {
    println!(
        "\nWho chooses the server, and how the ids get there: a long prompt's by key, a short one's in the body"
    );
    println!(
        "  {:<8} {:<16} {:<9} {:<10} {:>8} {:>9}",
        "PROMPT", "CHOSEN BY", "IDS", "SERVER", "TOKENS", "LATENCY"
    );
    for (chosen, route) in [("Router", true), ("endpoint picker", false)] {
        for (length, lines, ids) in [("short", 2, "body"), ("long", 40, "key")] {
            let about = format!("{length} {route}");
            let answer = chat(requests, &prompt(&about, lines), route).await?;
            let source = source(&answer);
            println!(
                "  {length:<8} {chosen:<16} {source:<9} {:<10} {:>8} {:>9}",
                answer.pod().unwrap_or("-"),
                answer.json()["usage"]["prompt_tokens"].to_string(),
                short(answer.latency)
            );
            ensure!(source == ids, "the ids came by {source}, not by {ids}");
        }
    }
    Ok(())
}

async fn repeated(requests: &Requests) -> Result<()> {
    println!("\nThe same beginning with other ends: the Router knows by KV events who has it");
    println!(
        "  {:<10} {:<10} {:>16} {:>9}",
        "REQUEST", "SERVER", "CACHED", "LATENCY"
    );
    let story = prompt("a lighthouse keeper", 60);
    let mut first = None;
    for nth in 1..=REPEATS {
        let answer = chat(requests, &format!("{story} End number {nth}."), true).await?;
        let usage = &answer.json()["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0);
        let server = answer.pod().unwrap_or("-").to_owned();
        println!(
            "  {nth:<10} {server:<10} {:>16} {:>9}",
            format!("{cached} of {}", usage["prompt_tokens"]),
            short(answer.latency)
        );
        let first = first.get_or_insert_with(|| server.clone());
        ensure!(
            *first == server,
            "{server} has nothing of it cached, {first} has"
        );
        ensure!(nth == 1 || cached > 0, "nothing was cached");
    }
    Ok(())
}

/// Load while one of them is killed, and after it came back.
async fn killed(
    standalone: &Standalone,
    external: &External,
    requests: &Requests,
    part: Part,
) -> Result<()> {
    let total = CLIENTS * EACH;
    println!(
        "\n{total} requests of {CLIENTS} clients at once; the {part:?} is killed in the midst of them"
    );
    let begin = Instant::now();
    let clients = (0..CLIENTS).map(async |client| {
        let mut sources = Vec::new();
        for nth in 0..EACH {
            if client == 0 && nth == EACH / 4 {
                external.kill(part).await;
            }
            let answer = chat(
                requests,
                &prompt(&format!("{part:?} {client} {nth}"), 8),
                true,
            )
            .await;
            sources.push(answer.map(|answer| source(&answer)));
        }
        sources
    });
    let answers: Vec<Result<String>> = join_all(clients).await.into_iter().flatten().collect();
    let failed: Vec<String> = answers
        .iter()
        .filter_map(|it| it.as_ref().err().map(|error| format!("{error:#}")))
        .collect();
    let by_text = answers.iter().flatten().filter(|it| *it == "text").count();
    println!(
        "  answered 200: {} of {total}, of these without ids {by_text}, in {}",
        total - failed.len(),
        short(begin.elapsed())
    );
    ensure!(failed.is_empty(), "requests failed: {}", failed.join("; "));
    external.restart(part).await?;
    let begin = Instant::now();
    eventually("the Router's choice", RECOVERED, async || {
        let before = external_picks(standalone).await?;
        let about = format!("after {:?}", begin.elapsed());
        let answer = chat(requests, &prompt(&about, 2), true).await;
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        let after = external_picks(standalone).await?;
        if after > before && source(&answer) != "text" {
            Ok(())
        } else {
            Err(format!(
                "ids by {}, picks {before} to {after}",
                source(&answer)
            ))
        }
    })
    .await?;
    println!(
        "  started again: it is asked again after {}",
        short(begin.elapsed())
    );
    Ok(())
}

/// How many picks were made by the Router.
async fn external_picks(standalone: &Standalone) -> Result<f64, String> {
    let picks = standalone.metric("epp_external_picks_total{by=\"external\"");
    Ok(picks.await?.unwrap_or(0.0))
}

/// What `--keep` left up, and calls to try.
pub(crate) fn kept(standalone: &Standalone) {
    let url = standalone.url();
    println!("\nEverything stays up until Ctrl-C.\n");
    println!("  files and logs    {}", standalone.files().display());
    println!(
        "\nA request, one that the endpoint picker places itself, the ids of a prompt, the last decisions:\n"
    );
    let body = format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"hello"}}]"#);
    println!("  curl -i {url}{CHAT} -d '{body}}}'");
    println!("  curl -i {url}{CHAT} -d '{body},\"route\":false}}'");
    if let Some(external) = standalone.external() {
        println!(
            "  curl {}{CHAT}/render -d '{body}}}'",
            external.processor_url()
        );
        println!("  curl {}/debug/routes", external.router_admin_url());
        println!("  curl {}/debug/workers", external.router_admin_url());
    }
}

async fn chat(requests: &Requests, text: &str, route: bool) -> Result<Answer> {
    let body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 5,
        "route": route,
    });
    let answer = requests
        .post(CHAT, HeaderMap::new(), body.to_string())
        .await?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
    Ok(answer)
}

fn source(answer: &Answer) -> String {
    let source = answer.headers.get(SOURCE).and_then(|it| it.to_str().ok());
    source.unwrap_or("-").to_owned()
}

fn external(standalone: &Standalone) -> Result<&External> {
    standalone.external().context("Processor and Router")
}

/// A prompt whose length is in lines of some 30 tokens.
fn prompt(about: &str, lines: usize) -> String {
    let line = format!("Tell a story about {about}, in some detail and in plain words. ");
    line.repeat(lines)
}
