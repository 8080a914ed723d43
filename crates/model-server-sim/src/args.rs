//! Flags, and the settings made of them.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use axum::http::HeaderValue;
use clap::{Parser, ValueEnum};
use process::{ConfigError, LogArgs, Program};

use crate::{
    admin::{FakeMetrics, Knobs, LatencyKnobs},
    duration::HumanDuration,
    engine::Limits,
};

/// Where Linux tells the name of the machine, which in a pod is the pod's name.
const HOSTNAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Simulates a vLLM server: OpenAI API with streams, queue and batch, metrics.
///
/// No model is loaded: the text is made up or echoed, and it comes as fast as the flags say. Latencies and
/// faults can be changed while it runs, through /admin/config; /admin/requests shows what was received.
/// Durations are written like 20ms, 1.5s or 2m. A token is four bytes of text.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Address to listen on
    #[arg(long, env = "BIND", value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind: IpAddr,

    /// Port to listen on, for HTTP/1.1 and for HTTP/2 without TLS; 0 takes a free one and logs it
    #[arg(long, env = "PORT", default_value_t = 8000)]
    port: u16,

    /// Name of the model
    #[arg(long, env = "MODEL", value_name = "NAME")]
    model: String,

    /// Names that requests may use for the model, repeated or separated by commas; the first is the
    /// label model_name of the metrics [default: the name of --model]
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

    /// Time from the start of a request, when it leaves the queue, to its first token
    #[arg(
        long,
        env = "TIME_TO_FIRST_TOKEN",
        value_name = "DURATION",
        default_value = "0"
    )]
    time_to_first_token: HumanDuration,

    /// Time that each token of the prompt adds to the time to the first token
    #[arg(
        long,
        env = "PREFILL_TIME_PER_TOKEN",
        value_name = "DURATION",
        default_value = "0"
    )]
    prefill_time_per_token: HumanDuration,

    /// Time from one token to the next
    #[arg(
        long,
        env = "INTER_TOKEN_LATENCY",
        value_name = "DURATION",
        default_value = "0"
    )]
    inter_token_latency: HumanDuration,

    /// What is answered: made-up words, or the prompt (in a chat the last message)
    #[arg(long, env = "MODE", value_enum, default_value_t = Mode::Random)]
    mode: Mode,

    /// The longest made-up answer to a request without max_tokens; one with max_tokens gets exactly
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

    /// Time until /health/ready answers 200; until then requests are refused with 503
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

    /// Largest request body, in bytes; more is refused with 413
    #[arg(
        long,
        env = "MAX_REQUEST_BODY_BYTES",
        value_name = "BYTES",
        default_value = "67108864"
    )]
    max_request_body_bytes: NonZeroUsize,

    /// Use the metric names of older versions, such as vllm:gpu_cache_usage_perc
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
    log: LogArgs,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Made-up words.
    Random,
    /// The prompt, or the last message of a chat.
    Echo,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the pod.
    pub pod: HeaderValue,
    /// Its namespace.
    pub namespace: HeaderValue,
}

/// Flags that were checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where to listen.
    pub address: SocketAddr,
    /// Name of the model.
    pub model: String,
    /// Names that requests may use; never empty.
    pub served_models: Vec<String>,
    /// Tokens of prompt and output together.
    pub max_model_len: NonZeroU32,
    /// Bounds of the engine.
    pub limits: Limits,
    /// What `/admin/config` can change, as it is at the start.
    pub knobs: Knobs,
    /// What is answered.
    pub mode: Mode,
    /// The longest made-up answer to a request without a limit of its own.
    pub output_tokens: NonZeroU32,
    /// Makes text and errors repeatable.
    pub seed: u64,
    /// Until the server is ready.
    pub startup_duration: Duration,
    /// For requests to finish at the end.
    pub drain_timeout: Duration,
    /// Bytes of the largest request body.
    pub max_request_body: usize,
    /// Metric names of older versions.
    pub legacy_metric_names: bool,
    /// Who answers.
    pub identity: Identity,
}

// === impl Args ===

impl Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }
}

impl Args {
    /// Checks what the flags say together; reads the host's name if there is no `--pod-name`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the flag.
    pub fn settings(self) -> Result<Settings, ConfigError> {
        let Self {
            bind,
            port,
            model,
            served_model_name,
            max_model_len,
            max_num_seqs,
            max_waiting_queue_length,
            block_size,
            kv_cache_size,
            time_to_first_token,
            prefill_time_per_token,
            inter_token_latency,
            mode,
            output_tokens,
            seed,
            startup_duration,
            drain_timeout,
            max_request_body_bytes,
            legacy_metric_names,
            pod_name,
            pod_namespace,
            log: _,
        } = self;
        let model = non_empty("--model", model)?;
        let served_models = if served_model_name.is_empty() {
            vec![model.clone()]
        } else {
            served_model_name
                .into_iter()
                .map(|name| non_empty("--served-model-name", name))
                .collect::<Result<_, _>>()?
        };
        let pod_name = match pod_name.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None => host_name()?,
        };
        Ok(Settings {
            address: SocketAddr::new(bind, port),
            model,
            served_models,
            max_model_len: check_model_len(max_model_len, block_size, kv_cache_size)?,
            limits: Limits {
                max_running: max_num_seqs,
                max_waiting: max_waiting_queue_length,
                block_tokens: block_size,
                blocks: kv_cache_size,
            },
            knobs: Knobs {
                latency: LatencyKnobs {
                    time_to_first_token,
                    prefill_time_per_token,
                    inter_token_latency,
                },
                metrics: FakeMetrics::default(),
                ready: true,
                hang: false,
                reject: false,
                fail: None,
            },
            mode,
            output_tokens,
            seed,
            startup_duration: startup_duration.get(),
            drain_timeout: drain_timeout.get(),
            max_request_body: max_request_body_bytes.get(),
            legacy_metric_names,
            identity: Identity {
                pod: header_value("--pod-name", &pod_name)?,
                namespace: header_value("--pod-namespace", &pod_namespace)?,
            },
        })
    }
}

