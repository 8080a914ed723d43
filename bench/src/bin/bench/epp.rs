//! What the EPP takes for a request, and how late its answer is; beside the floor, in the same run.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow};
use bench::{Chunks, Cores, Endpoints, Figure, Load, Picker, Sample, Script, percentile};
use tokio::time::{Instant, sleep};

use crate::{Run, megabytes};

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    size: usize,
    chunks: Chunks,
    /// In each round, so that a round takes about a second.
    requests: usize,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Epp,
    Floor,
}

/// What one side took in the rounds of a case; one value each.
#[derive(Debug, Default)]
struct Rounds {
    /// CPU of a request in microseconds, idle taken off.
    cpu: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// What is measured, and against what.
struct Bench {
    endpoints: Endpoints,
    epp: Picker,
    floor: Picker,
    /// Share of a core that the EPP takes for nothing.
    idle: f64,
    wrong: Vec<String>,
}

const SMALL: Case = case("EPP, 1 KB", 1000, Chunks::Whole, 2000);
const CASES: [Case; 5] = [
    SMALL,
    case("EPP, 100 KB", 100_000, Chunks::Whole, 1000),
    case("EPP, 100 KB in 32 KiB", 100_000, Chunks::Buffers, 1000),
    case("EPP, 400 KB", 400_000, Chunks::Whole, 500),
    case("EPP, 400 KB in 32 KiB", 400_000, Chunks::Buffers, 500),
];

const ENDPOINTS: u8 = 10;
/// Of the closed loop.
const IN_FLIGHT: usize = 8;
/// Of the open loop: far from what a core can do.
const PER_SECOND: f64 = 500.0;
const OPEN_REQUESTS: usize = 1500;
/// The one and the other in turn, so often: what else the machine does comes and goes.
const ROUNDS: u64 = 5;
/// Before each round: connections and memory as they are later.
const WARM_UP: usize = 200;
const IDLE: Duration = Duration::from_secs(4);
/// After a pause: what should have been scraped meanwhile.
const REST: Duration = Duration::from_millis(300);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bodies held at once.
const HELD: usize = 64;
const HELD_NAME: &str = "EPP, 64 bodies of 400 KB at once";
const HELD_SIZE: usize = 400_000;

const fn case(name: &'static str, size: usize, chunks: Chunks, requests: usize) -> Case {
    Case {
        name,
        size,
        chunks,
        requests,
    }
}

// === impl Run ===

impl Run {
    pub(crate) fn epp(&mut self) -> Result<()> {
        let programs = Programs::find(self)?;
        // a thread of its own: it is bound to one core, and so is what it starts
        let measuring = std::thread::spawn(move || {
            let cores = Cores::split()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("the runtime")?;
            runtime.block_on(programs.measure(cores))
        });
        let measured = measuring
            .join()
            .map_err(|_| anyhow!("measuring the EPP"))??;
        let only = self.args.only.as_deref().unwrap_or_default();
        self.matched |= measured.iter().any(|figure| figure.name.contains(only));
        for figure in measured {
            self.note(figure);
        }
        Ok(())
    }
}

/// Where the programs are and their logs go, and what to measure.
struct Programs {
    only: Option<String>,
    epp: PathBuf,
    floor: PathBuf,
    model_server: PathBuf,
    logs: PathBuf,
}

// === impl Programs ===

impl Programs {
    fn find(run: &Run) -> Result<Self> {
        let own = std::env::current_exe().context("this program")?;
        let epp = run.args.epp.clone();
        Ok(Self {
            only: run.args.only.clone(),
            epp: epp.unwrap_or_else(|| own.with_file_name("epp")),
            floor: own.with_file_name("floor"),
            model_server: own.with_file_name("model-server-sim"),
            logs: run.args.logs.clone(),
        })
    }

