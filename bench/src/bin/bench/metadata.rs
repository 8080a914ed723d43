//! The Metadata-Center: its calls as existing gateways mix them, batches, and picks.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use bench::{
    Chunks, Cores, Endpoints, Figure, Load, Picker, Prompts, Script, Settings, percentile,
    service::{Batches, Caller, Mix, Picks, ServiceProcess, Timed, closed, open},
};

use crate::{Run, middle};

/// Of each case, so often: what else the machine does comes and goes.
const ROUNDS: usize = 3;
/// Calls of one round, of all callers together.
const MIXED: usize = 200_000;
const BATCHES: usize = 30_000;
const PICKS: usize = 20_000;
const CONNECTIONS: usize = 32;
/// As an endpoint picker has workers.
const WORKERS: usize = 10;
const CANDIDATES: usize = 100;
const CHUNKS: u64 = 40;
/// Picks a second, where they come by themselves.
const RATE: f64 = 1000.0;
/// `--quick` measures so small a part.
const QUICK: usize = 20;

/// One case: who calls, how often.
struct Case<'a, C> {
    name: String,
    callers: usize,
    calls: usize,
    /// Operations in each call.
    operations: usize,
    per_second: Option<f64>,
    make: &'a dyn Fn(usize) -> C,
}

// === impl Run ===

impl Run {
    pub(crate) async fn metadata(&mut self) -> Result<()> {
        for engines in [32, 1000] {
            for callers in [1, CONNECTIONS] {
                let connections = if callers == 1 {
                    "1 connection".to_owned()
                } else {
                    format!("{callers} connections")
                };
                self.case(Case {
                    name: format!("mix, {engines} engines, {connections}"),
                    callers,
                    calls: if callers == 1 { MIXED / 4 } else { MIXED },
                    operations: 1,
                    per_second: None,
                    make: &|caller| Mix::new(caller, engines),
                })
                .await?;
            }
        }
        self.case(Case {
            name: format!("batches of {}", Batches::OPERATIONS),
            callers: WORKERS,
            calls: BATCHES,
            operations: Batches::OPERATIONS,
            per_second: None,
            make: &|shard| Batches::new(shard, 32),
        })
        .await?;
        for per_second in [Some(RATE), None] {
            let how = per_second.map_or("as fast as they go".to_owned(), |it| format!("{it}/s"));
            self.case(Case {
                name: format!("picks of {CANDIDATES} candidates, {CHUNKS} chunks, {how}"),
                callers: CONNECTIONS,
                calls: PICKS,
                operations: 1,
                per_second,
                make: &|caller| Picks::new(caller, CANDIDATES, CHUNKS),
            })
            .await?;
        }
        self.stale().await?;
        self.picks()
    }

    /// What the LLM filter adds to the picks of an EPP.
    fn picks(&mut self) -> Result<()> {
        let programs = Programs {
            epp: self.args.epp.clone().map_or_else(|| beside("epp"), Ok)?,
            model_server: beside("model-server-sim")?,
            logs: self.args.logs.clone(),
            rounds: if self.args.quick { 1 } else { PICK_ROUNDS },
        };
        let only = self.args.only.clone();
        let chosen = move |name: &str| only.as_ref().is_none_or(|part| name.contains(part));
        if !PICKED.iter().any(|(name, _)| chosen(name)) {
            return Ok(());
        }
        self.matched = true;
        // a thread of its own: it is bound to one core, and so is what it starts
        let measuring = std::thread::spawn(move || {
            let cores = Cores::split()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("the runtime")?;
            runtime.block_on(programs.measure(cores, chosen))
        });
        let figures = measuring
            .join()
            .map_err(|_| anyhow!("measuring the LLM filter"))??;
        for figure in figures {
            self.note(figure);
        }
        Ok(())
    }

    async fn case<C: Caller>(&mut self, case: Case<'_, C>) -> Result<()> {
        let name = format!("Metadata-Center, {}", case.name);
        if self
            .args
            .only
            .as_ref()
            .is_some_and(|part| !name.contains(part))
        {
            return Ok(());
        }
        self.matched = true;
        let calls = if self.args.quick {
            case.calls / QUICK
        } else {
            case.calls
        };
        let (mut time, mut cpu, mut p50, mut p99) = (vec![], vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            let log = self.args.logs.join(format!("metadata-center-{round}.log"));
            let center =
                ServiceProcess::start(&beside("metadata-center")?, "--port", &[], &log).await?;
            let callers = |first: usize| (first..first + case.callers).map(case.make).collect();
            let each = (calls / case.callers).max(1);
            // Others than those measured: requests have names.
            closed(center.address(), callers(1000), (each / 10).min(500)).await?;
            let before = center.cpu()?;
            let Timed { calls, took } = match case.per_second {
                Some(rate) => open(center.address(), callers(0), each, rate).await?,
                None => closed(center.address(), callers(0), each).await?,
            };
            let operations = (calls.len() * case.operations) as f64;
            time.push(micros(took) / operations);
            cpu.push(micros(center.cpu()?.saturating_sub(before)) / operations);
            p50.push(micros(percentile(&calls, 0.5)));
            p99.push(micros(percentile(&calls, 0.99)));
        }
        if case.per_second.is_none() {
            self.note(Figure::new(
                format!("{name}: time per operation"),
                middle(&time),
                "µs",
            ));
        }
        self.note(Figure::new(
            format!("{name}: CPU per operation"),
            middle(&cpu),
            "µs",
        ));
        self.note(Figure::new(format!("{name}: p50"), middle(&p50), "µs"));
        self.note(Figure::new(format!("{name}: p99"), middle(&p99), "µs"));
        Ok(())
    }
}

