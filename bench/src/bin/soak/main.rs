//! `soak --controller PROGRAM`: members fail in many ways, pools and namespaces come and go, and a model that knows what
//! was done judges every change of every import (P3: no entry goes without evidence). `cargo xtask soak` runs it.
//!
//! The API servers keep each change of an import until it is judged, so none lies between two looks. Most pools stay
//! exported all the while: whatever fails, each of their entries must stay. The others come and go, and their entries with
//! them. A run that could not have found a loss is a failure too: each kind of fault must have happened, no change may have
//! been missed, and most entries must have been without an excuse.
#![allow(clippy::print_stdout, reason = "a terminal program")]

mod faults;
mod memory;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use apiserver_sim::{IMPORTS, POOLS};
use bench::{
    Controller, Fault, Fleet, FleetOptions, Import, Member, Model, NS, Pool, pool, raise_open_files,
};
use clap::Parser;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use self::{
    faults::{Schedule, Undo},
    memory::Memory,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// The program.
    #[arg(long)]
    controller: PathBuf,
    /// Where its log goes.
    #[arg(long)]
    logs: PathBuf,
    /// Clusters.
    #[arg(long, default_value_t = 200)]
    members: usize,
    /// How long things happen, in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Of what is random; printed, so that a run can be made again.
    #[arg(long)]
    seed: Option<u64>,
    /// A bug for the controller to have, if it was built to have one: it is to be found.
    #[arg(long)]
    seeded_fault: Option<String>,
}

/// Pools, and members that may export each.
const POOLS_COUNT: Pool = 12;
const EXPORTERS: usize = 5;
/// Each third pool comes and goes; the others are exported whenever they can be.
const RESTLESS: Pool = 3;
const LATE: Duration = Duration::from_millis(5);
/// A pool or an address changes this often.
const CHURN: Duration = Duration::from_millis(100);
/// What happened is judged this often, by the moment it happened at.
const LOOK: Duration = Duration::from_millis(20);
/// Faults begin and end to this.
const STEP: Duration = Duration::from_millis(100);
/// Changes of imports that wait to be judged in one member: above what a member's writer sends in a minute (100 a second).
const JOURNAL: usize = 8192;
/// `--stale-after`, so that a stop can be longer in a run of a minute.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// `--initial-sync-timeout`: less than a member is down after a restart.
const SYNC: Duration = Duration::from_secs(5);
/// All are up and nothing changes: the longest reconnect backoff (30 s) or the guard's calm (30 s), the list, what a CRD
/// is given after it came back, and a retried write.
const QUIET: Duration = Duration::from_secs(90);
/// From nothing to all imports, on a machine that does much else.
const FILL: Duration = Duration::from_mins(3);
/// So large a part of all entries must have been judged without an excuse.
const STRICTNESS: f64 = 0.5;

struct Soak {
    fleet: Fleet,
    model: Model,
    rng: StdRng,
    start: Instant,
    /// Flags of the controllers.
    flags: Vec<String>,
    controller: Option<Controller>,
    /// It has opened its gate.
    writes: bool,
    undo: Vec<(Duration, Undo)>,
    faults: BTreeMap<&'static str, u64>,
    changes: u64,
    judged: u64,
    memory: Memory,
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
        Ok(()) => {
            println!("test result: ok. 1 passed; 0 failed;");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            println!("test result: FAILED. 0 passed; 1 failed;");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random());
    println!(
        "{} members, {} s, --seed {seed}",
        args.members, args.seconds
    );
    ensure!(
        args.members >= POOLS_COUNT,
        "at least {POOLS_COUNT} members are needed"
    );
    raise_open_files()?;
    let options = FleetOptions {
        members: args.members,
        tls: true,
        late: LATE,
    };
    let mut flags = vec![
        format!("--stale-after={}s", STALE_AFTER.as_secs()),
        format!("--initial-sync-timeout={}s", SYNC.as_secs()),
    ];
    flags.extend(
        args.seeded_fault
            .map(|name| format!("--seeded-fault={name}")),
    );
    let mut soak = Soak {
        fleet: Fleet::start(options, &args.controller, &args.logs)?,
        model: Model::new(args.members, STALE_AFTER),
        rng: StdRng::seed_from_u64(seed),
        start: Instant::now(),
        flags,
        controller: None,
        writes: false,
        undo: Vec::new(),
        faults: BTreeMap::new(),
        changes: 0,
        judged: 0,
        memory: Memory::default(),
    };
    soak.begin().await?;
    let time = Duration::from_secs(args.seconds);
    soak.happen(time).await?;
    soak.undo(true).await?;
    let quiet = soak.settle(QUIET).await.context("after all came back")?;
    soak.conclude(quiet)?;
    soak.controller.context("no controller")?.stop().await?;
    Ok(())
}

