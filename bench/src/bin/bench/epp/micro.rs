//! Parts of a pick alone, in this process: choices, prefix index, bodies, metrics pages. Times of one thread are processor times;
//! what else the machine does takes part in them only through its caches. Threads beside each other are timed by the clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hint::black_box,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use bench::Figure;
use epp::{Api, EngineTable};
use nix::time::ClockId;
use rand::{SeedableRng, rngs::StdRng};
use scheduling::{
    Booking, DEFAULT_TRANSIT, EndpointId, Member, Moment, Profile, Registry, Request, Scraped,
    Slot, Snapshot, Table, choose,
    prefix::{PrefixIndex, chain, seed},
};
use serde::de::IgnoredAny;
use tokio::time::Instant;

use crate::middle;

/// How much is done for a figure.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    /// Of the calls of a round.
    divisor: u32,
}

const FULL: Effort = Effort {
    rounds: 15,
    divisor: 1,
};
const QUICK: Effort = Effort {
    rounds: 3,
    divisor: 20,
};
/// As the program has them.
const INDEX_BYTES: usize = 512 << 20;
const INDEX_SHARDS: usize = 64;
const BLOCK_TOKENS: u32 = 64;
/// Of the matches.
const BLOCKS: usize = 512;
const ENDPOINTS: usize = 100;
/// Different prompts of picks, 4 KB each.
const PROMPTS: u64 = 64;
const PROMPT_BLOCKS: usize = 16;
/// Own requests in flight while the next is picked for.
const IN_FLIGHT: usize = 32;
/// How long threads match beside each other.
const BESIDE: Duration = Duration::from_secs(1);
/// Threads that the goal is of, which need as many cores.
const THREADS: usize = 8;
const PAGE_BYTES: usize = 30_000;

/// All that is chosen by label.
pub(super) fn figures(chosen: &impl Fn(&str) -> bool, quick: bool) -> Result<Vec<Figure>> {
    let effort = if quick { QUICK } else { FULL };
    let mut figures = Vec::new();
    for count in [10, 100, 1000] {
        let label = format!("a pick from {count} endpoints");
        if chosen(&label) {
            figures.push(Figure::new(label, pick(count, effort)?, "µs"));
        }
    }
    if chosen("prefix index") {
        matches(effort, &mut figures)?;
        threads(&mut figures)?;
    }
    for (label, size) in BODIES {
        if chosen(label) {
            body(label, size, effort, &mut figures)?;
        }
    }
    if chosen(PAGE) {
        figures.push(page(effort)?);
    }
    Ok(figures)
}

// === impl Effort ===

impl Effort {
    /// Microseconds of one call: the median of some rounds of `times` calls.
    fn measure(self, times: u32, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
        let times = times.div_ceil(self.divisor);
        let mut rounds = Vec::new();
        for _ in 0..self.rounds {
            let before = processor_time()?;
            for _ in 0..times {
                call()?;
            }
            let took = processor_time()?.saturating_sub(before);
            rounds.push(took.as_secs_f64() * 1e6 / f64::from(times));
        }
        Ok(middle(&rounds))
    }
}

/// What this thread has run so far.
fn processor_time() -> Result<Duration> {
    Ok(Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now()?))
}

/// So many members, each scraped just now.
fn mk_snapshot(count: usize) -> Result<Snapshot> {
    let member = |number: usize| {
        let [.., high, low] = u32::try_from(number)?.to_be_bytes();
        let pod: Arc<str> = format!("pod-{number:04}").into();
        Ok(Member {
            id: EndpointId {
                namespace: "ml".into(),
                uid: Arc::clone(&pod),
                pod,
                rank: 0,
            },
            address: (Ipv4Addr::new(10, 0, high, low), 8000).into(),
            engine: "".into(),
            labels: Arc::default(),
        })
    };
    let members = (0..count).map(member).collect::<Result<_>>()?;
    let snapshot = Registry::default().update(members, Moment::START);
    for (number, endpoint) in snapshot.endpoints().enumerate() {
        let page = Scraped {
            waiting: Some((number % 5) as f64),
            running: Some(8.0),
            kv: Some((number % 10) as f64 / 10.0),
            ..Scraped::default()
        };
        let load = endpoint.load();
        let taken = load.scraped(load.scrape_starts(Moment::START), page);
        ensure!(taken.is_ok(), "a page without values");
    }
    Ok(snapshot)
}

/// A chain that no other number has, of hashes as good as real ones.
fn mk_chain(number: u64, blocks: usize) -> Vec<u64> {
    chain(
        number,
        std::iter::repeat_n([0].as_slice(), blocks),
        1,
        blocks,
    )
}

