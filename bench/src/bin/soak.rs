//! `soak --controller PROGRAM`: members die and come back, pools and namespaces come and go, and a model that knows what
//! was done looks at every import all the while (P3: no entry goes without evidence). `cargo xtask soak` runs it.
#![allow(clippy::print_stdout, reason = "a terminal program")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use apiserver_sim::{IMPORTS, POOLS, entries_of};
use bench::{Controller, Fleet, FleetOptions, Model, NS, raise_open_files};
use clap::Parser;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

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
}

/// Pools, and members that may export each.
const POOLS_COUNT: usize = 12;
const EXPORTERS: usize = 5;
const LATE: Duration = Duration::from_millis(5);
/// One member dies each second; each is down for some seconds.
const KILL: Duration = Duration::from_secs(1);
const DOWN_SECONDS: std::ops::Range<u64> = 3..15;
/// A pool, an address or a namespace changes this often.
const CHURN: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(250);
/// All are up and nothing changes: the longest reconnect backoff (30 s), the list, and a retried write.
const QUIET: Duration = Duration::from_secs(90);
/// From nothing to all imports, on a machine that does much else.
const FILL: Duration = Duration::from_mins(3);
/// What RSS may grow by over the measured part of a run: the noise of an allocator that returns pages late. A leak of a
/// kilobyte for each of the ten changes and one death a second would pass it in two hours, so growth is also set against
/// the mean: a tenth.
const SLACK_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
const SLACK_SHARE: f64 = 0.1;

struct Soak {
    fleet: Fleet,
    model: Model,
    rng: StdRng,
    start: Instant,
    /// Members that are down, and until when.
    down: BTreeMap<usize, Instant>,
    /// What was last looked at in each import.
    looked: BTreeMap<(usize, usize), Option<Instant>>,
    entries: BTreeMap<(usize, usize), BTreeSet<usize>>,
    looks: u64,
    kills: u64,
    changes: u64,
    wrong: Vec<String>,
    rss: Vec<(f64, f64)>,
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
    let fleet = Fleet::start(options, &args.controller, &args.logs)?;
    let mut soak = Soak {
        fleet,
        model: Model::new(args.members),
        rng: StdRng::seed_from_u64(seed),
        start: Instant::now(),
        down: BTreeMap::new(),
        looked: BTreeMap::new(),
        entries: BTreeMap::new(),
        looks: 0,
        kills: 0,
        changes: 0,
        wrong: Vec::new(),
        rss: Vec::new(),
    };
    for pool in 0..POOLS_COUNT {
        for step in 0..EXPORTERS {
            soak.set_export(soak.exporter(pool, step), pool, true);
        }
    }
    let mut controller = soak.fleet.controller("soak", None)?;
    controller.ready(Duration::from_mins(2)).await?;
    soak.settle(FILL).await.context("before anything happens")?;
    println!(
        "all imports are there after {:.1} s",
        soak.start.elapsed().as_secs_f64()
    );

    soak.happen(Duration::from_secs(args.seconds), &controller)
        .await?;
    soak.revive(true).await?;
    let quiet = soak.settle(QUIET).await.context("after all came back")?;
    println!(
        "{} deaths, {} changes, {} looks at imports; as the model has it {:.1} s after the last",
        soak.kills,
        soak.changes,
        soak.looks,
        quiet.as_secs_f64()
    );
    soak.judge_memory()?;
    controller.stop().await?;
    Ok(())
}

// === impl Soak ===

