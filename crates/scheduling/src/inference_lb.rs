//! The score of the `inference_lb` algorithm: prompt cache against load, over the candidates of one request.

use smallvec::SmallVec;

/// The requests in flight of two endpoints differ by at least so many, else the one that has a single request would
/// be as bad as can be.
const LEAST_DELTA: i64 = 2;

/// Up to so many requests of difference the request weight counts once, then in proportion.
const DELTA_OF_WEIGHT: f64 = 5.0;

/// 1e100: no sum or product of weights, however they were given, leaves the finite numbers.
const MAX_WEIGHT: f64 = 1e100;

/// The fewest bytes that a request is charged, unless it is shorter: one chunk of its prompt.
const LEAST_CHARGE: u32 = 512;

/// Bytes of text that are taken for a token, where nobody counted.
const BYTES_PER_TOKEN: u32 = 4;

/// What lengths of prompts are in, and so charges, unfinished prefill and [`Params::prompt_floor`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthUnit {
    /// Bytes of text.
    #[default]
    Bytes,
    /// Tokens, as somebody counted them; of a prompt that nobody counted as many as its bytes are worth.
    Tokens,
}

/// What the parts of the score count for. A weight that is no number or below 0 is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// W1: the share of the prompt that is cached.
    pub cache_weight: f64,
    /// W2: unfinished requests.
    pub request_weight: f64,
    /// W3: unfinished prefill.
    pub prefill_weight: f64,
    /// How the request weight grows with the difference between endpoints.
    pub growth: Growth,
    /// An endpoint with so much unfinished prefill is busy even if it has the most. In the unit of the lengths.
    pub prompt_floor: u64,
}

/// How the request weight grows where endpoints differ by more than 5 requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    /// delta / 5.
    #[default]
    Linear,
    /// ⌈delta / 5⌉.
    Ceil,
}

/// What is known of one candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Unfinished requests.
    pub reqs: i64,
    /// Unfinished prefill; below 0 counts as 0.
    pub prompt: i64,
    /// Leading chunks of the prompt that it has cached.
    pub matched: u32,
}

/// The scores of the candidates, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// W1 × cached share - W2e × requests - W3 × prefill.
    pub raw: SmallVec<[f64; 16]>,
    /// The same order within 0 to 1.
    pub normal: SmallVec<[f64; 16]>,
    /// W2e: the request weight after its growth.
    pub w2e: f64,
}

/// How much prefill a request adds to its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillCharge {
    /// What is not cached, but at least [`LengthUnit::least_charge`]: a hit costs no prefill.
    #[default]
    Uncached,
    /// The whole prompt.
    Full,
}

/// Scores the candidates of a request whose prompt has so many chunks. Finite, whatever the parameters are.
pub fn score(params: &Params, rows: &[Row], chunks: u32) -> Scores {
    let (cache, prefill) = (weight(params.cache_weight), weight(params.prefill_weight));
    let reqs = rows.iter().map(|row| row.reqs);
    let least = reqs.clone().min().unwrap_or(0);
    let most = reqs.max().unwrap_or(0);
    let delta = most.saturating_sub(least).max(LEAST_DELTA) as f64;
    let w2e = weight(params.request_weight) * params.growth.factor(delta);
    let longest = rows.iter().map(|row| unsigned(row.prompt)).max();
    let longest = longest.unwrap_or(0).max(params.prompt_floor) as f64;
    let raw = rows.iter().map(|row| {
        let reqs = row.reqs.saturating_sub(least) as f64 / delta;
        let prompt = share(unsigned(row.prompt) as f64, longest);
        let cached = share(f64::from(row.matched.min(chunks)), f64::from(chunks));
        cache * cached - w2e * reqs - prefill * prompt
    });
    let raw: SmallVec<[f64; 16]> = raw.collect();
    // Rounding keeps the order of sums and quotients, so that this one cannot contradict `raw`.
    let normal = |raw: &f64| share(raw + w2e + prefill, cache + w2e + prefill).clamp(0.0, 1.0);
    let normal = raw.iter().map(normal).collect();
    Scores { raw, normal, w2e }
}

fn weight(given: f64) -> f64 {
    if given > 0.0 {
        given.min(MAX_WEIGHT)
    } else {
        0.0
    }
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// 0 of nothing.
fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

// === impl Params ===

impl Default for Params {
    /// Cache 2, requests 1, prefill 3, linear, a floor of 1024 bytes.
    fn default() -> Self {
        Self {
            cache_weight: 2.0,
            request_weight: 1.0,
            prefill_weight: 3.0,
            growth: Growth::Linear,
            prompt_floor: 1024,
        }
    }
}

// === impl Growth ===

impl Growth {
    fn factor(self, delta: f64) -> f64 {
        let factor = delta / DELTA_OF_WEIGHT;
        match self {
            Self::Linear => factor.max(1.0),
            Self::Ceil => factor.ceil(),
        }
    }
}

// === impl LengthUnit ===

impl LengthUnit {
    /// How many bytes are one of it, where nobody counted.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bytes => 1,
            Self::Tokens => BYTES_PER_TOKEN,
        }
    }

    /// The fewest of it that a request is charged, unless it is shorter: 512 bytes, 128 tokens.
    pub const fn least_charge(self) -> u32 {
        LEAST_CHARGE / self.bytes()
    }
}

// === impl PrefillCharge ===

impl PrefillCharge {
    /// The charge of a prompt of this length, `matched` of whose `chunks` are cached at the endpoint; not less than
    /// `least`, unless the prompt is shorter.
    pub fn of(self, length: u64, least: u32, matched: u32, chunks: u32) -> u64 {
        match self {
            Self::Full => length,
            Self::Uncached if chunks == 0 => length,
            Self::Uncached => {
                let missing = u128::from(chunks.saturating_sub(matched));
                let uncached = (u128::from(length) * missing).div_ceil(u128::from(chunks));
                let uncached = u64::try_from(uncached).unwrap_or(u64::MAX);
                uncached.max(length.min(least.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
