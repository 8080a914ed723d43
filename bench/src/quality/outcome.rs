//! What became of a trace.

use std::time::Duration;

use scheduling::Moment;

use super::trace::tokens;
use crate::percentile;

/// What a run showed, once it was warm.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests before this one are not measured.
    warm_up: usize,
    is_warm: bool,
    /// From the request at the gateway to the first token.
    first_tokens: Vec<Duration>,
    cached_tokens: u64,
    prompt_tokens: u64,
    /// Of the requests at each endpoint.
    spread: Mean,
    /// Picks of each endpoint since the last sample.
    picks: Vec<usize>,
    /// The same of them.
    bunching: Mean,
    pub(super) ends: Vec<Moment>,
}

/// Of what the busiest endpoint has over the mean of all, for each sample in which there is at least one each.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    samples: u32,
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn new(warm_up: usize, endpoints: usize) -> Self {
        Self {
            warm_up,
            is_warm: false,
            first_tokens: Vec::new(),
            cached_tokens: 0,
            prompt_tokens: 0,
            spread: Mean::default(),
            picks: vec![0; endpoints],
            bunching: Mean::default(),
            ends: Vec::new(),
        }
    }

    /// Time to the first token that `share` of the requests are not above, in milliseconds.
    pub fn first_token_ms(&self, share: f64) -> f64 {
        percentile(&self.first_tokens, share).as_secs_f64() * 1e3
    }

    /// Share of the prompts' tokens that were cached.
    pub fn cached(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Requests of the busiest endpoint / the mean of all, on average over time; 1 is even.
    pub fn spread(&self) -> f64 {
        self.spread.value()
    }

    /// The same of the picks of a tenth of a second: whether one endpoint gets all that comes at a time.
    pub fn bunching(&self) -> f64 {
        self.bunching.value()
    }

    pub(super) fn picked(&mut self, request: usize, endpoint: usize) {
        self.is_warm |= request >= self.warm_up;
        if let Some(picks) = self.picks.get_mut(endpoint) {
            *picks += 1;
        }
    }

    pub(super) fn began(&mut self, request: usize, after: Duration, cached: usize, prompt: usize) {
        if request >= self.warm_up {
            self.first_tokens.push(after);
            self.cached_tokens += u64::from(tokens(cached));
            self.prompt_tokens += u64::from(tokens(prompt));
        }
    }

    pub(super) fn ended(&mut self, now: Moment) {
        self.ends.push(now);
    }

    /// A tenth of a second is over; requests at each endpoint now.
    pub(super) fn sample(&mut self, requests: impl ExactSizeIterator<Item = usize> + Clone) {
        if self.is_warm {
            self.spread.note(requests);
            self.bunching.note(self.picks.iter().copied());
        }
        self.picks.fill(0);
    }
}

// === impl Mean ===

impl Mean {
    /// Fewer than one each say nothing of balance.
    fn note(&mut self, values: impl ExactSizeIterator<Item = usize> + Clone) {
        let mean = values.clone().sum::<usize>() as f64 / values.len() as f64;
        if mean >= 1.0 {
            self.sum += values.max().unwrap_or_default() as f64 / mean;
            self.samples += 1;
        }
    }

    fn value(self) -> f64 {
        self.sum / f64::from(self.samples.max(1))
    }
}
