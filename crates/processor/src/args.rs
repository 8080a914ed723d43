//! Flags and their variables.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroUsize,
    path::PathBuf,
    str::FromStr,
};

use clap::{Parser, Subcommand};
use http_call::{BaseUrl, UrlError};
use http_service::CallerArgs;
use otlp::TracingArgs;
use process::{ConfigError, LogArgs, Size, Span};
use processor_api::ROUTE_PATH;
use token_cache::{Endpoint, EndpointError};

use crate::transfer::{TokenTransfer, Transfer};

/// Processor: from a client's request to the ids of its prompt, by the model's chat template and tokenizer, and to the
/// worker that the Router chooses for them.
///
/// It answers endpoint pickers on --http-port over HTTP/1.1 and h2c, keeps the ids of prompts for workers on --token-port,
/// and has /metrics, /healthz and /readyz on --admin-port.
///
/// Every flag has an environment variable. Bad values end the program with exit code 64 before a port is opened. SIGTERM
/// drains, a second SIGTERM ends at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "processor", version)]
pub struct Args {
    /// Other commands than to serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What is listened on.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// What is rendered and encoded, and how.
    #[command(flatten)]
    pub prompts: PromptArgs,
    /// Who chooses workers.
    #[command(flatten)]
    pub router: RouterArgs,
    /// How ids get to workers.
    #[command(flatten)]
    pub tokens: TokenArgs,
    /// Who is called.
    #[command(flatten)]
    pub peers: PeerArgs,
    /// Who may call.
    #[command(flatten)]
    pub callers: CallerArgs,
    /// Traces.
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Other commands than to serve.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Compare the ids of sample requests with those that an engine makes of them.
    Verify(VerifyArgs),
}

/// Flags of `verify`.
#[derive(Clone, Debug, clap::Args)]
pub struct VerifyArgs {
    /// The engine: its render endpoints are asked, or /tokenize where it has none.
    #[arg(long, value_name = "URL")]
    pub engine: BaseUrl,
    /// Requests as clients send them, one on each line, of chat completions or completions.
    #[arg(long, value_name = "FILE")]
    pub samples: PathBuf,
}

/// Flags of the ports.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Ports")]
pub struct ListenArgs {
    /// Address that all ports are opened on; `::` is every address of IPv6 and IPv4.
    #[arg(long, env, value_name = "IP", default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
    pub host: IpAddr,
    /// Port of /process and the calls beside it.
    #[arg(long, env, value_name = "PORT", default_value_t = 8090)]
    pub http_port: u16,
    /// Port on which workers fetch ids by key, with --token-cache-endpoint memory.
    #[arg(long, env, value_name = "PORT", default_value_t = 8092)]
    pub token_port: u16,
    /// Port of /metrics, /healthz and /readyz.
    #[arg(long, env, value_name = "PORT", default_value_t = 8080)]
    pub admin_port: u16,
    /// How long a drain takes at most, from SIGTERM on. Calls are served for 5s of it, or half of it if that is less.
    #[arg(long, env, value_name = "DURATION", default_value = "10s")]
    pub drain_timeout: Span,
}

/// Flags of what is rendered and encoded.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Prompts")]
pub struct PromptArgs {
    /// The models, in YAML. Read again every 5 s and on SIGHUP, and loaded again when it has changed; one that cannot be
    /// used changes nothing. Files of models are looked at again then, and on SIGHUP.
    #[arg(long, env, value_name = "FILE", global = true)]
    pub models_file: Option<PathBuf>,
    /// Threads that prompts are rendered and encoded on. Default: one for each core.
    #[arg(long, env, value_name = "N")]
    pub tokenizer_threads: Option<NonZeroUsize>,
    /// Calls that may wait for such a thread. More are refused with overloaded.
    #[arg(long, env, value_name = "N", default_value_t = 256)]
    pub tokenizer_queue: usize,
    /// Memory for the ids of parts of prompts that were seen before, of all models together.
    #[arg(long, env, value_name = "SIZE", default_value = "512MiB")]
    pub segment_cache_max_bytes: Size,
    /// Share of prompts, 0 to 1, that are encoded as a whole too. If the parts have other ids, the model's prompts are
    /// encoded whole from then on.
    #[arg(long, env, value_name = "SHARE", default_value_t = 0.001)]
    pub verify_sample: f64,
    /// The largest body of a client.
    #[arg(long, env, value_name = "SIZE", default_value = "16MiB")]
    pub max_prompt_bytes: Size,
}

