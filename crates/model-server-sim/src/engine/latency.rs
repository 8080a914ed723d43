//! How long things take: pure, chance included.

use std::{f64::consts::TAU, time::Duration};

use xxhash_rust::xxh64::xxh64;

use super::SequenceId;

/// Standard deviations that a draw lies from the mean at most. Three times the largest deviation, 30 %, is
/// less than the mean, so no time is ever negative.
const MOST_DEVIATIONS: f64 = 3.0;

/// 365 days: what any computed time is cut to, far from where the clock overflows.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// A time that differs from case to case, with a normal distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Its mean.
    pub mean: Duration,
    /// Standard deviation as a share of the mean: 0 to 0.3.
    pub std_dev: f64,
}

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// From the start of a sequence (not from its arrival) to its first token.
    pub first_token: Spread,
    /// Added to that for each sequence.
    pub prefill_overhead: Duration,
    /// Added to that for each prompt token that the prefix cache does not hold.
    pub prefill_per_token: Duration,
    /// Standard deviation of the last two together, as a share: 0 to 0.3.
    pub prefill_std_dev: f64,
    /// From one token to the next.
    pub inter_token: Spread,
    /// Added to a prefill whose LoRA adapter is not there yet; load does not stretch it.
    pub adapter_swap: Duration,
    /// What all of this is multiplied by when the batch is full; at least 1. In between it rises evenly with
    /// the running sequences.
    pub factor_under_load: f64,
    /// What all of this is multiplied by in any case.
    pub scale: f64,
}

/// How full the batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Sequences that run, with the one that is asked about.
    pub running: usize,
    /// Those that can.
    pub max_running: usize,
}

/// Chance that repeats: the same seed, sequence and token give the same draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dice {
    seed: u64,
}

// === impl Spread ===

impl Spread {
    /// Always the same time.
    pub fn fixed(mean: Duration) -> Self {
        Self { mean, std_dev: 0.0 }
    }

    fn draw(self, normal: f64) -> f64 {
        self.mean.as_secs_f64() * (1.0 + self.std_dev * normal)
    }
}

// === impl Latency ===

impl Latency {
    /// From the start of a sequence to its first token.
    pub fn prefill(
        &self,
        uncached_tokens: u32,
        load: Load,
        dice: Dice,
        id: SequenceId,
    ) -> Duration {
        let compute = self
            .prefill_overhead
            .saturating_add(self.prefill_per_token.saturating_mul(uncached_tokens));
        let compute = Spread {
            mean: compute,
            std_dev: self.prefill_std_dev,
        };
        let seconds = self.first_token.draw(dice.normal(id, 0, "first-token"))
            + compute.draw(dice.normal(id, 0, "prefill"));
        seconds_to_duration(seconds * self.load_factor(load) * self.scale)
    }

    /// From token number `produced` of a sequence to the next.
    pub fn next_token(&self, produced: u32, load: Load, dice: Dice, id: SequenceId) -> Duration {
        let seconds = self
            .inter_token
            .draw(dice.normal(id, produced, "inter-token"));
        seconds_to_duration(seconds * self.load_factor(load) * self.scale)
    }

    /// To bring a LoRA adapter to its place.
    pub fn adapter_swap(&self) -> Duration {
        seconds_to_duration(self.adapter_swap.as_secs_f64() * self.scale)
    }

    /// 1 for a sequence alone, `factor_under_load` in a full batch.
    fn load_factor(&self, load: Load) -> f64 {
        if load.max_running <= 1 {
            return 1.0;
        }
        let others = load.running.saturating_sub(1) as f64;
        1.0 + (self.factor_under_load - 1.0) * others / (load.max_running - 1) as f64
    }
}

impl Default for Latency {
    /// Nothing takes any time.
    fn default() -> Self {
        Self {
            first_token: Spread::default(),
            prefill_overhead: Duration::ZERO,
            prefill_per_token: Duration::ZERO,
            prefill_std_dev: 0.0,
            inter_token: Spread::default(),
            adapter_swap: Duration::ZERO,
            factor_under_load: 1.0,
            scale: 1.0,
        }
    }
}

