//! Responses that model servers keep: the recipe of the documentation, with several endpoint pickers.

use std::fs;

use anyhow::{Context, Result, ensure};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use testbed::standalone::{MODEL, Ports, Setup, Standalone};
use testbed::{Answer, Requests, eventually};

use crate::stand::{SOON, Stand, had_requests, several_had_more};

/// Has the recipe.
const DOCS: &str = include_str!("../../../docs/epp-config.md");
const SECTION: &str = "### Stateful Responses\n";
const RESPONSES: &str = "/v1/responses";
const TOKEN: HeaderName = HeaderName::from_static("x-session-token");
/// So many requests do not all find one server of three by chance.
const SESSIONS: usize = 12;

/// Tokens of an answer that goes on until it is cancelled, at 10 ms each.
const LONG: u32 = 3000;

/// A response that a server keeps.
struct Kept {
    id: String,
    pod: String,
    /// As a client sends it back.
    session: HeaderMap,
}

pub(crate) async fn a_response_is_found_by_its_session_token_whichever_picker_has_the_request(
    stand: &Stand,
) -> Result<()> {
    let files = stand.standalone.files().join("responses");
    fs::create_dir_all(&files).context("making a directory")?;
    let flags = "--responses-store 1000 --inter-token-latency 10ms";
    let setup = Setup {
        pickers: 2,
        server_flags: flags.split_whitespace().map(str::to_owned).collect(),
        configure_epp: |config| *config = recipe(),
        ..Setup::sample(Ports::free()?)
    };
    let standalone = setup.start(&files, &stand.logs).await?;
    let result = serve(&standalone).await;
    standalone.stop().await;
    result
}

/// The configuration in the documentation.
fn recipe() -> Value {
    let section = DOCS.split(SECTION).nth(1).unwrap_or_default();
    let block = section.split("```yaml\n").nth(1).unwrap_or_default();
    let block = block.split("```").next().unwrap_or_default();
    serde_yaml::from_str(block).unwrap_or_default()
}

async fn serve(standalone: &Standalone) -> Result<()> {
    let requests = Requests::new(standalone.url());
    let before = had_requests(standalone).await?;
    let mut kept = Vec::new();
    for nth in 0..SESSIONS {
        let body =
            json!({"model": MODEL, "input": format!("number {nth}"), "max_output_tokens": 5});
        let first = ask(&requests, HeaderMap::new(), body).await?;
        kept.push(read(&first)?);
    }
    for one in &kept {
        let next = ask(&requests, one.session.clone(), follow_up(one, false)).await?;
        one.answered("a request that goes on", &next)?;
        let path = format!("{RESPONSES}/{}", one.id);
        let again = requests.get_with(&path, one.session.clone()).await?;
        one.answered("GET", &again)?;
        let later = ask(&requests, one.session.clone(), follow_up(one, true)).await?;
        one.answered("a request in the background", &later)?;
        let path = format!("{RESPONSES}/{}/cancel", read(&later)?.id);
        let end = requests.post(&path, one.session.clone(), "").await?;
        one.answered("cancel", &end)?;
        ensure!(end.json()["status"] == "cancelled", "{}", end.text());
    }
    several_had_more(standalone, &before).await?;

    // Without the token chance decides, and the other servers do not know the response.
    let mut missed = Vec::new();
    for one in &kept {
        let next = ask(&requests, HeaderMap::new(), follow_up(one, false)).await?;
        missed.extend((next.status != 200).then_some(next));
    }
    ensure!(
        !missed.is_empty(),
        "each request found its server by chance"
    );
    for answer in &missed {
        is_unknown(answer).map_err(anyhow::Error::msg)?;
    }

    // A server that left the pool took its responses with it.
    // The last by its name: the file of endpoints names the others as before.
    let one = kept
        .iter()
        .max_by_key(|one| &one.pod)
        .context("a response")?;
    let left = one.pod.clone();
    let others = standalone.servers().iter().enumerate();
    let others = others.filter(|(nth, _)| format!("{MODEL}-{nth}") != left);
    standalone.set_endpoints(others.map(|(_, at)| *at))?;
    eventually(
        "a server that does not know the response",
        SOON,
        async || {
            let next = ask(&requests, one.session.clone(), follow_up(one, false)).await;
            is_unknown(&next.map_err(|error| format!("{error:#}"))?)
        },
    )
    .await?;
    Ok(())
}

async fn ask(requests: &Requests, headers: HeaderMap, body: Value) -> Result<Answer> {
    Ok(requests.post(RESPONSES, headers, body.to_string()).await?)
}

fn follow_up(one: &Kept, background: bool) -> Value {
    let tokens = if background { LONG } else { 5 };
    json!({
        "model": MODEL,
        "input": "and then",
        "previous_response_id": one.id,
        "background": background,
        "max_output_tokens": tokens,
    })
}

fn read(answer: &Answer) -> Result<Kept> {
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
    let token: &HeaderValue = answer.headers.get(&TOKEN).context("no session token")?;
    Ok(Kept {
        id: answer.json()["id"].as_str().context("no id")?.to_owned(),
        pod: answer.pod().context("no pod")?.to_owned(),
        session: HeaderMap::from_iter([(TOKEN, token.clone())]),
    })
}

/// Whether the answer is that of a server that does not know the response.
fn is_unknown(answer: &Answer) -> Result<(), String> {
    let error = &answer.json()["error"];
    if answer.status == 404 && error["param"] == "response_id" {
        Ok(())
    } else {
        Err(format!("{}: {}", answer.status, answer.text()))
    }
}

// === impl Kept ===

impl Kept {
    fn answered(&self, what: &str, answer: &Answer) -> Result<()> {
        ensure!(
            answer.status == 200 && answer.pod() == Some(&self.pod),
            "{what}: {} by {:?}, not by {}: {}",
            answer.status,
            answer.pod(),
            self.pod,
            answer.text()
        );
        Ok(())
    }
}
