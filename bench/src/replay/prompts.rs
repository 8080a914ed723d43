//! Prompts: of a trace's file, or made up.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use kv_router::{Seed, Seq, chain};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;

use super::BLOCK;

/// Prompts in their order.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// What it is.
    pub name: String,
    pub(super) all: Vec<Prompt>,
}

/// One prompt and the length of its answer.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// Names of its parts; each stands for all before it too.
    parts: Vec<u64>,
    /// Ids of a part.
    unit: usize,
    pub(super) ids: usize,
    pub(super) answer: u32,
    /// Of the blocks that the router and the workers know.
    pub(super) chain: Arc<[Seq]>,
}

/// How a trace's file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// JSON lines, parts of 512 ids.
    Mooncake,
    /// JSON lines, parts of 16 ids.
    Bailian,
}

#[derive(Debug, Deserialize)]
struct Line {
    input_length: usize,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// What all prompts of the generator begin with.
const COMMON: u64 = 0;
const UNIT: usize = 512;
const REQUESTS: usize = 23_608;
const TOOLS: u32 = 60;
/// Of the prompts that go on with a conversation.
const CONTINUED: f64 = 0.38;
const CONVERSATIONS: usize = 512;
const LONGEST: usize = 120_000;
/// Of the prompts that all begin with one long prefix.
const HOT: usize = 51_200;
const ANSWER: u32 = 180;

// === impl Prompts ===

impl Prompts {
    /// Requests that use tools: each tool has a long prefix, some tools are used far more than others, and part of the
    /// requests go on with a conversation.
    pub fn tool_use(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut fresh = COMMON;
        let mut make = || {
            fresh += 1;
            fresh
        };
        let tools: Vec<Vec<u64>> = (0..TOOLS)
            .map(|tool| {
                let place = f64::from((37 * tool + 25) % TOOLS) + 0.5;
                let blocks = (5.0 * (0.6 * quantile(place / f64::from(TOOLS))).exp()).round();
                let own = (0..whole(blocks)).map(|_| make());
                std::iter::once(COMMON).chain(own).collect()
            })
            .collect();
        let weights: Vec<f64> = (1..=TOOLS).map(|rank| 1.0 / f64::from(rank)).collect();
        let mut conversations: VecDeque<(usize, Vec<u64>)> = VecDeque::new();
        let mut all = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let (length, mut parts) =
                if !conversations.is_empty() && rng.random::<f64>() < CONTINUED {
                    let which = rng.random_range(0..conversations.len());
                    let (length, mut parts) = conversations.remove(which).unwrap_or_default();
                    parts.truncate(length / UNIT);
                    (length + lognormal(&mut rng, 900.0, 0.9), parts)
                } else {
                    let parts = tools[weighted(&mut rng, &weights)].clone();
                    (parts.len() * UNIT + lognormal(&mut rng, 2750.0, 1.0), parts)
                };
            let length = length.min(LONGEST);
            parts.truncate(length / UNIT);
            while parts.len() < length.div_ceil(UNIT) {
                parts.push(make());
            }
            let answer = lognormal(&mut rng, 66.0, 1.5).clamp(1, 2000);
            let answer = u32::try_from(answer).unwrap_or(2000);
            all.push(Prompt::new(parts.clone(), UNIT, length, answer));
            conversations.push_back((length, parts));
            if conversations.len() > CONVERSATIONS {
                conversations.pop_front();
            }
        }
        Self {
            name: "tool-use".to_owned(),
            all,
        }
    }

    /// So many prompts with one long prefix, and 200 ids of their own.
    pub fn hot_prefix(requests: u64) -> Self {
        let shared = (HOT / UNIT) as u64;
        let prompt = |number| {
            let parts = (0..shared).chain([shared + number]).collect();
            Prompt::new(parts, UNIT, HOT + 200, ANSWER)
        };
        Self {
            name: format!("hot prefix, {requests} requests"),
            all: (0..requests).map(prompt).collect(),
        }
    }

    /// Prompts that have nothing in common.
    pub fn distinct(requests: u64, ids: usize) -> Self {
        let parts = ids.div_ceil(UNIT) as u64;
        let prompt = |number| {
            let own = number * parts..(number + 1) * parts;
            Prompt::new(own.collect(), UNIT, ids, ANSWER)
        };
        Self {
            name: "no overlap".to_owned(),
            all: (0..requests).map(prompt).collect(),
        }
    }

