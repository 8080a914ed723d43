//! A pick and its reservation in one step.

use hashbrown::HashSet;
use scheduling::inference_lb::LengthUnit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MAX_CANDIDATES, cache::PromptHash, in_range, load::PromptLength};
use crate::{
    fault::Fault,
    name::{Address, Cluster, RequestId},
};

/// How long a reservation stays unconfirmed, in milliseconds.
pub const RESERVE_MS: std::ops::RangeInclusive<u32> = 1000..=60_000;
/// How many endpoints a pick names at most.
pub const MAX_COUNT: u32 = 8;
/// 1e100: no sum or product of so large weights and biases leaves the finite numbers.
const MAX_WEIGHT: f64 = 1e100;

/// `POST /v1/pick`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pick {
    /// Where the endpoints are.
    pub cluster: Cluster,
    /// Of the charge that the pick makes; a repeated one gets the same endpoint.
    pub request_id: RequestId,
    /// The prompt; absent for a request whose body is not read.
    #[serde(default)]
    pub prompt_hash: PromptHash,
    /// Its length. 0 to 2147483647.
    #[serde(default)]
    pub prompt_length: PromptLength,
    /// How many endpoints to name: 1 to 8.
    #[serde(default = "one")]
    pub count: u32,
    /// The charge ends after so long unless a batch confirms it. 1000 to 60000.
    pub reserve_ms: u32,
    /// Who may be picked: 1 to 4096, each once.
    #[serde(deserialize_with = "super::list::<MAX_CANDIDATES, _, _>")]
    pub candidates: Vec<Candidate>,
    /// How to score.
    #[serde(default)]
    pub params: Params,
}

/// An endpoint that may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// The endpoint.
    pub ip: Address,
    /// What the caller's other scorers give it, weighted; added to the score.
    #[serde(default)]
    pub bias: f64,
}

/// How a pick is made: `lb_mapping_rule` of an LLM filter config. An absent field is its default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Params {
    /// W1, of the cached part of the prompt. Also `cache_ratio_weight`.
    #[serde(alias = "cache_ratio_weight")]
    pub cache_radio_weight: f64,
    /// W2, of unfinished requests.
    pub request_load_weight: f64,
    /// W3, of unfinished prefill.
    pub prefill_load_weight: f64,
    /// The best so many percent are picked from: 0 to 100.
    pub candidate_percent: u32,
    /// Off: W2 and W3 are 0.
    pub load_aware_enable: bool,
    /// Off: W1 is 0.
    pub cache_aware_enable: bool,
    /// How W2 grows with the spread of requests.
    pub dynamic_weight: DynamicWeight,
    /// Least prefill that counts as much.
    pub prompt_floor: u32,
    /// What a request is charged.
    pub prefill_charge: PrefillCharge,
    /// Least that an `uncached` charge is, unless the prompt is shorter; in the unit of its length.
    pub least_charge: u32,
    /// Of this score beside the biases.
    pub weight: f64,
}

/// How W2 grows once requests differ by more than 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DynamicWeight {
    /// W2 x delta / 5.
    #[default]
    Linear,
    /// W2 x ceil(delta / 5).
    Ceil,
}

/// What a request is charged as unfinished prefill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrefillCharge {
    /// What is not cached where it goes, `least_charge` at least.
    #[default]
    Uncached,
    /// All of it.
    Full,
}

/// The answer to a [`Pick`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Picks {
    /// The picked endpoint, then others by score.
    pub picks: Vec<Picked>,
    /// What the first was charged as unfinished prefill.
    pub charge: i64,
    /// How many endpoints the pick was made from.
    pub candidates: u32,
}

/// An endpoint, with what it was scored by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Picked {
    /// The endpoint.
    pub ip: Address,
    /// Weighted, with the bias.
    pub score: f64,
    /// By load and caches alone, before it is put between 0 and 1; 0 from a service that does not say it.
    #[serde(default)]
    pub raw: f64,
    /// Chunks of the prompt that it has seen.
    pub matched: u32,
    /// Unfinished requests before this pick.
    pub queued_req_num: i64,
    /// Unfinished prefill before this pick.
    pub prompt_length: i64,
}

// === impl Pick ===

impl Pick {
    /// Checks what the types do not hold.
    ///
    /// # Errors
    /// [`Fault::InvalidParameter`] names the first field that is out of its range, or a candidate that occurs again.
    pub fn validate(&self) -> Result<(), Fault> {
        in_range("count", self.count, 1..=MAX_COUNT)?;
        in_range("reserve_ms", self.reserve_ms, RESERVE_MS)?;
        if self.candidates.is_empty() || self.candidates.len() > MAX_CANDIDATES {
            let why = format!("expected 1 to {MAX_CANDIDATES} endpoints");
            return Err(Fault::invalid("candidates", why));
        }
        let mut ips = HashSet::with_capacity(self.candidates.len());
        for (at, Candidate { ip, bias }) in self.candidates.iter().enumerate() {
            if !ips.insert(ip) {
                let why = "this endpoint occurs before among the candidates";
                return Err(Fault::invalid(format!("candidates[{at}].ip"), why));
            }
            if !(-MAX_WEIGHT..=MAX_WEIGHT).contains(bias) {
                let why = "expected a number from -1e100 to 1e100";
                return Err(Fault::invalid(format!("candidates[{at}].bias"), why));
            }
        }
        self.params.validate()
    }
}

// === impl Params ===

impl Params {
    fn validate(&self) -> Result<(), Fault> {
        in_range("params.candidate_percent", self.candidate_percent, 0..=100)?;
        let weights = [
            ("params.cache_radio_weight", self.cache_radio_weight),
            ("params.request_load_weight", self.request_load_weight),
            ("params.prefill_load_weight", self.prefill_load_weight),
            ("params.weight", self.weight),
        ];
        let bad = |(_, weight): &&(&str, f64)| !(0.0..=MAX_WEIGHT).contains(weight);
        match weights.iter().find(bad) {
            Some((field, _)) => Err(Fault::invalid(*field, "expected a number from 0 to 1e100")),
            None => Ok(()),
        }
    }
}

impl Default for Params {
    fn default() -> Self {
        Self {
            cache_radio_weight: 2.0,
            request_load_weight: 1.0,
            prefill_load_weight: 3.0,
            candidate_percent: 10,
            load_aware_enable: true,
            cache_aware_enable: true,
            dynamic_weight: DynamicWeight::default(),
            prompt_floor: 1024,
            prefill_charge: PrefillCharge::default(),
            least_charge: LengthUnit::default().least_charge(),
            weight: 1.0,
        }
    }
}

fn one() -> u32 {
    1
}