// === impl Soak ===

impl Soak {
    /// Exports all pools and waits for their imports.
    async fn begin(&mut self) -> Result<()> {
        for server in self.fleet.servers() {
            server.record(&IMPORTS, JOURNAL);
        }
        for pool in 0..POOLS_COUNT {
            for step in 0..EXPORTERS {
                self.set_export(self.exporter(pool, step), pool, true);
            }
        }
        let mut controller = self.fleet.controller_with("soak", None, &self.flags)?;
        controller.ready(Duration::from_mins(2)).await?;
        self.controller = Some(controller);
        self.writes = true;
        self.settle(FILL).await.context("before anything happens")?;
        println!(
            "all imports are there after {:.1} s",
            self.now().as_secs_f64()
        );
        Ok(())
    }

    /// Things happen for a while; an error as soon as something is wrong.
    async fn happen(&mut self, time: Duration) -> Result<()> {
        let begin = self.now();
        let ticker = |period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            ticks
        };
        let (mut looks, mut churn, mut steps) = (ticker(LOOK), ticker(CHURN), ticker(STEP));
        let mut seconds = ticker(Duration::from_secs(1));
        let mut schedule = Schedule::new(self.members(), time);
        while self.now() < begin + time {
            tokio::select! {
                _ = looks.tick() => self.look()?,
                _ = churn.tick() => self.change(),
                _ = steps.tick() => {
                    self.undo(false).await?;
                    for kind in schedule.due(self.now().saturating_sub(begin)) {
                        self.fail(kind).await?;
                    }
                    self.check_gate().await;
                }
                _ = seconds.tick() => {
                    self.model.tally(self.now());
                    let controller = self.controller.as_ref().context("no controller")?;
                    let usage = controller.usage().context("the controller is gone")?;
                    self.memory.add(self.start.elapsed(), usage.rss);
                }
            }
        }
        schedule.missing(&self.faults)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn members(&self) -> usize {
        self.fleet.servers().len()
    }

    fn exporter(&self, pool: Pool, step: usize) -> Member {
        (pool * EXPORTERS + step) % self.members()
    }

    /// One change in one member, up or down: what is done while nobody sees it must be found later.
    fn change(&mut self) {
        self.changes += 1;
        let pool = self.rng.random_range(0..POOLS_COUNT);
        let step = self.rng.random_range(0..EXPORTERS);
        let member = self.exporter(pool, step);
        let is_restless = pool % RESTLESS == 0;
        match self.rng.random_range(0..100) {
            _ if !self.model.exports(self.now(), member, pool) => {
                self.set_export(member, pool, true);
            }
            0..10 if is_restless => self.delete_pool(member, pool),
            10..40 if is_restless => self.set_export(member, pool, false),
            _ => {
                let address = format!("198.51.100.{}", self.rng.random_range(1..255));
                if let Some(server) = self.fleet.servers().get(member) {
                    self.fleet.move_epp(server, &address);
                }
            }
        }
    }

    /// Whether a pool can be made or changed there.
    fn has_pools(&self, member: Member) -> bool {
        let lacks = |fault| self.model.has(self.now(), fault, member);
        !lacks(Fault::NamespaceGone) && !lacks(Fault::PoolsCrdGone)
    }