/// A request as long as the model allows must fit into the KV cache, or it would wait for ever.
fn check_model_len(
    asked: Option<NonZeroU32>,
    block_size: NonZeroU32,
    blocks: NonZeroU32,
) -> Result<NonZeroU32, ConfigError> {
    let Some(held) = block_size.checked_mul(blocks) else {
        return Err(ConfigError::new(
            format!("--block-size {block_size} with --kv-cache-size {blocks}"),
            "a KV cache of fewer than 4294967296 tokens, which is block size times blocks",
            "--block-size 16 --kv-cache-size 1024",
        ));
    };
    match asked {
        Some(asked) if asked > held => Err(ConfigError::new(
            format!("--max-model-len {asked}"),
            format!(
                "at most {held}, which is what the KV cache holds \
                 (--block-size {block_size} times --kv-cache-size {blocks})"
            ),
            format!(
                "--max-model-len {held}, or --kv-cache-size {}",
                asked.get().div_ceil(block_size.get())
            ),
        )),
        asked => Ok(asked.unwrap_or(held)),
    }
}

fn non_empty(flag: &str, name: String) -> Result<String, ConfigError> {
    if name.trim().is_empty() {
        let value = format!("{flag} {name:?}");
        return Err(ConfigError::new(
            value,
            "a name that is not empty",
            format!("{flag} llama-3"),
        ));
    }
    Ok(name)
}

fn header_value(flag: &str, name: &str) -> Result<HeaderValue, ConfigError> {
    let valid = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::from_str(name).ok().filter(|_| valid);
    value.ok_or_else(|| {
        let value = format!("{flag} {name:?}");
        ConfigError::new(
            value,
            "a name of visible ASCII characters",
            format!("{flag} vllm-0"),
        )
    })
}

fn host_name() -> Result<String, ConfigError> {
    match fs::read_to_string(HOSTNAME_FILE) {
        Ok(name) => Ok(name.trim().to_owned()),
        Err(error) => Err(ConfigError::new(
            format!("--pod-name: not given, and {HOSTNAME_FILE} cannot be read ({error})"),
            "a name for this server",
            "--pod-name vllm-0",
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;

    fn settings(flags: &[&str]) -> Result<Settings, ConfigError> {
        let flags = ["sim", "--model", "m", "--pod-name", "p"]
            .iter()
            .chain(flags);
        Args::try_parse_from(flags)
            .expect("flags that parse")
            .settings()
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        let settings = settings(&[]).expect("valid");
        assert_eq!(settings.address.to_string(), "0.0.0.0:8000");
        assert_eq!(settings.served_models, ["m"]);
        assert_eq!(settings.max_model_len.get(), 16 * 1024);
        assert_eq!(settings.identity.pod, "p");
    }

    #[rstest]
    #[case(&["--served-model-name", "a", "b"])]
    #[case(&["--served-model-name", "a,b"])]
    #[case(&["--served-model-name", "a", "--served-model-name", "b"])]
    fn served_names_replace_the_model_name(#[case] flags: &[&str]) {
        assert_eq!(settings(flags).expect("valid").served_models, ["a", "b"]);
    }

    #[rstest]
    #[case(&["--max-model-len", "16385"], "--kv-cache-size 1025")]
    #[case(&["--block-size", "65536", "--kv-cache-size", "65536"], "4294967296")]
    #[case(&["--served-model-name", ""], "--served-model-name")]
    #[case(&["--pod-name", "a\nb"], "visible")]
    #[case(&["--pod-namespace", ""], "--pod-namespace")]
    fn flags_that_do_not_fit_are_refused_by_name(#[case] flags: &[&str], #[case] told: &str) {
        let args = ["sim", "--model", "m"].iter().chain(flags);
        let error = Args::try_parse_from(args)
            .expect("flags that parse")
            .settings();
        let error = error.expect_err("refused").to_string();
        assert!(error.contains(told), "{error}");
    }

    #[test]
    fn without_a_pod_name_it_is_the_host() {
        let args = Args::try_parse_from(["sim", "--model", "m", "--pod-name", ""]);
        let settings = args.expect("flags that parse").settings().expect("valid");
        assert!(!settings.identity.pod.is_empty());
    }
}
