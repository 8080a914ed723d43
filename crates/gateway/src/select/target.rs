//! Which clusters of an import get requests, how many and in which order, by what is known of them now (pure).

use moment::Moment;

use super::policy::{OrderRule, Policy, Strategy};

/// Least factor of free KV cache: a full cache slows a cluster down, and its queue says by how much.
const LEAST_FREE: f64 = 0.05;

/// Most endpoints of a pool and most waiting requests of one that count: what another cluster reports has no bound of its own.
const MAX_READY: f64 = 10_000.0;
const MAX_QUEUE: f64 = 1_000_000.0;

/// The last priority that Envoy takes is 128. Clusters that would follow share the last one here.
const LAST_PRIORITY: u32 = 127;

/// One cluster that requests could go to.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each may be so without the others"
)]
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'a str,
    /// It is this cluster.
    pub(crate) is_local: bool,
    /// Requests can reach its endpoints without its endpoint picker.
    pub(crate) fails_open: bool,
    pub(crate) healthy: bool,
    /// It is the one that all requests go to now, where there is an order.
    pub(crate) is_current: bool,
    /// When it became healthy, ready or a cluster of the import again; `None`: it always was.
    pub(crate) recovered: Option<Moment>,
    /// Free capacity by fresh metrics; `None`: there are none.
    pub(crate) score: Option<f64>,
}

/// What one cluster shall get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Target {
    /// Requests may go to it.
    pub(crate) serves: bool,
    /// Clusters of a higher number get requests only while those of the lower ones have failed.
    pub(crate) priority: u32,
    /// Share of the requests of its priority, 0 to 1. Where clusters share the last priority, each has 1.
    pub(crate) share: f64,
}

/// What an endpoint picker reports of its pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PoolLoad {
    /// Endpoints that are ready.
    pub(crate) ready: f64,
    /// Mean number of waiting requests of an endpoint.
    pub(crate) queue: f64,
    /// Mean used share of the KV caches, 0 to 1.
    pub(crate) kv: f64,
}

// === impl PoolLoad ===

impl PoolLoad {
    /// Free capacity in endpoints: all of those that are ready where nothing waits and the caches are empty.
    pub(crate) fn score(self, queue_target: f64) -> f64 {
        let free = bounded(1.0 - self.kv, 1.0).max(LEAST_FREE);
        bounded(self.ready, MAX_READY) * free
            / (1.0 + bounded(self.queue, MAX_QUEUE) / queue_target)
    }
}

/// From 0 to `most`; what is no number is 0.
fn bounded(value: f64, most: f64) -> f64 {
    if value.is_nan() {
        0.0
    } else {
        value.clamp(0.0, most)
    }
}

/// In the order of the candidates.
pub(crate) fn target(policy: &Policy, candidates: &[Candidate<'_>], now: Moment) -> Vec<Target> {
    let serves = serving(candidates);
    match &policy.strategy {
        Strategy::HealthBased => spread(&serves, |_| 1.0),
        Strategy::MetricsBased(_) => {
            let scores = scores(candidates, &serves);
            spread(&serves, |at| scores[at])
        }
        Strategy::ActivePassive(rule) => ranked(rule, candidates, &serves, now),
    }
}

/// Which candidates may get requests: the healthy ones. With none, a guess is better than a certain failure: those that
/// need no endpoint picker, else all.
fn serving(candidates: &[Candidate<'_>]) -> Vec<bool> {
    let that = |choose: fn(&Candidate<'_>) -> bool| -> Option<Vec<bool>> {
        let chosen: Vec<bool> = candidates.iter().map(choose).collect();
        chosen.contains(&true).then_some(chosen)
    };
    that(|one| one.healthy)
        .or_else(|| that(|one| one.fails_open))
        .unwrap_or_else(|| vec![true; candidates.len()])
}

/// A cluster without a score counts as the mean of the others; without any score all are equal.
fn scores(candidates: &[Candidate<'_>], serves: &[bool]) -> Vec<f64> {
    let of_serving = candidates.iter().zip(serves).filter(|(_, serves)| **serves);
    let known: Vec<f64> = of_serving.filter_map(|(one, _)| one.score).collect();
    if known.is_empty() {
        return vec![1.0; candidates.len()];
    }
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    let scores = candidates.iter().map(|one| one.score.unwrap_or(mean));
    scores.collect()
}

/// All of one priority, by weight; equal where no weight is above zero.
fn spread(serves: &[bool], weight: impl Fn(usize) -> f64) -> Vec<Target> {
    let of = |at: usize| if serves[at] { weight(at) } else { 0.0 };
    let sum: f64 = (0..serves.len()).map(of).sum();
    let count = serves.iter().filter(|serves| **serves).count();
    let target = |(at, serves): (usize, &bool)| Target {
        serves: *serves,
        priority: 0,
        share: if !serves {
            0.0
        } else if sum > 0.0 {
            of(at) / sum
        } else {
            1.0 / count as f64
        },
    };
    serves.iter().enumerate().map(target).collect()
}

/// A priority for each: the serving ones first, and of these those that have been healthy for long enough. The one that serves
/// now need not wait: requests would move twice.
fn ranked(
    rule: &OrderRule,
    candidates: &[Candidate<'_>],
    serves: &[bool],
    now: Moment,
) -> Vec<Target> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_cached_key(|at| {
        let one = &candidates[*at];
        let recovered = one.recovered.filter(|_| !one.is_current);
        let is_held = recovered.is_some_and(|since| now.since(since) < rule.failback);
        let listed = rule.order.iter().position(|name| name == one.name);
        let listed = listed.unwrap_or(usize::MAX);
        (!serves[*at], is_held, listed, !one.is_local, one.name)
    });
    let mut targets = vec![
        Target {
            serves: false,
            priority: LAST_PRIORITY,
            share: 0.0,
        };
        candidates.len()
    ];
    for (rank, at) in (0..).zip(order) {
        targets[at] = Target {
            serves: serves[at],
            priority: rank.min(LAST_PRIORITY),
            share: if serves[at] { 1.0 } else { 0.0 },
        };
    }
    targets
}

#[cfg(test)]
mod tests;
