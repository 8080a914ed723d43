//! Requests, who answered them, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use testbed::standalone::{ADAPTER, MODEL, Standalone};
use testbed::{Answer, Requests, Stream};
use tokio::time::Instant;

use crate::screen::short;

/// Requests at a time, each with a prompt of its own.
const AT_ONCE: usize = 9;

/// What runs where.
pub(crate) fn parts(standalone: &Standalone, took: Duration) {
    let servers: Vec<String> = standalone
        .servers()
        .iter()
        .map(ToString::to_string)
        .collect();
    println!("  model servers   {} (simulated)", servers.join("  "));
    println!("  endpoint picker {}/metrics", standalone.metrics_url());
    println!("  Envoy           {}", standalone.url());
    println!("  ready after {}", short(took));
}

/// Sends requests and says of each who answered it and why; fails where a reason does not hold.
pub(crate) async fn requests(standalone: &Standalone) -> Result<()> {
    let requests = Requests::new(standalone.url());
    prompts(&requests).await?;
    adapters(&requests).await?;
    at_once(&requests).await
}

async fn prompts(requests: &Requests) -> Result<()> {
    heading("A prompt is computed once: later ones with the same beginning go where it is cached");
    let story = prompt("a lighthouse keeper", 30);
    let first = requests.chat(MODEL, &story).await?;
    show(
        "a long prompt",
        &first,
        "nobody has it: one of the idle servers, by chance",
    )?;
    let again = requests.chat(MODEL, &story).await?;
    show("the same again", &again, "it is in that server's cache")?;
    let longer = requests.chat(MODEL, &format!("{story} And then?")).await?;
    show(
        "the same, and more",
        &longer,
        "its beginning is in that cache",
    )?;
    for later in [&again, &longer] {
        let (picked, wanted) = (later.pod(), first.pod());
        ensure!(
            picked == wanted,
            "{picked:?} has nothing of it cached, {wanted:?} has"
        );
        ensure!(cached(later) > 0, "nothing was cached: {}", later.text());
    }
    let other = requests
        .chat(MODEL, &prompt("a bridge builder", 30))
        .await?;
    show(
        "another long prompt",
        &other,
        "nobody has it: one of the idle servers, by chance",
    )?;

    let mut stream = Streamed::begin(requests, MODEL, &story, 20).await?;
    while stream.next().await? {}
    let first_event = stream.first.map_or_else(|| "-".to_owned(), short);
    let why = format!(
        "{} events as they come, the first after {first_event}",
        stream.events
    );
    stream.show("the first one as a stream", &why);
    ensure!(
        first.pod() == Some(&stream.server),
        "{} has nothing of it cached",
        stream.server
    );
    Ok(())
}

async fn adapters(requests: &Requests) -> Result<()> {
    heading(
        "A LoRA adapter is used where it is in use already; a model that nobody lists is refused",
    );
    let mut stream = Streamed::begin(requests, ADAPTER, &prompt("SQL", 3), 100).await?;
    // meanwhile the server's metrics say that it runs the adapter, and the endpoint picker reads them
    while stream.events < 30 && stream.next().await? {}
    let second = requests.chat(ADAPTER, "SELECT 1").await?;
    while stream.next().await? {}
    stream.show(
        "adapter sql, as a stream",
        "no server runs it: one with room for it",
    );
    show(
        "adapter sql meanwhile",
        &second,
        "that server runs the adapter",
    )?;
    ensure!(
        second.pod() == Some(&stream.server),
        "{} runs the adapter",
        stream.server
    );

    let unknown = requests.chat("gpt-99", "hello").await?;
    let code = unknown.json()["error"]["type"].clone();
    row([
        "model gpt-99",
        unknown.pod().unwrap_or("-"),
        unknown.status.as_str(),
        "",
        &short(unknown.latency),
        "not in epp.yaml: the endpoint picker's own answer",
    ]);
    ensure!(
        unknown.status == 404 && code == "model-not-found",
        "{}",
        unknown.text()
    );
    Ok(())
}