    /// Reads a trace.
    /// # Errors
    /// When a line is none of the format, or has other than one name for each part.
    pub fn read(name: String, text: &str, format: TraceFormat) -> Result<Self> {
        let unit = match format {
            TraceFormat::Mooncake => 512,
            TraceFormat::Bailian => 16,
        };
        let mut all = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line: Line =
                serde_json::from_str(line).with_context(|| format!("line {number}"))?;
            ensure!(
                line.hash_ids.len() == line.input_length.div_ceil(unit),
                "line {number}: {} names for {} ids in parts of {unit}",
                line.hash_ids.len(),
                line.input_length
            );
            let answer = line.output_length.max(1);
            all.push(Prompt::new(line.hash_ids, unit, line.input_length, answer));
        }
        ensure!(!all.is_empty(), "the trace is empty");
        Ok(Self { name, all })
    }

    /// Requests.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// No requests.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Mean length of a prompt and of an answer, in ids.
    pub fn means(&self) -> (f64, f64) {
        let prompts: usize = self.all.iter().map(|it| it.ids).sum();
        let answers: u64 = self.all.iter().map(|it| u64::from(it.answer)).sum();
        let count = self.len().max(1) as f64;
        (prompts as f64 / count, answers as f64 / count)
    }

    /// The share of all ids that one cache without end has.
    pub fn ideal(&self) -> f64 {
        let mut seen = HashSet::new();
        let (mut cached, mut all) = (0, 0);
        for prompt in &self.all {
            let known = |name: &&Seq| seen.contains(*name);
            let blocks = prompt.chain.iter().take_while(known).count();
            cached += prompt.cached(blocks);
            all += prompt.ids;
            seen.extend(prompt.chain.iter().copied());
        }
        cached as f64 / all.max(1) as f64
    }
}

// === impl Prompt ===

impl Prompt {
    fn new(parts: Vec<u64>, unit: usize, ids: usize, answer: u32) -> Self {
        let mut prompt = Self {
            parts,
            unit,
            ids,
            answer,
            chain: Arc::default(),
        };
        let mut names = Vec::new();
        chain(&prompt.blocks(0), BLOCK, Seed::PLAIN, &mut names);
        prompt.chain = names.into();
        prompt
    }

    /// The ids of all full blocks from this one on. Every sixteenth stands for its part and its place therein.
    pub(super) fn blocks(&self, from: usize) -> Vec<u32> {
        let full = self.ids / BLOCK * BLOCK;
        let mut ids = vec![0; full.saturating_sub(from * BLOCK)];
        for (at, id) in ids.iter_mut().enumerate().step_by(16) {
            let place = from * BLOCK + at;
            let part = self.parts.get(place / self.unit).copied().unwrap_or(0);
            let mixed =
                (part << 9 | (place % self.unit) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *id = u32::try_from(mixed >> 32).unwrap_or(0);
        }
        ids
    }

    /// Ids that need not be computed: the last one gives the first of the answer.
    pub(super) fn cached(&self, blocks: usize) -> usize {
        (blocks * BLOCK).min(self.ids.saturating_sub(1))
    }
}

fn weighted(rng: &mut StdRng, weights: &[f64]) -> usize {
    let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
    let place = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    place.unwrap_or(0)
}

fn lognormal(rng: &mut StdRng, median: f64, sigma: f64) -> usize {
    let (one, other): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos();
    whole((median * (sigma * normal).exp()).round())
}

/// The place that this share of a standard normal distribution is below.
fn quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The share of a standard normal distribution that is below, by its series.
fn below(place: f64) -> f64 {
    let (mut term, mut sum) = (place, place);
    for number in 1..200_u32 {
        term *= -place * place / (2.0 * f64::from(number));
        sum += term / (2.0 * f64::from(number) + 1.0);
    }
    0.5 + sum / std::f64::consts::TAU.sqrt()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths: not negative, and far below 2^53"
)]
fn whole(value: f64) -> usize {
    value.max(0.0) as usize
}
