//! What the tests run against, and what they ask of it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::programs::Programs;
use futures::future::{join_all, try_join_all};
use testbed::standalone::{MODEL, Ports, Setup, Standalone, bring_up_loopback};
use testbed::{Inside, Requests, Stream, eventually};

/// The state is right again so soon after any fault.
pub(crate) const REPAIRED: Duration = Duration::from_secs(5);
/// Tokens of an answer that goes on for as long as anything takes here.
const LONG: u32 = 20_000;
/// Enough that chance would not spread requests evenly.
const SERVERS: u8 = 10;
const RULES: &str = "llm.yaml";
const CLUSTER: &str = "e2e/llama";

pub(crate) struct Stand {
    pub(crate) standalone: Standalone,
    pub(crate) requests: Requests,
}

// === impl Programs ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        bring_up_loopback(inside).await?;
        let rules = format!(
            "protocol: openai\nmodel_mapping_rule:\n  {MODEL}:\n    rules: [{{cluster: {CLUSTER}}}]\n"
        );
        let files = inside.state_dir();
        std::fs::write(files.join(RULES), rules).context("writing the rules")?;
        let mut setup = Setup {
            servers: SERVERS,
            pickers: 3,
            center: true,
            ..Setup::sample(Ports::USUAL)
        };
        setup
            .epp_flags
            .extend(["--llm-filter-config", RULES].map(str::to_owned));
        let standalone = setup.start(&files, &inside.logs_dir()).await?;
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
            let prompt = prompt(&format!("the long number {nth}"), 10);
            let mut stream = self.requests.chat_stream(MODEL, &prompt, LONG).await?;
            ensure!(
                stream.status == 200,
                "a stream was answered {}",
                stream.status
            );
            stream.next_event().await.map_err(anyhow::Error::msg)?;
            Ok(stream)
        });
        try_join_all(begin).await
    }

    /// Waits until the Metadata-Center counts so many requests.
    pub(crate) async fn counts(&self, wanted: u64, limit: Duration) -> Result<()> {
        let center = Requests::new(self.standalone.center_url());
        let path = format!("/v1/load/stats?cluster={CLUSTER}");
        let what = format!("{wanted} requests at the Metadata-Center");
        eventually(&what, limit, async || {
            let answer = center.get(&path).await.map_err(|error| error.to_string())?;
            let endpoints = answer.json()["data"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let requests = endpoints
                .iter()
                .filter_map(|it| it["queued_req_num"].as_u64());
            let prefill: u64 = endpoints
                .iter()
                .filter_map(|it| it["prompt_length"].as_u64())
                .sum();
            // Long answers are past their first token, and others have ended.
            if requests.sum::<u64>() == wanted && prefill == 0 {
                Ok(())
            } else {
                Err(answer.text())
            }
        })
        .await?;
        Ok(())
    }
}

/// A prompt whose length is in lines of some 15 tokens.
pub(crate) fn prompt(about: &str, lines: usize) -> String {
    let line = format!("Tell a story about {about}, in some detail and in plain words. ");
    line.repeat(lines)
}
