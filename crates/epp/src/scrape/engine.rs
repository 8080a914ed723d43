//! What each engine calls its metrics.

/// The names of one engine's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Engine {
    /// Every name begins with it, so that most lines of a page are passed over at their first bytes.
    pub(super) prefix: &'static str,
    pub(super) waiting: Metric,
    pub(super) running: Metric,
    /// Used share of the KV cache.
    pub(super) kv: Metric,
    /// A former name of the same, read where the other is absent.
    pub(super) former_kv: Option<Metric>,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metric {
    /// Its name without the engine's prefix.
    pub(super) name: &'static str,
    /// A label that its series must have, as it is written: `key="value"`.
    pub(super) label: Option<&'static str>,
}

const fn plain(name: &'static str) -> Metric {
    Metric { name, label: None }
}

const fn labelled(name: &'static str, label: &'static str) -> Metric {
    Metric {
        name,
        label: Some(label),
    }
}

const VLLM: Engine = Engine {
    prefix: "vllm:",
    waiting: plain("num_requests_waiting"),
    running: plain("num_requests_running"),
    kv: plain("kv_cache_usage_perc"),
    former_kv: Some(plain("gpu_cache_usage_perc")),
};

const SGLANG: Engine = Engine {
    prefix: "sglang:",
    waiting: plain("num_queue_reqs"),
    running: plain("num_running_reqs"),
    kv: plain("token_usage"),
    former_kv: None,
};

const TRTLLM_SERVE: Engine = Engine {
    prefix: "trtllm_",
    waiting: plain("num_requests_waiting"),
    running: plain("num_requests_running"),
    kv: plain("kv_cache_utilization"),
    former_kv: None,
};

const TRITON_TENSORRT_LLM: Engine = Engine {
    prefix: "nv_trt_llm_",
    waiting: labelled("request_metrics", r#"request_type="waiting""#),
    running: labelled("request_metrics", r#"request_type="scheduled""#),
    kv: labelled(
        "kv_cache_block_metrics",
        r#"kv_cache_block_type="fraction""#,
    ),
    former_kv: None,
};

// === impl Engine ===

impl Engine {
    /// The engine that a pod's label names; unknown or absent: vLLM.
    pub(crate) fn by_name(name: &str) -> Self {
        match name {
            "sglang" => SGLANG,
            "trtllm-serve" => TRTLLM_SERVE,
            "triton-tensorrt-llm" => TRITON_TENSORRT_LLM,
            _ => VLLM,
        }
    }
}
