//! What the tests run against, and what they ask of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::programs::Programs;
use futures::future::{join_all, try_join_all};
use testbed::standalone::{MODEL, Ports, Setup, Standalone, bring_up_loopback};
use testbed::{Inside, Requests, Stream, eventually};

/// The state is right again so soon after any fault: pickers report everything with the next pick, or after a third of a lease.
pub(crate) const REPAIRED: Duration = Duration::from_secs(5);
/// The limit for several steps of several programs, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Tokens of an answer that goes on for two minutes, longer than anything takes here.
pub(crate) const LONG: u32 = 600;
/// Slow tokens: many answers that go on are little work for the programs.
pub(crate) const SERVER: &str =
    "--prefill-overhead 10ms --prefill-time-per-token 1ms --inter-token-latency 200ms";
/// Enough that chance would not spread requests evenly.
pub(crate) const SERVERS: u8 = 10;
pub(crate) const RULES: &str = "llm.yaml";
/// A busy machine must not make picks late: each would be made by one picker alone.
pub(crate) const PATIENT: &str = "--metadata-center-timeout-ms=500";
/// Of an endpoint picker: from the pick to the end of the response.
const RUNNING: &str = "llm_d_epp_request_running";
/// A metric of the endpoint picker: all requests that it received.
const REQUESTS: &str = "llm_d_epp_request_total";
/// A metric of the endpoint picker: picks that the Metadata-Center made in time.
const SHARED: &str = r#"epp_metadata_request_duration_seconds_count{call="pick",outcome="ok"}"#;
pub(crate) const CLUSTER: &str = "e2e/llama";

pub(crate) struct Stand {
    pub(crate) standalone: Standalone,
    pub(crate) requests: Requests,
    pub(crate) logs: PathBuf,
}

// === impl Programs ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        bring_up_loopback(inside).await?;
        let files = inside.state_dir();
        write_rules(&files)?;
        let mut setup = Setup {
            servers: SERVERS,
            pickers: 3,
            center: true,
            server_flags: SERVER.split_whitespace().map(str::to_owned).collect(),
            ..Setup::sample(Ports::USUAL)
        };
        setup
            .epp_flags
            .extend(["--llm-filter-config", RULES].map(str::to_owned));
        setup.epp_flags.push(PATIENT.to_owned());
        let standalone = setup.start(&files, &inside.logs_dir()).await?;
        Ok(Self {
            requests: Requests::new(standalone.url()),
            standalone,
            logs: inside.logs_dir(),
        })
    }

    async fn stop(self) {
        self.standalone.stop().await;
    }
}

// === impl Stand ===

impl Stand {
    /// Different prompts at once; how many each server answered. Fails where one was not answered.
    pub(crate) async fn at_once(
        &self,
        count: usize,
        about: &str,
    ) -> Result<BTreeMap<String, usize>> {
        let sent = (0..count).map(async |nth| {
            let prompt = prompt(&format!("{about} {nth}"), 20);
            self.requests.chat(MODEL, &prompt).await
        });
        let mut counts = BTreeMap::new();
        for answer in join_all(sent).await {
            let answer = answer?;
            ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
            *counts
                .entry(answer.pod().unwrap_or("-").to_owned())
                .or_default() += 1;
        }
        Ok(counts)
    }

    /// So many answers that go on, each past its first token.
    pub(crate) async fn long_answers(&self, count: usize) -> Result<Vec<Stream>> {
        let begin = (0..count).map(async |nth| {
            let mut stream = self.begin(nth).await?;
            stream.next_event().await.map_err(anyhow::Error::msg)?;
            Ok(stream)
        });
        try_join_all(begin).await
    }

    /// An answer that goes on, at its headers.
    pub(crate) async fn begin(&self, nth: usize) -> Result<Stream> {
        let prompt = prompt(&format!("the long number {nth}"), 1);
        self.begin_with(&prompt).await
    }

    /// The same with this prompt.
    pub(crate) async fn begin_with(&self, prompt: &str) -> Result<Stream> {
        let stream = self.requests.chat_stream(MODEL, prompt, LONG).await?;
        ensure!(
            stream.status == 200,
            "a stream was answered {}",
            stream.status
        );
        Ok(stream)
    }

