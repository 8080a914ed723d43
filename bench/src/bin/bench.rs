//! `bench [NAME…] --controller PROGRAM`: measures the controller on scripted API servers; `cargo xtask bench` runs it.
#![allow(clippy::print_stdout, reason = "a terminal program")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{Controller, Figure, Fleet, FleetOptions, NS, own_cpu, percentile, raise_open_files};
use clap::{Parser, ValueEnum};
use tokio::time::{Instant, sleep};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// What to measure; default: all.
    names: Vec<Name>,
    /// The program.
    #[arg(long)]
    controller: PathBuf,
    /// Where to write the figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where logs of the controllers go.
    #[arg(long)]
    logs: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// 10 members: an event until it is applied everywhere.
    Propagation10,
    /// 100 members, 1, 5 and 50 exporters of a key, TLS and plain.
    Propagation100,
    /// 1000 members.
    Propagation1000,
    /// 100 members, 50 exported pools: memory, and a restart with and without members that are down.
    Restart,
    /// 100 members that export 50 pools each, five of them the same pool: 1000 pools, 100 000 imports.
    Large,
    /// A standby takes over from a leader that ends, or crashes.
    Failover,
}

/// Each answer's part of the network and the server.
const LATE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_mins(5);
/// Between two events: what they cause is over by then.
const SPACE: Duration = Duration::from_millis(200);

