//! What the flags mean together.

use std::{
    fs,
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    time::Duration,
};

use axum::http::HeaderValue;
use process::ConfigError;
use xxhash_rust::xxh64::xxh64;

use super::{
    Args, EngineKind, KvEventSettings, Mode, StreamOutput, kv_events::KvEventArgs, listen::Place,
    lora::LoraArgs, tokens::TokenSettings,
};
use crate::{
    admin::{FakeMetrics, Knobs, LatencyKnobs},
    engine::Limits,
    models::{LoraModule, Models},
};

/// Where Linux tells the name of the machine, which in a pod is the pod's name.
const HOSTNAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the pod.
    pub pod: HeaderValue,
    /// Its namespace.
    pub namespace: HeaderValue,
}

/// Flags that were checked, for one server; each rank of a data-parallel server is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where to listen.
    pub address: SocketAddr,
    /// Number of the data-parallel rank, from 0.
    pub rank: u16,
    /// Whether its port accepts requests for all ranks of its server.
    pub has_shared_ports: bool,
    /// Name of the model.
    pub model: String,
    /// Names that requests may use; never empty.
    pub served_models: Vec<String>,
    /// Tokens of prompt and output together.
    pub max_model_len: NonZeroU32,
    /// LoRA adapters of the start.
    pub lora_modules: Vec<LoraModule>,
    /// The metrics name LoRA adapters even if there are none.
    pub lora: bool,
    /// Bounds of the engine.
    pub limits: Limits,
    /// What `/admin/config` can change, as it is at the start.
    pub knobs: Knobs,
    /// What is answered.
    pub mode: Mode,
    /// The longest made-up answer to a request without a limit of its own.
    pub output_tokens: NonZeroU32,
    /// Makes text repeatable; the same for all servers.
    pub seed: u64,
    /// Makes times and errors repeatable; differs from server to server.
    pub chance_seed: u64,
    /// Until the server is ready.
    pub startup_duration: Duration,
    /// For requests to finish at the end.
    pub drain_timeout: Duration,
    /// How long an HTTP/1.1 connection may be idle before it is closed; none means no limit.
    pub keep_alive_timeout: Option<Duration>,
    /// Bytes of the largest request body.
    pub max_request_body: usize,
    /// Number of processes that accept requests for the engine.
    pub api_servers: NonZeroU16,
    /// Number of responses that each of them keeps.
    pub responses_store: usize,
    /// Whose metric names and APIs are used.
    pub engine: EngineKind,
    /// What an event of Triton's streams has.
    pub triton_stream_output: StreamOutput,
    /// Lines that make the metrics longer.
    pub metrics_padding_lines: u32,
    /// Metric names of older versions.
    pub legacy_metric_names: bool,
    /// What is published of the KV cache.
    pub kv_events: Option<KvEventSettings>,
    /// Who answers.
    pub identity: Identity,
    /// How token ids come here.
    pub tokens: TokenSettings,
}

// === impl Args ===

impl Args {
    /// Checks what the flags say together: one result per server and rank, never none. Reads the host's
    /// name if there is no `--pod-name`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the flag.
    pub fn settings(self) -> Result<Vec<Settings>, ConfigError> {
        let Self {
            listen,
            model,
            served_model_name,
            max_model_len,
            max_num_seqs,
            max_waiting_queue_length,
            block_size,
            kv_cache_size,
            latency,
            lora: LoraArgs {
                lora_modules,
                max_loras,
            },
            tokens,
            mode,
            output_tokens,
            seed,
            startup_duration,
            drain_timeout,
            keep_alive_timeout,
            max_request_body_bytes,
            api_server_count,
            responses_store,
            engine,
            triton_stream_output,
            metrics_padding_lines,
            legacy_metric_names,
            pod_name,
            pod_namespace,
            kv_events,
            log: _,
        } = self;
        let model = non_empty("--model", model)?;
        let served_models = served_names(&model, served_model_name)?;
        Models::check(&served_models, &lora_modules).map_err(|error| {
            ConfigError::new(
                format!("--lora-modules: {error}"),
                "at most 1000 adapters with names of their own",
                "--lora-modules sql=/adapters/sql",
            )
        })?;
        let pod_name = match pod_name.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None => host_name()?,
        };
        let latency = LatencyKnobs::from(latency);
        let places = listen.places()?;
        let Some(first) = places.first() else {
            return Ok(Vec::new());
        };
        let settings = Settings {
            address: first.address,
            rank: first.rank,
            has_shared_ports: first.has_shared_ports,
            model,
            served_models,
            max_model_len: check_model_len(max_model_len, block_size, kv_cache_size)?,
            limits: Limits {
                max_running: max_num_seqs,
                max_waiting: max_waiting_queue_length,
                block_tokens: block_size,
                blocks: kv_cache_size,
                max_adapters: max_loras.unwrap_or(NonZeroUsize::MIN),
            },
            lora: max_loras.is_some(),
            lora_modules,
            knobs: working(latency),
            mode,
            output_tokens,
            seed,
            chance_seed: seed,
            startup_duration: startup_duration.get().mul_f64(latency.time_scale),
            drain_timeout: drain_timeout.get(),
            keep_alive_timeout: Some(keep_alive_timeout.get()).filter(|span| !span.is_zero()),
            max_request_body: max_request_body_bytes.get(),
            api_servers: api_server_count,
            responses_store: responses_store.into(),
            engine,
            triton_stream_output,
            metrics_padding_lines,
            legacy_metric_names,
            kv_events: None,
            identity: Identity {
                pod: header_value("--pod-name", &pod_name)?,
                namespace: header_value("--pod-namespace", &pod_namespace)?,
            },
            tokens: tokens.settings()?,
        };
        places
            .into_iter()
            .map(|place| settings.at(place, &pod_name, &kv_events))
            .collect()
    }
}

