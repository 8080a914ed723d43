//! Flags of the Metadata-Center, where endpoint pickers share load and prompt caches.

use std::{path::PathBuf, time::Duration};

use clap::{
    ArgAction,
    builder::{BoolishValueParser, NonEmptyStringValueParser},
    value_parser,
};
use metadata::Instance;
use process::ConfigError;
use rand::{Rng, RngExt};

use super::Span;

/// A deadline, in milliseconds if it is a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Duration);

/// What is spoken with the Metadata-Center.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CenterApi {
    /// Picks and ordered batches.
    #[default]
    Isthmus,
    /// The calls of the service that the LLM filter for Envoy has.
    Compat,
}

/// What stands for the Metadata-Center's load and caches while it does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CenterFallback {
    /// What this endpoint picker knows itself.
    #[default]
    Own,
    /// Nothing: all endpoints are equal.
    Equal,
}

/// What names an endpoint to the Metadata-Center.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CenterEndpointId {
    /// Its address with the port.
    Address,
    /// Its IP address alone, as other gateways do.
    Ip,
}

/// Flags of the Metadata-Center.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Metadata-Center")]
pub struct MetadataCenterArgs {
    /// Its host.
    #[arg(long, env, value_name = "HOST", default_value = "localhost", value_parser = NonEmptyStringValueParser::new())]
    pub metadata_center_host: String,
    /// Its port.
    #[arg(long, env, value_name = "PORT", default_value_t = 8080, value_parser = value_parser!(u16).range(1..))]
    pub metadata_center_port: u16,
    /// Share load and prompt caches with other endpoint pickers through it. Without it this one knows its own requests.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "false",
          num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub metadata_center_enabled: bool,
    /// Prompt caches count, for models that have `cache_aware_enable`.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "true",
          num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub metadata_center_cache_enabled: bool,
    /// Deadline of what a request waits for, such as 100 (milliseconds) or 100ms; 1ms to 60s [default: 100ms].
    #[arg(long, env, value_name = "MS")]
    pub metadata_center_timeout_ms: Option<Deadline>,
    /// Deadline of what no request waits for; 1ms to 60s [default: 500ms].
    #[arg(long, env, value_name = "MS")]
    pub metadata_center_async_timeout_ms: Option<Deadline>,
    /// Requests whose changes wait to be sent, 1 to 1000000; beyond it all are sent anew [default: 1000].
    #[arg(long, env, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub metadata_center_async_queue_size: Option<u32>,
    /// Batches that are on their way at once, 1 to 64 [default: 10].
    #[arg(long, env, value_name = "N", value_parser = value_parser!(u8).range(1..=64))]
    pub metadata_center_async_workers: Option<u8>,
    /// What is spoken with it.
    #[arg(long, env, value_name = "API", default_value = "isthmus")]
    pub metadata_center_api: CenterApi,
    /// What counts while it does not answer: own requests, or nothing.
    #[arg(long, env, value_name = "WHAT", default_value = "own")]
    pub metadata_center_fallback: CenterFallback,
    /// What names an endpoint to it [default: address; with --metadata-center-api compat: ip].
    #[arg(long, env, value_name = "WHAT")]
    pub metadata_center_endpoint_id: Option<CenterEndpointId>,
    /// Under which name this endpoint picker reports, 1 to 128 visible ASCII characters [default: `$POD_NAME`, else a UUID].
    #[arg(long, env, value_name = "NAME")]
    pub metadata_center_instance: Option<Instance>,
    /// How long its requests count after its last word, in milliseconds, 1000 to 60000.
    #[arg(long, env, value_name = "MS", default_value_t = 15_000, value_parser = value_parser!(u32).range(1_000..=60_000))]
    pub metadata_center_lease_ms: u32,
    /// Connect over TLS.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "false",
          num_args = 0..=1, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub metadata_center_tls: bool,
    /// CAs in PEM that its certificate is checked against; without it those of the system.
    #[arg(long, env, value_name = "FILE")]
    pub metadata_center_ca_file: Option<PathBuf>,
    /// Directory with tls.crt and tls.key in PEM, to be known by.
    #[arg(long, env, value_name = "DIR")]
    pub metadata_center_cert_path: Option<PathBuf>,
    /// A file with the bearer token.
    #[arg(long, env, value_name = "FILE")]
    pub metadata_center_token_file: Option<PathBuf>,
    /// The pod's name; only read where --metadata-center-instance is not given.
    #[arg(long, env, value_name = "NAME", hide = true)]
    pub pod_name: Option<String>,
}

