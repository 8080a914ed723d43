//! Counts and distributions of what the engine did.

use std::time::Duration;

use super::{Event, Finish};

/// Upper bounds in seconds of vLLM's histogram of the time to first token.
const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Upper bounds in seconds of vLLM's histogram of the time between tokens.
const INTER_TOKEN_BUCKETS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Upper bounds in seconds of vLLM's histograms of whole requests and their phases.
const REQUEST_BUCKETS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Everything counted since the start.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Prompt tokens of sequences whose prompt was computed.
    pub prompt_tokens: u64,
    /// Prompt tokens looked for in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found there.
    pub prefix_hits: u64,
    /// Tokens made.
    pub generation_tokens: u64,
    /// Sequences ended with [`Finish::Stop`].
    pub stopped: u64,
    /// Sequences ended with [`Finish::Length`].
    pub cut: u64,
    /// Sequences cancelled.
    pub aborted: u64,
    /// Arrival to first token.
    pub time_to_first_token: Histogram,
    /// Token to token.
    pub inter_token: Histogram,
    /// Arrival to end, of sequences that were not cancelled.
    pub e2e: Histogram,
    /// Arrival to start.
    pub queue: Histogram,
    /// Start to first token.
    pub prefill: Histogram,
    /// First token to end.
    pub decode: Histogram,
}

/// A distribution of durations over fixed buckets.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One count per bound, not cumulated; what is above the last is only in `count`.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

// === impl Stats ===

impl Stats {
    /// Nothing happened yet.
    pub fn new() -> Self {
        Self {
            prompt_tokens: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            generation_tokens: 0,
            stopped: 0,
            cut: 0,
            aborted: 0,
            time_to_first_token: Histogram::new(FIRST_TOKEN_BUCKETS),
            inter_token: Histogram::new(INTER_TOKEN_BUCKETS),
            e2e: Histogram::new(REQUEST_BUCKETS),
            queue: Histogram::new(REQUEST_BUCKETS),
            prefill: Histogram::new(REQUEST_BUCKETS),
            decode: Histogram::new(REQUEST_BUCKETS),
        }
    }

    /// Counts one event.
    pub fn observe(&mut self, event: &Event) {
        match *event {
            Event::Started {
                queued,
                prompt_tokens,
                cached_tokens,
                ..
            } => {
                self.prefix_queries += u64::from(prompt_tokens);
                self.prefix_hits += u64::from(cached_tokens);
                self.queue.observe(queued);
            }
            Event::Prefilled {
                prompt_tokens,
                took,
                ..
            } => {
                self.prompt_tokens += u64::from(prompt_tokens);
                self.prefill.observe(took);
            }
            Event::FirstToken { since_arrival, .. } => {
                self.generation_tokens += 1;
                self.time_to_first_token.observe(since_arrival);
            }
            Event::Token { since_last, .. } => {
                self.generation_tokens += 1;
                self.inter_token.observe(since_last);
            }
            Event::Finished {
                finish,
                since_arrival,
                decode,
                ..
            } => {
                match finish {
                    Finish::Stop => self.stopped += 1,
                    Finish::Length => self.cut += 1,
                }
                self.e2e.observe(since_arrival);
                self.decode.observe(decode);
            }
            Event::Aborted { .. } => self.aborted += 1,
        }
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Histogram ===

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            count: 0,
            sum: 0.0,
        }
    }

    /// Adds one duration.
    pub fn observe(&mut self, span: Duration) {
        let seconds = span.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
    }

    /// `(upper bound in seconds, durations not above it)` in rising order; without `+Inf`, which is
    /// [`Histogram::count`].
    pub fn cumulated(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut below = 0;
        self.bounds
            .iter()
            .zip(&self.counts)
            .map(move |(bound, count)| {
                below += count;
                (*bound, below)
            })
    }

    /// Durations observed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_to_that_bucket() {
        let mut histogram = Histogram::new(&[0.01, 0.02]);
        for millis in [10, 15, 20, 30] {
            histogram.observe(Duration::from_millis(millis));
        }
        assert_eq!(
            histogram.cumulated().collect::<Vec<_>>(),
            [(0.01, 1), (0.02, 3)]
        );
        assert_eq!(histogram.count(), 4);
        assert!((histogram.sum() - 0.075).abs() < 1e-9);
    }
}