struct Run {
    args: Args,
    figures: Vec<Figure>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime")
        .and_then(|runtime| runtime.block_on(run(args)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    let names = if args.names.is_empty() {
        Name::value_variants().to_vec()
    } else {
        args.names.clone()
    };
    let limit = raise_open_files()?;
    let mut run = Run {
        args,
        figures: Vec::new(),
    };
    for name in names {
        let start = Instant::now();
        match name {
            Name::Propagation10 => {
                run.propagation(10, 1, true, 100).await?;
                run.propagation(10, 1, false, 100).await?;
            }
            Name::Propagation100 => {
                for (exporters, tls) in [(1, true), (1, false), (5, true), (50, true)] {
                    run.propagation(100, exporters, tls, 100).await?;
                }
            }
            Name::Propagation1000 => {
                ensure!(
                    limit >= 16_000,
                    "the limit of open files is {limit}: 16000 are needed"
                );
                for tls in [true, false] {
                    run.propagation(1000, 5, tls, 50).await?;
                }
            }
            Name::Restart => run.restart(50, 5).await?,
            Name::Large => run.large().await?,
            Name::Failover => run.failover().await?,
        }
        eprintln!("{name:?} took {:.0} s", start.elapsed().as_secs_f64());
    }
    if let Some(file) = &run.args.json {
        std::fs::write(file, serde_json::to_string_pretty(&run.figures)?)
            .context("writing the figures")?;
    }
    Ok(())
}

// === impl Run ===

impl Run {
    fn note(&mut self, figure: Figure) {
        println!("{}", figure.row());
        self.figures.push(figure);
    }

    fn fleet(&self, members: usize, tls: bool) -> Result<Fleet> {
        let options = FleetOptions {
            members,
            tls,
            late: LATE,
        };
        Fleet::start(options, &self.args.controller, &self.args.logs)
    }

    async fn start(fleet: &Fleet, name: &str) -> Result<(Controller, Duration)> {
        let mut controller = fleet.controller(name, None)?;
        let ready = controller.ready(PATIENCE).await?;
        Ok((controller, ready))
    }

    /// One event at a time in a member that exports one of `exporters` entries of one key.
    async fn propagation(
        &mut self,
        members: usize,
        exporters: usize,
        tls: bool,
        events: u32,
    ) -> Result<()> {
        let label = format!(
            "{members} members, {exporters} exporters, {}",
            if tls { "TLS" } else { "plain" }
        );
        let fleet = self.fleet(members, tls)?;
        fleet.export(1, exporters);
        let (controller, _) =
            Self::start(&fleet, &format!("propagation-{members}-{exporters}-{tls}")).await?;
        fleet.settled(1, exporters, PATIENCE).await?;
        sleep(Duration::from_secs(3)).await;

        // what it takes to do nothing
        let (idle_start, idle_from) = (Instant::now(), controller.usage()?.cpu);
        sleep(Duration::from_secs(6)).await;
        let idle = controller
            .usage()?
            .cpu
            .saturating_sub(idle_from)
            .as_secs_f64()
            / idle_start.elapsed().as_secs_f64();

        let exporter = fleet
            .exporter(0, 0, exporters)
            .context("an exporter")?
            .clone();
        let (mut last, mut each, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        let (from, cpu, own) = (Instant::now(), controller.usage()?.cpu, own_cpu()?);
        let writes = fleet.writes().0;
        for event in 0..events {
            let address = format!("198.51.{}.{}", 100 + event / 250, 1 + event % 250);
            let begin = Instant::now();
            fleet.move_epp(&exporter, &address);
            let text = format!("\"{address}\"");
            let times = fleet
                .applied("pool-0000", &text, exporter.name(), PATIENCE)
                .await?;
            let times: Vec<Duration> = times
                .iter()
                .map(|at| at.saturating_duration_since(begin))
                .collect();
            last.push(times.iter().max().copied().unwrap_or_default());
            sent.push(fleet.last_arrival(begin, "pool-0000"));
            each.extend(times);
            sleep(SPACE).await;
        }
        let span = from.elapsed().as_secs_f64();
        let writes = (fleet.writes().0 - writes) as f64;
        let cpu = controller.usage()?.cpu.saturating_sub(cpu).as_secs_f64();
        let own = own_cpu()?.saturating_sub(own).as_secs_f64();
        let usage = controller.usage()?;
        let goal = 100.0 + LATE.as_secs_f64() * 1e3;
        self.note(Figure::time(
            format!("{label}: event to all applied, p50"),
            percentile(&last, 0.5),
        ));
        self.note(
            Figure::time(
                format!("{label}: event to all applied, p99"),
                percentile(&last, 0.99),
            )
            .at_most(goal),
        );
        self.note(
            Figure::time(
                format!("{label}: event to all sent, p99"),
                percentile(&sent, 0.99),
            )
            .at_most(100.0),
        );
        self.note(Figure::time(
            format!("{label}: event to one applied, p50"),
            percentile(&each, 0.5),
        ));
        let per_write = (cpu - idle * span).max(0.0) * 1e3 / writes.max(1.0);
        self.note(
            Figure::new(
                format!("{label}: controller CPU per write, idle taken off"),
                per_write,
                "ms",
            )
            .at_most(0.05),
        );
        self.note(Figure::new(
            format!("{label}: load's CPU per write"),
            own * 1e3 / writes.max(1.0),
            "ms",
        ));
        self.note(Figure::new(
            format!("{label}: controller idle"),
            idle * 100.0,
            "% core",
        ));
        self.note(Figure::new(
            format!("{label}: RSS"),
            mebibytes(usage.rss),
            "MiB",
        ));
        controller.stop().await?;
        Ok(())
    }

    async fn restart(&mut self, keys: usize, exporters: usize) -> Result<()> {
        let label = format!("100 members, {keys} pools x {exporters} exporters");
        let fleet = self.fleet(100, true)?;
        fleet.export(keys, exporters);
        let (controller, _) = Self::start(&fleet, "restart-1").await?;
        let filled = fleet.settled(keys, exporters, PATIENCE).await?;
        sleep(Duration::from_secs(15)).await;
        let usage = controller.usage()?;
        self.note(Figure::time(
            format!("{label}: all {} imports from nothing", keys * 100),
            filled,
        ));
        self.note(Figure::new(format!("{label}: RSS"), mebibytes(usage.rss), "MiB").at_most(150.0));
        self.note(Figure::new(
            format!("{label}: most RSS ever"),
            mebibytes(usage.peak_rss),
            "MiB",
        ));
        controller.stop().await?;

        // all members up
        let before = fleet.writes();
        let (controller, ready) = Self::start(&fleet, "restart-2").await?;
        sleep(Duration::from_secs(15)).await;
        let after = fleet.writes();
        self.note(
            Figure::time(
                format!("{label}: restart until all is listed and compared"),
                ready,
            )
            .at_most(5000.0),
        );
        self.note(
            Figure::new(
                format!("{label}: restart, writes"),
                (after.0 - before.0) as f64,
                "writes",
            )
            .at_most(0.0),
        );
        self.note(
            Figure::new(
                format!("{label}: restart, imports lost or short"),
                fleet.missing(keys, exporters) as f64,
                "",
            )
            .at_most(0.0),
        );
        let usage = controller.usage()?;
        self.note(
            Figure::new(
                format!("{label}: RSS after a restart"),
                mebibytes(usage.rss),
                "MiB",
            )
            .at_most(150.0),
        );
        controller.stop().await?;

        // a tenth of them down
        for server in fleet.servers().iter().step_by(10) {
            server.stop();
        }
        let before = fleet.writes();
        let (controller, _) = Self::start(&fleet, "restart-3").await?;
        sleep(Duration::from_secs(20)).await;
        let after = fleet.writes();
        self.note(
            Figure::new(
                format!("{label}: restart with 10 members down, withdrawn entries"),
                fleet.missing(keys, exporters) as f64,
                "",
            )
            .at_most(0.0),
        );
        self.note(
            Figure::new(
                format!("{label}: the same, writes that changed nothing"),
                (after.1 - before.1) as f64,
                "writes",
            )
            .at_most(0.0),
        );
        self.note(Figure::new(
            format!("{label}: the same, writes (Reachable)"),
            (after.0 - before.0) as f64,
            "writes",
        ));
        let withdrawn = controller.metric("mci_withdrawals_total", "").await?;
        self.note(
            Figure::new(
                format!("{label}: the same, withdrawals counted"),
                withdrawn,
                "",
            )
            .at_most(0.0),
        );
        controller.stop().await?;
        Ok(())
    }

    async fn large(&mut self) -> Result<()> {
        let (keys, exporters) = (1000, 5);
        let label = "100 members x 50 exported pools, 100 000 imports";
        let fleet = self.fleet(100, true)?;
        fleet.export(keys, exporters);
        let (controller, _) = Self::start(&fleet, "large-1").await?;
        let filled = fleet.settled(keys, exporters, PATIENCE).await?;
        sleep(Duration::from_secs(20)).await;
        let usage = controller.usage()?;
        self.note(Figure::time(format!("{label}: from nothing"), filled));
        self.note(Figure::new(format!("{label}: RSS"), mebibytes(usage.rss), "MiB").at_most(150.0));
        controller.stop().await?;
        let before = fleet.writes();
        let (controller, ready) = Self::start(&fleet, "large-2").await?;
        sleep(Duration::from_secs(20)).await;
        let after = fleet.writes();
        self.note(Figure::time(
            format!("{label}: restart until all is listed and compared"),
            ready,
        ));
        self.note(
            Figure::new(
                format!("{label}: restart, writes"),
                (after.0 - before.0) as f64,
                "writes",
            )
            .at_most(0.0),
        );
        self.note(
            Figure::new(
                format!("{label}: restart, imports lost or short"),
                fleet.missing(keys, exporters) as f64,
                "",
            )
            .at_most(0.0),
        );
        let usage = controller.usage()?;
        self.note(
            Figure::new(
                format!("{label}: RSS after a restart"),
                mebibytes(usage.rss),
                "MiB",
            )
            .at_most(150.0),
        );
        controller.stop().await?;
        Ok(())
    }

    async fn failover(&mut self) -> Result<()> {
        let fleet = self.fleet(3, true)?;
        fleet.export(1, 1);
        let home = fleet.home()?;
        let home = Some(home.as_str());
        let mut leader = fleet.controller("failover-a", home)?;
        leader.ready(PATIENCE).await?;
        fleet.settled(1, 1, PATIENCE).await?;
        let mut standby = fleet.controller("failover-b", home)?;
        standby.ready(PATIENCE).await?;
        sleep(Duration::from_secs(5)).await;

        leader.crash().await?;
        let crash = self.taken_over(&fleet, "203.0.113.1").await?;
        self.note(
            Figure::new(
                "failover after a crash: event to all applied",
                crash.as_secs_f64(),
                "s",
            )
            .at_most(17.0),
        );
        let mut second = fleet.controller("failover-c", home)?;
        second.ready(PATIENCE).await?;
        sleep(Duration::from_secs(5)).await;
        let (stopped, clean) = tokio::join!(standby.stop(), self.taken_over(&fleet, "203.0.113.2"));
        stopped?;
        self.note(
            Figure::new(
                "failover after SIGTERM: event to all applied",
                clean?.as_secs_f64(),
                "s",
            )
            .at_most(3.0),
        );
        second.stop().await?;
        Ok(())
    }

    /// An event, and when it is applied.
    async fn taken_over(&self, fleet: &Fleet, address: &str) -> Result<Duration> {
        let exporter = fleet.exporter(0, 0, 1).context("an exporter")?;
        let start = Instant::now();
        // the leader that ends may still write what comes before its end
        sleep(Duration::from_millis(200)).await;
        fleet.move_epp(exporter, address);
        let times = fleet
            .applied(
                "pool-0000",
                &format!("\"{address}\""),
                exporter.name(),
                PATIENCE,
            )
            .await?;
        let last = times.iter().max().copied().unwrap_or(start);
        ensure!(
            exporter.entries(NS, "pool-0000").is_empty(),
            "an exporter lists itself"
        );
        Ok(last - start)
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
