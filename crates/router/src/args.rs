//! Flags and their variables.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
};

use clap::{ArgAction, Parser, ValueEnum, builder::NonEmptyStringValueParser};
use discovery::{LabelSelector, Source, SourceFlags, TargetPorts};
use http_service::CallerArgs;
use kv_router::{Limits, Policy, Preset, Weights};
use otlp::TracingArgs;
use process::{ConfigError, LogArgs, Size, Span};

use crate::events::{EventPorts, FirstRank};

/// Router: for the token ids of a prompt, the worker of its pool where it costs least.
///
/// It answers POST /route on --http-port over HTTP/1.1 and h2c, and has /metrics, /healthz and /readyz on --admin-port.
///
/// Every flag has an environment variable. Bad values end the program with exit code 64 before a port is opened. SIGTERM
/// drains, a second SIGTERM ends at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "router", version)]
pub struct Args {
    /// Whose workers these are.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// What workers publish.
    #[command(flatten)]
    pub events: EventArgs,
    /// What decides.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// What is kept, and for how long.
    #[command(flatten)]
    pub state: StateArgs,
    /// What is listened on.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Who may call.
    #[command(flatten)]
    pub callers: CallerArgs,
    /// Replicas.
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Spans.
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of the pool: those of the endpoint picker.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Pool")]
pub struct PoolArgs {
    /// Name of the InferencePool whose pods are the workers. Exactly one of this, --endpoint-selector and --endpoints-file
    /// is needed.
    #[arg(long, env, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub pool_name: Option<String>,
    /// Without a pool: the workers by the labels of their pods, such as app=llama,tier in (gold,free),!canary.
    #[arg(long, env, value_name = "SELECTOR")]
    pub endpoint_selector: Option<LabelSelector>,
    /// The ports of those pods, 1 to 8, such as 8000 or 8000,8001.
    #[arg(long, env, value_name = "PORTS")]
    pub endpoint_target_ports: Option<TargetPorts>,
    /// Without Kubernetes: a file of workers in YAML or JSON, read again when it changes. One that cannot be used changes
    /// nothing; at the start it ends the program.
    #[arg(long, env, value_name = "PATH")]
    pub endpoints_file: Option<PathBuf>,
    /// Namespace of the pool and its pods. Without it $NAMESPACE, else `default`.
    #[arg(long, env, value_name = "NAMESPACE")]
    pub pool_namespace: Option<String>,
    /// The namespace this Router runs in; only read where --pool-namespace is not given.
    #[arg(
        long,
        env,
        value_name = "NAMESPACE",
        default_value = "default",
        hide = true
    )]
    pub namespace: String,
    /// API group of the pool; there is only one.
    #[arg(long, env, value_name = "GROUP", default_value = "inference.networking.k8s.io",
          value_parser = ["inference.networking.k8s.io"])]
    pub pool_group: String,
}

/// Flags of KV events.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "KV events")]
pub struct EventArgs {
    /// Ids of a block, as the engines have it: vLLM's --block-size.
    #[arg(long, env, value_name = "IDS", default_value_t = 16)]
    pub block_size: usize,
    /// Whether the engines' KV events are followed. auto: as far as there are any. off: what a worker has is predicted from
    /// what was sent to it.
    #[arg(long, env, value_enum, value_name = "WHEN", default_value_t = Follow::Auto)]
    pub kv_events: Follow,
    /// Port on which a worker publishes them over ZMQ; that of a further rank is one higher each.
    #[arg(long, env, value_name = "PORT", default_value_t = 5557)]
    pub kv_event_port: u16,
    /// Port on which a worker publishes the last of them again, counted as the one above. Without it what was missed is
    /// forgotten and learned anew.
    #[arg(long, env, value_name = "PORT")]
    pub kv_event_replay_port: Option<u16>,
    /// Data parallel ranks behind the one port of a worker, 1 to 64. Where the pool has several target ports each of them
    /// is a rank, and this does not count.
    #[arg(long, env, value_name = "N", default_value_t = 1)]
    pub kv_event_ranks: u8,
    /// The data parallel rank that a pod begins with, where one engine has several pods: the ports of ranks count up over
    /// all of them. A number; label:KEY, the label of the pod that says it; or index:KEY, the label that has the number of
    /// the pod, times --kv-event-ranks, such as index:apps.kubernetes.io/pod-index.
    #[arg(long, env, value_name = "RANK", default_value_t = FirstRank::Fixed(0))]
    pub kv_event_first_rank: FirstRank,
}

