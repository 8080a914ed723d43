//! How good the router's choices are beside others, in a simulation; what its parts and the Processor's encoding cost.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    Figure, encode,
    router::{bounded, decide, hashing, index, memory},
};
use bench::{ReplayPrompts as Prompts, Replayed, Routing, replay};
use clap::ValueEnum;

use crate::Run;

/// How a trace's file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// JSON lines, parts of 512 ids.
    #[default]
    Mooncake,
    /// JSON lines, parts of 16 ids.
    Bailian,
}

/// What a policy made of the prompts.
type Table = Vec<(Routing, Replayed)>;

/// The small one of the samples.
const TOKENIZER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../config/standalone/models/llama"
);
const WORKERS: usize = 8;
const UNDER_WAY: [usize; 2] = [64, 256];
/// Of the generator, and of what chance decides in choices.
const SEED: u64 = 1;
/// What the generator must make: mean prompt, mean answer, reuse with a cache without end and one worker after the other;
/// and how far it may be off.
const PROMPT: (f64, f64) = (8600.0, 258.0);
const ANSWER: (f64, f64) = (180.0, 9.0);
const IDEAL: (f64, f64) = (0.600, 0.015);
const ROUND_ROBIN: (f64, f64) = (0.380, 0.015);
const HOT: [u64; 2] = [64, 512];
const BOUNDED: &str = "router, index, 10 million blocks through full workers within 64 MiB";
const STORED: usize = 10_000_000;
const MAX_BYTES: usize = 64 << 20;
/// Prompts that a worker takes until it goes: with 64 blocks each three times what it has room for, which is 87,381 blocks.
const WORKER_LIFE: u32 = 4096;
const DISTINCT: u64 = 8000;
const DISTINCT_IDS: usize = 4000;

// === impl Run ===

impl Run {
    pub(crate) fn router(&mut self) -> Result<()> {
        if let Some(file) = self.args.trace.clone() {
            self.matched = true;
            let format = match self.args.trace_format {
                TraceFormat::Mooncake => bench::TraceFormat::Mooncake,
                TraceFormat::Bailian => bench::TraceFormat::Bailian,
            };
            let text = std::fs::read_to_string(&file).context("--trace")?;
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let prompts = Prompts::read(name.into_owned(), &text, format)?;
            self.replay_all(&prompts)?;
        }
        if self.wants("router, tool-use") {
            let prompts = Prompts::tool_use(SEED);
            self.replay_all(&prompts)?;
        }
        for requests in HOT {
            let prompts = Prompts::hot_prefix(requests);
            let label = format!("router, {}", prompts.name);
            if self.wants(&label) {
                self.hot(&label, &prompts)?;
            }
        }
        if self.wants("router, no overlap") {
            self.distinct()?;
        }
        if self.wants("router, parts alone") {
            self.parts()?;
        }
        if self.wants(BOUNDED) {
            self.bounded()?;
        }
        if self.wants("tokenization") {
            self.encoding()?;
        }
        Ok(())
    }

    /// Names, index and decision, each by itself.
    fn parts(&mut self) -> Result<()> {
        for (block, blocks) in [(64, 134), (16, 537)] {
            let bytes = hashing(block, blocks);
            self.keep(Figure::new(
                format!("router, hashing, {block} ids a block: time per id"),
                4e9 / bytes,
                "ns",
            ));
        }
        let cost = index()?;
        self.keep(Figure::new(
            "router, index, 2 threads: time per operation",
            1e6 / cost.ours,
            "µs",
        ));
        self.keep(Figure::new(
            "router, index, 2 threads: operations a second / a naive index's on one",
            cost.ours / cost.oracle,
            "x",
        ));
        let mut most = 0.0_f64;
        for prompts in [1_000, 10_000, 160_000] {
            most = most.max(memory(prompts)?);
        }
        self.keep(Figure::new(
            "router, index: bytes of a worker's block",
            most,
            "B",
        ));
        for workers in [8, 64, 1000] {
            let times = decide(workers)?;
            for (name, share) in [("p99", 99), ("p50", 50)] {
                let time = times.get(times.len() * share / 100).copied();
                self.keep(Figure::new(
                    format!("router, decision, {workers} workers, 134 blocks: {name}"),
                    time.context("no decision")?.as_secs_f64() * 1e6,
                    "µs",
                ));
            }
        }
        Ok(())
    }

    /// Ten million blocks, of which there is room for some hundred thousand: each worker is full long before it goes.
    fn bounded(&mut self) -> Result<()> {
        let it = bounded(STORED, MAX_BYTES, WORKER_LIFE)?;
        let first = it.first_half as f64;
        for (what, value, unit) in [
            (
                "most bytes / the bound",
                it.most as f64 / MAX_BYTES as f64,
                "x",
            ),
            (
                "most bytes, second half / first half",
                it.second_half as f64 / first,
                "x",
            ),
            ("time per block", it.each.as_secs_f64() * 1e6, "µs"),
        ] {
            self.keep(Figure::new(format!("{BOUNDED}: {what}"), value, unit));
        }
        Ok(())
    }

    fn encoding(&mut self) -> Result<()> {
        let cost = encode(Path::new(TOKENIZER))?;
        let ratio = |of: Duration, to: Duration| of.as_secs_f64() / to.as_secs_f64();
        self.keep(Figure::new(
            "tokenization, no part cached, words cached: time per MB",
            cost.cold.as_secs_f64() * 1e9 / cost.bytes as f64,
            "ms",
        ));
        self.keep(Figure::new(
            "tokenization, no part cached / the bare tokenizer, words cached in both",
            ratio(cost.cold, cost.bare),
            "x",
        ));
        self.keep(Figure::new(
            "tokenization, 9 of 10 turns cached / none",
            ratio(cost.mostly_seen, cost.unseen),
            "x",
        ));
        Ok(())
    }

