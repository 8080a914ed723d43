//! Requests that force a pick, as a conformance suite does: the endpoint picker runs with `--conformance-headers`.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::{HeaderMap, HeaderValue};
use serde_json::json;
use testbed::{Answer, Requests, eventually};

/// Istiod and an Envoy hear of objects, which a busy machine lets wait.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// How often each pod is picked, for JSON and for events.
const ROUNDS: usize = 5;
const TOKENS: u32 = 8;
const SELECTION: &str = "test-epp-endpoint-selection";
const SERVED: &str = "x-conformance-test-served-endpoint";

/// A pod of the pool.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) pod: String,
    /// `ip:port`.
    pub(crate) endpoint: String,
}

/// Waits until each server is reached by its pick, and then expects it of each request.
pub(crate) async fn are_served(gateway: &Requests, model: &str, servers: &[Server]) -> Result<()> {
    ensure!(servers.len() > 1, "only {servers:?}");
    eventually("a pick of each server is served by it", SOON, async || {
        for server in servers {
            let outcome = is_served(gateway, model, server, false).await;
            outcome.map_err(|error| format!("{error:#}"))?;
        }
        Ok::<_, String>(())
    })
    .await?;
    for _ in 0..ROUNDS {
        for server in servers {
            for stream in [false, true] {
                is_served(gateway, model, server, stream).await?;
            }
        }
    }
    Ok(())
}

async fn is_served(gateway: &Requests, model: &str, server: &Server, stream: bool) -> Result<()> {
    let answer = forced(gateway, model, &server.endpoint, stream).await?;
    let served = answer.headers.get(SERVED);
    let served = served.and_then(|value| value.to_str().ok());
    let text = answer.text();
    let what = format!(
        "stream {stream}, {server:?} picked: {} by {:?} at {served:?}: {text}",
        answer.status,
        answer.pod()
    );
    ensure!(answer.status == 200, "{what}");
    ensure!(answer.pod() == Some(&*server.pod), "{what}");
    ensure!(served == Some(&*server.endpoint), "{what}");
    let complete = if stream {
        text.ends_with("data: [DONE]\n\n") && text.matches("data: {").count() > 1
    } else {
        answer.json()["choices"][0]["message"]["content"].is_string()
    };
    ensure!(complete, "{what}");
    Ok(())
}

/// A chat that the endpoint picker is to send to this endpoint.
async fn forced(gateway: &Requests, model: &str, endpoint: &str, stream: bool) -> Result<Answer> {
    let mut headers = HeaderMap::new();
    headers.insert(SELECTION, HeaderValue::from_str(endpoint)?);
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": TOKENS,
        "stream": stream,
    });
    let path = "/v1/chat/completions";
    Ok(gateway.post(path, headers, body.to_string()).await?)
}
