//! Flags; [`settings`] checks what they say together.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};

use clap::{Parser, ValueEnum};
use process::{LogArgs, Program};

use crate::duration::HumanDuration;

mod kv_events;
mod latency;
mod listen;
mod lora;
mod settings;
mod tokens;

use self::{
    kv_events::KvEventArgs, latency::LatencyArgs, listen::ListenArgs, lora::LoraArgs,
    tokens::TokenArgs,
};
pub use self::{
    kv_events::{EventForm, KvEventSettings},
    settings::{Identity, Settings},
    tokens::{AcceptError, AcceptTokens, CacheSettings, TokenSettings},
};

/// More than a machine has for one engine.
const MAX_API_SERVERS: u16 = 16;

/// Simulates model servers such as vLLM: their APIs with streams, queue, batch, KV cache, LoRA adapters and
/// metrics.
///
/// No model is loaded: the text is made up or echoed, and it comes as fast as the flags say. Latencies and
/// faults can be changed while it runs, through /admin/config; /admin/requests shows what was received.
/// Durations are written like 20ms, 1.5s or 2m. A token is four bytes of text.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,

    /// Name of the model
    #[arg(long, env = "MODEL", value_name = "NAME")]
    model: String,

    /// Names that requests may use for the model, repeated or separated by commas; the first is
    /// the one in the metrics [default: the name of --model]
    #[arg(
        long,
        env = "SERVED_MODEL_NAME",
        value_name = "NAME",
        num_args = 1..,
        value_delimiter = ','
    )]
    served_model_name: Vec<String>,

    /// Tokens of prompt and output together; more is refused with 400 [default: what the KV cache holds]
    #[arg(long, env = "MAX_MODEL_LEN", value_name = "TOKENS")]
    max_model_len: Option<NonZeroU32>,

    /// Requests that make tokens at the same time
    #[arg(
        long,
        env = "MAX_NUM_SEQS",
        value_name = "REQUESTS",
        default_value = "5"
    )]
    max_num_seqs: NonZeroUsize,

    /// Requests that may wait, in order of arrival; one more is refused with 429
    #[arg(
        long,
        env = "MAX_WAITING_QUEUE_LENGTH",
        value_name = "REQUESTS",
        default_value_t = 1000
    )]
    max_waiting_queue_length: usize,

    /// Tokens in a block of the KV cache
    #[arg(long, env = "BLOCK_SIZE", value_name = "TOKENS", default_value = "16")]
    block_size: NonZeroU32,

    /// Blocks of the KV cache; while too few are free, requests wait
    #[arg(
        long,
        env = "KV_CACHE_SIZE",
        value_name = "BLOCKS",
        default_value = "1024"
    )]
    kv_cache_size: NonZeroU32,

    /// What is answered: made-up words, or the prompt (in a chat the last message)
    #[arg(long, env = "MODE", value_enum, default_value_t = Mode::Random)]
    mode: Mode,

    /// The longest made-up answer to a request without a token limit; one with a limit gets exactly
    /// that many
    #[arg(
        long,
        env = "OUTPUT_TOKENS",
        value_name = "TOKENS",
        default_value = "64"
    )]
    output_tokens: NonZeroU32,

    /// Makes made-up text and simulated errors repeatable: the same request gets the same answer
    #[arg(long, env = "SEED", value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// Time until /health/ready answers 200; until then requests are refused with 503;
    /// --time-scale applies
    #[arg(
        long,
        env = "STARTUP_DURATION",
        value_name = "DURATION",
        default_value = "0"
    )]
    startup_duration: HumanDuration,

    /// Time that requests have to finish after SIGTERM
    #[arg(
        long,
        env = "DRAIN_TIMEOUT",
        value_name = "DURATION",
        default_value = "30s"
    )]
    drain_timeout: HumanDuration,

    /// Time after which an HTTP/1.1 connection without a request is closed, as uvicorn, the HTTP server of vLLM, closes it;
    /// the headers of a request have that long too. 0 never closes one
    #[arg(
        long,
        env = "KEEP_ALIVE_TIMEOUT",
        value_name = "DURATION",
        default_value = "5s"
    )]
    keep_alive_timeout: HumanDuration,

    /// Largest request body, in bytes; more is refused with 413
    #[arg(
        long,
        env = "MAX_REQUEST_BODY_BYTES",
        value_name = "BYTES",
        default_value = "67108864"
    )]
    max_request_body_bytes: NonZeroUsize,

    /// Processes that accept requests for the engine, 1 to 16, as vLLM's flag of this name: connections are spread over them,
    /// each keeps responses for itself, and /metrics has the values of all
    #[arg(long, env = "API_SERVER_COUNT", value_name = "PROCESSES", default_value = "1",
        value_parser = api_servers)]
    api_server_count: NonZeroU16,

    /// Responses of /v1/responses that are kept, at most 1000: clients may get them and go on from them, as with vLLM's
    /// `VLLM_ENABLE_RESPONSES_API_STORE`; the oldest make room
    #[arg(long, env = "RESPONSES_STORE", value_name = "RESPONSES", default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=1000))]
    responses_store: u16,

    /// Whose metric names /metrics has; the APIs are those of vLLM but for the two engines in Triton,
    /// which have its generate extension
    #[arg(long, env = "ENGINE", value_enum, default_value_t = EngineKind::Vllm)]
    engine: EngineKind,

    /// What an event of a stream has with an engine in Triton
    #[arg(long, env = "TRITON_STREAM_OUTPUT", value_enum, default_value_t = StreamOutput::Delta)]
    triton_stream_output: StreamOutput,

    /// Lines of no meaning that make /metrics longer, at most 100000
    #[arg(long, env = "METRICS_PADDING_LINES", value_name = "LINES", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=100_000))]
    metrics_padding_lines: u32,

    /// Use the metric names of older versions of vLLM, such as `vllm:gpu_cache_usage_perc`
    #[arg(long, env = "LEGACY_METRIC_NAMES")]
    legacy_metric_names: bool,

    /// Name of the pod, sent as x-inference-pod with every response [default: the host's name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod_name: Option<String>,

    /// Namespace of the pod, sent as x-inference-namespace with every response
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "default"
    )]
    pod_namespace: String,

    #[command(flatten)]
    latency: LatencyArgs,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    tokens: TokenArgs,

    #[command(flatten)]
    kv_events: KvEventArgs,

    #[command(flatten)]
    log: LogArgs,
}

fn api_servers(text: &str) -> Result<NonZeroU16, String> {
    let count: Option<NonZeroU16> = text.parse().ok();
    let count = count.filter(|count| count.get() <= MAX_API_SERVERS);
    count.ok_or_else(|| format!("is not a number from 1 to {MAX_API_SERVERS}"))
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Made-up words.
    Random,
    /// The prompt, or the last message of a chat.
    Echo,
}

/// What an event of Triton's `generate_stream` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamOutput {
    /// The text since the event before.
    Delta,
    /// All text so far.
    Cumulative,
}

/// Whose metric names `/metrics` has, and whose APIs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// vLLM
    Vllm,
    /// `SGLang`
    Sglang,
    /// TensorRT-LLM with its own server
    TrtllmServe,
    /// TensorRT-LLM in Triton
    TritonTensorrtLlm,
    /// vLLM in Triton
    Triton,
}

// === impl EngineKind ===

impl EngineKind {
    /// Whether the APIs are those of Triton.
    pub(crate) fn is_in_triton(self) -> bool {
        matches!(self, Self::Triton | Self::TritonTensorrtLlm)
    }
}

// === impl Args ===

impl Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }
}
