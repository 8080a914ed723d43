//! What each engine calls its metrics.

use std::{collections::BTreeMap, sync::Arc};

use super::{names::Names, scanner::Scanner, spec::MetricSpec};

/// The engine of a pod that names none, unless the config says otherwise.
const DEFAULT: &str = "vllm";

/// Of every Prometheus client library: another value is another process.
const STARTED: &str = "process_start_time_seconds";

/// Where an engine's values stand on its page. What is absent is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSpec {
    /// As a pod's label names it.
    pub name: String,
    /// Requests in the queue; several series are summed, but of those that differ by process or tensor rank alone the greatest
    /// counts, as for all values.
    pub waiting: Option<MetricSpec>,
    /// Requests being run; several series are summed.
    pub running: Option<MetricSpec>,
    /// Used share of the KV cache; the mean of several series. The first of these that a page has counts: engines
    /// rename it.
    pub kv: Vec<MetricSpec>,
    /// LoRA adapters, in the labels that vLLM uses.
    pub lora: Option<MetricSpec>,
    /// The KV cache's layout.
    pub cache: Option<CacheSpec>,
}

/// Where an engine's block size and number of blocks stand. Of several series the greatest size counts, and the sum of
/// the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheSpec {
    /// In the labels of a series.
    Labels {
        /// The series.
        info: MetricSpec,
        /// The label with the tokens of one block.
        block_size: String,
        /// The label with the number of blocks.
        blocks: String,
    },
    /// As values of series.
    Values {
        /// Tokens of one block.
        block_size: MetricSpec,
        /// The number of blocks.
        blocks: MetricSpec,
    },
}

/// The engines that can be read.
#[derive(Clone, Debug)]
pub struct EngineTable {
    engines: BTreeMap<String, Arc<Engine>>,
    default: Arc<Engine>,
}

/// The default engine is not in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("engine {name:?} is unknown: use one of {}", known.join(", "))]
pub struct UnknownEngine {
    name: String,
    known: Vec<String>,
}

/// One engine, ready to scan.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) spec: EngineSpec,
    pub(super) names: Names<Wanted>,
    /// How the comment begins that declares the metric of adapters.
    lora_type: Option<Box<[u8]>>,
}

/// A sample that is read.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Which the sample must have.
    pub(super) labels: Vec<(String, String)>,
    pub(super) role: Role,
}

/// What a sample means.
#[derive(Debug)]
pub(super) enum Role {
    Waiting,
    Running,
    /// The place in [`EngineSpec::kv`].
    Kv(usize),
    Lora,
    CacheInfo {
        block_size: String,
        blocks: String,
    },
    BlockSize,
    Blocks,
    Started,
}

// === impl EngineTable ===

impl EngineTable {
    /// The built-in engines and these: one with a known name replaces it, the last one if there are several.
    #[expect(
        clippy::missing_panics_doc,
        reason = "a built-in engine can only be replaced"
    )]
    pub fn with(specs: Vec<EngineSpec>) -> Self {
        let engines: BTreeMap<_, _> = built_in()
            .into_iter()
            .chain(specs)
            .map(|spec| (spec.name.clone(), Arc::new(Engine::new(spec))))
            .collect();
        let default = engines.get(DEFAULT).expect("it is built in");
        Self {
            default: Arc::clone(default),
            engines,
        }
    }

    /// The same table with another default engine than vLLM.
    ///
    /// # Errors
    /// No engine has that name.
    pub fn with_default(mut self, name: &str) -> Result<Self, UnknownEngine> {
        let Some(default) = self.engines.get(name) else {
            return Err(UnknownEngine {
                name: name.to_owned(),
                known: self.engines.into_keys().collect(),
            });
        };
        self.default = Arc::clone(default);
        Ok(self)
    }

    /// The engine that a pod's label names; the default one when that is unknown or empty.
    pub fn by_name(&self, name: &str) -> &EngineSpec {
        &self.engine(name).spec
    }

    /// A reader of pages of the engine that a pod's label names.
    pub fn scanner(&self, name: &str) -> Scanner {
        Scanner::new(Arc::clone(self.engine(name)))
    }

    pub(super) fn engine(&self, name: &str) -> &Arc<Engine> {
        self.engines.get(name).unwrap_or(&self.default)
    }
}

