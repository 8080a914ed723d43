//! Flags of the Go endpoint pickers that do nothing here, so that their command lines are taken.

use clap::ArgAction;
use process::ConfigError;
use tracing::warn;

/// Flags that are ignored with a warning, and flags that are refused with what takes their place.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Without effect")]
pub struct UnusedArgs {
    /// Ignored: the cipher suites are those of rustls, all of which are good.
    #[arg(long, env, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Always true: health is served on --grpc-port too.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub health_checking: Option<bool>,
    /// Ignored: metrics of streams are always there (`epp_streams`, `epp_streams_ended_total`).
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_grpc_stream_metrics: Option<bool>,
    /// Ignored: there is no pprof.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_pprof: Option<bool>,
    /// Ignored: metrics are computed when they are read.
    #[arg(long, env, value_name = "DURATION")]
    pub refresh_prometheus_metrics_interval: Option<String>,
    /// Ignored: there are no experimental plugins.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allow_experimental_plugins: Option<bool>,
    /// Ignored.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub zap_devel: Option<bool>,
    /// Ignored.
    #[arg(long, env, value_name = "LEVEL")]
    pub zap_stacktrace_level: Option<String>,
    /// Ignored.
    #[arg(long, env, value_name = "ENCODING")]
    pub zap_time_encoding: Option<String>,
    /// Refused: queuedRequestsSpec of engineConfigs takes its place.
    #[arg(long, env, hide = true)]
    pub total_queued_requests_metric: Option<String>,
    /// Refused: runningRequestsSpec of engineConfigs takes its place.
    #[arg(long, env, hide = true)]
    pub total_running_requests_metric: Option<String>,
    /// Refused: kvUsageSpec of engineConfigs takes its place.
    #[arg(long, env, hide = true)]
    pub kv_cache_usage_percentage_metric: Option<String>,
    /// Refused: loraSpec of engineConfigs takes its place.
    #[arg(long, env, hide = true)]
    pub lora_info_metric: Option<String>,
    /// Refused: cacheInfoSpec of engineConfigs takes its place.
    #[arg(long, env, hide = true)]
    pub cache_info_metric: Option<String>,
}

// === impl UnusedArgs ===

impl UnusedArgs {
    /// Warns of each flag that is given and ignored.
    ///
    /// # Errors
    /// For a flag that is given and refused.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for flag in self.ignored() {
            warn!("--{flag} has no effect");
        }
        match self.refused() {
            Some((flag, value, field)) => Err(ConfigError::new(
                format!("--{flag} {value:?}: it is a setting of the configuration file"),
                format!("{field} in engineConfigs of the plugin core-metrics-extractor"),
                format!("engineConfigs: [{{name: vllm, {field}: {value:?}}}]"),
            )),
            None => Ok(()),
        }
    }

    fn ignored(&self) -> impl Iterator<Item = &'static str> {
        let Self {
            tls_cipher_suites,
            health_checking,
            enable_grpc_stream_metrics,
            enable_pprof,
            refresh_prometheus_metrics_interval,
            allow_experimental_plugins,
            zap_devel,
            zap_stacktrace_level,
            zap_time_encoding,
            ..
        } = self;
        [
            ("tls-cipher-suites", !tls_cipher_suites.is_empty()),
            ("health-checking=false", *health_checking == Some(false)),
            (
                "enable-grpc-stream-metrics",
                enable_grpc_stream_metrics.is_some(),
            ),
            ("enable-pprof", enable_pprof.is_some()),
            (
                "refresh-prometheus-metrics-interval",
                refresh_prometheus_metrics_interval.is_some(),
            ),
            (
                "allow-experimental-plugins",
                allow_experimental_plugins.is_some(),
            ),
            ("zap-devel", zap_devel.is_some()),
            ("zap-stacktrace-level", zap_stacktrace_level.is_some()),
            ("zap-time-encoding", zap_time_encoding.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, given)| given.then_some(flag))
    }

    /// The first flag that is refused, its value, and the field that takes its place.
    fn refused(&self) -> Option<(&'static str, &str, &'static str)> {
        let Self {
            total_queued_requests_metric,
            total_running_requests_metric,
            kv_cache_usage_percentage_metric,
            lora_info_metric,
            cache_info_metric,
            ..
        } = self;
        [
            (
                "total-queued-requests-metric",
                total_queued_requests_metric,
                "queuedRequestsSpec",
            ),
            (
                "total-running-requests-metric",
                total_running_requests_metric,
                "runningRequestsSpec",
            ),
            (
                "kv-cache-usage-percentage-metric",
                kv_cache_usage_percentage_metric,
                "kvUsageSpec",
            ),
            ("lora-info-metric", lora_info_metric, "loraSpec"),
            ("cache-info-metric", cache_info_metric, "cacheInfoSpec"),
        ]
        .into_iter()
        .find_map(|(flag, value, field)| Some((flag, value.as_deref()?, field)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::args::Args;

    fn unused(flags: &[&str]) -> UnusedArgs {
        let words = ["epp", "--pool-name", "llm"].iter().chain(flags);
        Args::try_parse_from(words).unwrap().unused
    }

    #[rstest]
    #[case(&[], &[])]
    #[case(&["--enable-pprof=false", "--enable-grpc-stream-metrics"], &["enable-grpc-stream-metrics", "enable-pprof"])]
    #[case(&["--health-checking"], &[])]
    #[case(&["--health-checking=false"], &["health-checking=false"])]
    #[case(
        &["--zap-devel", "--tls-cipher-suites=A,B", "--refresh-prometheus-metrics-interval=5s", "--zap-stacktrace-level=error"],
        &["tls-cipher-suites", "refresh-prometheus-metrics-interval", "zap-devel", "zap-stacktrace-level"]
    )]
    #[case(&["--allow-experimental-plugins", "--zap-time-encoding", "iso8601"], &["allow-experimental-plugins", "zap-time-encoding"])]
    fn what_is_given_and_ignored_is_named(#[case] flags: &[&str], #[case] expected: &[&str]) {
        let unused = unused(flags);
        assert_eq!(unused.ignored().collect::<Vec<_>>(), expected);
        assert!(unused.check().is_ok());
    }

    #[rstest]
    #[case("--total-queued-requests-metric", "queuedRequestsSpec")]
    #[case("--total-running-requests-metric", "runningRequestsSpec")]
    #[case("--kv-cache-usage-percentage-metric", "kvUsageSpec")]
    #[case("--lora-info-metric", "loraSpec")]
    #[case("--cache-info-metric", "cacheInfoSpec")]
    fn flags_of_engines_are_refused_with_what_takes_their_place(
        #[case] flag: &str,
        #[case] field: &str,
    ) {
        let error = unused(&[flag, "vllm:x"]).check().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{flag} \"vllm:x\"")), "{error}");
        assert!(error.contains(field), "{error}");
    }
}