/// Bodies whose picks are measured, in bytes.
const PICKED: [(&str, usize); 2] = [
    ("LLM filter, 1 KB, one at a time", 1000),
    ("LLM filter, 100 KB, one at a time", 100_000),
];
const PICK_ROUNDS: usize = 5;
const PICK_REQUESTS: usize = 1000;
const PICK_WARM_UP: usize = 200;
const ENDPOINTS: u8 = 10;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// One rule; the score decides.
const RULES: &str = "protocol: openai\nmodel_mapping_rule:\n  m:\n    rules: [{cluster: bench}]\n";

/// What is started to measure picks.
struct Programs {
    epp: PathBuf,
    model_server: PathBuf,
    logs: PathBuf,
    rounds: usize,
}

// === impl Programs ===

impl Programs {
    /// An EPP without the filter, one with it alone, and one with it and a Metadata-Center, in turn.
    async fn measure(self, cores: Cores, chosen: impl Fn(&str) -> bool) -> Result<Vec<Figure>> {
        let endpoints = Endpoints::start(ENDPOINTS, 0, &self.model_server, &self.logs)?;
        let config = endpoints.config(ENDPOINTS.into(), Settings::Written)?;
        let rules = self.logs.join("llm.yaml");
        std::fs::write(&rules, RULES).context("the rules")?;
        let log = self.logs.join("metadata-center-picks.log");
        let center =
            ServiceProcess::start(&beside("metadata-center")?, "--port", &[], &log).await?;
        let flags = |words: &[String]| [&["--log-level=error".to_owned()], words].concat();
        let own = [
            "--llm-filter-config".to_owned(),
            rules.display().to_string(),
        ];
        let remote = [
            "--metadata-center-enabled=true".to_owned(),
            format!("--metadata-center-host={}", center.address().ip()),
            format!("--metadata-center-port={}", center.address().port()),
        ];
        let start = |name: &str, words: &[String]| {
            let log = self.logs.join(format!("epp-{name}.log"));
            Picker::epp(cores, &self.epp, &config, &flags(words), &log)
        };
        let pickers = [
            start("plain", &[])?,
            start("own", &own)?,
            start("remote", &[&own[..], &remote].concat())?,
        ];
        let mut figures = Vec::new();
        for (name, size) in PICKED.into_iter().filter(|(name, _)| chosen(name)) {
            let mut times = [const { Vec::new() }; 3];
            for round in 0..self.rounds {
                for (picker, times) in pickers.iter().zip(&mut times) {
                    let script = Script::new(size, Chunks::Whole, Prompts::Groups)?;
                    let members = endpoints.members();
                    let first = round * 1_000_000;
                    let load =
                        Load::connect(picker.address(), script, members, None, first).await?;
                    load.ready(READY_TIMEOUT).await?;
                    load.closed(PICK_WARM_UP, 1).await?;
                    let sample = load.closed(PICK_REQUESTS, 1).await?;
                    let wrong = sample.wrong.first();
                    ensure!(wrong.is_none(), "{name}: {wrong:?}");
                    times.push(micros(percentile(&sample.picks, 0.5)));
                }
            }
            let [plain, own, remote] = &times;
            let added = |with: &Vec<f64>| -> Vec<f64> {
                let pairs = with.iter().zip(plain);
                pairs.map(|(with, plain)| with - plain).collect()
            };
            let worst = added(own).into_iter().fold(f64::MIN, f64::max);
            for (what, value) in [
                ("without it, p50", middle(plain)),
                ("p50", middle(own)),
                ("with a Metadata-Center, p50", middle(remote)),
                ("added, p50", middle(&added(own))),
                ("added, p50, in the worst round", worst),
                ("added with a Metadata-Center, p50", middle(&added(remote))),
            ] {
                figures.push(Figure::new(format!("{name}: {what}"), value, "µs"));
            }
        }
        Ok(figures)
    }
}

/// A program that was built with this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program")?;
    Ok(own.with_file_name(name))
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
