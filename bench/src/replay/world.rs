//! What happens to the requests of a trace.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use anyhow::{Context, Result};
use moment::Moment;

use super::{
    chooser::{Chooser, Routing},
    prompts::Prompts,
    worker::{Time, Worker},
};

/// What became of the requests.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Share of the prompts' ids that were cached.
    pub reuse: f64,
    /// Ids that the busiest worker computed, against the mean of all.
    pub worst: f64,
    /// From the choice to the first id of the answer, mean.
    pub ttft: Duration,
    /// The same, that one in a hundred is above.
    pub ttft_p99: Duration,
    /// Between two ids of an answer, mean of the requests.
    pub tpot: Duration,
    /// From the choice to the end, mean.
    pub latency: Duration,
    /// Requests of each worker.
    pub requests: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Prefilled {
        worker: usize,
    },
    /// An answer may be over; of the last such event of a worker alone.
    Ends {
        worker: usize,
        version: u64,
    },
}

struct World<'a> {
    prompts: &'a Prompts,
    agenda: BinaryHeap<Reverse<(Time, u64, Event)>>,
    noted: u64,
    workers: Vec<Worker>,
    versions: Vec<u64>,
    chooser: Chooser,
    waiting: VecDeque<usize>,
    /// By request.
    places: Vec<usize>,
    begun: Vec<Time>,
    first: Vec<Time>,
    ended: Vec<Time>,
    cached: usize,
}

// === impl Replayed ===

impl Replayed {
    fn new(world: &World<'_>) -> Self {
        let all = &world.prompts.all;
        let count = all.len().max(1) as f64;
        let mean = |sum: f64| Duration::from_nanos_u128(rounded(sum / count));
        let pairs = |one: &[Time], other: &[Time]| -> Vec<Time> {
            one.iter()
                .zip(other)
                .map(|(one, other)| other - one)
                .collect()
        };
        let sum = |times: &[Time]| times.iter().map(|it| *it as f64).sum::<f64>();
        let mut ttft = pairs(&world.begun, &world.first);
        let decode = pairs(&world.first, &world.ended);
        let per_id = decode
            .iter()
            .zip(all)
            .map(|(took, it)| *took as f64 / f64::from(it.answer.max(2) - 1));
        let computed: Vec<f64> = world.workers.iter().map(|it| it.computed as f64).collect();
        let mean_computed = computed.iter().sum::<f64>() / computed.len().max(1) as f64;
        let ids: usize = all.iter().map(|it| it.ids).sum();
        let ttft_mean = mean(sum(&ttft));
        ttft.sort_unstable();
        let p99 = ttft.get(ttft.len() * 99 / 100).copied().unwrap_or(0);
        Self {
            reuse: world.cached as f64 / ids.max(1) as f64,
            worst: computed.iter().copied().fold(0.0, f64::max) / mean_computed,
            ttft: ttft_mean,
            ttft_p99: Duration::from_nanos(p99),
            tpot: mean(per_id.sum()),
            latency: mean(sum(&pairs(&world.begun, &world.ended))),
            requests: world.workers.iter().map(|it| it.requests).collect(),
        }
    }
}

/// What becomes of the prompts when so many are always under way. The same each time.
/// # Errors
/// When no worker can be chosen.
pub fn replay(
    prompts: &Prompts,
    routing: Routing,
    workers: usize,
    concurrent: usize,
    seed: u64,
) -> Result<Replayed> {
    let count = prompts.len();
    let mut world = World {
        prompts,
        agenda: BinaryHeap::new(),
        noted: 0,
        workers: (0..workers).map(|_| Worker::new()).collect(),
        versions: vec![0; workers],
        chooser: Chooser::new(routing, workers, seed),
        waiting: (0..count).collect(),
        places: vec![0; count],
        begun: vec![0; count],
        first: vec![0; count],
        ended: vec![0; count],
        cached: 0,
    };
    for _ in 0..concurrent {
        world.arrive(0)?;
    }
    while let Some(Reverse((now, _, event))) = world.agenda.pop() {
        match event {
            Event::Prefilled { worker } => world.prefilled(worker, now)?,
            Event::Ends { worker, version } if world.versions[worker] == version => {
                while let Some(request) = world.workers[worker].ended(now) {
                    world.ended[request] = now;
                    world.chooser.ended(request, worker, moment(now));
                    world.arrive(now)?;
                }
                world.note_end(worker, now);
            }
            Event::Ends { .. } => {}
        }
    }
    Ok(Replayed::new(&world))
}

// === impl World ===

impl World<'_> {
    /// The next request, if there is one.
    fn arrive(&mut self, now: Time) -> Result<()> {
        let Some(request) = self.waiting.pop_front() else {
            return Ok(());
        };
        let prompt = &self.prompts.all[request];
        let worker = self.chooser.choose(request, prompt, moment(now))?;
        self.begun[request] = now;
        self.places[request] = worker;
        self.workers[worker].submit(request);
        self.begin(worker, now);
        Ok(())
    }

    fn prefilled(&mut self, worker: usize, now: Time) -> Result<()> {
        let all = &self.prompts.all;
        let done = self.workers[worker].prefilled(all, now);
        let (request, cached, changed) = done.context("no prompt was computed")?;
        self.first[request] = now;
        self.cached += all[request].cached(cached);
        self.chooser
            .prefilled(request, worker, &all[request], changed, moment(now))?;
        self.begin(worker, now);
        self.note_end(worker, now);
        Ok(())
    }

    fn begin(&mut self, worker: usize, now: Time) {
        if let Some(took) = self.workers[worker].begin(&self.prompts.all) {
            self.note(now + took, Event::Prefilled { worker });
        }
    }

    fn note_end(&mut self, worker: usize, now: Time) {
        self.versions[worker] += 1;
        let version = self.versions[worker];
        if let Some(left) = self.workers[worker].next_end() {
            self.note(now + left, Event::Ends { worker, version });
        }
    }

    fn note(&mut self, at: Time, event: Event) {
        self.noted += 1;
        self.agenda.push(Reverse((at, self.noted, event)));
    }
}

fn moment(at: Time) -> Moment {
    Moment::after_start(Duration::from_nanos(at))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds, not negative"
)]
fn rounded(value: f64) -> u128 {
    value.max(0.0) as u128
}
