//! `bench [NAME…] --controller PROGRAM`: measures the controller on scripted API servers, and on real ones, the EPP, the gateway and the data path;
//! `cargo xtask bench` runs it.
#![allow(clippy::print_stdout, reason = "a terminal program")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    Controller, Figure, Fleet, FleetOptions, LATE, ROWS, raise_open_files, verdict, with_figures,
};
use clap::{Parser, ValueEnum};
use testbed::Inside;
use tokio::time::Instant;

use self::propagation::Case;

mod datapath;
mod dynamo;
mod epp;
mod failover;
mod gateway;
mod metadata;
mod propagation;
mod quality;
mod real;
mod restart;
mod router;
mod stale;
mod transfer;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// What to measure; default: all.
    names: Vec<Name>,
    /// Of propagation, epp, epp-quality, metadata, router, dynamo, gateway and datapath, only the cases with this in their names, such as `50 exporters, TLS`.
    #[arg(long)]
    only: Option<String>,
    /// Of epp, metadata, dynamo, gateway and datapath, a twentieth of the requests, of epp in one round: whether all works. Such figures say nothing.
    #[arg(long, conflicts_with = "document")]
    quick: bool,
    /// Of router, a trace to replay beside the generated prompts.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// How it is written.
    #[arg(long, value_enum, default_value_t)]
    trace_format: router::TraceFormat,
    /// The program.
    #[arg(long)]
    controller: PathBuf,
    /// The EPP; default: beside this program, where its floor and the model servers are too.
    #[arg(long)]
    epp: Option<PathBuf>,
    /// Another EPP to measure beside ours; it reads the same configuration file, and endpoints from a file that this names.
    #[arg(long, env = "EPP_PEER_BIN")]
    peer: Option<PathBuf>,
    /// Its flags beside those for its ports and its configuration file.
    #[arg(
        long,
        env = "EPP_PEER_FLAGS",
        default_value = "--tracing=false --zap-log-level=error",
        allow_hyphen_values = true
    )]
    peer_flags: String,
    /// Where to write the figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// A document to write the figures into: those measured now take the place of older ones.
    #[arg(long, requires = "state")]
    document: Option<PathBuf>,
    /// Which state of the code this is, for the document.
    #[arg(long)]
    state: Option<String>,
    /// Exit with 1 if a figure misses its goal.
    #[arg(long)]
    strict: bool,
    /// Where logs of the controllers go.
    #[arg(long)]
    logs: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// 10 members: an event until it is applied everywhere.
    Propagation10,
    /// 100 members, 1, 5 and 50 exporters of a key, TLS and plain; and with members in trouble.
    Propagation100,
    /// 1000 members.
    Propagation1000,
    /// 100 members, 50 exported pools: memory, and a restart with and without members that are down.
    Restart,
    /// 100 members that export 50 pools each, five of them the same pool: 1000 pools, 100 000 imports.
    Large,
    /// A standby takes over from a leader that ends, or crashes.
    Failover,
    /// The EPP against the least that one must do: CPU of a request, time of a pick, memory.
    Epp,
    /// The choices of the EPP beside others, simulated.
    EppQuality,
    /// The Metadata-Center: calls as existing gateways mix them, batches, picks; two of them over a real Redis.
    Metadata,
    /// The choices of the router beside others, simulated; its parts and the Processor's encoding alone.
    Router,
    /// Processor and Router over HTTP, the EPP's external stage, ids on their way to a worker.
    Dynamo,
    /// The gateway at 1000 routes: CPU of an event, time until Envoy has it, build, memory, bytes on the wire.
    Gateway,
    /// Envoy with an EPP, and an import in each mode, beside the same Envoy without EPP: requests a second, times, CPU.
    Datapath,
    /// Nothing: with `--document`, the table is written anew with the goals of this program.
    Nothing,
    /// 3 real clusters; the environment names the programs, as `cargo xtask bench` does.
    Real,
}

const PATIENCE: Duration = Duration::from_mins(5);
/// Between two events: what they cause is over by then.
const SPACE: Duration = Duration::from_millis(200);

struct Run {
    args: Args,
    figures: Vec<Figure>,
    /// A case that `--only` chooses was measured.
    matched: bool,
}

