//! The configuration file: an `EndpointPickerConfig` as the ecosystem has it, in YAML or JSON.
//!
//! ```text
//!  file ─► tree (bounded) ─► read: plugins ─► profile, flow, data, isthmus ─► Config ─► CurrentConfig
//!                              └─► findings: refused (an error), ignored (a warning)      ▲
//!  poll, SIGHUP ─► reload ────────────────────────────────────────────────────────────────┤
//!  objects of the cluster ────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A [`Config`] is plain data. It says what was asked for and knows nothing of the parts that do it.

mod current;
mod data;
mod findings;
mod flow;
mod isthmus;
mod llm;
mod models;
mod plugins;
mod quantity;
mod read;
mod reload;
mod section;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use scheduling::{Detector, Profile, SessionStrategy};

use crate::llm::LlmFilter;

pub use current::{CurrentConfig, InForce};
pub use data::{ClientCert, EngineConfig, Engines, FileDiscovery, MetricsSource, Scheme};
pub use findings::{Compat, Ignored, Refusal, Refusals};
pub use flow::{Band, FairnessPolicy, FlowControl, OrderingPolicy};
pub use isthmus::{RewriteRule, RewriteTarget, TrustedHeaders};
pub use reload::{ConfigFile, ConfigMetrics, LlmFilterFile, LoadError, Reload, Reloaded};

pub(crate) use findings::Findings;
pub(crate) use models::Models;
pub(crate) use read::read_document;
pub(crate) use section::{Bounds, Section, Value};

/// What a file says, with defaults for what it does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How endpoints are chosen. Its freshness is not of the file but of the flags.
    pub profile: Profile,
    /// What is remembered of prompts.
    pub prefix: Prefix,
    /// How near the pool is to its limit.
    pub detector: Detector,
    /// Queues.
    pub flow_control: FlowControl,
    /// How requests name their session; absent: nobody asks for it.
    pub session: Option<Session>,
    /// The models that clients may ask for beside those of the cluster's objects.
    pub models: BTreeSet<String>,
    /// Priorities of objectives that the cluster has no object for.
    pub objectives: BTreeMap<String, i32>,
    /// Rules beside those of the cluster's objects.
    pub rewrites: Vec<RewriteRule>,
    /// Headers that are believed.
    pub trusted_headers: TrustedHeaders,
    /// Whether clients may set parameters of KV transfers, as coordinators of disaggregated prefill do.
    pub allow_client_kv_transfer: bool,
    /// How metrics are fetched.
    pub metrics_source: MetricsSource,
    /// What they are called.
    pub engines: Engines,
    /// Members from a file; absent: from the cluster.
    pub discovery: Option<FileDiscovery>,
    /// The bodies that are read.
    pub parsers: Parsers,
    /// The LLM filter, where this file has it.
    pub llm_filter: Option<Arc<LlmFilter>>,
    /// What of the file has no effect.
    pub ignored: Vec<Ignored>,
}

/// What is remembered of prompts: `approx-prefix-cache-producer` and `isthmus.prefixIndex`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Tokens of a block, at least 64, whatever the engine's own blocks have.
    pub block_tokens: u32,
    /// So much of a prompt is looked at; `u32::MAX`: all of it.
    pub max_prefix_tokens: u32,
    /// Blocks of one endpoint, where its engine does not say how many it has.
    pub lru_capacity_per_server: u32,
    /// Whether the number of an endpoint's blocks follows the cache size that its engine reports.
    pub auto_tune: bool,
    /// Memory for all endpoints.
    pub max_bytes: u64,
    /// Parts with a lock of their own; a power of two.
    pub shards: u16,
}

/// How requests name their session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// What the name stands for.
    pub strategy: SessionStrategy,
    /// Request headers that may have it, in lower case; the first that is there counts. At least one.
    pub headers: Vec<String>,
}

/// Those of the parsers whose bodies are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsers {
    /// [`Parser::OpenAi`] is one of them.
    pub openai: bool,
    /// [`Parser::Anthropic`] is.
    pub anthropic: bool,
    /// [`Parser::VllmHttp`] is.
    pub vllm_http: bool,
}

