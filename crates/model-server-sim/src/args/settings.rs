//! What the flags mean together.

use std::{fs, net::SocketAddr, num::NonZeroU32, time::Duration};

use axum::http::HeaderValue;
use process::ConfigError;

use super::{Args, Mode};
use crate::{
    admin::{FakeMetrics, Knobs, LatencyKnobs},
    engine::Limits,
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
            latency,
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
        let latency = LatencyKnobs::from(latency);
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
                latency,
                metrics: FakeMetrics::default(),
                ready: true,
                hang: false,
                reject: false,
                fail: None,
            },
            mode,
            output_tokens,
            seed,
            startup_duration: startup_duration.get().mul_f64(latency.time_scale),
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
    use clap::{CommandFactory, Parser};
    use rstest::rstest;

    use super::*;

    fn mk_args(flags: &[&str]) -> Args {
        let flags = ["sim", "--model", "m"].iter().chain(flags);
        Args::try_parse_from(flags).expect("flags that parse")
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        let settings = mk_args(&["--pod-name", "p"]).settings().expect("valid");
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
        let settings = mk_args(flags).settings().expect("valid");
        assert_eq!(settings.served_models, ["a", "b"]);
    }

    #[rstest]
    #[case(&["--max-model-len", "16385"], "--kv-cache-size 1025")]
    #[case(&["--block-size", "65536", "--kv-cache-size", "65536"], "4294967296")]
    #[case(&["--served-model-name", ""], "--served-model-name")]
    #[case(&["--pod-name", "a\nb"], "visible")]
    #[case(&["--pod-namespace", ""], "--pod-namespace")]
    fn flags_that_do_not_fit_are_refused_by_name(#[case] flags: &[&str], #[case] told: &str) {
        let error = mk_args(flags).settings().expect_err("refused").to_string();
        assert!(error.contains(told), "{error}");
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
    fn without_a_pod_name_it_is_the_host() {
        let settings = mk_args(&["--pod-name", ""]).settings().expect("valid");
        assert!(!settings.identity.pod.is_empty());
    }
}
