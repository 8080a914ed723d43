//! What the EPP takes for a request, and how late its answer is; beside the floor, and another EPP, in the same run.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow};
use bench::{Cores, Endpoints, Figure, Load, PEER, Picker, ROWS, Script, Settings};
use tokio::time::sleep;

use self::{
    cases::{CASES, Case, HELD, Held, OPEN, Open, SMALL},
    sides::{Rounds, Runner, Side},
};
use crate::{Run, megabytes};

mod cases;
mod micro;
mod sides;

/// What is measured, and against what.
struct Bench {
    endpoints: Endpoints,
    runners: Vec<Runner>,
    wrong: Vec<(Side, String)>,
    figures: Vec<Figure>,
    rounds: u64,
}

/// Of most cases, and of those with many.
const FEW: usize = 10;
const MANY: usize = 100;
/// The one and the other in turn, so often: what else the machine does comes and goes.
const ROUNDS: u64 = 5;
/// What `--quick` leaves of the requests: one in so many.
const QUICK: usize = 20;
/// Before each round, at most: connections and memory as they are later.
const WARM_UP: usize = 200;
/// After a pause: what should have been scraped meanwhile.
const REST: Duration = Duration::from_millis(300);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Metrics pages of 57 KB, as long as those of real engines.
const PADDING: u32 = 1700;
/// Requests of different rounds have numbers, and so prompts, of their own.
const ROUND: usize = 1_000_000;

// === impl Run ===

impl Run {
    pub(crate) fn epp(&mut self) -> Result<()> {
        let programs = Programs::find(self)?;
        let chosen = |label: &str| programs.chosen(label);
        // before this thread's children are bound to cores: two threads need two
        let mut measured = micro::figures(&chosen, programs.quick)?;
        // a thread of its own: it is bound to one core, and so is what it starts
        let measuring = std::thread::spawn(move || {
            let cores = Cores::split()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("the runtime")?;
            runtime.block_on(programs.measure(cores))
        });
        let loaded = measuring
            .join()
            .map_err(|_| anyhow!("measuring the EPP"))??;
        measured.extend(loaded);
        let only = self.args.only.clone().unwrap_or_default();
        self.matched |= measured.iter().any(|figure| figure.name.contains(&only));
        for figure in measured {
            self.note(figure);
        }
        let skipped = |row: &&bench::Row| {
            row.bench == PEER && self.figures.iter().all(|figure| figure.name != row.name)
        };
        for row in ROWS.iter().filter(skipped) {
            if row.name.contains(&only) {
                println!(
                    "{:<88} skipped: it needs another EPP, or more cores",
                    row.name
                );
            }
        }
        Ok(())
    }
}

/// Where the programs are and their logs go, and what to measure.
struct Programs {
    only: Option<String>,
    quick: bool,
    epp: PathBuf,
    peer: Option<PathBuf>,
    peer_flags: Vec<String>,
    floor: PathBuf,
    model_server: PathBuf,
    logs: PathBuf,
}

// === impl Programs ===

impl Programs {
    fn find(run: &Run) -> Result<Self> {
        let own = std::env::current_exe().context("this program")?;
        let epp = run.args.epp.clone();
        let flags = run.args.peer_flags.split_whitespace();
        Ok(Self {
            only: run.args.only.clone(),
            quick: run.args.quick,
            epp: epp.unwrap_or_else(|| own.with_file_name("epp")),
            peer: run.args.peer.clone(),
            peer_flags: flags.map(str::to_owned).collect(),
            floor: own.with_file_name("floor"),
            model_server: own.with_file_name("model-server-sim"),
            logs: run.args.logs.clone(),
        })
    }

    fn chosen(&self, label: &str) -> bool {
        let only = self.only.as_deref();
        only.is_none_or(|part| label.contains(part))
    }

    /// With as many requests as are wanted.
    fn scaled(&self, case: Case) -> Case {
        let requests = if self.quick {
            (case.requests / QUICK).max(2 * case.in_flight)
        } else {
            case.requests
        };
        Case { requests, ..case }
    }