    fn replay_all(&mut self, prompts: &Prompts) -> Result<()> {
        let (mean_prompt, mean_answer) = prompts.means();
        let ideal = prompts.ideal();
        println!(
            "\n{}: {} requests, mean prompt {mean_prompt:.0}, mean answer {mean_answer:.0} ids; a cache without end reuses {ideal:.3}",
            prompts.name,
            prompts.len(),
        );
        let is_made = prompts.name == "tool-use";
        if is_made {
            near("mean prompt", mean_prompt, PROMPT)?;
            near("mean answer", mean_answer, ANSWER)?;
            near("reuse without end", ideal, IDEAL)?;
        }
        for under_way in UNDER_WAY {
            let label = format!("router, {}, {under_way} under way", prompts.name);
            let table = run_all(prompts, under_way)?;
            println!("\n{label}, {WORKERS} workers");
            print_table(&table);
            if is_made {
                near(
                    "round robin",
                    of(&table, Routing::RoundRobin)?.reuse,
                    ROUND_ROBIN,
                )?;
            }
            self.note_table(&label, &table)?;
        }
        Ok(())
    }

    fn note_table(&mut self, label: &str, table: &Table) -> Result<()> {
        let ours = of(table, Routing::Isthmus)?;
        for (routing, replayed) in table {
            let name = routing.name();
            let computed = (1.0 - replayed.reuse) * 100.0;
            self.keep(Figure::new(
                format!("{label}, {name}: ids computed"),
                computed,
                "%",
            ));
            self.keep(Figure::time(
                format!("{label}, {name}: TTFT, mean"),
                replayed.ttft,
            ));
            self.keep(Figure::time(
                format!("{label}, {name}: TPOT, mean"),
                replayed.tpot,
            ));
        }
        for other in [
            Routing::RoundRobin,
            Routing::LeastRequests,
            Routing::Affinity,
            Routing::Approximate,
            Routing::Reference,
        ] {
            let (name, theirs) = (other.name(), of(table, other)?);
            let computed = (1.0 - ours.reuse) / (1.0 - theirs.reuse);
            let ttft = ours.ttft.as_secs_f64() / theirs.ttft.as_secs_f64();
            self.keep(Figure::new(
                format!("{label}: ids computed, isthmus / {name}"),
                computed,
                "x",
            ));
            self.keep(Figure::new(
                format!("{label}: TTFT, mean, isthmus / {name}"),
                ttft,
                "x",
            ));
        }
        Ok(())
    }

    fn hot(&mut self, label: &str, prompts: &Prompts) -> Result<()> {
        let table = run_all(prompts, UNDER_WAY[0])?;
        println!("\n{label}, {WORKERS} workers");
        print_table(&table);
        let latency = |routing| -> Result<f64> { Ok(of(&table, routing)?.latency.as_secs_f64()) };
        let share = latency(Routing::Isthmus)? / latency(Routing::RoundRobin)?;
        self.keep(Figure::new(
            format!("{label}: latency, mean, isthmus / round robin"),
            share,
            "x",
        ));
        Ok(())
    }

    fn distinct(&mut self) -> Result<()> {
        let prompts = Prompts::distinct(DISTINCT, DISTINCT_IDS);
        let replayed = replay(&prompts, Routing::Isthmus, WORKERS, UNDER_WAY[0], SEED)?;
        let share = 1.0 / WORKERS as f64;
        let mean = DISTINCT as f64 * share;
        let sigma = (mean * (1.0 - share)).sqrt();
        let off = |count: &u32| (f64::from(*count) - mean).abs() / sigma;
        let most = replayed.requests.iter().map(off).fold(0.0, f64::max);
        println!(
            "\nrouter, no overlap: requests of each worker {:?}",
            replayed.requests
        );
        self.keep(Figure::new(
            "router, no overlap: requests of a worker, off the mean, by chance's sigma",
            most,
            "",
        ));
        Ok(())
    }
}

fn run_all(prompts: &Prompts, under_way: usize) -> Result<Table> {
    let run = |routing| Ok((routing, replay(prompts, routing, WORKERS, under_way, SEED)?));
    Routing::ALL.into_iter().map(run).collect()
}

fn of(table: &Table, routing: Routing) -> Result<&Replayed> {
    let found = table.iter().find(|(it, _)| *it == routing);
    found.map(|(_, replayed)| replayed).context("not replayed")
}

/// The figures hold for prompts like these alone.
fn near(what: &str, value: f64, (expected, off): (f64, f64)) -> Result<()> {
    ensure!(
        (value - expected).abs() <= off,
        "the generated prompts are not those that the figures are of: {what} {value:.3}, expected {expected} within {off}"
    );
    Ok(())
}

fn print_table(table: &Table) {
    println!(
        "{:<24}{:>8}{:>16}{:>11}{:>11}{:>10}{:>12}",
        "", "reuse", "worst computed", "TTFT mean", "TTFT p99", "TPOT", "latency"
    );
    for (routing, it) in table {
        println!(
            "{:<24}{:>8.3}{:>14.2} x{:>9.3} s{:>9.2} s{:>7.1} ms{:>10.2} s",
            routing.name(),
            it.reuse,
            it.worst,
            it.ttft.as_secs_f64(),
            it.ttft_p99.as_secs_f64(),
            it.tpot.as_secs_f64() * 1e3,
            it.latency.as_secs_f64(),
        );
    }
}
