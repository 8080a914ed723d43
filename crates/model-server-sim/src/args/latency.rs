//! Flags of how long things take.

use clap::Args;

use crate::{
    admin::{FACTOR_UNDER_LOAD, LatencyKnobs, STD_DEV, TIME_SCALE},
    duration::HumanDuration,
};

/// How long things take. All of it can be changed at run time.
#[derive(Clone, Debug, Args)]
pub(super) struct LatencyArgs {
    /// Time from the start of a request, when it leaves the queue, to its first token, whatever its prompt;
    /// the --prefill-... times are added to it
    #[arg(
        long,
        env = "TIME_TO_FIRST_TOKEN",
        value_name = "DURATION",
        default_value = "0"
    )]
    time_to_first_token: HumanDuration,

    /// Standard deviation of --time-to-first-token as a share of it, 0 to 0.3
    #[arg(long, env = "TIME_TO_FIRST_TOKEN_STD_DEV", value_name = "SHARE", default_value = "0", value_parser = std_dev)]
    time_to_first_token_std_dev: f64,

    /// Time that each prefill takes, besides that of its tokens
    #[arg(
        long,
        env = "PREFILL_OVERHEAD",
        value_name = "DURATION",
        default_value = "0"
    )]
    prefill_overhead: HumanDuration,

    /// Time that each token of the prompt adds to the prefill, unless the prefix cache holds it
    #[arg(
        long,
        env = "PREFILL_TIME_PER_TOKEN",
        value_name = "DURATION",
        default_value = "0"
    )]
    prefill_time_per_token: HumanDuration,

    /// Standard deviation of overhead and tokens of a prefill together, as a share, 0 to 0.3
    #[arg(long, env = "PREFILL_TIME_STD_DEV", value_name = "SHARE", default_value = "0", value_parser = std_dev)]
    prefill_time_std_dev: f64,

    /// Time from one token to the next
    #[arg(
        long,
        env = "INTER_TOKEN_LATENCY",
        value_name = "DURATION",
        default_value = "0"
    )]
    inter_token_latency: HumanDuration,

    /// Standard deviation of --inter-token-latency as a share of it, 0 to 0.3
    #[arg(long, env = "INTER_TOKEN_LATENCY_STD_DEV", value_name = "SHARE", default_value = "0", value_parser = std_dev)]
    inter_token_latency_std_dev: f64,

    /// Time that a request waits for a LoRA adapter that takes the place of another
    #[arg(
        long,
        env = "LORA_SWAP_TIME",
        value_name = "DURATION",
        default_value = "0"
    )]
    lora_swap_time: HumanDuration,

    /// What these times are multiplied by when --max-num-seqs requests run, 1 to 100; with fewer requests
    /// less, down to 1 for a request alone
    #[arg(long, env = "TIME_FACTOR_UNDER_LOAD", value_name = "FACTOR", default_value = "1", value_parser = factor)]
    time_factor_under_load: f64,

    /// What all simulated times are multiplied by, 0 to 1000: 0.1 is ten times as fast
    #[arg(long, env = "TIME_SCALE", value_name = "FACTOR", default_value = "1", value_parser = scale)]
    time_scale: f64,
}

// === impl LatencyArgs ===

impl From<LatencyArgs> for LatencyKnobs {
    fn from(args: LatencyArgs) -> Self {
        let LatencyArgs {
            time_to_first_token,
            time_to_first_token_std_dev,
            prefill_overhead,
            prefill_time_per_token,
            prefill_time_std_dev,
            inter_token_latency,
            inter_token_latency_std_dev,
            lora_swap_time,
            time_factor_under_load,
            time_scale,
        } = args;
        Self {
            time_to_first_token,
            time_to_first_token_std_dev,
            prefill_overhead,
            prefill_time_per_token,
            prefill_time_std_dev,
            inter_token_latency,
            inter_token_latency_std_dev,
            lora_swap_time,
            time_factor_under_load,
            time_scale,
        }
    }
}

fn std_dev(text: &str) -> Result<f64, String> {
    STD_DEV.parse(text)
}

fn factor(text: &str) -> Result<f64, String> {
    FACTOR_UNDER_LOAD.parse(text)
}

fn scale(text: &str) -> Result<f64, String> {
    TIME_SCALE.parse(text)
}
