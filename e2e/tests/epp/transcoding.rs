//! A server that speaks Triton's generate extension, to clients that speak OpenAI's API.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use testbed::standalone::{ExtraServer, MODEL, Ports};
use testbed::{Requests, eventually};

use crate::client::{Ask, CHAT, Payload};
use crate::stand::{SOON, SPARE, Stand, Way, chat, counts, text_of};

const READY: &str = "llm_d_epp_ready_endpoints";
const TEST_ID: &str = "x-test-id";
const GREETING: &str = "hello there, general";
/// What the server is asked to go on with, and says again.
const ECHO: &str = "user: hello there, general\nassistant:";

/// The pool consists of a server in Triton, and a rule says so.
struct Behind<'a> {
    stand: &'a Stand,
    at: SocketAddr,
    _server: ExtraServer,
}

// === impl Behind ===

impl<'a> Behind<'a> {
    async fn triton(stand: &'a Stand) -> Result<Self> {
        let at = SocketAddr::from((SPARE, Ports::USUAL.servers));
        let flags = "--engine triton --mode echo --inter-token-latency 50ms --max-num-seqs 100";
        let server = stand
            .standalone
            .add_server("triton", at, flags, &stand.logs);
        let server = server.await?;
        stand.standalone.set_endpoints([at])?;
        stand.until(READY, counts(1)).await?;
        let filter = json!({
            "protocol": "openai",
            "model_mapping_rule": {MODEL: {"rules": [{"cluster": "triton", "backend": "triton"}]}},
        });
        let change = |config: &mut Value| config["isthmus"]["llmFilter"] = filter;
        stand.standalone.change_epp(change).await?;
        let behind = Self {
            stand,
            at,
            _server: server,
        };
        let asked = eventually("the rule is in force", SOON, async || {
            let ask = Ask::post(CHAT, Payload::Whole(chat("settle", 1, false)));
            let answer = stand.client.send(Way::FullDuplex, ask).await;
            let answer = answer.map_err(|error| format!("{error:#}"))?;
            if answer.status == 200 {
                Ok(())
            } else {
                Err(format!("{}: {}", answer.status, answer.text()))
            }
        });
        let asked = asked.await;
        if asked.is_err() {
            behind.end().await?;
        }
        asked?;
        Ok(behind)
    }

    /// As it was before.
    async fn end(&self) -> Result<()> {
        let stand = self.stand;
        let change = |config: &mut Value| config["isthmus"]["llmFilter"] = Value::Null;
        stand.standalone.change_epp(change).await?;
        let servers = stand.standalone.servers().iter().copied();
        stand.standalone.set_endpoints(servers)?;
        stand.until(READY, counts(3)).await?;
        stand.settle().await
    }

    /// The path by which the server was asked.
    async fn path_of(&self, id: &str) -> Result<String> {
        let page = Requests::new(format!("http://{}", self.at));
        let page = page.get(&format!("/admin/requests?{TEST_ID}={id}")).await?;
        let page = page.json();
        let entries = page.as_array().context("a list of requests")?;
        let path = entries.first().and_then(|entry| entry["path"].as_str());
        Ok(path.context("not in the server's log")?.to_owned())
    }
}

pub(crate) async fn a_server_in_triton_is_asked_by_another_path_and_the_same_route(
    stand: &Stand,
) -> Result<()> {
    let behind = Behind::triton(stand).await?;
    let outcome = ask_in_all_modes(stand, &behind).await;
    behind.end().await?;
    outcome
}

async fn ask_in_all_modes(stand: &Stand, behind: &Behind<'_>) -> Result<()> {
    for way in [Way::FullDuplex, Way::StreamedAhead, Way::Buffered] {
        for (stream, http2) in [(false, false), (false, true), (true, false), (true, true)] {
            let id = format!("{way:?}-{stream}-{http2}");
            let body = Payload::Whole(chat(GREETING, 100, stream));
            let ask = Ask {
                http2,
                ..Ask::post(CHAT, body).header(TEST_ID, &id)
            };
            let answer = stand.client.send(way, ask).await.context(id.clone())?;
            let kind = if stream {
                "text/event-stream; charset=utf-8"
            } else {
                "application/json"
            };
            let length = answer.headers.get("content-length");
            let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
            ensure!(
                answer.status == 200
                    && answer.headers["content-type"] == kind
                    && length.is_none_or(|length: usize| length == answer.body.len())
                    && text_of(&answer).as_deref() == Some(ECHO),
                "{id}: {} {:?}: {}",
                answer.status,
                answer.headers,
                answer.text()
            );
            let verb = if stream {
                "generate_stream"
            } else {
                "generate"
            };
            let path = behind.path_of(&id).await?;
            ensure!(path == format!("/v2/models/{MODEL}/{verb}"), "{id}: {path}");
        }
        // refused by the server, and by the endpoint picker
        for (fields, status, part) in [
            (
                json!({"max_tokens": 1_000_000}),
                400,
                "maximum context length",
            ),
            (json!({"n": 2}), 400, "\"param\":\"n\""),
        ] {
            let mut body: Value = serde_json::from_slice(&chat(GREETING, 1, false))?;
            for (name, value) in fields.as_object().into_iter().flatten() {
                body[name] = value.clone();
            }
            let ask = Ask::post(CHAT, Payload::Whole(body.to_string().into()));
            let answer = stand.client.send(way, ask).await?;
            let text = answer.text();
            let shaped = text.contains("\"trace_id\":") && text.contains("\"BadRequestError\"");
            ensure!(
                answer.status == status && shaped && text.contains(part),
                "{way:?}: {}: {text}",
                answer.status
            );
        }
    }
    Ok(())
}

pub(crate) async fn events_of_a_server_in_triton_come_one_by_one(stand: &Stand) -> Result<()> {
    let behind = Behind::triton(stand).await?;
    let outcome = watch_events(stand).await;
    behind.end().await?;
    outcome
}

/// Each token takes 50 ms: what comes together was held back.
async fn watch_events(stand: &Stand) -> Result<()> {
    for way in [Way::FullDuplex, Way::StreamedAhead] {
        let ask = Ask::post(CHAT, Payload::Whole(chat(GREETING, 100, true)));
        let mut body = stand.client.open(way, ask).await?.into_body();
        let mut parts = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                parts.push(String::from_utf8_lossy(&data).into_owned());
            }
        }
        let tokens = parts.iter().filter(|part| part.contains("\"content\":"));
        let tokens = tokens.count();
        let wanted = ECHO.len().div_ceil(4);
        ensure!(
            tokens >= wanted - 1,
            "{way:?}: {tokens} parts of {wanted} tokens: {parts:?}"
        );
    }
    Ok(())
}

pub(crate) async fn without_the_bodies_nothing_is_sent_to_triton(stand: &Stand) -> Result<()> {
    let behind = Behind::triton(stand).await?;
    let outcome = ask_unseen(stand).await;
    behind.end().await?;
    outcome
}

async fn ask_unseen(stand: &Stand) -> Result<()> {
    for way in [Way::Bodiless, Way::Streamed, Way::BufferedPartial] {
        let ask = Ask::post(CHAT, Payload::Whole(chat(GREETING, 1, false)));
        let answer = stand.client.send(way, ask).await?;
        let text = answer.text();
        ensure!(
            answer.status == 400 && text.contains("the endpoint picker translates"),
            "{way:?}: {}: {text}",
            answer.status
        );
    }
    Ok(())
}