/// All that a pick does once the body is read: loads, matches, scores, choice, booking, blocks into the index.
fn pick(endpoints: usize, effort: Effort) -> Result<f64> {
    let snapshot = mk_snapshot(endpoints)?;
    let (index, profile) = (
        PrefixIndex::new(INDEX_BYTES, INDEX_SHARDS),
        Profile::default(),
    );
    let requests: Vec<Request> = (0..PROMPTS)
        .map(|number| Request {
            prefix: mk_chain(number, PROMPT_BLOCKS),
            block_tokens: BLOCK_TOKENS,
            prompt_tokens: 1024,
            ..Request::default()
        })
        .collect();
    let (mut table, mut matched) = (Table::default(), vec![0; endpoints]);
    let (mut rng, mut bookings) = (StdRng::seed_from_u64(1), VecDeque::new());
    let (now, mut next) = (Moment::from_millis(1), requests.iter().cycle());
    effort.measure(2000, || {
        let request = next.next().context("no request")?;
        snapshot.read_into(&mut table, now, profile.freshness, profile.uses_adapters());
        index.matches(&request.prefix, &table.cache_slots, &mut matched);
        let choice = choose(&table, request, &matched, &profile, &mut rng)?;
        let member = choice.first().context("no choice")?.member;
        let endpoint = Arc::clone(&snapshot.members()[member].endpoint);
        bookings.push_back(Booking::new(endpoint, 0, None, now, DEFAULT_TRANSIT));
        index.insert(&request.prefix, table.cache_slots[member]);
        if bookings.len() > IN_FLIGHT {
            bookings.pop_front();
        }
        Ok(())
    })
}

/// A map and nothing else: the plainest index there is.
#[derive(Default)]
struct Naive(BTreeMap<u64, BTreeSet<u32>>);

impl Naive {
    fn insert(&mut self, chain: &[u64], slot: Slot) {
        for hash in chain {
            self.0.entry(*hash).or_default().insert(slot.index);
        }
    }

    fn matches(&self, chain: &[u64], slots: &[Slot], matched: &mut [u32]) {
        for (slot, matched) in slots.iter().zip(matched) {
            let has = |hash: &&u64| {
                self.0
                    .get(hash)
                    .is_some_and(|has| has.contains(&slot.index))
            };
            *matched = u32::try_from(chain.iter().take_while(has).count()).unwrap_or(u32::MAX);
        }
    }
}

fn mk_slots() -> Result<Vec<Slot>> {
    let slot = |index| {
        Ok(Slot {
            index: u32::try_from(index)?,
            generation: 0,
        })
    };
    (0..ENDPOINTS).map(slot).collect()
}

fn matches(effort: Effort, figures: &mut Vec<Figure>) -> Result<()> {
    let label = format!("prefix index, {BLOCKS} blocks x {ENDPOINTS} endpoints");
    let (slots, prompt) = (mk_slots()?, mk_chain(0, BLOCKS));
    let all = |_: usize| BLOCKS;
    let stairs = |at: usize| BLOCKS * (at + 1) / ENDPOINTS;
    let cases = [
        ("all have all", &all as &dyn Fn(usize) -> usize),
        ("each has more than the one before", &stairs),
    ];
    for (name, has) in cases {
        let (index, mut naive) = (
            PrefixIndex::new(INDEX_BYTES, INDEX_SHARDS),
            Naive::default(),
        );
        for (at, slot) in slots.iter().enumerate() {
            let other = mk_chain(1 + at as u64, BLOCKS);
            for chain in [&prompt[..has(at)], &other] {
                index.insert(chain, *slot);
                naive.insert(chain, *slot);
            }
        }
        let (mut ours, mut theirs) = (vec![0; ENDPOINTS], vec![0; ENDPOINTS]);
        let time = effort.measure(200, || {
            index.matches(black_box(&prompt), &slots, &mut ours);
            Ok(())
        })?;
        let naive_time = effort.measure(2, || {
            naive.matches(black_box(&prompt), &slots, &mut theirs);
            Ok(())
        })?;
        ensure!(
            ours == theirs,
            "the index is wrong: {ours:?}, not {theirs:?}"
        );
        figures.push(Figure::new(format!("{label}, {name}: a match"), time, "µs"));
        let share = time / naive_time;
        figures.push(Figure::new(
            format!("{label}, {name}: a match / a naive index's"),
            share,
            "x",
        ));
    }
    Ok(())
}

/// Threads that match beside each other, each with a core of its own if there are as many.
fn threads(figures: &mut Vec<Figure>) -> Result<()> {
    let index = PrefixIndex::new(INDEX_BYTES, INDEX_SHARDS);
    let slots = mk_slots()?;
    let chains: Vec<Vec<u64>> = (0..50).map(|number| mk_chain(number, BLOCKS)).collect();
    for chain in &chains {
        for slot in slots.iter().step_by(3) {
            index.insert(chain, *slot);
        }
    }
    let one = matches_per_second(&index, &slots, &chains, 1)?;
    let two = matches_per_second(&index, &slots, &chains, 2)?;
    let name = "prefix index, matches a second: of 2 threads / of 1";
    figures.push(Figure::new(name, two / one, "x"));
    let cores = thread::available_parallelism()?.get();
    if cores >= THREADS {
        let eight = matches_per_second(&index, &slots, &chains, THREADS)?;
        let name = "prefix index, matches a second: of 1 thread / of 8";
        figures.push(Figure::new(name, one / eight, "x"));
    } else {
        println!("{cores} cores: what {THREADS} threads match beside each other is not measured");
    }
    Ok(())
}

