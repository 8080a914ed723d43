//! The configuration of the LLM filter: the plugin's `config` object, in a file of its own or in `isthmus.llmFilter`.

mod read;

use std::{collections::HashMap, path::PathBuf};

use scheduling::inference_lb::{Params, PrefillCharge};

use super::{prompt::Mode, rules::Table};
use crate::config::{Compat, Ignored, Refusals, Section};

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
    /// How backends that do not speak the protocol are spoken to.
    pub transcoders: Transcoders,
    /// What of the file has no effect; empty for a block of the endpoint picker's file, which has its own list.
    pub ignored: Vec<Ignored>,
    balance: HashMap<Box<str>, Balance>,
    default_balance: Balance,
}

/// What clients speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `openai`: chat completions, completions, responses and embeddings.
    #[default]
    OpenAi,
    /// `anthropic`: messages.
    Anthropic,
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

/// What serves the requests of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `vllm`, or nothing.
    #[default]
    Vllm,
    /// `sglang`.
    Sglang,
    /// `trt-llm`, `tensorrt-llm` or `tensorrt`.
    TrtLlm,
    /// `triton`: Triton with its vLLM backend.
    Triton,
    /// Another one, by its name; it is expected to speak the protocol of the clients.
    Other(String),
}

/// Whether requests are logged, one JSON line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    /// They are.
    pub enabled: bool,
    /// The file; absent: stdout.
    pub path: Option<PathBuf>,
}

/// How backends that do not speak the protocol are spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcoders {
    /// Triton with its vLLM backend.
    pub triton: Triton,
    /// TensorRT-LLM.
    pub trt_llm: TrtLlm,
}

/// `transcoders.triton`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Triton {
    /// How messages become the text of a prompt.
    pub chat_template: ChatTemplate,
    /// Ask for the finish reason and the number of tokens, which Triton knows from 24.12 on.
    pub extra_outputs: bool,
}

/// `transcoders.trt-llm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrtLlm {
    /// What its server speaks.
    pub wire: Wire,
    /// How messages become the text of a prompt.
    pub chat_template: ChatTemplate,
    /// Tokens of an answer to a request that sets no limit: the backend needs one.
    pub default_max_tokens: u32,
    /// What an event of a stream holds.
    pub stream_output: StreamOutput,
}

/// How messages become the text of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChatTemplate {
    /// A line `role: text` each, then `assistant:`.
    #[default]
    Plain,
    /// `ChatML`, with its markers of start and end.
    ChatMl,
}

/// What a server of TensorRT-LLM speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's API, as `trtllm-serve` does.
    #[default]
    OpenAi,
    /// Triton's generate extension.
    Triton,
}

/// What an event of a stream holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamOutput {
    /// The text since the event before.
    #[default]
    Delta,
    /// All text so far.
    Cumulative,
}

/// Algorithms by the names that a file may use; another one is added by a row.
const ALGORITHMS: [(&str, Algorithm); 5] = [
    ("inference_lb", Algorithm::InferenceLb),
    ("random", Algorithm::Random),
    ("Random", Algorithm::Random),
    ("round_robin", Algorithm::RoundRobin),
    ("RoundRobin", Algorithm::RoundRobin),
];

/// Protocols by name.
const PROTOCOLS: [(&str, Protocol); 2] = [
    ("openai", Protocol::OpenAi),
    ("anthropic", Protocol::Anthropic),
];

/// Backends by name.
const BACKENDS: [(&str, Backend); 7] = [
    ("", Backend::Vllm),
    ("vllm", Backend::Vllm),
    ("sglang", Backend::Sglang),
    ("trt-llm", Backend::TrtLlm),
    ("tensorrt-llm", Backend::TrtLlm),
    ("tensorrt", Backend::TrtLlm),
    ("triton", Backend::Triton),
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

    /// How the endpoints of a model are weighed: as its entry says, or by the defaults.
    pub fn balance(&self, model: &str) -> &Balance {
        self.balance.get(model).unwrap_or(&self.default_balance)
    }
}

// === impl Protocol ===

impl Protocol {
    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
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
    /// Reads the parameters of a plugin, which are those of `lb_mapping_rule`.
    pub(crate) fn read(section: &mut Section<'_>) -> Self {
        read::balance(section)
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

// === impl Backend ===

impl Backend {
    /// The backend of this name.
    pub fn named(name: &str) -> Self {
        let known = BACKENDS.iter().find(|(known, _)| *known == name);
        known.map_or_else(|| Self::Other(name.to_owned()), |(_, one)| one.clone())
    }

    /// Its one name, for logs.
    pub fn name(&self) -> &str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TrtLlm => "trt-llm",
            Self::Triton => "triton",
            Self::Other(name) => name,
        }
    }

    /// Whether requests go to it as clients send them, but for the model's name.
    pub fn is_passthrough(&self, transcoders: &Transcoders) -> bool {
        match self {
            Self::Vllm | Self::Sglang | Self::Other(_) => true,
            Self::TrtLlm => transcoders.trt_llm.wire == Wire::OpenAi,
            Self::Triton => false,
        }
    }
}

// === impl Triton ===

impl Default for Triton {
    fn default() -> Self {
        Self {
            chat_template: ChatTemplate::default(),
            extra_outputs: true,
        }
    }
}

// === impl TrtLlm ===

impl Default for TrtLlm {
    fn default() -> Self {
        Self {
            wire: Wire::default(),
            chat_template: ChatTemplate::default(),
            default_max_tokens: 512,
            stream_output: StreamOutput::default(),
        }
    }
}

#[cfg(test)]
mod tests;