    async fn measure(self, cores: Cores) -> Result<Vec<Figure>> {
        let held = HELD.into_iter().filter(|held| self.chosen(held.name));
        let cases = CASES.into_iter().filter(|case| self.chosen(case.name));
        let cases: Vec<Case> = cases.map(|case| self.scaled(case)).collect();
        let open = OPEN.into_iter().filter(|open| self.chosen(open.name));
        let open: Vec<Open> = open
            .map(|open| Open {
                case: self.scaled(open.case),
                requests: if self.quick {
                    open.requests / QUICK
                } else {
                    open.requests
                },
                ..open
            })
            .collect();
        let idle = [FEW, MANY].map(sides::idle_label);
        let mut needed = vec![false; 2];
        for (needed, (count, idle)) in needed.iter_mut().zip([FEW, MANY].into_iter().zip(&idle)) {
            let asked = cases.iter().any(|case| case.endpoints == count);
            *needed = asked || self.chosen(idle) || count == FEW && !open.is_empty();
        }
        if held.clone().next().is_none() && !needed.contains(&true) {
            return Ok(Vec::new());
        }
        let most = u8::try_from(MANY)?;
        let endpoints = Endpoints::start(most, PADDING, &self.model_server, &self.logs)?;
        let mut bench = Bench {
            endpoints,
            runners: Vec::new(),
            wrong: Vec::new(),
            figures: Vec::new(),
            rounds: if self.quick { 1 } else { ROUNDS },
        };
        for held in held {
            self.memory(cores, held, &mut bench).await?;
        }
        for (count, needed) in [FEW, MANY].into_iter().zip(needed) {
            if needed {
                self.start(cores, count, &mut bench)?;
            }
        }
        for at in 0..bench.runners.len() {
            bench.begin(at).await?;
        }
        for case in cases {
            bench.closed(case).await?;
        }
        for open in open {
            bench.open(open).await?;
        }
        bench.end()
    }

    /// What is measured with so many endpoints.
    fn start(&self, cores: Cores, count: usize, bench: &mut Bench) -> Result<()> {
        let Self {
            epp,
            peer,
            peer_flags,
            floor,
            logs,
            ..
        } = self;
        let endpoints = &bench.endpoints;
        let mut start = |side: Side, picker| bench.runners.push(Runner::new(side, count, picker));
        if count == FEW {
            let picker = Picker::floor(cores, floor, endpoints, &logs.join("floor.log"))?;
            start(Side::Floor, picker);
        }
        let written = endpoints.config(count, Settings::Written)?;
        let log = logs.join(format!("epp-{count}.log"));
        let picker = Picker::epp(cores, epp, &written, &sides::own_flags(), &log)?;
        start(Side::Epp, picker);
        if let Some(peer) = peer.as_ref().filter(|_| count == FEW) {
            let log = logs.join("peer.log");
            start(
                Side::Peer,
                Picker::epp(cores, peer, &written, peer_flags, &log)?,
            );
            let defaults = endpoints.config(count, Settings::Defaults)?;
            let log = logs.join("peer-defaults.log");
            let picker = Picker::epp(cores, peer, &defaults, peer_flags, &log)?;
            start(Side::PeerDefaults, picker);
        }
        Ok(())
    }

    /// Bodies are there but for their ends: what they take.
    async fn memory(&self, cores: Cores, held: Held, bench: &mut Bench) -> Result<()> {
        let Held { name, count, size } = held;
        let config = bench.endpoints.config(FEW, Settings::Written)?;
        let log = self.logs.join("epp-memory.log");
        let picker = Picker::epp(cores, &self.epp, &config, &sides::own_flags(), &log)?;
        let connect = async |case: Case, meeting| {
            let script = Script::new(case.size, case.chunks, case.prompts)?;
            let members = bench.endpoints.members();
            Load::connect(picker.address(), script, members, meeting, 0).await
        };
        let small = connect(SMALL, None).await?;
        small.ready(READY_TIMEOUT).await?;
        small.closed(WARM_UP, SMALL.in_flight).await?;
        let idle = picker.usage()?.rss;
        let large = connect(Case { size, ..SMALL }, Some(count)).await?;
        let sample = large.closed(count, count).await?;
        if let Some(first) = sample.wrong.first() {
            let wrong = sample.wrong.len();
            return Err(anyhow!("{wrong} of {count} went wrong: {first}"));
        }
        let most = picker.usage()?.peak_rss.saturating_sub(idle);
        let share = most as f64 / (count * size) as f64;
        let over = "most RSS over idle";
        bench.note(format!("{name}: {over}"), megabytes(most), "MB");
        bench.note(format!("{name}: {over} / bytes of the bodies"), share, "x");
        Ok(())
    }
}

// === impl Bench ===

impl Bench {
    fn note(&mut self, name: String, value: f64, unit: &'static str) {
        self.figures.push(Figure::new(name, value, unit));
    }

    /// It answers; what it takes without requests.
    async fn begin(&mut self, at: usize) -> Result<()> {
        let load = self.load(at, SMALL, 0).await?;
        load.ready(READY_TIMEOUT).await?;
        drop(load);
        if self.runners[at].side != Side::Floor {
            let page = bench::http_page(self.endpoints.members()[0]).await?.len();
            let figures = self.runners[at].measure_idle(page).await?;
            self.figures.extend(figures);
        }
        self.runners[at].picker.pause()
    }

