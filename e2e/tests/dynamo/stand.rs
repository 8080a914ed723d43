//! What the tests run against, and what they ask of it.

use anyhow::{Context, Result, ensure};
use e2e::programs::Programs;
use http::HeaderMap;
use serde_json::{Value, json};
use testbed::standalone::{
    External, ExternalSetup, MODEL, Ports, Setup, Standalone, bring_up_loopback,
};
use testbed::{Answer, Inside, Requests};

pub(crate) const CHAT: &str = "/v1/chat/completions";
/// Quick servers: the tests are about the requests that reach them. Answers have few tokens, except the long ones.
const SERVER: &str = "--prefill-overhead 1ms --prefill-time-per-token 10us --inter-token-latency 50ms \
     --token-fetch-timeout 2s --data-parallel-size 2 --data-parallel-shared-ports";
/// Longer prompts go by key. A busy machine must not make the token cache late.
const PROCESSOR: &str =
    "--token-transfer-threshold 4KiB --token-store-timeout 2s --route-timeout 2s";
/// An idle time longer than all tests: only the endpoint picker's calls release bookings here.
const ROUTER: &str = "--reservation-idle 5m --kv-event-ranks 2";
/// Two ranks have two ports above those of events.
const REPLAY: u16 = 5657;

pub(crate) struct Stand {
    pub(crate) standalone: Standalone,
    pub(crate) requests: Requests,
}

// === impl Programs ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        bring_up_loopback(inside).await?;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        let mut ports = Ports::USUAL;
        ports.external.replay = REPLAY;
        let setup = Setup {
            servers: 4,
            server_flags: words(SERVER),
            external: Some(ExternalSetup {
                processor_flags: words(PROCESSOR),
                router_flags: words(ROUTER),
                redis: true,
            }),
            ..Setup::sample(ports)
        };
        let started = setup.start(&inside.state_dir(), &inside.logs_dir()).await;
        let standalone = started?;
        Ok(Self {
            requests: Requests::new(standalone.url()),
            standalone,
        })
    }

    async fn stop(self) {
        self.standalone.stop().await;
    }
}

// === impl Stand ===

impl Stand {
    pub(crate) fn external(&self) -> Result<&External> {
        self.standalone.external().context("Processor and Router")
    }

    /// Sends a body and fails unless it is answered 200.
    pub(crate) async fn send(&self, body: &str) -> Result<Answer> {
        self.send_with(HeaderMap::new(), body).await
    }

    pub(crate) async fn send_with(&self, headers: HeaderMap, body: &str) -> Result<Answer> {
        let answer = self.requests.post(CHAT, headers, body.to_owned()).await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        Ok(answer)
    }

    /// What the server that answered has noted of its last request.
    pub(crate) async fn received(&self, answer: &Answer) -> Result<Value> {
        let pod = answer.pod().context("no server")?;
        let nth = pod
            .rsplit_once('-')
            .and_then(|(_, nth)| nth.parse::<usize>().ok());
        let servers = self.standalone.servers();
        let server = nth
            .and_then(|nth| servers.get(nth))
            .context("which server")?;
        let page = Requests::new(format!("http://{server}"));
        let requests = page.get("/admin/requests").await?.json();
        let last = requests.as_array().and_then(|all| {
            let mut chats = all.iter().rev();
            chats.find(|request| request["path"] == CHAT)
        });
        last.cloned().context("the server has no request")
    }

    /// The ids that the engine would make of a body.
    pub(crate) async fn rendered(&self, body: &str) -> Result<Vec<u32>> {
        let processor = Requests::new(self.external()?.processor_url());
        let path = format!("{CHAT}/render");
        let answer = processor
            .post(&path, HeaderMap::new(), body.to_owned())
            .await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        Ok(serde_json::from_value(answer.json()["token_ids"].clone())?)
    }

    /// The sum of the endpoint picker's metrics that begin so.
    pub(crate) async fn metric(&self, beginning: &str) -> Result<f64, String> {
        Ok(self.standalone.metric(beginning).await?.unwrap_or(0.0))
    }
}

/// A chat request as JSON text.
pub(crate) fn chat(text: &str, route: Option<bool>) -> String {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 3,
    });
    if let Some(route) = route {
        body["route"] = route.into();
    }
    body.to_string()
}

/// A prompt whose length is in lines of some 30 tokens.
pub(crate) fn prompt(about: &str, lines: usize) -> String {
    let line = format!("Tell a story about {about}, in some detail and in plain words. ");
    line.repeat(lines)
}

pub(crate) fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    let value = answer.headers.get(name).and_then(|it| it.to_str().ok());
    value.unwrap_or("-")
}
