//! What the tests run against: the demo's programs, and an Envoy that asks the endpoint picker in every body mode.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use e2e::programs::Programs;
use futures::future::try_join_all;
use serde_json::{Value, json};
use testbed::standalone::{
    MODEL, Ports, Setup, Standalone, bring_up_loopback, lb_endpoint, socket,
};
use testbed::{Answer, Inside, Requests, eventually};
use xxhash_rust::xxh64::xxh64;

use crate::client::{Ask, CHAT, Client, Payload};

/// Several steps of several programs, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Largest body that the endpoint picker takes, in bytes.
pub(crate) const MAX_BODY: usize = 24 << 20;
/// Where a test may put a server that Envoy knows beside the simulated ones.
pub(crate) const SPARE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 100);
/// Has the parts of Envoy's file that a cluster of type `ORIGINAL_DST` needs.
const DOCS: &str = include_str!("../../../docs/epp-envoy.md");
/// Identifies a request in a server's log.
const TEST_ID: &str = "x-test-id";

/// How Envoy asks the endpoint picker; each has a listener of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As in the sample.
    FullDuplex,
    /// Body messages wait for the answer to the headers.
    Streamed,
    /// They do not.
    StreamedAhead,
    Buffered,
    BufferedPartial,
    /// The bodies pass unseen.
    Bodiless,
    /// With servers that Envoy does not know, as the docs have it.
    OriginalDst,
    /// As in the sample, but a request is never repeated.
    OneAttempt,
    /// As in the sample, but client headers that steer are left in place.
    Unstripped,
    /// A request goes on without the endpoint picker where that does not answer.
    FailOpen,
}

/// The programs, in the state in which each test finds them.
pub(crate) struct Stand {
    pub(crate) standalone: Standalone,
    pub(crate) client: Client,
    pub(crate) logs: PathBuf,
    ids: AtomicU32,
}

// === impl Way ===

impl Way {
    pub(crate) const ALL: [Self; 10] = [
        Self::FullDuplex,
        Self::Streamed,
        Self::StreamedAhead,
        Self::Buffered,
        Self::BufferedPartial,
        Self::Bodiless,
        Self::OriginalDst,
        Self::OneAttempt,
        Self::Unstripped,
        Self::FailOpen,
    ];

    /// Above the sample's ports and below those that the system gives to clients.
    fn port(self) -> u16 {
        let nth = Self::ALL.iter().position(|way| *way == self);
        Ports::USUAL.clients + 100 + u16::try_from(nth.unwrap_or_default()).unwrap_or_default()
    }

    pub(crate) fn url(self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    fn mode(self) -> &'static str {
        match self {
            Self::FullDuplex
            | Self::OriginalDst
            | Self::OneAttempt
            | Self::Unstripped
            | Self::FailOpen => "FULL_DUPLEX_STREAMED",
            Self::Streamed | Self::StreamedAhead => "STREAMED",
            Self::Buffered => "BUFFERED",
            Self::BufferedPartial => "BUFFERED_PARTIAL",
            Self::Bodiless => "NONE",
        }
    }

    /// The sample's listener, changed.
    fn listener(self, sample: &Value) -> Value {
        let mut listener = sample.clone();
        listener["name"] = format!("{self:?}").into();
        listener["address"] = socket(Ipv4Addr::LOCALHOST.into(), self.port());
        if self == Self::Buffered {
            // Envoy itself answers 413 to what it cannot hold
            listener["per_connection_buffer_limit_bytes"] = json!(2 * MAX_BODY);
        }
        let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
        if self == Self::Unstripped {
            manager["early_header_mutation_extensions"] = json!([]);
        }
        let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
        if self == Self::FailOpen {
            route["cluster"] = "models-open".into();
        }
        if self == Self::OriginalDst {
            route["cluster"] = "models-unknown".into();
        }
        // Where Envoy 1.40 may repeat a request, it sends the body of one with trailers twice.
        if !matches!(self, Self::FullDuplex | Self::Unstripped | Self::FailOpen) {
            route["retry_policy"] = Value::Null;
        }
        // Whoever is routed anew by a path that the endpoint picker changed finds out.
        let routes = &mut manager["route_config"]["virtual_hosts"][0]["routes"];
        if let Some(routes) = routes.as_array_mut() {
            let elsewhere =
                json!({"match": {"prefix": "/v2/"}, "direct_response": {"status": 418}});
            routes.insert(0, elsewhere);
        }
        if self == Self::OriginalDst
            && let Some(filters) = manager["http_filters"].as_array_mut()
        {
            filters.splice(1..1, documented(1));
        }
        let ext_proc = &mut manager["http_filters"][0]["typed_config"];
        if self == Self::OriginalDst {
            ext_proc["grpc_service"]["initial_metadata"] = Value::Null;
        }
        ext_proc["processing_mode"]["request_body_mode"] = self.mode().into();
        ext_proc["processing_mode"]["response_body_mode"] = self.mode().into();
        ext_proc["failure_mode_allow"] = (self == Self::FailOpen).into();
        if self.mode() != "FULL_DUPLEX_STREAMED" {
            // 20 MB are read in less than a second; Envoy's own limit of 200 ms is for bodies of a usual size
            ext_proc["message_timeout"] = "10s".into();
        }
        if self == Self::FailOpen {
            ext_proc["grpc_service"]["envoy_grpc"]["cluster_name"] = "epp-open".into();
        }
        if self == Self::StreamedAhead {
            ext_proc["send_body_without_waiting_for_header_response"] = true.into();
        }
        listener
    }
}