/// Flags of the choice.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Choice")]
pub struct ChoiceArgs {
    /// What counts how much. isthmus: cached blocks count twice and requests count. reference: as Dynamo's router.
    #[arg(long, env, value_name = "NAME", default_value = "isthmus")]
    pub preset: PresetName,
    /// Blocks that a cached one is worth, instead of the preset's 2 (reference: 1).
    #[arg(long, env, value_name = "BLOCKS", value_parser = parse_weight)]
    pub overlap_credit: Option<f64>,
    /// What a block counts that is to be computed, instead of the preset's 1.
    #[arg(long, env, value_name = "COST", value_parser = parse_weight)]
    pub prefill_weight: Option<f64>,
    /// What a block counts that is held while answers are made, instead of the preset's 0.25 (reference: 1).
    #[arg(long, env, value_name = "COST", value_parser = parse_weight)]
    pub decode_weight: Option<f64>,
    /// Ids that a request counts for, instead of the preset's 1024 (reference: 0).
    #[arg(long, env, value_name = "IDS", value_parser = parse_weight)]
    pub request_weight_tokens: Option<f64>,
    /// How fast cached blocks lose their worth where more is to be computed than elsewhere, instead of the preset's 0.
    #[arg(long, env, value_name = "RATE", value_parser = parse_weight)]
    pub overlap_decay: Option<f64>,
    /// 0: the least cost, equal ones by chance. Above: by chance, exp(-cost / temperature) with costs stretched to 0..1.
    #[arg(long, env, value_name = "T", default_value_t = 0.0, value_parser = parse_weight)]
    pub router_temperature: f64,
    /// A worker with more ids to compute than so many times --max-batched-tokens gets no prompt; where all are, the call is
    /// refused with 429. off: none is.
    #[arg(long, env, value_name = "TIMES", default_value = "off")]
    pub busy_threshold: BusyThreshold,
    /// Ids that an engine computes in one step, as it has them: vLLM's --max-num-batched-tokens.
    #[arg(long, env, value_name = "IDS", default_value_t = 8192)]
    pub max_batched_tokens: u32,
}

/// Flags of the state.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "State")]
pub struct StateArgs {
    /// How long a computed prompt counts as cached at a worker whose KV events are all known: they tell by then.
    #[arg(long, env, value_name = "DURATION", default_value = "10s")]
    pub predicted_ttl: Span,
    /// The same at any other worker.
    #[arg(long, env, value_name = "DURATION", default_value = "120s")]
    pub approximate_ttl: Span,
    /// Blocks of computed prompts that a worker is taken to keep.
    #[arg(long, env, value_name = "BLOCKS", default_value_t = 16_384)]
    pub assumed_worker_blocks: usize,
    /// Memory for what workers have by their KV events, in equal shares; over it a worker's oldest blocks are forgotten.
    #[arg(long, env, value_name = "SIZE", default_value = "2GiB")]
    pub index_max_bytes: Size,
    /// A booking that no message names for so long is over.
    #[arg(long, env, value_name = "DURATION", default_value = "60s")]
    pub reservation_idle: Span,
}

