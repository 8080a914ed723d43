//! The configuration of the LLM filter: the plugin's `config` object, in a file of its own or in `isthmus.llmFilter`.

mod read;

use std::{collections::HashMap, path::PathBuf};

pub use scheduling::inference_lb::LengthUnit;
use scheduling::inference_lb::{Params, PrefillCharge};
use transcode::{Protocol, Transcoders};

use super::{prompt::Mode, rules::Table};
use crate::config::{Compat, Ignored, Refusal, Refusals, Section};

/// What the file says, with defaults for what it does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlmFilter {
    /// What clients speak.
    pub protocol: Protocol,
    /// How endpoints are chosen.
    pub algorithm: Algorithm,
    /// Which requests go where.
    pub rules: Table,
    /// Whether requests are logged.
    pub log: AccessLog,
    /// What of a prompt is hashed.
    pub prompt_mode: Mode,
    /// What lengths of prompts are in.
    pub length_unit: LengthUnit,
    /// How backends that do not speak the protocol are spoken to.
    pub transcoders: Transcoders,
    /// The backend of a rule does not speak the protocol.
    pub transcodes: bool,
    /// What of the file has no effect; empty for a block of the endpoint picker's file, which has its own list.
    pub ignored: Vec<Ignored>,
    balance: HashMap<Box<str>, Balance>,
    default_balance: Balance,
}

/// How endpoints are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// `inference_lb`: by prompt cache, unfinished requests and unfinished prefill.
    #[default]
    InferenceLb,
    /// `random`.
    Random,
    /// `round_robin`.
    RoundRobin,
}

/// How `inference_lb` weighs the endpoints of one model: an entry of `lb_mapping_rule`.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// Requests and prefill count.
    pub load_aware: bool,
    /// The prompt cache counts.
    pub cache_aware: bool,
    /// Share of the candidates that one is chosen from, in percent, 0 to 100; 0: the best one.
    pub candidate_percent: u32,
    /// Weights as they were written; see [`Balance::params`].
    pub weights: Params,
    /// What a request adds to its endpoint's prefill.
    pub prefill_charge: PrefillCharge,
}

/// Whether requests are logged, one JSON line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    /// They are.
    pub enabled: bool,
    /// The file; absent: stdout.
    pub path: Option<PathBuf>,
}

/// Algorithms by the names that a file may use; another one is added by a row.
const ALGORITHMS: [(&str, Algorithm); 5] = [
    ("inference_lb", Algorithm::InferenceLb),
    ("random", Algorithm::Random),
    ("Random", Algorithm::Random),
    ("round_robin", Algorithm::RoundRobin),
    ("RoundRobin", Algorithm::RoundRobin),
];

// === impl LlmFilter ===

impl LlmFilter {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Refusals`] that name all that cannot be used, with its line.
    pub fn parse(text: &str, compat: Compat) -> Result<Self, Refusals> {
        read::parse(text, compat)
    }

    /// Reads a block of a file; what it cannot use is among the findings.
    pub(crate) fn read(section: Section<'_>) -> Self {
        read::read(section)
    }

    /// The entries of `lb_mapping_rule`, in no order.
    pub fn balances(&self) -> impl Iterator<Item = (&str, &Balance)> {
        self.balance.iter().map(|(model, one)| (&**model, one))
    }

    /// Refuses lengths in tokens, where nobody counts these.
    ///
    /// # Errors
    /// [`Refusals`] of the field.
    pub fn refuse_tokens(&self) -> Result<(), Refusals> {
        if self.length_unit == LengthUnit::Bytes {
            return Ok(());
        }
        let refusal = Refusal {
            item: "length_unit".to_owned(),
            line: None,
            problem: "\"tokens\" needs a Processor that counts them, and none is asked".to_owned(),
            expected: "bytes, or the external processor".to_owned(),
            example: "length_unit: bytes, or --use-external-llm-processor".to_owned(),
        };
        Err(refusal.into())
    }

    /// Prompt caches count for no model.
    pub(crate) fn ignore_caches(&mut self) {
        let all = self.balance.values_mut();
        all.chain([&mut self.default_balance])
            .for_each(|balance| balance.cache_aware = false);
    }

    /// How the endpoints of models are weighed that `lb_mapping_rule` does not have.
    pub fn default_balance(&self) -> &Balance {
        &self.default_balance
    }

    /// How the endpoints of a model are weighed: as its entry says, or by the defaults.
    pub fn balance(&self, model: &str) -> &Balance {
        self.balance.get(model).unwrap_or(&self.default_balance)
    }
}

// === impl Algorithm ===

impl Algorithm {
    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InferenceLb => "inference_lb",
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
        }
    }
}

// === impl Balance ===

impl Balance {
    /// With the defaults for lengths in `unit`.
    fn in_unit(unit: LengthUnit) -> Self {
        let mut balance = Self::default();
        balance.weights.prompt_floor /= u64::from(unit.bytes());
        balance
    }

    /// Reads the parameters of a plugin, which are those of `lb_mapping_rule`.
    pub(crate) fn read(section: &mut Section<'_>) -> Self {
        read::balance(section, &Self::default())
    }

    /// The weights that count: none for what is switched off. With both off all endpoints are equal.
    pub fn params(&self) -> Params {
        let mut params = self.weights.clone();
        if !self.load_aware {
            (params.request_weight, params.prefill_weight) = (0.0, 0.0);
        }
        if !self.cache_aware {
            params.cache_weight = 0.0;
        }
        params
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            load_aware: true,
            cache_aware: true,
            candidate_percent: 10,
            weights: Params::default(),
            prefill_charge: PrefillCharge::default(),
        }
    }
}

#[cfg(test)]
mod tests;