async fn at_once(requests: &Requests) -> Result<()> {
    println!("\n{AT_ONCE} different prompts at a time: each pick counts before the next one");
    let sent = (0..AT_ONCE).map(async |nth| {
        let prompt = prompt(&format!("number {nth}"), 10);
        requests.chat(MODEL, &prompt).await
    });
    let mut counts = BTreeMap::<String, usize>::new();
    for answer in try_join_all(sent).await? {
        ensure!(answer.status == 200, "{}", answer.text());
        let server = answer.pod().unwrap_or("-").to_owned();
        *counts.entry(server).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(server, count)| format!("{server} {count}"))
        .collect();
    println!("  {}", counts.join(", "));
    Ok(())
}

/// An answer that comes as events.
struct Streamed {
    stream: Stream,
    begin: Instant,
    server: String,
    events: u32,
    first: Option<Duration>,
    took: Duration,
}

// === impl Streamed ===

impl Streamed {
    async fn begin(requests: &Requests, model: &str, text: &str, tokens: u32) -> Result<Self> {
        let begin = Instant::now();
        let stream = requests.chat_stream(model, text, tokens).await?;
        let server = stream.pod().unwrap_or("-").to_owned();
        ensure!(
            stream.status == 200,
            "a stream was answered {}",
            stream.status
        );
        Ok(Self {
            stream,
            begin,
            server,
            events: 0,
            first: None,
            took: Duration::ZERO,
        })
    }

    /// Reads an event; false at the end.
    async fn next(&mut self) -> Result<bool> {
        let event = self.stream.next_event().await.map_err(anyhow::Error::msg)?;
        let more = event.is_some_and(|event| event != "[DONE]");
        if more {
            self.events += 1;
            self.first.get_or_insert(self.begin.elapsed());
        } else {
            self.took = self.begin.elapsed();
        }
        Ok(more)
    }

    fn show(&self, request: &str, why: &str) {
        let status = self.stream.status;
        row([
            request,
            &self.server,
            status.as_str(),
            "",
            &short(self.took),
            why,
        ]);
    }
}

/// What `--keep` left up, and a request to send.
pub(crate) fn kept(standalone: &Standalone) {
    println!("\nEverything stays up until Ctrl-C.\n");
    println!("  gateway           {}", standalone.url());
    println!("  epp metrics       {}/metrics", standalone.metrics_url());
    println!("  Envoy's pages     {}", standalone.admin_url());
    for at in standalone.servers() {
        println!("  model server      http://{at}/metrics, /admin/requests, /admin/config");
    }
    println!("  files and logs    {}", standalone.files().display());
    println!("\nA request:\n");
    println!("  {}", by_hand(&standalone.url()));
}

fn by_hand(url: &str) -> String {
    format!(
        r#"curl -i {url}/v1/chat/completions -d '{{"model":"{MODEL}","messages":[{{"role":"user","content":"hello"}}]}}'"#
    )
}

fn heading(text: &str) {
    println!("\n{text}");
    row(["REQUEST", "SERVER", "STATUS", "CACHED", "LATENCY", "WHY"]);
}

/// Fails where the answer is an error.
fn show(request: &str, answer: &Answer, why: &str) -> Result<()> {
    let prompt = answer.json()["usage"]["prompt_tokens"].as_u64();
    let cached = prompt.map_or_else(String::new, |prompt| {
        format!("{} of {prompt}", cached(answer))
    });
    row([
        request,
        answer.pod().unwrap_or("-"),
        answer.status.as_str(),
        &cached,
        &short(answer.latency),
        why,
    ]);
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(())
}

fn row([request, server, status, cached, latency, why]: [&str; 6]) {
    println!("  {request:<26} {server:<8} {status:<6} {cached:>10} {latency:>9}  {why}");
}

/// Tokens of the prompt that the server had in its cache.
fn cached(answer: &Answer) -> u64 {
    let details = &answer.json()["usage"]["prompt_tokens_details"];
    details["cached_tokens"].as_u64().unwrap_or(0)
}

/// A prompt whose length is in lines of some 15 tokens.
fn prompt(about: &str, lines: usize) -> String {
    let line = format!("Tell a story about {about}, in some detail and in plain words. ");
    line.repeat(lines)
}