    /// Those that are compared with these requests.
    fn compared(&self, endpoints: usize, beside_peer: bool) -> Vec<usize> {
        let takes_part = |runner: &Runner| match runner.side {
            Side::Floor => true,
            Side::Epp => runner.endpoints == endpoints,
            Side::Peer | Side::PeerDefaults => beside_peer,
        };
        let all = self.runners.iter().enumerate();
        all.filter(|(_, runner)| takes_part(runner))
            .map(|(at, _)| at)
            .collect()
    }

    async fn closed(&mut self, case: Case) -> Result<()> {
        let sides = self.compared(case.endpoints, case.beside_peer);
        let mut all = Rounds::of(sides.iter().map(|at| self.runners[*at].side));
        for round in 0..self.rounds {
            for (at, rounds) in sides.iter().zip(&mut all) {
                let load = self.warm(*at, case, round).await?;
                let runner = &self.runners[*at];
                let before = runner.picker.cpu()?;
                let sample = load.closed(case.requests, case.in_flight).await?;
                let taken = runner.picker.cpu()?.saturating_sub(before);
                let idle = runner.idle * sample.took.as_secs_f64();
                rounds.note(&sample, taken.as_secs_f64() - idle);
                runner.picker.pause()?;
                self.blame(*at, sample.wrong);
            }
        }
        let times = match case.in_flight {
            1 => case.name.to_owned(),
            many => format!("{}, {many} in flight", case.name),
        };
        self.figures.extend(sides::cpu_figures(case.name, &all));
        self.figures
            .extend(sides::time_figures(&times, "last byte to pick", &all));
        Ok(())
    }

    async fn open(&mut self, open: Open) -> Result<()> {
        let case = open.case;
        let sides = self.compared(case.endpoints, case.beside_peer);
        let mut all = Rounds::of(sides.iter().map(|at| self.runners[*at].side));
        for round in 0..self.rounds {
            for (at, rounds) in sides.iter().zip(&mut all) {
                let load = self.warm(*at, case, round).await?;
                let sample = load.open(open.requests, open.per_second, round).await?;
                rounds.note(&sample, 0.0);
                self.runners[*at].picker.pause()?;
                self.blame(*at, sample.wrong);
            }
        }
        self.figures
            .extend(sides::time_figures(open.name, "due to pick", &all));
        Ok(())
    }

    /// Lets one go on that was paused, and connects to it.
    async fn warm(&mut self, at: usize, case: Case, round: u64) -> Result<Load> {
        self.runners[at].picker.resume()?;
        sleep(REST).await;
        let first = usize::try_from(round)? * ROUND;
        let load = self.load(at, case, first).await?;
        let requests = WARM_UP.min(case.requests / 2);
        let warm = load.closed(requests, case.in_flight).await?;
        self.blame(at, warm.wrong);
        Ok(load)
    }

    async fn load(&self, at: usize, case: Case, first: usize) -> Result<Load> {
        let script = Script::new(case.size, case.chunks, case.prompts)?;
        let runner = &self.runners[at];
        let members = &self.endpoints.members()[..runner.endpoints];
        Load::connect(runner.picker.address(), script, members, None, first).await
    }

    fn blame(&mut self, at: usize, wrong: Vec<String>) {
        let side = self.runners[at].side;
        self.wrong.extend(wrong.into_iter().map(|one| (side, one)));
    }

    /// What is known only when all is over.
    fn end(mut self) -> Result<Vec<Figure>> {
        let runners = std::mem::take(&mut self.runners);
        for runner in runners.iter().filter(|runner| runner.side == Side::Epp) {
            let most = runner.picker.usage()?.peak_rss;
            let name = format!("EPP, {} endpoints: most RSS of all loads", runner.endpoints);
            self.note(name, megabytes(most), "MB");
        }
        for (ours, name) in [
            (true, "EPP: wrong answers"),
            (false, "EPP, peer: wrong answers"),
        ] {
            let wrong = self.wrong.iter().filter(|(side, _)| side.is_ours() == ours);
            let wrong: Vec<String> = wrong.map(|(_, one)| one.clone()).collect();
            if let Some(first) = wrong.first() {
                eprintln!("{name}, the first: {first}");
            }
            if ours || runners.iter().any(|runner| !runner.side.is_ours()) {
                self.note(name.to_owned(), wrong.len() as f64, "");
            }
        }
        Ok(self.figures)
    }
}