/// Of all threads together, by the clock: threads that wait for each other match less.
fn matches_per_second(
    index: &PrefixIndex,
    slots: &[Slot],
    chains: &[Vec<u64>],
    threads: usize,
) -> Result<f64> {
    let stop = AtomicBool::new(false);
    let run = |thread: usize| -> Result<f64> {
        let (mut matched, mut calls) = (vec![0; slots.len()], 0.0);
        let before = Instant::now();
        for chain in chains.iter().cycle().skip(thread * chains.len() / threads) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            index.matches(black_box(chain), slots, &mut matched);
            calls += 1.0;
        }
        Ok(calls / before.elapsed().as_secs_f64())
    };
    let run = &run;
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        thread::sleep(BESIDE);
        stop.store(true, Ordering::Relaxed);
        let join = |one: thread::ScopedJoinHandle<'_, Result<f64>>| {
            one.join().map_err(|_| anyhow!("a matching thread"))?
        };
        running.into_iter().map(join).sum()
    })
}

const BODIES: [(&str, usize); 5] = [
    ("a body of 1 KB", 1_000),
    ("a body of 10 KB", 10_000),
    ("a body of 100 KB", 100_000),
    ("a body of 400 KB", 400_000),
    ("a body of 4 MB", 4_000_000),
];

/// Blocks of a prompt that are hashed: the EPP's own limit.
const MAX_BLOCKS: usize = 2048;

/// A chat is read: its model and the places of its prompt; and what the blocks of the prompt take.
fn body(label: &str, size: usize, effort: Effort, figures: &mut Vec<Figure>) -> Result<()> {
    let head = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":""#;
    let tail = r#""}]}"#;
    let words = "the quick brown fox said \\\"no\\\" to the lazy dog ";
    let filling = words.repeat(size.div_ceil(words.len()));
    let room = size.saturating_sub(head.len() + tail.len());
    let filling = filling.get(..room).context("text of single bytes")?;
    // what is cut off may be half an escape
    let body = format!("{head}{}{tail}", filling.trim_end_matches('\\'));
    let api = Api::for_path(b"/v1/chat/completions")?.context("no such path")?;
    let times = u32::try_from(20_000_000 / size)?.clamp(5, 2000);
    let read = effort.measure(times, || {
        black_box(api.parse(black_box(body.as_bytes()))?);
        Ok(())
    })?;
    figures.push(Figure::new(format!("{label}: read"), read, "µs"));
    let pass = effort.measure(times, || {
        let _: IgnoredAny = black_box(serde_json::from_str(black_box(&body))?);
        Ok(())
    })?;
    let name = format!("{label}: read / one pass of a JSON reader that keeps nothing");
    figures.push(Figure::new(name, read / pass, "x"));
    let bytes = usize::try_from(BLOCK_TOKENS)? * 4;
    let start = seed("m", None);
    let hash = effort.measure(times, || {
        let spans = [black_box(body.as_bytes())];
        black_box(chain(start, spans, bytes, MAX_BLOCKS));
        Ok(())
    })?;
    let hashed = MAX_BLOCKS * bytes;
    let blocks = if body.len() > hashed {
        format!("first {MAX_BLOCKS} blocks ({} KB)", hashed / 1024)
    } else {
        "blocks".to_owned()
    };
    let name = format!("{label}: hashes of its {blocks}");
    figures.push(Figure::new(name, hash, "µs"));
    Ok(())
}

const PAGE: &str = "a metrics page of 30 KB";

/// A page of vLLM: the few values that count, and histograms.
fn page(effort: Effort) -> Result<Figure> {
    let page = mk_page();
    let mut scanner = EngineTable::default().scanner("vllm");
    let time = effort.measure(200, || {
        scanner.feed(black_box(page.as_bytes()));
        let scraped = scanner.finish();
        ensure!(scraped.waiting == Some(3.0), "the page was not read");
        Ok(())
    })?;
    Ok(Figure::new(format!("{PAGE}: read"), time, "µs"))
}

fn mk_page() -> String {
    let labels = r#"engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct""#;
    let gauges = [
        ("num_requests_running", "12.0"),
        ("num_requests_waiting", "3.0"),
        ("kv_cache_usage_perc", "0.42"),
    ];
    let gauge = |(name, value)| {
        format!(
            "# HELP vllm:{name} Text.\n# TYPE vllm:{name} gauge\nvllm:{name}{{{labels}}} {value}\n"
        )
    };
    let mut page: String = gauges.map(gauge).concat();
    page += "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"27000\"} 1.0\n";
    page += "process_start_time_seconds 1.76e+09\n";
    let bucket = |bound| {
        format!("vllm:time_to_first_token_seconds_bucket{{le=\"{bound}.0\",{labels}}} {bound}.0\n")
    };
    let buckets = PAGE_BYTES.saturating_sub(page.len()) / bucket(100).len();
    page.extend((0..=buckets).map(bucket));
    page
}