    /// The model learns of an end before it happens and of a beginning after: it must never be behind the controller.
    fn set_export(&mut self, member: Member, number: Pool, export: bool) {
        if !self.has_pools(member) {
            return;
        }
        let Some(server) = self.fleet.servers().get(member) else {
            return;
        };
        if export {
            server.export(NS, &pool(number));
            self.model.exported(self.start.elapsed(), member, number);
        } else {
            self.model.unexported(self.start.elapsed(), member, number);
            server.unexport(NS, &pool(number));
        }
    }

    fn delete_pool(&mut self, member: Member, number: Pool) {
        if !self.has_pools(member) {
            return;
        }
        self.model.unexported(self.start.elapsed(), member, number);
        if let Some(server) = self.fleet.servers().get(member) {
            server.delete(&POOLS, NS, &pool(number));
        }
    }

    /// Judges each change of an import since the last look.
    fn look(&mut self) -> Result<()> {
        let mut wrong = Vec::new();
        for (number, server) in self.fleet.servers().iter().enumerate() {
            let recording = server.take_recorded(&IMPORTS);
            ensure!(
                recording.missed == 0,
                "{} changes of imports in {} were not judged",
                recording.missed,
                server.name()
            );
            for change in recording.changes {
                let Some(pool) = pool_number(&change.name) else {
                    bail!("an import that nobody asked for: {}", change.name);
                };
                let import = if change.deleted {
                    Import::default()
                } else {
                    Import::read(&change.text).context("an import")?
                };
                let at = change.at.saturating_duration_since(self.start);
                self.judged += 1;
                wrong.extend(self.model.changed(at, number, pool, import));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Waits until every import is as the model wants it.
    async fn settle(&mut self, limit: Duration) -> Result<Duration> {
        let start = self.now();
        loop {
            self.look()?;
            self.check_gate().await;
            let different = self.different();
            let taken = self.now().saturating_sub(start);
            if different.is_empty() {
                return Ok(taken);
            }
            ensure!(
                taken < limit,
                "{} imports are not as they should be after {limit:?}: {}",
                different.len(),
                different
                    .iter()
                    .take(5)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join("; ")
            );
            sleep(LOOK).await;
        }
    }

    fn different(&self) -> Vec<String> {
        let mut different = Vec::new();
        if let Some(until) = self.model.next_end(self.now()) {
            different.push(format!("an export ends at {:.1} s", until.as_secs_f64()));
        }
        for (number, server) in self.fleet.servers().iter().enumerate() {
            for key in 0..POOLS_COUNT {
                let Import { entries, mut names } = self.model.import(number, key);
                names.remove(&number);
                let wanted = self.model.wanted(self.now(), number, key);
                let there = server.changed_at(&IMPORTS, NS, &pool(key)).is_some();
                if entries != wanted || names != wanted || there == wanted.is_empty() {
                    different.push(format!(
                        "member {number}, pool {key}: {entries:?}, names {names:?} instead of {wanted:?}"
                    ));
                }
            }
        }
        different
    }

    /// What the run was worth.
    fn conclude(&mut self, quiet: Duration) -> Result<()> {
        let faults: Vec<String> = self
            .faults
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!("faults: {}", faults.join(", "));
        let strictness = self.model.strictness();
        println!(
            "{} changes, {} changes of imports judged, {:.0} % of entries without any excuse; as the model has it {:.1} s \
             after the last",
            self.changes,
            self.judged,
            strictness * 100.0,
            quiet.as_secs_f64()
        );
        ensure!(
            strictness >= STRICTNESS,
            "only {:.0} % of entries were without an excuse: this run proves little",
            strictness * 100.0
        );
        println!("{}", self.memory.judge()?);
        Ok(())
    }
}

fn pool_number(name: &str) -> Option<Pool> {
    name.strip_prefix("pool-")?.parse().ok()
}