/// How the Metadata-Center is used, with defaults for what no flag says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CenterSettings {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// It is used at all.
    pub enabled: bool,
    /// Prompt caches count, where a model's own setting says so too.
    pub cache_enabled: bool,
    /// Of what a request waits for.
    pub timeout: Duration,
    /// Of what no request waits for.
    pub async_timeout: Duration,
    /// Requests whose changes wait, over all workers.
    pub queue_size: u32,
    /// Batches on their way at once, 1 to 64.
    pub workers: u8,
    /// What is spoken.
    pub api: CenterApi,
    /// What counts while it does not answer.
    pub fallback: CenterFallback,
    /// What names an endpoint.
    pub endpoint_id: CenterEndpointId,
    /// Who reports.
    pub instance: Instance,
    /// How long requests count after the last word.
    pub lease: Duration,
    /// Absent: plaintext.
    pub tls: Option<CenterTls>,
    /// A file with the bearer token.
    pub token_file: Option<PathBuf>,
}

/// Connections over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CenterTls {
    /// CAs in PEM; absent: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Directory of the client's own certificate.
    pub cert_path: Option<PathBuf>,
}

/// A request waits for no longer, whatever a variable says.
const MAX_DEADLINE: Duration = Duration::from_mins(1);

// === impl MetadataCenterArgs ===

impl MetadataCenterArgs {
    /// What the flags say.
    ///
    /// # Errors
    /// For files of TLS without TLS, and a pod's name that cannot be used.
    pub fn settings<R: Rng + ?Sized>(&self, rng: &mut R) -> Result<CenterSettings, ConfigError> {
        let given = |deadline: Option<Deadline>, otherwise: u64| {
            deadline.map_or(Duration::from_millis(otherwise), |deadline| deadline.0)
        };
        let endpoint_id = match self.metadata_center_api {
            CenterApi::Isthmus => CenterEndpointId::Address,
            CenterApi::Compat => CenterEndpointId::Ip,
        };
        Ok(CenterSettings {
            host: self.metadata_center_host.clone(),
            port: self.metadata_center_port,
            enabled: self.metadata_center_enabled,
            cache_enabled: self.metadata_center_cache_enabled,
            timeout: given(self.metadata_center_timeout_ms, 100),
            async_timeout: given(self.metadata_center_async_timeout_ms, 500),
            queue_size: self.metadata_center_async_queue_size.unwrap_or(1000),
            workers: self.metadata_center_async_workers.unwrap_or(10),
            api: self.metadata_center_api,
            fallback: self.metadata_center_fallback,
            endpoint_id: self.metadata_center_endpoint_id.unwrap_or(endpoint_id),
            instance: self.instance(rng)?,
            lease: Duration::from_millis(self.metadata_center_lease_ms.into()),
            tls: self.tls()?,
            token_file: self.metadata_center_token_file.clone(),
        })
    }

    fn instance<R: Rng + ?Sized>(&self, rng: &mut R) -> Result<Instance, ConfigError> {
        if let Some(instance) = &self.metadata_center_instance {
            return Ok(instance.clone());
        }
        let pod = self.pod_name.clone().filter(|pod| !pod.is_empty());
        let mut uuid = || uuid::Builder::from_random_bytes(rng.random()).into_uuid();
        let name = pod.unwrap_or_else(|| uuid().to_string());
        name.parse().map_err(|error| {
            ConfigError::new(
                format!("$POD_NAME {name:?}: {error}"),
                "a name of 1 to 128 visible ASCII characters",
                "--metadata-center-instance epp-0",
            )
        })
    }

    fn tls(&self) -> Result<Option<CenterTls>, ConfigError> {
        let tls = CenterTls {
            ca_file: self.metadata_center_ca_file.clone(),
            cert_path: self.metadata_center_cert_path.clone(),
        };
        if !self.metadata_center_tls && tls != CenterTls::default() {
            return Err(ConfigError::new(
                "--metadata-center-ca-file or --metadata-center-cert-path without TLS",
                "--metadata-center-tls too, or neither of them",
                "--metadata-center-tls --metadata-center-ca-file /etc/tls/ca.crt",
            ));
        }
        Ok(self.metadata_center_tls.then_some(tls))
    }
}