impl Soak {
    /// Things happen for a while; an error as soon as something is wrong.
    async fn happen(&mut self, time: Duration, controller: &Controller) -> Result<()> {
        let begin = Instant::now();
        let ticker = |period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            ticks
        };
        let (mut kills, mut churn, mut looks) = (ticker(KILL), ticker(CHURN), ticker(LOOK));
        let mut memory = ticker(Duration::from_secs(1));
        while begin.elapsed() < time {
            tokio::select! {
                _ = kills.tick() => {
                    self.kill();
                    self.revive(false).await?;
                }
                _ = churn.tick() => self.change(),
                _ = looks.tick() => {
                    self.look();
                    ensure!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
                }
                _ = memory.tick() => {
                    let usage = controller.usage().context("the controller is gone")?;
                    self.rss.push((begin.elapsed().as_secs_f64(), usage.rss as f64));
                }
            }
        }
        Ok(())
    }

    fn exporter(&self, pool: usize, step: usize) -> usize {
        (pool * EXPORTERS + step) % self.fleet.servers().len()
    }

    fn kill(&mut self) {
        let number = self.rng.random_range(0..self.fleet.servers().len());
        if self.down.contains_key(&number) {
            return;
        }
        if let Some(server) = self.fleet.servers().get(number) {
            server.stop();
            let time = Duration::from_secs(self.rng.random_range(DOWN_SECONDS));
            self.down.insert(number, Instant::now() + time);
            self.kills += 1;
        }
    }

    async fn revive(&mut self, all: bool) -> Result<()> {
        let now = Instant::now();
        let due = self.down.iter().filter(|(_, until)| all || **until <= now);
        let due: Vec<usize> = due.map(|(number, _)| *number).collect();
        for number in due {
            let server = self.fleet.servers().get(number).context("no such member")?;
            server.restart().await?;
            self.down.remove(&number);
        }
        Ok(())
    }

    /// One change in one member, up or down: what is done while nobody looks must be found later.
    fn change(&mut self) {
        self.changes += 1;
        let pool = self.rng.random_range(0..POOLS_COUNT);
        let step = self.rng.random_range(0..EXPORTERS);
        let member = self.exporter(pool, step);
        match self.rng.random_range(0..100) {
            0..2 => {
                let any = self.rng.random_range(0..self.fleet.servers().len());
                self.turn_namespace(any);
            }
            2..30 => {
                let address = format!("198.51.100.{}", self.rng.random_range(1..255));
                if let Some(server) = self.fleet.servers().get(member) {
                    self.fleet.move_epp(server, &address);
                }
            }
            30..45 => self.delete_pool(member, pool),
            _ => {
                let exports = self.model.exports(member, pool);
                self.set_export(member, pool, !exports);
            }
        }
    }

    /// The model hears of an end before it happens and of a beginning after: it must never be behind the controller.
    fn set_export(&mut self, member: usize, pool: usize, export: bool) {
        let Some(server) = self.fleet.servers().get(member) else {
            return;
        };
        if !self.model.has_namespace(member) {
            return;
        }
        if export {
            server.export(NS, &name(pool));
            self.model.exported(member, pool);
        } else {
            self.model.unexported(member, pool);
            server.unexport(NS, &name(pool));
        }
    }

    fn delete_pool(&mut self, member: usize, pool: usize) {
        self.model.unexported(member, pool);
        if let Some(server) = self.fleet.servers().get(member) {
            server.delete(&POOLS, NS, &name(pool));
        }
    }

    fn turn_namespace(&mut self, member: usize) {
        let Some(server) = self.fleet.servers().get(member) else {
            return;
        };
        if self.model.has_namespace(member) {
            self.model.namespace_deleted(member);
            server.delete_namespace(NS);
        } else {
            server.add_epp(NS, "192.0.2.1");
            self.model.namespace_created(member);
        }
    }

    /// Looks at the imports that changed since.
    fn look(&mut self) {
        self.model.at(self.start.elapsed());
        for (number, server) in self.fleet.servers().iter().enumerate() {
            for pool in 0..POOLS_COUNT {
                let found = server.text(&IMPORTS, NS, &name(pool));
                let at = found.as_ref().map(|(at, _)| *at);
                let place = (number, pool);
                if self.looked.get(&place) != Some(&at) {
                    self.looks += 1;
                    self.looked.insert(place, at);
                    let text = found.as_ref().map_or(&b""[..], |(_, text)| text);
                    self.entries.insert(place, entries(&entries_of(text)));
                }
                // what is as it was was seen now, too: its evidence must be newer
                let entries = self.entries.get(&place).cloned().unwrap_or_default();
                self.wrong.extend(self.model.look(number, pool, &entries));
            }
        }
    }

    /// Waits until every import is as the model wants it.
    async fn settle(&mut self, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        loop {
            self.look();
            ensure!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
            let different = self.different();
            if different.is_empty() {
                return Ok(start.elapsed());
            }
            ensure!(
                start.elapsed() < limit,
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
        for number in 0..self.fleet.servers().len() {
            for pool in 0..POOLS_COUNT {
                // as last looked at
                let found = self
                    .entries
                    .get(&(number, pool))
                    .cloned()
                    .unwrap_or_default();
                let there = self
                    .looked
                    .get(&(number, pool))
                    .is_some_and(Option::is_some);
                let wanted = self.model.wanted(number, pool);
                if found != wanted || (there && wanted.is_empty()) {
                    different.push(format!(
                        "member {number}, pool {pool}: {found:?} instead of {wanted:?}"
                    ));
                }
            }
        }
        different
    }

    /// The line through the samples of the last three quarters, from its begin to its end.
    fn judge_memory(&self) -> Result<()> {
        let samples = self.rss.get(self.rss.len() / 4..).unwrap_or_default();
        ensure!(
            samples.len() >= 10,
            "only {} samples of memory",
            samples.len()
        );
        let count = samples.len() as f64;
        let mean = |pick: fn(&(f64, f64)) -> f64| samples.iter().map(pick).sum::<f64>() / count;
        let (middle, rss) = (mean(|one| one.0), mean(|one| one.1));
        let (mut above, mut below) = (0.0, 0.0);
        for (at, bytes) in samples {
            above += (at - middle) * (bytes - rss);
            below += (at - middle) * (at - middle);
        }
        let span =
            samples.last().map_or(0.0, |one| one.0) - samples.first().map_or(0.0, |one| one.0);
        let growth = above / below * span;
        let slack = SLACK_BYTES.max(rss * SLACK_SHARE);
        let mib = |bytes: f64| bytes / (1024.0 * 1024.0);
        println!(
            "RSS {:.1} MiB on average, grows by {:.1} MiB in {span:.0} s; allowed: {:.1}",
            mib(rss),
            mib(growth),
            mib(slack)
        );
        ensure!(
            growth <= slack,
            "memory grows by {:.1} MiB in {span:.0} s",
            mib(growth)
        );
        Ok(())
    }
}

fn name(pool: usize) -> String {
    format!("pool-{pool:04}")
}

/// Members by their numbers.
fn entries(names: &[String]) -> BTreeSet<usize> {
    let numbers = names
        .iter()
        .filter_map(|name| name.strip_prefix('m')?.parse().ok());
    numbers.collect()
}