    /// The endpoint picker with the most requests, and how many: Envoy's threads take turns by themselves, so that one may
    /// have none.
    pub(crate) async fn busiest(&self) -> Result<(usize, u64)> {
        let mut most = (0, 0);
        for picker in 0..self.standalone.pickers() {
            let running = self.running(picker).await;
            let running = running.map_err(anyhow::Error::msg)?;
            if running > most.1 {
                most = (picker, running);
            }
        }
        ensure!(most.1 > 0, "no endpoint picker has a request");
        Ok(most)
    }

    /// The number of requests that an endpoint picker has in flight.
    pub(crate) async fn running(&self, picker: usize) -> Result<u64, String> {
        self.of_picker(picker, RUNNING).await
    }

    /// The sum of one endpoint picker's metrics with this prefix.
    pub(crate) async fn of_picker(&self, picker: usize, beginning: &str) -> Result<u64, String> {
        of_picker(&self.standalone, picker, beginning).await
    }

    /// The Metadata-Center's counts: requests, and the length of prompts whose first token was not received yet.
    pub(crate) async fn counted(&self) -> Result<(u64, u64), String> {
        let center = Requests::new(self.standalone.center_url());
        let path = format!("/v1/load/stats?cluster={CLUSTER}");
        let answer = center.get(&path).await.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("{}: {}", answer.status, answer.text()));
        }
        let page = answer.json();
        // The value is null for a cluster that has had no request yet.
        let endpoints = page["data"].as_array();
        let sum = |field: &str| -> u64 {
            let endpoints = endpoints.into_iter().flatten();
            endpoints.filter_map(|it| it[field].as_u64()).sum()
        };
        Ok((sum("queued_req_num"), sum("prompt_length")))
    }

    /// Waits until the Metadata-Center counts so many requests, all of them past their first token.
    pub(crate) async fn counts(&self, wanted: u64, limit: Duration) -> Result<()> {
        let what = format!("{wanted} requests at the Metadata-Center");
        eventually(&what, limit, async || {
            let counted = self.counted().await?;
            if counted == (wanted, 0) {
                Ok(())
            } else {
                Err(format!("requests and prompts {counted:?}"))
            }
        })
        .await?;
        Ok(())
    }
}

async fn of_picker(standalone: &Standalone, picker: usize, beginning: &str) -> Result<u64, String> {
    let page = Requests::new(standalone.picker_url(picker));
    let page = page.get("/metrics").await;
    let page = page.map_err(|error| error.to_string())?.text();
    // Before its first request there is no series.
    let lines = page.lines().filter(|line| line.starts_with(beginning));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    Ok(values.sum())
}

/// The number of picks that the Metadata-Center has made for all endpoint pickers.
pub(crate) async fn shared_picks(standalone: &Standalone) -> Result<u64> {
    let each = (0..standalone.pickers()).map(|nth| of_picker(standalone, nth, SHARED));
    let picks = try_join_all(each).await.map_err(anyhow::Error::msg)?;
    Ok(picks.into_iter().sum())
}

/// How many requests each endpoint picker has had.
pub(crate) async fn had_requests(standalone: &Standalone) -> Result<Vec<u64>> {
    let each = (0..standalone.pickers()).map(|nth| of_picker(standalone, nth, REQUESTS));
    try_join_all(each).await.map_err(anyhow::Error::msg)
}

/// Checks that two endpoint pickers or more received requests since `before`: with one there is nothing to share.
pub(crate) async fn several_had_more(standalone: &Standalone, before: &[u64]) -> Result<()> {
    let now = had_requests(standalone).await?;
    let more = before.iter().zip(&now).filter(|(before, now)| now > before);
    ensure!(
        more.count() >= 2,
        "fewer than two endpoint pickers had requests: {before:?}, then {now:?}"
    );
    Ok(())
}

/// All requests go to the servers of one cluster.
pub(crate) fn write_rules(files: &Path) -> Result<()> {
    let rules = format!(
        "protocol: openai\nmodel_mapping_rule:\n  {MODEL}:\n    rules: [{{cluster: {CLUSTER}}}]\n"
    );
    std::fs::write(files.join(RULES), rules).context("writing the rules")
}

/// A prompt whose length is in lines of some 15 tokens.
pub(crate) fn prompt(about: &str, lines: usize) -> String {
    let line = format!("Tell a story about {about}, in some detail and in plain words. ");
    line.repeat(lines)
}