    async fn measure(self, cores: Cores) -> Result<Vec<Figure>> {
        let Self {
            only,
            epp,
            floor,
            model_server,
            logs,
        } = self;
        let endpoints = Endpoints::start(ENDPOINTS, &model_server, &logs)?;
        let chosen = |name: &str| only.as_deref().is_none_or(|part| name.contains(part));
        let mut figures = Vec::new();
        if chosen(HELD_NAME) {
            let held = Picker::epp(cores, &epp, &endpoints, &logs.join("epp-memory.log"))?;
            memory(&held, &endpoints, &mut figures).await?;
        }
        let mut bench = Bench {
            epp: Picker::epp(cores, &epp, &endpoints, &logs.join("epp.log"))?,
            floor: Picker::floor(cores, &floor, &endpoints, &logs.join("floor.log"))?,
            endpoints,
            idle: 0.0,
            wrong: Vec::new(),
        };
        bench.begin(&mut figures).await?;
        for case in CASES.into_iter().filter(|case| chosen(case.name)) {
            bench.closed(case, &mut figures).await?;
        }
        let open = format!("{}, {PER_SECOND} requests/s", SMALL.name);
        if chosen(&open) {
            bench.open(&open, &mut figures).await?;
        }
        let count = bench.wrong.len() as f64;
        if let Some(first) = bench.wrong.first() {
            eprintln!("the first wrong answer: {first}");
        }
        figures.push(Figure::new("EPP: wrong answers", count, ""));
        Ok(figures)
    }
}

/// All bodies are there but for their ends: what they take.
async fn memory(picker: &Picker, endpoints: &Endpoints, figures: &mut Vec<Figure>) -> Result<()> {
    let connect = async |size, meeting| {
        let script = Script::new(size, Chunks::Whole)?;
        Load::connect(picker.address(), script, endpoints.members(), meeting).await
    };
    let small = connect(SMALL.size, None).await?;
    small.ready(READY_TIMEOUT).await?;
    small.closed(WARM_UP, IN_FLIGHT).await?;
    let idle = picker.usage()?.rss;
    let large = connect(HELD_SIZE, Some(HELD)).await?;
    let sample = large.closed(HELD, HELD).await?;
    if let Some(first) = sample.wrong.first() {
        return Err(anyhow!(
            "{} of {HELD} went wrong: {first}",
            sample.wrong.len()
        ));
    }
    let most = picker.usage()?.peak_rss.saturating_sub(idle);
    let name = |what: &str| format!("{HELD_NAME}: {what}");
    figures.push(Figure::new(
        name("most RSS over idle"),
        megabytes(most),
        "MB",
    ));
    let share = most as f64 / (HELD * HELD_SIZE) as f64;
    figures.push(Figure::new(
        name("most RSS over idle / bytes of the bodies"),
        share,
        "x",
    ));
    Ok(())
}

// === impl Bench ===

impl Bench {
    /// Both are ready; what the EPP takes without requests.
    async fn begin(&mut self, figures: &mut Vec<Figure>) -> Result<()> {
        for side in [Side::Floor, Side::Epp] {
            let load = self.load(side, SMALL).await?;
            load.ready(READY_TIMEOUT).await?;
            if side == Side::Floor {
                self.floor.pause()?;
            }
        }
        sleep(REST).await;
        let (start, before) = (Instant::now(), self.epp.cpu()?);
        sleep(IDLE).await;
        let taken = self.epp.cpu()?.saturating_sub(before);
        self.idle = taken.as_secs_f64() / start.elapsed().as_secs_f64();
        let name = format!("EPP, {ENDPOINTS} endpoints scraped each 50 ms: idle");
        figures.push(Figure::new(name, self.idle * 100.0, "% core"));
        self.epp.pause()
    }