/// Flags of the Router.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Router")]
pub struct RouterArgs {
    /// The Router, such as `http://router:8091`. Without it replies name no worker.
    #[arg(long, env, value_name = "URL")]
    pub dynamo_router_endpoint: Option<RouterUrl>,
    /// How long the Router is waited for.
    #[arg(long, env, value_name = "DURATION", default_value = "100ms")]
    pub route_timeout: Span,
}

/// Flags of the ids' way to workers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Token ids")]
pub struct TokenArgs {
    /// How ids get to workers. auto: by key where they are many, else in the reply; in the reply too where the token cache
    /// fails. cache: by key, or not at all. direct: in the reply. none: not at all.
    #[arg(long, env, value_enum, value_name = "HOW", default_value_t = TokenTransfer::Auto)]
    pub token_transfer: TokenTransfer,
    /// With auto: ids of more bytes, 4 each, go by key.
    #[arg(long, env, value_name = "SIZE", default_value = "64KiB")]
    pub token_transfer_threshold: Size,
    /// Where ids are kept for workers. memory: here, which is for one Processor. none: nowhere. Else a URL: http or https
    /// of what serves /v1/tokens; redis or rediss of a Redis or Valkey, for several Processors, with a password rather by
    /// the variable.
    #[arg(
        long,
        env,
        value_name = "PLACE",
        default_value = "memory",
        hide_env_values = true
    )]
    pub token_cache_endpoint: TokenCachePlace,
    /// How long ids are kept: at least as long as the gateway waits for a reply. A cache at http decides itself.
    #[arg(long, env, value_name = "DURATION", default_value = "300s")]
    pub token_ttl: Span,
    /// Memory for ids, with --token-cache-endpoint memory. Those least recently used give way.
    #[arg(long, env, value_name = "SIZE", default_value = "1GiB")]
    pub token_cache_max_bytes: Size,
    /// How long a write to the token cache may take.
    #[arg(long, env, value_name = "DURATION", default_value = "200ms")]
    pub token_store_timeout: Span,
    /// Bearer tokens, one on each line. With --token-cache-endpoint memory: who fetches ids on --token-port must send one
    /// of them. With http: the one that is sent. Read again every 5 s; a file that cannot be used changes nothing.
    #[arg(long, env, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
}

/// Flags of TLS towards others.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "TLS towards Router and token cache")]
pub struct PeerArgs {
    /// CAs in PEM that the certificates of an https Router and of a token cache at https or rediss are checked against;
    /// without it those of the system. Read again every 5 s and on SIGHUP.
    #[arg(long, env, value_name = "FILE")]
    pub peer_ca_file: Option<PathBuf>,
    /// Directory with tls.crt and tls.key in PEM, to be known to them by. Read again as the CAs are.
    #[arg(long, env, value_name = "DIR")]
    pub peer_cert_path: Option<PathBuf>,
}

/// The Router's base URL; `/route` at its end is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterUrl(pub BaseUrl);

/// Where ids are kept for workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenCachePlace {
    /// There.
    At(Endpoint),
    /// Nowhere.
    None,
}

// === impl Args ===

impl process::Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_service(&self) -> bool {
        self.command.is_none()
    }
}

// === impl RouterUrl ===

impl FromStr for RouterUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let url: BaseUrl = text.parse()?;
        Ok(Self(url.without_suffix(ROUTE_PATH)))
    }
}

// === impl TokenCachePlace ===

impl FromStr for TokenCachePlace {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text == "none" {
            return Ok(Self::None);
        }
        text.parse().map(Self::At)
    }
}

// === impl ListenArgs ===

impl ListenArgs {
    /// # Errors
    /// When two ports are one.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let ports = [
            ("--http-port", self.http_port),
            ("--token-port", self.token_port),
            ("--admin-port", self.admin_port),
        ];
        for (at, (flag, port)) in ports.iter().enumerate() {
            let same = ports.iter().skip(at + 1).find(|(_, other)| other == port);
            if let Some((other, _)) = same.filter(|_| *port != 0) {
                return Err(ConfigError::new(
                    format!("{flag} {port} {other} {port}"),
                    "a port for each",
                    "--http-port 8090 --token-port 8092 --admin-port 8080",
                ));
            }
        }
        Ok(())
    }
}

// === impl PromptArgs ===

impl PromptArgs {
    /// # Errors
    /// For values that cannot be.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !(0.0..=1.0).contains(&self.verify_sample) {
            let value = format!("--verify-sample {}", self.verify_sample);
            return Err(ConfigError::new(value, "0 to 1", "--verify-sample 0.001"));
        }
        Ok(())
    }

    /// # Errors
    /// When there is none.
    pub(crate) fn models_file(&self) -> Result<&PathBuf, ConfigError> {
        self.models_file.as_ref().ok_or_else(|| {
            ConfigError::new(
                "no --models-file",
                "the file that names the models",
                "--models-file /etc/processor/models.yaml",
            )
        })
    }
}