impl Default for EngineTable {
    /// The built-in engines.
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

fn built_in() -> [EngineSpec; 4] {
    let spec = |text| MetricSpec::parse(text).expect("a test reads them all");
    [
        EngineSpec {
            name: "vllm".into(),
            waiting: Some(spec("vllm:num_requests_waiting")),
            running: Some(spec("vllm:num_requests_running")),
            kv: vec![
                spec("vllm:kv_cache_usage_perc"),
                spec("vllm:gpu_cache_usage_perc"),
            ],
            lora: Some(spec("vllm:lora_requests_info")),
            cache: Some(CacheSpec::Labels {
                info: spec("vllm:cache_config_info"),
                block_size: "block_size".into(),
                blocks: "num_gpu_blocks".into(),
            }),
        },
        EngineSpec {
            name: "sglang".into(),
            waiting: Some(spec("sglang:num_queue_reqs")),
            running: Some(spec("sglang:num_running_reqs")),
            kv: vec![spec("sglang:token_usage")],
            lora: None,
            cache: Some(CacheSpec::Labels {
                info: spec("sglang:cache_config_info"),
                block_size: "page_size".into(),
                blocks: "num_pages".into(),
            }),
        },
        EngineSpec {
            name: "trtllm-serve".into(),
            waiting: Some(spec("trtllm_num_requests_waiting")),
            running: Some(spec("trtllm_num_requests_running")),
            kv: vec![spec("trtllm_kv_cache_utilization")],
            lora: None,
            cache: Some(CacheSpec::Values {
                block_size: spec("trtllm_kv_cache_tokens_per_block"),
                blocks: spec("trtllm_kv_cache_max_blocks"),
            }),
        },
        EngineSpec {
            name: "triton-tensorrt-llm".into(),
            waiting: Some(spec("nv_trt_llm_request_metrics{request_type=waiting}")),
            running: Some(spec("nv_trt_llm_request_metrics{request_type=scheduled}")),
            kv: vec![spec(
                "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
            )],
            lora: None,
            cache: Some(CacheSpec::Values {
                block_size: spec(
                    "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
                ),
                blocks: spec("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
            }),
        },
    ]
}

// === impl Engine ===

impl Engine {
    fn new(spec: EngineSpec) -> Self {
        let EngineSpec {
            name: _,
            waiting,
            running,
            kv,
            lora,
            cache,
        } = spec.clone();
        let declared = |spec: &MetricSpec| format!("# TYPE {}", spec.name()).into_bytes();
        let lora_type = lora.as_ref().map(|spec| declared(spec).into());
        let mut wanted: Vec<(MetricSpec, Role)> = Vec::new();
        wanted.extend(waiting.map(|spec| (spec, Role::Waiting)));
        wanted.extend(running.map(|spec| (spec, Role::Running)));
        wanted.extend(
            kv.into_iter()
                .enumerate()
                .map(|(index, spec)| (spec, Role::Kv(index))),
        );
        wanted.extend(lora.map(|spec| (spec, Role::Lora)));
        match cache {
            Some(CacheSpec::Labels {
                info,
                block_size,
                blocks,
            }) => wanted.push((info, Role::CacheInfo { block_size, blocks })),
            Some(CacheSpec::Values { block_size, blocks }) => {
                wanted.push((block_size, Role::BlockSize));
                wanted.push((blocks, Role::Blocks));
            }
            None => {}
        }
        let named = wanted.into_iter().map(|(spec, role)| {
            let (name, labels) = spec.into_parts();
            (name, Wanted { labels, role })
        });
        let started = Wanted {
            labels: Vec::new(),
            role: Role::Started,
        };
        Self {
            names: Names::new(named.chain([(STARTED.to_owned(), started)])),
            spec,
            lora_type,
        }
    }

    /// False when no line that begins with `head` matters.
    pub(super) fn may_begin(&self, head: &[u8]) -> bool {
        let mut declared = self.lora_type.iter();
        self.names.may_begin(head)
            || declared.any(|begin| begin.starts_with(head) || head.starts_with(begin))
    }

    /// Whether the line declares the metric of adapters.
    pub(super) fn declares_lora(&self, line: &[u8]) -> bool {
        let begin = self.lora_type.as_ref();
        let rest = begin.and_then(|begin| line.strip_prefix(&**begin));
        rest.is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
    }
}

#[cfg(test)]
mod tests;