/// A server that does all it is asked for.
fn working(latency: LatencyKnobs) -> Knobs {
    Knobs {
        latency,
        metrics: FakeMetrics::default(),
        ready: true,
        hang: false,
        reject: false,
        fail: None,
        reset: None,
        cut: None,
    }
}

// === impl Settings ===

impl Settings {
    /// The same server in another place.
    fn at(
        &self,
        place: Place,
        pod_name: &str,
        kv_events: &KvEventArgs,
    ) -> Result<Self, ConfigError> {
        let Place {
            address,
            server,
            rank,
            ..
        } = place;
        let pod = match server {
            Some(number) => header_value("--pod-name", &format!("{pod_name}-{number}"))?,
            None => self.identity.pod.clone(),
        };
        let kv_events = kv_events.at(&place)?;
        let place = [server.unwrap_or_default().to_le_bytes(), rank.to_le_bytes()].concat();
        Ok(Self {
            address,
            rank,
            kv_events,
            chance_seed: xxh64(&place, self.seed),
            identity: Identity {
                pod,
                namespace: self.identity.namespace.clone(),
            },
            ..self.clone()
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

/// Those that were given, else the model's own.
fn served_names(model: &str, names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    if names.is_empty() {
        return Ok(vec![model.to_owned()]);
    }
    let names = names.into_iter();
    names
        .map(|name| non_empty("--served-model-name", name))
        .collect()
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
    use clap::{CommandFactory, Parser};
    use rstest::rstest;

    use super::*;

    fn mk_args(flags: &[&str]) -> Args {
        let flags = ["sim", "--model", "m"].iter().chain(flags);
        Args::try_parse_from(flags).expect("flags that parse")
    }

    fn mk_settings(flags: &[&str]) -> Settings {
        let mut settings = mk_args(flags).settings().expect("valid");
        assert_eq!(settings.len(), 1);
        settings.remove(0)
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        let settings = mk_settings(&["--pod-name", "p"]);
        assert_eq!(settings.address.to_string(), "[::]:8000");
        assert_eq!(settings.served_models, ["m"]);
        assert_eq!(settings.max_model_len.get(), 16 * 1024);
        assert_eq!(settings.keep_alive_timeout, Some(Duration::from_secs(5)));
        assert_eq!(settings.identity.pod, "p");
    }

    #[rstest]
    #[case(&["--served-model-name", "a", "b"])]
    #[case(&["--served-model-name", "a,b"])]
    #[case(&["--served-model-name", "a", "--served-model-name", "b"])]
    fn served_names_replace_the_model_name(#[case] flags: &[&str]) {
        let settings = mk_settings(flags);
        assert_eq!(settings.served_models, ["a", "b"]);
    }

    #[rstest]
    #[case(&["--max-model-len", "16385"], "--kv-cache-size 1025")]
    #[case(&["--block-size", "65536", "--kv-cache-size", "65536"], "4294967296")]
    #[case(&["--served-model-name", ""], "--served-model-name")]
    #[case(&["--lora-modules", "a", "b", "a"], "'a'")]
    #[case(&["--lora-modules", "m"], "'m'")]
    #[case(&["--pod-name", "a\nb"], "visible")]
    #[case(&["--pod-namespace", ""], "--pod-namespace")]
    #[case(&["--token-cache-endpoint", "memory"], "inside of the Processor")]
    #[case(&["--token-cache-endpoint", "redis://:s3cret@"], "leads to no Redis")]
    #[case(&["--token-cache-endpoint", "http://p", "--token-cache-token-file", "/nowhere"], "bearer token")]
    #[case(&["--token-cache-endpoint", "https://p", "--token-cache-ca-file", "/nowhere"], "file of CAs")]
    fn flags_that_do_not_fit_are_refused_by_name(#[case] flags: &[&str], #[case] told: &str) {
        let error = mk_args(flags).settings().expect_err("refused").to_string();
        assert!(error.contains(told), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[rstest]
    #[case(&["--inter-token-latency-std-dev", "0.31"])]
    #[case(&["--time-factor-under-load", "0.5"])]
    #[case(&["--time-scale", "fast"])]
    fn numbers_out_of_range_are_refused(#[case] flags: &[&str]) {
        let flags = ["sim", "--model", "m"].iter().chain(flags);
        let error = Args::try_parse_from(flags).expect_err("refused");
        assert!(
            error.to_string().contains("is not a number from"),
            "{error}"
        );
    }

    #[test]
    fn servers_of_a_fleet_differ_in_name_and_chance_alone() {
        let flags = [
            "--count",
            "2",
            "--data-parallel-size",
            "2",
            "--pod-name",
            "p",
        ];
        let fleet = mk_args(&flags).settings().expect("valid");
        let names: Vec<_> = fleet
            .iter()
            .map(|settings| (settings.identity.pod.to_str().expect("text"), settings.rank))
            .collect();
        assert_eq!(names, [("p-0", 0), ("p-0", 1), ("p-1", 0), ("p-1", 1)]);
        let mut chances: Vec<_> = fleet.iter().map(|settings| settings.chance_seed).collect();
        chances.dedup();
        assert_eq!(chances.len(), 4);
        assert!(fleet.iter().all(|settings| settings.seed == 0));
    }

    #[test]
    fn without_a_pod_name_it_is_the_host() {
        let settings = mk_settings(&["--pod-name", ""]);
        assert!(!settings.identity.pod.is_empty());
    }
}