/// Flags of the ports.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Ports")]
pub struct ListenArgs {
    /// Address that both ports are opened on; `::` is every address of IPv6 and IPv4.
    #[arg(long, env, value_name = "IP", default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
    pub host: IpAddr,
    /// Port of the calls.
    #[arg(long, env, value_name = "PORT", default_value_t = 8091)]
    pub http_port: u16,
    /// Port of /metrics, /healthz and /readyz.
    #[arg(long, env, value_name = "PORT", default_value_t = 8080)]
    pub admin_port: u16,
    /// Serve /debug/routes, which explains the last 256 choices, and /debug/workers on --admin-port.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub enable_debug: bool,
    /// How long a drain takes at most, from SIGTERM on. Calls are served for 5s of it, or half of it if that is less.
    #[arg(long, env, value_name = "DURATION", default_value = "30s")]
    pub drain_timeout: Span,
}

/// Flags of a Router beside others of the same pool.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Replicas")]
pub struct ElectionArgs {
    /// Be ready only while holding the Lease router-NAMESPACE-POOL.isthmus.dev in the pool's namespace, so that one Router
    /// of several answers; the others follow the KV events meanwhile. Not with a file of workers.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub ha_enable_leader_election: bool,
}

/// Whether KV events are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Follow {
    /// As far as there are any.
    Auto,
    /// Never.
    Off,
}

/// The name of a preset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresetName(pub Preset);

/// When a worker is busy; absent: never.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyThreshold(pub Option<f64>);

/// Blocks of engines have 1 to some hundred ids.
const MAX_BLOCK_SIZE: usize = 1 << 16;

/// More data parallel ranks than any engine has in one pod.
const MAX_RANKS: u8 = 64;

/// Ranks by target ports: there are 8 of these at most.
const MAX_PORTS: u8 = 8;

// === impl Args ===

impl process::Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }
}

// === impl PoolArgs ===

impl PoolArgs {
    /// Where the workers come from.
    ///
    /// # Errors
    /// When no source is named, or several.
    pub(crate) fn source(&self) -> Result<Source, ConfigError> {
        Source::of(SourceFlags {
            pool_name: self.pool_name.as_deref(),
            endpoint_selector: self.endpoint_selector.as_ref(),
            endpoint_target_ports: self.endpoint_target_ports.as_ref(),
            endpoints_file: self.endpoints_file.as_deref(),
            namespace: self.pool_namespace.as_deref().unwrap_or(&self.namespace),
        })
    }
}

// === impl EventArgs ===

impl EventArgs {
    /// Where events are followed; none: they are not.
    ///
    /// # Errors
    /// For values that cannot be.
    pub(crate) fn ports(&self) -> Result<Option<EventPorts>, ConfigError> {
        let Self {
            block_size,
            kv_events,
            kv_event_port,
            kv_event_replay_port,
            kv_event_ranks,
            ref kv_event_first_rank,
        } = *self;
        if !(1..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(ConfigError::new(
                format!("--block-size {block_size}"),
                "1 to 65536, the engine's own",
                "--block-size 16",
            ));
        }
        if !(1..=MAX_RANKS).contains(&kv_event_ranks) {
            return Err(ConfigError::new(
                format!("--kv-event-ranks {kv_event_ranks}"),
                "1 to 64",
                "--kv-event-ranks 1",
            ));
        }
        let mut above = u16::from(kv_event_ranks.max(MAX_PORTS) - 1);
        if let FirstRank::Fixed(first) = kv_event_first_rank {
            above = above.saturating_add(*first);
        }
        let ports = [
            ("--kv-event-port", Some(kv_event_port), 5557),
            ("--kv-event-replay-port", kv_event_replay_port, 5558),
        ];
        for (flag, port, example) in ports {
            if port.is_some_and(|port| port == 0 || port > u16::MAX.saturating_sub(above)) {
                return Err(ConfigError::new(
                    format!("{flag} {}", port.unwrap_or_default()),
                    format!(
                        "1 to {}: further ranks have the ports above",
                        u16::MAX - above
                    ),
                    format!("{flag} {example}"),
                ));
            }
        }
        let apart = |replay: u16| replay.abs_diff(kv_event_port) >= kv_event_ranks.into();
        if let Some(replay) = kv_event_replay_port.filter(|replay| !apart(*replay)) {
            return Err(ConfigError::new(
                format!("--kv-event-port {kv_event_port} and --kv-event-replay-port {replay}"),
                format!(
                    "no port in both: they count up, one for each of --kv-event-ranks {kv_event_ranks}"
                ),
                "--kv-event-port 5557 --kv-event-replay-port 5657",
            ));
        }
        Ok((kv_events == Follow::Auto).then_some(EventPorts {
            events: kv_event_port,
            replay: kv_event_replay_port,
            first_rank: kv_event_first_rank.clone(),
            ranks: kv_event_ranks,
        }))
    }
}