// === impl Deadline ===

impl std::str::FromStr for Deadline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let millis = text.parse::<u64>().map(Duration::from_millis);
        let duration = match millis {
            Ok(duration) => duration,
            Err(_) => text.parse::<Span>()?.0,
        };
        if duration < Duration::from_millis(1) || duration > MAX_DEADLINE {
            return Err(format!(
                "{text:?} is no deadline of 1ms to 60s, such as 100 or 100ms"
            ));
        }
        Ok(Self(duration))
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use rand::{SeedableRng, rngs::StdRng};
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        center: MetadataCenterArgs,
    }

    fn settings(flags: &[&str]) -> CenterSettings {
        let words = ["epp", "--pod-name", "epp-0"].iter().chain(flags);
        let program = Program::try_parse_from(words).unwrap();
        program
            .center
            .settings(&mut StdRng::seed_from_u64(1))
            .unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_filter() {
        Program::command().debug_assert();
        let want = CenterSettings {
            host: "localhost".to_owned(),
            port: 8080,
            enabled: false,
            cache_enabled: true,
            timeout: Duration::from_millis(100),
            async_timeout: Duration::from_millis(500),
            queue_size: 1000,
            workers: 10,
            api: CenterApi::Isthmus,
            fallback: CenterFallback::Own,
            endpoint_id: CenterEndpointId::Address,
            instance: "epp-0".parse().unwrap(),
            lease: Duration::from_secs(15),
            tls: None,
            token_file: None,
        };
        assert_eq!(settings(&[]), want);
    }

    #[rstest]
    #[case(&["--metadata-center-timeout-ms", "50"], 50)]
    #[case(&["--metadata-center-timeout-ms", "50ms"], 50)]
    #[case(&["--metadata-center-timeout-ms", "0.2s"], 200)]
    fn deadlines_are_milliseconds_or_durations(#[case] flags: &[&str], #[case] millis: u64) {
        assert_eq!(settings(flags).timeout, Duration::from_millis(millis));
    }

    #[test]
    fn the_former_service_knows_endpoints_by_their_ip() {
        let compat = ["--metadata-center-api", "compat"];
        assert_eq!(settings(&compat).endpoint_id, CenterEndpointId::Ip);
        let both = [
            "--metadata-center-api=compat",
            "--metadata-center-endpoint-id=address",
        ];
        assert_eq!(settings(&both).endpoint_id, CenterEndpointId::Address);
    }

    #[rstest]
    #[case(&["--metadata-center-instance=a"], "a")]
    #[case(&["--pod-name=b"], "b")]
    fn the_instance_is_named(#[case] flags: &[&str], #[case] want: &str) {
        let words = ["epp"].iter().chain(flags);
        let program = Program::try_parse_from(words).unwrap();
        let found = program.center.settings(&mut rand::rng()).unwrap();
        assert_eq!(found.instance.as_str(), want);
    }

    #[rstest]
    #[case(&["--metadata-center-enabled"], true)]
    #[case(&["--metadata-center-enabled=1"], true)]
    #[case(&["--metadata-center-enabled=maybe"], false)]
    #[case(&["--metadata-center-port=0"], false)]
    #[case(&["--metadata-center-timeout-ms=0"], false)]
    #[case(&["--metadata-center-timeout-ms=2m"], false)]
    #[case(&["--metadata-center-timeout-ms=soon"], false)]
    #[case(&["--metadata-center-async-workers=64"], true)]
    #[case(&["--metadata-center-async-workers=65"], false)]
    #[case(&["--metadata-center-async-queue-size=0"], false)]
    #[case(&["--metadata-center-lease-ms=999"], false)]
    #[case(&["--metadata-center-instance="], false)]
    #[case(&["--metadata-center-ca-file=/ca"], false)]
    #[case(&["--metadata-center-tls", "--metadata-center-ca-file=/ca"], true)]
    #[case(&["--metadata-center-api=go"], false)]
    fn values_are_checked(#[case] flags: &[&str], #[case] good: bool) {
        let words = ["epp"].iter().chain(flags);
        let program = Program::try_parse_from(words).ok();
        let settings = program.and_then(|one| one.center.settings(&mut rand::rng()).ok());
        assert_eq!(settings.is_some(), good, "{flags:?}");
    }
}