/// Bodies that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parser {
    /// `openai-parser`.
    OpenAi,
    /// `anthropic-parser`.
    Anthropic,
    /// `vllmhttp-parser`: vLLM's own paths.
    VllmHttp,
}

// === impl Config ===

impl Config {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Refusals`] that name all that cannot be used.
    pub fn parse(text: &str, compat: Compat) -> Result<Self, Refusals> {
        read::read(text, compat)
    }

    /// Refuses the LLM filter that is in it, where another one has a file of its own.
    ///
    /// # Errors
    /// [`Refusals`] of that block, if there is one.
    pub fn refuse_llm_filter(&self) -> Result<(), Refusals> {
        if self.llm_filter.is_none() {
            return Ok(());
        }
        let refusal = Refusal {
            item: "isthmus.llmFilter".to_owned(),
            line: None,
            problem: "--llm-filter-config names a file of it, too".to_owned(),
            expected: "one of the two".to_owned(),
            example: "--llm-filter-config /etc/epp/llm.yaml, and no isthmus.llmFilter".to_owned(),
        };
        Err(refusal.into())
    }

    /// Refuses lengths in tokens in its LLM filter, where nobody counts these.
    ///
    /// # Errors
    /// [`Refusals`] of that field, if it says so.
    pub fn refuse_tokens(&self) -> Result<(), Refusals> {
        let filter = self.llm_filter.as_ref();
        filter.map_or(Ok(()), |filter| filter.refuse_tokens())
    }

    /// Takes over from `running` what only a restart changes, and names it where it differs.
    #[must_use]
    pub fn keep_fixed(&mut self, running: &Self) -> Vec<&'static str> {
        let mut kept = Vec::new();
        if self.discovery != running.discovery {
            self.discovery.clone_from(&running.discovery);
            kept.push("dataLayer.discovery");
        }
        if self.prefix != running.prefix {
            self.prefix = running.prefix;
            kept.push("isthmus.prefixIndex and parameters of approx-prefix-cache-producer");
        }
        kept
    }
}

impl Default for Config {
    /// The ecosystem's default: queue 2, KV cache 2, prefix 3, no queues.
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            prefix: Prefix::default(),
            detector: Detector::default(),
            flow_control: FlowControl::default(),
            session: None,
            models: BTreeSet::new(),
            objectives: BTreeMap::new(),
            rewrites: Vec::new(),
            trusted_headers: TrustedHeaders::default(),
            allow_client_kv_transfer: false,
            metrics_source: MetricsSource::default(),
            engines: Engines::default(),
            discovery: None,
            parsers: Parsers::default(),
            llm_filter: None,
            ignored: Vec::new(),
        }
    }
}

// === impl Prefix ===

impl Default for Prefix {
    /// 2048 blocks of 64 tokens of a prompt, 31,250 blocks of an endpoint, 512 MiB for all.
    fn default() -> Self {
        Self {
            block_tokens: 64,
            max_prefix_tokens: 131_072,
            lru_capacity_per_server: 31_250,
            auto_tune: true,
            max_bytes: 512 << 20,
            shards: 64,
        }
    }
}

// === impl Parsers ===

impl Parsers {
    const NONE: Self = Self {
        openai: false,
        anthropic: false,
        vllm_http: false,
    };

    /// Whether its bodies are read.
    pub fn has(self, parser: Parser) -> bool {
        match parser {
            Parser::OpenAi => self.openai,
            Parser::Anthropic => self.anthropic,
            Parser::VllmHttp => self.vllm_http,
        }
    }

    /// Adds one. That of vLLM's own paths reads all that of OpenAI's does, too.
    fn add(&mut self, parser: Parser) {
        match parser {
            Parser::OpenAi => self.openai = true,
            Parser::Anthropic => self.anthropic = true,
            Parser::VllmHttp => (self.openai, self.vllm_http) = (true, true),
        }
    }
}

impl Default for Parsers {
    /// All.
    fn default() -> Self {
        Self {
            openai: true,
            anthropic: true,
            vllm_http: true,
        }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