// === impl RouterArgs ===

impl RouterArgs {
    /// # Errors
    /// For a time that leaves none.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        positive("--route-timeout", self.route_timeout, "100ms")
    }
}

// === impl TokenArgs ===

impl TokenArgs {
    /// The rule of the transfer.
    ///
    /// # Errors
    /// For flags that contradict each other, and for times that leave none.
    pub(crate) fn transfer(&self) -> Result<Transfer, ConfigError> {
        positive("--token-ttl", self.token_ttl, "300s")?;
        positive("--token-store-timeout", self.token_store_timeout, "200ms")?;
        let nowhere = self.token_cache_endpoint == TokenCachePlace::None;
        if nowhere && self.token_transfer == TokenTransfer::Cache {
            return Err(ConfigError::new(
                "--token-transfer cache with --token-cache-endpoint none",
                "a token cache, or another transfer",
                "--token-transfer direct --token-cache-endpoint none",
            ));
        }
        Ok(Transfer {
            mode: self.token_transfer,
            threshold: self.token_transfer_threshold.0,
        })
    }
}

fn positive(flag: &str, time: Span, example: &str) -> Result<(), ConfigError> {
    if time.0.is_zero() {
        let (value, example) = (format!("{flag} 0"), format!("{flag} {example}"));
        return Err(ConfigError::new(value, "more than 0s", example));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;
    use process::docs::{check_part, flags};
    use rstest::rstest;

    use super::*;

    fn checked(flags: &[&str]) -> Result<Args, String> {
        let words = ["processor"].iter().chain(flags);
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        let checks = args.listen.check().and_then(|()| args.prompts.check());
        let checks = checks.and_then(|()| args.router.check());
        let checks = checks.and_then(|()| args.tokens.transfer().map(|_| ()));
        let checks = checks.and_then(|()| args.prompts.models_file().map(|_| ()));
        checks.map_err(|error| error.to_string())?;
        Ok(args)
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_flag_is_documented() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/processor.md");
        let again = "UPDATE_DOCS=1 cargo test -p processor documented";
        let made = flags(Args::command().get_arguments());
        check_part(&docs, "flags", &made, again).unwrap();
        let command = Args::command();
        let verify = command.find_subcommand("verify").unwrap();
        check_part(&docs, "verify", &flags(verify.get_arguments()), again).unwrap();
    }

    #[test]
    fn a_models_file_is_all_that_is_needed() {
        let args = checked(&["--models-file", "/m.yaml"]).unwrap();
        assert!(args.command.is_none());
        let transfer = args.tokens.transfer().unwrap();
        assert_eq!(
            (transfer.mode, transfer.threshold),
            (TokenTransfer::Auto, 65_536)
        );
    }

    #[test]
    fn the_routers_url_is_taken_with_and_without_the_path() {
        for url in ["http://router:8091", "http://router:8091/route"] {
            let flags = ["--models-file", "/m", "--dynamo-router-endpoint", url];
            let router = checked(&flags).unwrap().router.dynamo_router_endpoint;
            assert_eq!(router.unwrap().0.to_string(), "http://router:8091");
        }
    }

    #[rstest]
    #[case(&[], "no --models-file: expected the file")]
    #[case(&["--token-port", "8090"], "--http-port 8090 --token-port 8090: expected a port for each")]
    #[case(&["--tokenizer-threads", "0"], "zero")]
    #[case(&["--verify-sample", "2"], "expected 0 to 1")]
    #[case(&["--verify-sample", "NaN"], "expected 0 to 1")]
    #[case(&["--route-timeout", "0"], "--route-timeout 100ms")]
    #[case(&["--token-ttl", "0"], "--token-ttl 300s")]
    #[case(&["--dynamo-router-endpoint", "http://me:secret@r"], "credentials in a file")]
    #[case(&["--token-cache-endpoint", "disk"], "none of memory")]
    #[case(&["--token-cache-endpoint", "none", "--token-transfer", "cache"], "a token cache, or another")]
    #[case(&["verify", "--engine", "e", "--samples", "s"], "http://")]
    fn bad_values_are_refused_with_what_is_expected(#[case] flags: &[&str], #[case] said: &str) {
        let file = ["--models-file", "/m.yaml"];
        let flags = if flags.is_empty() {
            Vec::new()
        } else {
            [&file, flags].concat()
        };
        let error = checked(&flags).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