// === impl ChoiceArgs ===

impl ChoiceArgs {
    /// What decides.
    ///
    /// # Errors
    /// For values that leave nothing to decide.
    pub(crate) fn policy(&self) -> Result<Policy, ConfigError> {
        let preset = self.preset.0.weights();
        if self.max_batched_tokens == 0 {
            return Err(ConfigError::new(
                "--max-batched-tokens 0",
                "at least 1",
                "--max-batched-tokens 8192",
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and a number of ids beyond 64 bits is as good as the highest"
        )]
        let busy_tokens = self
            .busy_threshold
            .0
            .map(|times| (times * f64::from(self.max_batched_tokens)) as u64);
        Ok(Policy {
            weights: Weights {
                overlap_credit: self.overlap_credit.unwrap_or(preset.overlap_credit),
                prefill: self.prefill_weight.unwrap_or(preset.prefill),
                decode: self.decode_weight.unwrap_or(preset.decode),
                request_tokens: self.request_weight_tokens.unwrap_or(preset.request_tokens),
                overlap_decay: self.overlap_decay.unwrap_or(preset.overlap_decay),
                is_clamped: preset.is_clamped,
            },
            temperature: self.router_temperature,
            busy_tokens,
        })
    }
}

// === impl StateArgs ===

impl StateArgs {
    /// Bounds and times, for blocks of this size.
    ///
    /// # Errors
    /// For values that leave room for nothing.
    pub(crate) fn limits(&self, block_size: usize) -> Result<Limits, ConfigError> {
        if self.assumed_worker_blocks == 0 {
            return Err(ConfigError::new(
                "--assumed-worker-blocks 0",
                "at least 1; --approximate-ttl 0 --predicted-ttl 0 predicts nothing",
                "--assumed-worker-blocks 16384",
            ));
        }
        if self.reservation_idle.0.is_zero() {
            return Err(ConfigError::new(
                "--reservation-idle 0",
                "more than 0s, and more than the 15s between two keepalives",
                "--reservation-idle 60s",
            ));
        }
        Ok(Limits {
            block_size,
            idle: self.reservation_idle.0,
            keep_live: self.predicted_ttl.0,
            keep_unknown: self.approximate_ttl.0,
            predicted_blocks: self.assumed_worker_blocks,
            ..Limits::default()
        })
    }
}

// === impl ListenArgs ===

impl ListenArgs {
    /// # Errors
    /// When both ports are one.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.http_port == self.admin_port && self.http_port != 0 {
            return Err(ConfigError::new(
                format!("--http-port {0} --admin-port {0}", self.http_port),
                "two ports",
                "--http-port 8091 --admin-port 8080",
            ));
        }
        Ok(())
    }
}

// === impl PresetName ===

impl FromStr for PresetName {
    type Err = kv_router::UnknownPreset;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

// === impl BusyThreshold ===

impl FromStr for BusyThreshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self(None));
        }
        let times = parse_weight(text).ok().filter(|times| *times > 0.0);
        let expected = || format!("{text:?}: expected off or a number above 0, such as 2.5");
        times.map(|it| Self(Some(it))).ok_or_else(expected)
    }
}

impl fmt::Display for BusyThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(times) => write!(f, "{times}"),
        }
    }
}

fn parse_weight(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|it| it.is_finite() && *it >= 0.0)
        .ok_or_else(|| format!("{text:?}: expected a number that is not negative, such as 0.25"))
}

#[cfg(test)]
mod tests;
