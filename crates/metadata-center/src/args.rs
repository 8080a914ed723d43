//! Flags and their variables.

use std::net::{IpAddr, Ipv6Addr};

use clap::{Parser, ValueEnum};
use http_service::CallerArgs;
use metadata::Limits;
use process::{ConfigError, LogArgs, Size, Span};

use crate::redis::{RedisOptions, RedisUrl};

/// Metadata-Center: the load of model servers and the prompts that they have seen, shared by the endpoint pickers of their
/// pools.
///
/// It answers calls in JSON on --port over HTTP/1.1 and h2c, and has /metrics, /healthz and /readyz there and on
/// --admin-port.
///
/// Every flag has an environment variable. Bad values end the program with exit code 64 before a port is opened. SIGTERM
/// drains, a second SIGTERM ends at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "metadata-center", version)]
pub struct Args {
    /// What is listened on.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// What is kept, and for how long.
    #[command(flatten)]
    pub state: StateArgs,
    /// Who may call.
    #[command(flatten)]
    pub callers: CallerArgs,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of the ports.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Ports")]
pub struct ListenArgs {
    /// Address that both ports are opened on; `::` is every address of IPv6 and IPv4.
    #[arg(long, env, value_name = "IP", default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
    pub host: IpAddr,
    /// Port of the calls.
    #[arg(long, env, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Port of /metrics, /healthz and /readyz alone.
    #[arg(long, env, value_name = "PORT", default_value_t = 8081)]
    pub admin_port: u16,
    /// How long a drain takes at most, from SIGTERM on. Calls are served for 5s of it, or half of it if that is less.
    #[arg(long, env, value_name = "DURATION", default_value = "10s")]
    pub drain_timeout: Span,
}

/// Flags of the state.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "State")]
pub struct StateArgs {
    /// Where the state is. memory: in this process, of which there must then be one; a restart begins empty. redis: in a
    /// Redis or Valkey, for several replicas.
    #[arg(long, env, value_enum, value_name = "PLACE", default_value_t = Backend::Memory)]
    pub backend: Backend,
    /// The Redis of --backend redis: redis://, rediss:// or unix://, with the password if it needs one; then rather by the
    /// variable, which lists of processes do not show.
    #[arg(long, env, value_name = "URL", hide_env_values = true)]
    pub redis_url: Option<RedisUrl>,
    /// Each call to Redis ends after so long.
    #[arg(long, env, value_name = "DURATION", default_value = "50ms")]
    pub redis_timeout: Span,
    /// Memory in Redis for what replicas tell each other of prompts that endpoints have seen.
    #[arg(long, env, value_name = "SIZE", default_value = "256MiB")]
    pub cache_log_max_bytes: Size,
    /// Charges that no instance reports in batches end after so long; so do unused endpoints and clusters.
    #[arg(long, env, value_name = "DURATION", default_value = "660s")]
    pub request_expire: Span,
    /// An endpoint has a saved prompt for so long, unless the save says otherwise.
    #[arg(long, env, value_name = "DURATION", default_value = "1h")]
    pub cache_expire: Span,
    /// Endpoints that a cache query names, unless it says otherwise: 1 to 1000.
    #[arg(long, env, value_name = "N", default_value_t = 5)]
    pub cache_top_k: u32,
    /// Memory for the prompts that endpoints have seen.
    #[arg(long, env, value_name = "SIZE", default_value = "512MiB")]
    pub cache_max_bytes: Size,
    /// Requests of all clusters at once, 200 bytes each.
    #[arg(long, env, value_name = "N", default_value_t = 1_000_000)]
    pub max_requests: usize,
    /// Clusters.
    #[arg(long, env, value_name = "N", default_value_t = 1024)]
    pub max_clusters: usize,
    /// Endpoints of one cluster.
    #[arg(long, env, value_name = "N", default_value_t = 4096)]
    pub max_endpoints: usize,
    /// Instances that report in batches.
    #[arg(long, env, value_name = "N", default_value_t = 4096)]
    pub max_instances: usize,
    /// Take prompt hashes that are strings of numbers joined by commas, as some clients send; each counts as one number.
    #[arg(long, env)]
    pub accept_joined_hashes: bool,
}

/// Where the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In this process.
    Memory,
    /// In a Redis or Valkey.
    Redis,
}

// === impl Args ===

impl process::Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }
}

// === impl ListenArgs ===

impl ListenArgs {
    /// # Errors
    /// When both ports are one.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.port == self.admin_port && self.port != 0 {
            let value = format!("--port {0} --admin-port {0}", self.port);
            return Err(ConfigError::new(
                value,
                "two ports",
                "--port 8080 --admin-port 8081",
            ));
        }
        Ok(())
    }
}