// === impl Programs ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        bring_up_loopback(inside).await?;
        let flags = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect();
        let setup = Setup {
            server_flags: flags(
                "--mode echo --max-num-seqs 1000 --kv-cache-size 4000 --max-request-body-bytes 67108864",
            ),
            epp_flags: flags(&format!(
                "--secure-serving=false --max-request-body {MAX_BODY}"
            )),
            configure_epp,
            configure_envoy,
            ..Setup::sample(Ports::USUAL)
        };
        let standalone = setup.start(&inside.state_dir(), &inside.logs_dir()).await?;
        Ok(Self {
            standalone,
            client: Client::new(),
            logs: inside.logs_dir(),
            ids: AtomicU32::new(0),
        })
    }

    async fn stop(self) {
        self.standalone.stop().await;
    }
}

// === impl Stand ===

impl Stand {
    /// Sends it and compares what a server got of it with what was sent.
    pub(crate) async fn delivered(&self, way: Way, ask: Ask) -> Result<Answer> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed).to_string();
        let (method, path, body) = (ask.method.clone(), ask.path, ask.body.bytes());
        let what = format!("{way:?}: {method} {path}, {} bytes", body.len());
        let answer = self.client.send(way, ask.header(TEST_ID, &id)).await;
        let answer = answer.with_context(|| what.clone())?;
        let seen = self.seen_by_server(&answer, &id).await;
        let seen = seen.with_context(|| format!("{what}: {}: {}", answer.status, answer.text()))?;
        let same = seen["method"] == method.as_str()
            && seen["path"] == path
            && seen["body_bytes"] == body.len()
            && seen["body_hash"] == format!("{:016x}", xxh64(&body, 0));
        ensure!(same, "{what}: the server got {seen}");
        Ok(answer)
    }

    /// What the server that answered has in its log of the request of this number.
    pub(crate) async fn seen_by_server(&self, answer: &Answer, id: &str) -> Result<Value> {
        let server = answer.pod().context("answered by no model server")?;
        let nth = server.strip_prefix(&format!("{MODEL}-"));
        let nth: usize = nth.context("a server's name")?.parse()?;
        let at = self.standalone.servers()[nth];
        let page = Requests::new(format!("http://{at}"));
        let page = page.get(&format!("/admin/requests?{TEST_ID}={id}")).await?;
        let page = page.json();
        let entries = page.as_array().context("a list of requests")?;
        entries.last().cloned().context("not in the server's log")
    }

    /// Changes the knobs of all model servers.
    pub(crate) async fn change_servers(&self, patch: Value) -> Result<()> {
        let changes = self.standalone.servers().iter().map(|at| {
            let server = Requests::new(format!("http://{at}"));
            let patch = patch.to_string();
            async move {
                let answer = server
                    .post("/admin/config", http::HeaderMap::new(), patch)
                    .await?;
                ensure!(answer.status == 200, "{}", answer.text());
                Ok(())
            }
        });
        try_join_all(changes).await?;
        Ok(())
    }

    /// Waits until the endpoint picker's metric is as wanted.
    pub(crate) async fn until(&self, metric: &str, wanted: impl Fn(f64) -> bool) -> Result<()> {
        let seen = eventually(metric, SOON, async || {
            match self.standalone.metric(metric).await? {
                Some(value) if wanted(value) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Ok(seen.await?)
    }

    /// The metric, 0 where the page has none of it yet.
    pub(crate) async fn metric(&self, metric: &str) -> Result<f64> {
        let value = self.standalone.metric(metric).await;
        Ok(value.map_err(anyhow::Error::msg)?.unwrap_or(0.0))
    }

    /// Waits until requests get through as in the beginning, also where they would without the endpoint picker.
    pub(crate) async fn settle(&self) -> Result<()> {
        const PICKED: &str = "llm_d_epp_request_total";
        for way in [Way::FullDuplex, Way::FailOpen] {
            let seen = eventually("a request is picked for", SOON, async || {
                let before = self.standalone.metric(PICKED).await?;
                let ask = Ask::post(CHAT, Payload::Whole(chat("settle", 1, false)));
                let answer = self.client.send(way, ask).await;
                let answer = answer.map_err(|error| format!("{error:#}"))?;
                let after = self.standalone.metric(PICKED).await?;
                if answer.status == 200 && after > before {
                    Ok(())
                } else {
                    Err(format!(
                        "{way:?}: {}: {}, {after:?} picks",
                        answer.status,
                        answer.text()
                    ))
                }
            });
            seen.await?;
        }
        Ok(())
    }
}

/// Whether a metric, which is a float, says so many.
pub(crate) fn counts(wanted: u32) -> impl Fn(f64) -> bool {
    move |value| (value - f64::from(wanted)).abs() < 0.5
}

/// A chat whose answer is `text` again, cut off after so many tokens.
pub(crate) fn chat(text: &str, tokens: u32, stream: bool) -> Bytes {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body.to_string().into()
}

/// What a [`large`] chat is answered.
pub(crate) const LARGE: &str = "so much for so few words";

/// A chat of so many bytes and some more. Most are in a field that servers skip, which costs them less time than a prompt.
pub(crate) fn large(bytes: usize) -> Bytes {
    let padding = "sixteen bytes.. ".repeat(bytes / 16);
    let body = format!(
        r#"{{"padding":"{padding}","model":"{MODEL}","max_tokens":8,"messages":[{{"role":"user","content":"{LARGE}"}}]}}"#
    );
    body.into()
}

/// What a client reads in an answer, whole or as events; nothing unless it is complete.
pub(crate) fn text_of(answer: &Answer) -> Option<String> {
    let body = answer.text();
    if !body.starts_with("data:") {
        let content = &answer.json()["choices"][0]["message"]["content"];
        return content.as_str().map(ToOwned::to_owned);
    }
    body.ends_with("data: [DONE]\n\n")
        .then(|| read_events(&body))
}

/// The text in the events of an answer that may be cut off.
pub(crate) fn read_events(body: &str) -> String {
    let events = body.split("\n\n").filter_map(|event| {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ")?).ok()?;
        let text = event["choices"][0]["delta"]["content"].as_str()?;
        Some(text.to_owned())
    });
    events.collect()
}

/// The entries of one of the lists in the docs, the first being that of clusters.
fn documented(list: usize) -> Vec<Value> {
    let blocks = DOCS.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| block.split("```").next());
    let block = blocks.nth(list).unwrap_or_default();
    serde_yaml::from_str(block).unwrap_or_default()
}

fn configure_epp(config: &mut Value) {
    config["isthmus"] = json!({"objectives": {"batch": -1}, "trustedHeaders": ["objective"]});
}

fn configure_envoy(config: &mut Value, setup: &Setup) {
    let resources = &mut config["static_resources"];
    let sample = resources["listeners"][0].clone();
    let models = &mut resources["clusters"][0];
    let spare = lb_endpoint(SocketAddr::from((SPARE, setup.ports.servers)));
    let endpoints = &mut models["load_assignment"]["endpoints"][0]["lb_endpoints"];
    if let Some(endpoints) = endpoints.as_array_mut() {
        endpoints.push(spare);
    }
    // without a pick any server will do
    let mut open = models.clone();
    open["name"] = "models-open".into();
    open["load_assignment"]["cluster_name"] = "models-open".into();
    let policy =
        "/load_balancing_policy/policies/0/typed_extension_config/typed_config/fallback_policy";
    let any = "/policies/0/typed_extension_config/typed_config/subset_lb_policy";
    if let Some(policy) = open.pointer_mut(policy)
        && let Some(any) = policy.pointer_mut(any).map(Value::take)
    {
        *policy = any;
    }
    // a new endpoint picker is asked at once
    let check = &mut resources["clusters"][1]["health_checks"][0];
    check["interval"] = "0.2s".into();
    check["no_traffic_interval"] = "0.2s".into();
    // and the first failed attempt says that there is no endpoint picker, before a body is sent to it
    let mut epp = resources["clusters"][1].clone();
    epp["name"] = "epp-open".into();
    epp["load_assignment"]["cluster_name"] = "epp-open".into();
    epp["outlier_detection"] = json!({
        "split_external_local_origin_errors": true,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        "max_ejection_percent": 100,
        "base_ejection_time": "1s",
        "interval": "1s",
    });
    let mut unknown = documented(0);
    for cluster in &mut unknown {
        cluster["name"] = "models-unknown".into();
    }
    let clusters = unknown.into_iter().chain([open, epp]).collect();
    let listeners = Way::ALL.map(|way| way.listener(&sample));
    for (place, added) in [("listeners", listeners.to_vec()), ("clusters", clusters)] {
        if let Some(resources) = resources[place].as_array_mut() {
            resources.extend(added);
        }
    }
}
