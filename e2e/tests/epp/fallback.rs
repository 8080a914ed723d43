//! The list of endpoints that the endpoint picker names.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::eventually;
use testbed::standalone::Ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client::{Ask, CHAT, Payload};
use crate::stand::{SOON, SPARE, Stand, Way, chat, counts};

const FALLBACK: &str = "epp_served_mismatch_total{kind=\"fallback\"}";
const MISMATCHES: &str = "epp_served_mismatch_total{";
const READY: &str = "llm_d_epp_ready_endpoints";

pub(crate) async fn an_endpoint_that_refuses_is_passed_over_and_counted(
    stand: &Stand,
) -> Result<()> {
    let at = SocketAddr::from((SPARE, Ports::USUAL.servers));
    let mut tasks = JoinSet::new();
    let idle = Idle::listen(at).await?;
    // the best by far, as the others are busy
    stand
        .change_servers(json!({"metrics": {"waiting": 4, "kv": 0.5}}))
        .await?;
    let servers = stand.standalone.servers();
    stand
        .standalone
        .set_endpoints(servers.iter().copied().chain([at]))?;
    // the scraper keeps its connection; nobody gets another
    idle.serve_one(&mut tasks).await?;
    stand.until(READY, counts(4)).await?;

    let before = stand.metric(FALLBACK).await?;
    let outcome = eventually(
        "the idle endpoint is the first of the list",
        SOON,
        async || {
            let ask = Ask::post(CHAT, Payload::Whole(chat("in no cache", 1, false)));
            let answer = stand.delivered(Way::FullDuplex, ask).await;
            let answer = answer.map_err(|error| format!("{error:#}"))?;
            // an error that a client sees is the failure that this test is for
            if answer.status != 200 {
                return Ok(Err(format!("{}: {}", answer.status, answer.text())));
            }
            let counted = stand
                .metric(FALLBACK)
                .await
                .map_err(|error| error.to_string())?;
            if counted > before {
                Ok(Ok(()))
            } else {
                Err(format!("{:?} answered, {counted} counted", answer.pod()))
            }
        },
    );
    let outcome = outcome.await;
    stand.change_servers(json!({"metrics": null})).await?;
    stand.standalone.set_endpoints(servers.iter().copied())?;
    stand.until(READY, counts(3)).await?;
    outcome?.map_err(anyhow::Error::msg)?;
    // a series has no line before it counts, so the sum of all kinds is compared
    let (all, fallback) = (
        stand.metric(MISMATCHES).await?,
        stand.metric(FALLBACK).await?,
    );
    ensure!(
        fallback > 0.0 && all <= fallback,
        "{all} answers of another server than was sent to, {fallback} of them of the next in the list"
    );
    Ok(())
}

/// By the docs: a server that Envoy has no list of, and the endpoint picker's word of which it was stays inside.
pub(crate) async fn a_server_that_envoy_does_not_know_is_reached(stand: &Stand) -> Result<()> {
    let ask = Ask::post(CHAT, Payload::Whole(chat("hello", 1, false)));
    let answer = stand.delivered(Way::OriginalDst, ask).await?;
    let leaked = answer
        .headers
        .keys()
        .any(|name| name.as_str().starts_with("x-gateway-"));
    ensure!(
        answer.status == 200 && !leaked,
        "{} {:?}: {}",
        answer.status,
        answer.headers,
        answer.text()
    );
    Ok(())
}

/// A model server that is idle by its metrics, and takes one connection only.
struct Idle(TcpListener);

// === impl Idle ===

impl Idle {
    async fn listen(at: SocketAddr) -> Result<Self> {
        Ok(Self(TcpListener::bind(at).await?))
    }

    /// Serves the first connection until the tasks end; later ones are refused.
    async fn serve_one(self, tasks: &mut JoinSet<()>) -> Result<()> {
        let accepted = tokio::time::timeout(SOON, self.0.accept()).await;
        let (connection, _) = accepted.context("no scrape of the new endpoint")??;
        tasks.spawn(serve_metrics(connection));
        Ok(())
    }
}

async fn serve_metrics(mut connection: TcpStream) {
    const PAGE: &str =
        "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n";
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{PAGE}",
        PAGE.len()
    );
    let mut request = Vec::new();
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = connection.read(&mut part).await {
        request.extend_from_slice(&part[..read]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            if connection.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