// === impl StateArgs ===

impl StateArgs {
    /// Where the Redis is; none: the state is in memory.
    ///
    /// # Errors
    /// Where one of backend and URL lacks the other, and for limits that cannot be.
    pub(crate) fn redis(&self) -> Result<Option<RedisOptions>, ConfigError> {
        let limits = self.limits()?;
        let example = "--backend redis --redis-url redis://redis.llm.svc:6379";
        match (self.backend, &self.redis_url) {
            (Backend::Memory, None) => Ok(None),
            (Backend::Redis, Some(url)) => Ok(Some(RedisOptions {
                url: url.clone(),
                timeout: self.redis_timeout.0,
                limits,
                cache_log_max_bytes: self.cache_log_max_bytes.0,
            })),
            (Backend::Redis, None) => Err(ConfigError::new(
                "--backend redis without --redis-url",
                "the URL of the Redis",
                example,
            )),
            (Backend::Memory, Some(_)) => Err(ConfigError::new(
                "--redis-url with --backend memory",
                "both for Redis, or neither",
                example,
            )),
        }
    }

    /// Bounds of the state.
    ///
    /// # Errors
    /// For values that leave room for nothing.
    pub(crate) fn limits(&self) -> Result<Limits, ConfigError> {
        let positive = [
            ("--max-requests", self.max_requests),
            ("--max-clusters", self.max_clusters),
            ("--max-endpoints", self.max_endpoints),
            ("--max-instances", self.max_instances),
        ];
        if let Some((flag, _)) = positive.iter().find(|(_, it)| *it == 0) {
            let value = format!("{flag} 0");
            return Err(ConfigError::new(
                value,
                "at least 1",
                format!("{flag} 4096"),
            ));
        }
        if !(1..=1000).contains(&self.cache_top_k) {
            let value = format!("--cache-top-k {}", self.cache_top_k);
            return Err(ConfigError::new(value, "1 to 1000", "--cache-top-k 5"));
        }
        let times = [
            ("--redis-timeout", self.redis_timeout, "50ms"),
            ("--request-expire", self.request_expire, "660s"),
            ("--cache-expire", self.cache_expire, "1h"),
        ];
        if let Some((flag, _, example)) = times.iter().find(|(_, it, _)| it.0.is_zero()) {
            let (value, example) = (format!("{flag} 0"), format!("{flag} {example}"));
            return Err(ConfigError::new(value, "more than 0s", example));
        }
        Ok(Limits {
            requests: self.max_requests,
            clusters: self.max_clusters,
            endpoints: self.max_endpoints,
            instances: self.max_instances,
            request_expire: self.request_expire.0,
            cache_expire: self.cache_expire.0,
            cache_top_k: self.cache_top_k,
            cache_max_bytes: usize::try_from(self.cache_max_bytes.0).unwrap_or(usize::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;
    use process::docs::{check_part, flags};
    use rstest::rstest;

    use super::*;

    fn limits(flags: &[&str]) -> Result<Limits, String> {
        let words = ["metadata-center"].iter().chain(flags);
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        let checked = args.listen.check().and_then(|()| args.state.redis());
        let checked = checked.and_then(|_| args.state.limits());
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_flag_is_documented() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metadata-center.md");
        let again = "UPDATE_DOCS=1 cargo test -p metadata-center documented";
        let made = flags(Args::command().get_arguments());
        check_part(&docs, "flags", &made, again).unwrap();
    }

    #[test]
    fn without_flags_the_bounds_are_those_of_the_state() {
        assert_eq!(limits(&[]), Ok(Limits::default()));
    }

    #[rstest]
    #[case(&["--port", "8081"], "two ports, for example --port 8080")]
    #[case(&["--max-requests", "0"], "--max-requests 0: expected at least 1")]
    #[case(&["--cache-top-k", "1001"], "expected 1 to 1000")]
    #[case(&["--request-expire", "0"], "--request-expire 660s")]
    #[case(&["--cache-max-bytes", "1TB"], "64MiB or 1GB")]
    #[case(&["--backend", "disk"], "memory")]
    #[case(&["--backend", "redis"], "--redis-url redis://")]
    #[case(&["--redis-url", "redis://r"], "--redis-url with --backend memory")]
    #[case(&["--host", "localhost"], "invalid IP address")]
    fn bad_values_are_refused_with_what_is_expected(#[case] flags: &[&str], #[case] said: &str) {
        let error = limits(flags).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
