//! Token ids: the Router and the Processor over HTTP, and what the external stage adds to an EPP's picks.

use std::{fmt::Write, path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use bench::{
    Chunks, Cores, Endpoints, Figure, Load, Picker, Prompts, Script, Settings, percentile,
    service::{Caller, Chats, Routes, ServiceProcess, Timed, closed, open},
};

use crate::{
    Run,
    metadata::{beside, micros},
    middle,
};

const ROUNDS: usize = 3;
const CALLS: usize = 20_000;
const CHATS: usize = 4000;
const QUICK: usize = 20;
/// Prompts a second, each of so many ids, on so many connections.
const RATE: f64 = 1000.0;
const IDS: u32 = 8600;
const CONNECTIONS: usize = 32;
const WORKERS: u8 = 8;
/// The small tokenizer of the samples.
pub(crate) const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/standalone");

const ROUTED: &str = "Router, 8600 ids, 1000/s";
const PROCESSED: &str = "Processor, 1 KB chat, one at a time";
const STAGED: &str = "EPP, external stage, 1 KB, one at a time";

// === impl Run ===

impl Run {
    pub(crate) async fn dynamo(&mut self) -> Result<()> {
        if self.wants(ROUTED) {
            let flags = self.router_flags()?;
            let service = ("router", flags);
            self.service(ROUTED, service, CONNECTIONS, CALLS, Some(RATE), |caller| {
                Routes::new(caller, IDS)
            })
            .await?;
        }
        if self.wants(PROCESSED) {
            let service = ("processor", processor_flags()?);
            let make = |caller| Chats::new(caller, 1000);
            self.service(PROCESSED, service, 1, CHATS, None, make)
                .await?;
        }
        if self.wants(STAGED) {
            self.stage()?;
        }
        self.transfer().await
    }

    /// Endpoints that are never asked anything: nobody publishes events.
    fn router_flags(&self) -> Result<Vec<String>> {
        let file = self.args.logs.join("router-endpoints.yaml");
        let mut text = "endpoints:\n".to_owned();
        for nth in 1..=WORKERS {
            writeln!(text, "- {{name: w-{nth}, address: 127.0.0.{nth}, port: 9}}")?;
        }
        std::fs::write(&file, text).context("the endpoints")?;
        let endpoints = format!("--endpoints-file={}", file.display());
        let flags = ["--block-size=64", "--kv-events=off", "--log-level=error"];
        Ok([&flags.map(str::to_owned)[..], &[endpoints]].concat())
    }

    async fn service<C: Caller>(
        &mut self,
        name: &str,
        (program, flags): (&str, Vec<String>),
        callers: usize,
        calls: usize,
        per_second: Option<f64>,
        make: impl Fn(usize) -> C,
    ) -> Result<()> {
        let calls = if self.args.quick {
            calls / QUICK
        } else {
            calls
        };
        let (mut cpu, mut p50, mut p99) = (vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            let log = self.args.logs.join(format!("{program}-{round}.log"));
            let service =
                ServiceProcess::start(&beside(program)?, "--http-port", &flags, &log).await?;
            let made = |first: usize| (first..first + callers).map(&make).collect();
            let each = (calls / callers).max(1);
            closed(service.address(), made(1000), (each / 10).max(1)).await?;
            let before = service.cpu()?;
            let Timed { calls, .. } = match per_second {
                Some(rate) => open(service.address(), made(0), each, rate).await?,
                None => closed(service.address(), made(0), each).await?,
            };
            cpu.push(micros(service.cpu()?.saturating_sub(before)) / calls.len() as f64);
            p50.push(micros(percentile(&calls, 0.5)));
            p99.push(micros(percentile(&calls, 0.99)));
        }
        for (what, values) in [("CPU per call", cpu), ("p50", p50), ("p99", p99)] {
            self.keep(Figure::new(
                format!("{name}: {what}"),
                middle(&values),
                "µs",
            ));
        }
        Ok(())
    }

    /// Picks with the stage and without it, in turn.
    fn stage(&mut self) -> Result<()> {
        let programs = Programs {
            epp: self.args.epp.clone().map_or_else(|| beside("epp"), Ok)?,
            model_server: beside("model-server-sim")?,
            logs: self.args.logs.clone(),
            rounds: if self.args.quick { 1 } else { PICK_ROUNDS },
        };
        // a thread of its own: it is bound to one core, and so is what it starts
        let measuring = std::thread::spawn(move || {
            let cores = Cores::split()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("the runtime")?;
            runtime.block_on(programs.measure(cores))
        });
        let figures = measuring
            .join()
            .map_err(|_| anyhow!("measuring the external stage"))??;
        for figure in figures {
            self.keep(figure);
        }
        Ok(())
    }
}

fn processor_flags() -> Result<Vec<String>> {
    let token = apiserver_sim::free_address()?.port();
    Ok(vec![
        format!("--models-file={SAMPLES}/models.yaml"),
        format!("--token-port={token}"),
        "--token-transfer=direct".to_owned(),
        "--log-level=error".to_owned(),
    ])
}

const PICK_ROUNDS: usize = 5;
const PICK_REQUESTS: usize = 1000;
const PICK_WARM_UP: usize = 200;
const PICKED: usize = 1000;
const ENDPOINTS: u8 = 10;
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// What is started to measure picks.
struct Programs {
    epp: PathBuf,
    model_server: PathBuf,
    logs: PathBuf,
    rounds: usize,
}

// === impl Programs ===

impl Programs {
    /// An EPP without the stage, and one that asks a Processor, in turn.
    async fn measure(self, cores: Cores) -> Result<Vec<Figure>> {
        let endpoints = Endpoints::start(ENDPOINTS, 0, &self.model_server, &self.logs)?;
        let config = endpoints.config(ENDPOINTS.into(), Settings::Written)?;
        let log = self.logs.join("processor-picks.log");
        let flags = processor_flags()?;
        let processor =
            ServiceProcess::start(&beside("processor")?, "--http-port", &flags, &log).await?;
        let quiet = "--log-level=error".to_owned();
        let asks = [
            quiet.clone(),
            "--use-external-llm-processor=true".to_owned(),
            format!(
                "--external-llm-processor-endpoint=http://{}",
                processor.address()
            ),
        ];
        let start = |name: &str, words: &[String]| {
            let log = self.logs.join(format!("epp-{name}.log"));
            Picker::epp(cores, &self.epp, &config, words, &log)
        };
        let pickers = [start("plain", &[quiet])?, start("external", &asks)?];
        let mut times = [const { Vec::new() }; 2];
        for round in 0..self.rounds {
            for (picker, times) in pickers.iter().zip(&mut times) {
                let script = Script::new(PICKED, Chunks::Whole, Prompts::Groups)?;
                let members = endpoints.members();
                let load =
                    Load::connect(picker.address(), script, members, None, round * 1_000_000)
                        .await?;
                load.ready(READY_TIMEOUT).await?;
                load.closed(PICK_WARM_UP, 1).await?;
                let sample = load.closed(PICK_REQUESTS, 1).await?;
                let wrong = sample.wrong.first();
                ensure!(wrong.is_none(), "{STAGED}: {wrong:?}");
                times.push(micros(percentile(&sample.picks, 0.5)));
            }
        }
        let [plain, staged] = &times;
        let added: Vec<f64> = staged
            .iter()
            .zip(plain)
            .map(|(it, plain)| it - plain)
            .collect();
        let figure = |what, value| Figure::new(format!("{STAGED}: {what}"), value, "µs");
        Ok(vec![
            figure("without it, p50", middle(plain)),
            figure("p50", middle(staged)),
            figure("added, p50", middle(&added)),
        ])
    }
}
