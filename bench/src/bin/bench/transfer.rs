//! Token ids on their way to a worker: by key, in the body, not at all; from the question to the worker's answer.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use bench::{
    Figure, percentile,
    service::{ServiceProcess, Transfer, Way},
};

use crate::{
    Run,
    dynamo::SAMPLES,
    metadata::{beside, micros},
    middle,
};

const TRANSFER: &str = "token transfer";
/// About so many: a prompt has the same line again and again.
const SIZES: [(usize, &str); 4] = [
    (1_000, "1K"),
    (16_000, "16K"),
    (128_000, "128K"),
    (1_000_000, "1M"),
];
const LINE: &str = "Tell a story about a lighthouse keeper, in plain words. ";
/// Of a prompt whose ids are counted.
const LINES: usize = 1000;
const ROUNDS: usize = 3;
/// Ids of all calls of a round together, within these numbers of calls.
const IDS: usize = 4_000_000;
const CALLS: (usize, usize) = (10, 400);
/// `--quick`, to see that all works.
const QUICK_CALLS: usize = 2;
/// No time of its own, room for two million ids, and ids taken as they come.
const WORKER: [&str; 7] = [
    "--model=llama",
    "--time-scale=0",
    "--block-size=16",
    "--kv-cache-size=131072",
    "--output-tokens=1",
    "--accept-tokens=key,body",
    "--token-fetch-timeout=10s",
];

/// What was measured of one way with one prompt.
#[derive(Debug, Default)]
struct Measured {
    p50: Vec<f64>,
    cpu: Vec<f64>,
    bytes: usize,
}

// === impl Run ===

impl Run {
    pub(crate) async fn transfer(&mut self) -> Result<()> {
        let named = SIZES.map(|(ids, size)| (ids, format!("{TRANSFER}, {size} ids")));
        let wanted: Vec<_> = named.iter().filter(|(_, name)| self.wants(name)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let (processor, _) = self.processor(Way::Direct).await?;
        let counted = Transfer::count(processor.address(), &LINE.repeat(LINES)).await?;
        for &(ids, ref name) in wanted {
            let prompt = LINE.repeat((ids * LINES).div_ceil(counted.max(1)));
            for way in Way::ALL {
                let measured = self.carry(way, ids, &prompt).await?;
                let name = format!("{name}, {}", way.name());
                let figures = [
                    ("p50", middle(&measured.p50), "µs"),
                    ("CPU per call", middle(&measured.cpu), "µs"),
                    ("bytes", measured.bytes as f64 / 1e3, "KB"),
                ];
                for (what, value, unit) in figures {
                    self.keep(Figure::new(format!("{name}: {what}"), value, unit));
                }
            }
        }
        Ok(())
    }

    /// A Processor that has ids go this way, and where its token cache is.
    async fn processor(&self, way: Way) -> Result<(ServiceProcess, SocketAddr)> {
        let transfer = match way {
            Way::Key => "cache",
            Way::Direct | Way::Text => "direct",
        };
        let port = apiserver_sim::free_address()?.port();
        let flags = [
            format!("--models-file={SAMPLES}/models.yaml"),
            format!("--token-port={port}"),
            format!("--token-transfer={transfer}"),
            "--token-store-timeout=10s".to_owned(),
            "--verify-sample=0".to_owned(),
            "--log-level=error".to_owned(),
        ];
        let log = self.args.logs.join("processor-transfer.log");
        let processor =
            ServiceProcess::start(&beside("processor")?, "--http-port", &flags, &log).await?;
        let tokens = SocketAddr::new(processor.address().ip(), port);
        Ok((processor, tokens))
    }

    /// The same prompt again and again, so that the Processor has its ids at hand and what is left is their way.
    async fn carry(&self, way: Way, ids: usize, prompt: &str) -> Result<Measured> {
        let (processor, tokens) = self.processor(way).await?;
        let cache = format!("--token-cache-endpoint=http://{tokens}");
        let flags = [&WORKER.map(str::to_owned)[..], &[cache]].concat();
        let log = self.args.logs.join("model-server-sim-transfer.log");
        let worker =
            ServiceProcess::start_worker(&beside("model-server-sim")?, &flags, &log).await?;
        let mut transfer =
            Transfer::connect(way, processor.address(), worker.address(), prompt).await?;
        let calls = if self.args.quick {
            QUICK_CALLS
        } else {
            (IDS / ids).clamp(CALLS.0, CALLS.1)
        };
        let cpu = || anyhow::Ok(micros(processor.cpu()? + worker.cpu()?));
        let mut measured = Measured::default();
        for _ in 0..calls.div_ceil(10) {
            let warm = transfer.call().await?;
            let is_so_long = way == Way::Text || warm.ids.abs_diff(ids) < ids / 50 + 50;
            ensure!(is_so_long, "the prompt has {} ids, not {ids}", warm.ids);
        }
        for _ in 0..ROUNDS {
            let before = cpu()?;
            let mut times = Vec::with_capacity(calls);
            for _ in 0..calls {
                let one = transfer.call().await?;
                measured.bytes = one.bytes;
                times.push(one.took);
            }
            measured.cpu.push((cpu()? - before) / calls as f64);
            measured.p50.push(micros(percentile(&times, 0.5)));
        }
        Ok(measured)
    }
}