fn main() -> ExitCode {
    match measure(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(mut args: Args) -> Result<()> {
    // nodes start it elsewhere
    args.controller = std::path::absolute(&args.controller).context("--controller")?;
    if args.names.is_empty() {
        let all = Name::value_variants().iter().copied();
        args.names = all.filter(|name| *name != Name::Nothing).collect();
    }
    // before any thread exists
    let needs_namespaces = [Name::Real, Name::Datapath];
    let inside = if needs_namespaces.iter().any(|one| args.names.contains(one)) {
        Some(testbed::enter().context("entering namespaces")?)
    } else {
        None
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime")?;
    runtime.block_on(run(args, inside.as_ref()))
}

async fn run(args: Args, inside: Option<&Inside>) -> Result<()> {
    let names = args.names.clone();
    let limit = raise_open_files()?;
    if let Some(inside) = inside {
        testbed::standalone::bring_up_loopback(inside).await?;
    }
    let mut run = Run {
        args,
        figures: Vec::new(),
        matched: false,
    };
    for name in names {
        let start = Instant::now();
        match name {
            Name::Propagation10 => {
                for tls in [true, false] {
                    run.propagation(Case::new(10, 1, tls)).await?;
                }
            }
            Name::Propagation100 => {
                for (exporters, tls) in [(1, true), (1, false), (5, true), (50, true)] {
                    run.propagation(Case::new(100, exporters, tls)).await?;
                }
                run.trouble(Case::new(100, 5, true)).await?;
            }
            Name::Propagation1000 => {
                ensure!(
                    limit >= 16_000,
                    "the limit of open files is {limit}: 16000 are needed"
                );
                for tls in [true, false] {
                    run.propagation(Case::new(1000, 5, tls)).await?;
                }
            }
            Name::Restart => run.restart(50, 5).await?,
            Name::Large => run.large().await?,
            Name::Failover => run.failover().await?,
            Name::Epp => run.epp()?,
            Name::EppQuality => run.quality()?,
            Name::Metadata => run.metadata().await?,
            Name::Router => run.router()?,
            Name::Dynamo => run.dynamo().await?,
            Name::Gateway => run.gateway().await?,
            Name::Datapath => {
                run.data_path(inside.context("not inside namespaces")?)
                    .await?;
            }
            Name::Nothing => {}
            Name::Real => run.real(inside.context("not inside namespaces")?).await?,
        }
        eprintln!("{name:?} took {:.0} s", start.elapsed().as_secs_f64());
        run.check_rows(name)?;
    }
    if let Some(only) = &run.args.only {
        ensure!(run.matched, "--only: no case has {only:?} in its name");
    }
    if let Some(file) = &run.args.json {
        std::fs::write(file, serde_json::to_string_pretty(&run.figures)?)
            .context("writing the figures")?;
    }
    if let (Some(file), Some(state)) = (&run.args.document, &run.args.state) {
        let document = std::fs::read_to_string(file).context("reading the document")?;
        let document = with_figures(&document, &run.figures, state)?;
        std::fs::write(file, document).context("writing the document")?;
    }
    let (summary, missed) = verdict(&run.figures);
    println!("\n{summary}");
    ensure!(!(run.args.strict && missed > 0), "a goal was missed");
    Ok(())
}

// === impl Run ===

impl Run {
    fn note(&mut self, figure: Figure) {
        println!("{}", figure.row());
        self.figures.push(figure);
    }

    /// Whether each row of the document that this measures was measured: else a figure has another name than its row,
    /// and its goal is not checked.
    fn check_rows(&self, name: Name) -> Result<()> {
        let value = name.to_possible_value().context("a name")?;
        let rows = ROWS.iter().filter(|row| row.bench == value.get_name());
        let missing = rows.filter(|row| self.figures.iter().all(|one| one.name != row.name));
        let missing: Vec<&str> = missing.map(|row| row.name).collect();
        ensure!(
            missing.is_empty() || self.args.only.is_some(),
            "{} did not measure: {}",
            value.get_name(),
            missing.join("; ")
        );
        Ok(())
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
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Of the rounds one by one: what disturbs a round disturbs both.
fn ratio(values: &[f64], others: &[f64]) -> f64 {
    let pairs = values.iter().zip(others);
    let ratios: Vec<f64> = pairs.map(|(value, other)| value / other).collect();
    middle(&ratios)
}

/// The median.
fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