    async fn closed(&mut self, case: Case, figures: &mut Vec<Figure>) -> Result<()> {
        let (mut epp, mut floor) = (Rounds::default(), Rounds::default());
        for _ in 0..ROUNDS {
            for (side, rounds) in [(Side::Epp, &mut epp), (Side::Floor, &mut floor)] {
                self.picker(side).resume()?;
                sleep(REST).await;
                let load = self.load(side, case).await?;
                let warm = load.closed(WARM_UP, IN_FLIGHT).await?;
                let before = self.picker(side).cpu()?;
                let sample = load.closed(case.requests, IN_FLIGHT).await?;
                let taken = self.picker(side).cpu()?.saturating_sub(before);
                rounds.note(
                    &sample,
                    taken.as_secs_f64() - self.idle(side) * sample.took.as_secs_f64(),
                );
                self.wrong
                    .extend(warm.wrong.into_iter().chain(sample.wrong));
                self.picker(side).pause()?;
            }
        }
        let name = case.name;
        let cpu = (middle(&epp.cpu), middle(&floor.cpu));
        figures.push(Figure::new(
            format!("{name}: CPU per request, idle taken off"),
            cpu.0,
            "µs",
        ));
        figures.push(Figure::new(
            format!("{name}, floor: CPU per request"),
            cpu.1,
            "µs",
        ));
        let share = ratio(&epp.cpu, &floor.cpu);
        figures.push(Figure::new(
            format!("{name}: CPU per request / the floor's"),
            share,
            "x",
        ));
        times(
            &format!("{name}, {IN_FLIGHT} in flight"),
            "last byte to pick",
            &epp,
            &floor,
            figures,
        );
        Ok(())
    }

    async fn open(&mut self, name: &str, figures: &mut Vec<Figure>) -> Result<()> {
        let (mut epp, mut floor) = (Rounds::default(), Rounds::default());
        for seed in 0..ROUNDS {
            for (side, rounds) in [(Side::Epp, &mut epp), (Side::Floor, &mut floor)] {
                self.picker(side).resume()?;
                sleep(REST).await;
                let load = self.load(side, SMALL).await?;
                let warm = load.closed(WARM_UP, IN_FLIGHT).await?;
                let sample = load.open(OPEN_REQUESTS, PER_SECOND, seed).await?;
                rounds.note(&sample, 0.0);
                self.wrong
                    .extend(warm.wrong.into_iter().chain(sample.wrong));
                self.picker(side).pause()?;
            }
        }
        times(name, "due to pick", &epp, &floor, figures);
        Ok(())
    }

    async fn load(&self, side: Side, case: Case) -> Result<Load> {
        let script = Script::new(case.size, case.chunks)?;
        let address = self.picker(side).address();
        Load::connect(address, script, self.endpoints.members(), None).await
    }

    fn picker(&self, side: Side) -> &Picker {
        match side {
            Side::Epp => &self.epp,
            Side::Floor => &self.floor,
        }
    }

    fn idle(&self, side: Side) -> f64 {
        match side {
            Side::Epp => self.idle,
            Side::Floor => 0.0,
        }
    }
}

// === impl Rounds ===

impl Rounds {
    fn note(&mut self, sample: &Sample, cpu: f64) {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        self.cpu.push(cpu * 1e6 / sample.picks.len().max(1) as f64);
        self.p50.push(micros(percentile(&sample.picks, 0.5)));
        self.p99.push(micros(percentile(&sample.picks, 0.99)));
    }
}

fn times(label: &str, what: &str, epp: &Rounds, floor: &Rounds, figures: &mut Vec<Figure>) {
    let shares = [("p50", &epp.p50, &floor.p50), ("p99", &epp.p99, &floor.p99)];
    for (share, epp, floor) in shares {
        let mut push = |name, value, unit| figures.push(Figure::new(name, value, unit));
        push(format!("{label}: {what}, {share}"), middle(epp), "µs");
        push(
            format!("{label}, floor: {what}, {share}"),
            middle(floor),
            "µs",
        );
        push(
            format!("{label}: {what}, {share} / the floor's"),
            ratio(epp, floor),
            "x",
        );
    }
}

/// Of the rounds one by one: what disturbs a round disturbs both.
fn ratio(values: &[f64], floor: &[f64]) -> f64 {
    let pairs = values.iter().zip(floor);
    let ratios: Vec<f64> = pairs.map(|(value, floor)| value / floor).collect();
    middle(&ratios)
}

/// The median.
fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