// === impl Dice ===

impl Dice {
    /// Engines with another seed draw otherwise.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// A draw from the standard normal distribution, cut off at [`MOST_DEVIATIONS`] (Box-Muller).
    fn normal(self, id: SequenceId, token: u32, what: &str) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform(id, token, what, 0)).ln()).sqrt();
        let angle = TAU * self.uniform(id, token, what, 1);
        (radius * angle.cos()).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
    }

    /// Evenly spread over [0, 1).
    fn uniform(self, id: SequenceId, token: u32, what: &str, part: u64) -> f64 {
        let token = u64::from(token) << 1 | part;
        let seed = xxh64(&token.to_le_bytes(), xxh64(what.as_bytes(), self.seed));
        share(xxh64(&id.0.to_le_bytes(), seed))
    }
}

/// Maps a hash to [0, 1).
pub(crate) fn share(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

fn seconds_to_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds)
        .unwrap_or(LONGEST)
        .min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Load = Load {
        running: 1,
        max_running: 5,
    };

    fn mk_latency() -> Latency {
        Latency {
            prefill_overhead: Duration::from_millis(50),
            prefill_per_token: Duration::from_millis(2),
            inter_token: Spread::fixed(Duration::from_millis(10)),
            ..Latency::default()
        }
    }

    fn prefill(latency: &Latency, uncached: u32, load: Load) -> u128 {
        let taken = latency.prefill(uncached, load, Dice::new(1), SequenceId(0));
        taken.as_millis()
    }

    #[test]
    fn a_prefill_is_overhead_and_uncached_tokens() {
        assert_eq!(prefill(&mk_latency(), 100, ALONE), 250);
        assert_eq!(prefill(&mk_latency(), 0, ALONE), 50);
        let fixed = Latency {
            first_token: Spread::fixed(Duration::from_millis(7)),
            ..Latency::default()
        };
        assert_eq!(prefill(&fixed, 100, ALONE), 7);
    }

    #[test]
    fn load_and_scale_stretch_every_time() {
        let latency = Latency {
            factor_under_load: 3.0,
            scale: 0.5,
            ..mk_latency()
        };
        let stretched = [1, 3, 5].map(|running| {
            let load = Load { running, ..ALONE };
            let next = latency.next_token(1, load, Dice::new(1), SequenceId(0));
            (prefill(&latency, 100, load), next.as_millis())
        });
        assert_eq!(stretched, [(125, 5), (250, 10), (375, 15)]);
        let only = Load {
            running: 1,
            max_running: 1,
        };
        assert_eq!(
            prefill(&latency, 100, only),
            125,
            "a batch of one is never busy"
        );
    }

    #[test]
    fn draws_have_the_mean_and_the_deviation_and_repeat() {
        let latency = Latency {
            inter_token: Spread {
                mean: Duration::from_millis(100),
                std_dev: 0.3,
            },
            ..Latency::default()
        };
        let draw = |token: u32, seed: u64| {
            let taken = latency.next_token(token, ALONE, Dice::new(seed), SequenceId(4));
            taken.as_secs_f64()
        };
        let draws: Vec<_> = (0..4_000).map(|token| draw(token, 1)).collect();
        let mean = draws.iter().sum::<f64>() / 4_000.0;
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 4_000.0;
        assert!((mean - 0.1).abs() < 0.002, "{mean}");
        assert!((variance.sqrt() - 0.03).abs() < 0.002, "{variance}");
        assert!(draws.iter().all(|draw| (0.0099..=0.1901).contains(draw)));
        assert!((draw(3, 1) - draws[3]).abs() < 1e-12, "it repeats");
        assert!((draw(3, 2) - draws[3]).abs() > 1e-9, "with its seed");
    }

    #[test]
    fn the_longest_times_are_cut() {
        let latency = Latency {
            prefill_per_token: Duration::from_hours(24),
            scale: 1_000.0,
            ..Latency::default()
        };
        let taken = latency.prefill(u32::MAX, ALONE, Dice::new(1), SequenceId(0));
        assert_eq!(taken, LONGEST);
    }
}
