//! Flags and their variables.

mod center;
mod external;
mod tls;
mod unused;

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, Parser, builder::NonEmptyStringValueParser};
use discovery::{LabelSelector, TargetPorts};
pub use otlp::TracingArgs;
use process::LogArgs;
pub use process::{Size, Span};

pub use center::{
    CenterApi, CenterEndpointId, CenterFallback, CenterSettings, CenterTls, Deadline,
    MetadataCenterArgs,
};
pub use external::{ExternalArgs, SetModelName, TokenBodyField};
pub(crate) use external::{ExternalSettings, StageSettings};
pub use tls::TlsArgs;
pub use unused::UnusedArgs;

use crate::{config::Compat, director::ModelMatch, extproc::BodyMode};

/// Endpoint picker of one InferencePool: an Envoy external processor that chooses the model server for
/// each request, from live load.
///
/// It watches the pool and its pods (or pods by a selector, or a file of endpoints), scrapes their metrics,
/// answers Envoy on --grpc-port, and tells its health on --grpc-health-port (grpc.health.v1) and
/// --metrics-port (/metrics, /healthz, /readyz).
///
/// Every flag has an environment variable. Bad values end the program with exit code 64 before a port is
/// opened. SIGTERM drains, a second SIGTERM ends at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "epp", version)]
pub struct Args {
    /// The pool, and how its members are read.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The configuration file.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// What is listened on.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Who may connect.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Beside others.
    #[command(flatten)]
    pub election: ElectionArgs,
    /// How requests are handled.
    #[command(flatten)]
    pub requests: RequestArgs,
    /// Where load and prompt caches are shared.
    #[command(flatten)]
    pub center: MetadataCenterArgs,
    /// Where prompts are rendered and tokenized.
    #[command(flatten)]
    pub external: ExternalArgs,
    /// Traces.
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// What others have.
    #[command(flatten)]
    pub unused: UnusedArgs,
}

/// Flags of the pool.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Pool")]
pub struct PoolArgs {
    /// Name of the InferencePool that this EPP picks for. Exactly one of this, --endpoint-selector and --endpoints-file is
    /// needed; beside the last one it only names the pool in metrics.
    #[arg(long, env, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub pool_name: Option<String>,
    /// Without a pool: the pods to pick from, by their labels, such as app=llama,tier in (gold,free),!canary.
    #[arg(long, env, value_name = "SELECTOR")]
    pub endpoint_selector: Option<LabelSelector>,
    /// The ports of those pods, 1 to 8, such as 8000 or 8000,8001.
    #[arg(long, env, value_name = "PORTS")]
    pub endpoint_target_ports: Option<TargetPorts>,
    /// Without Kubernetes: a file of endpoints in YAML or JSON, read again when it changes. One that cannot be used changes
    /// nothing; at the start it ends the program.
    #[arg(long, env, value_name = "PATH")]
    pub endpoints_file: Option<PathBuf>,
    /// Namespace of the pool and its pods. Without it $NAMESPACE, else `default`.
    #[arg(long, env, value_name = "NAMESPACE")]
    pub pool_namespace: Option<String>,
    /// The namespace this EPP runs in; only read where --pool-namespace is not given.
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
    /// Time between two scrapes of one endpoint's /metrics, such as 50ms or 1s; at least 10ms.
    #[arg(long, env, value_name = "DURATION", default_value = "50ms", value_parser = parse_interval)]
    pub refresh_metrics_interval: Span,
    /// Age up to which scraped metrics are fresh, such as 2s. Older ones still count until they are 10 s old.
    #[arg(long, env, value_name = "DURATION", default_value = "2s")]
    pub metrics_staleness_threshold: Span,
}

/// Flags of the configuration file.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub struct ConfigArgs {
    /// An `EndpointPickerConfig`, in YAML or JSON. Read again every 5 s and on SIGHUP; a bad one changes nothing. Without
    /// it and --config-text the ecosystem's default holds: queue 2, KV cache 2, prefix 3.
    #[arg(long, env, value_name = "PATH", conflicts_with = "config_text")]
    pub config_file: Option<PathBuf>,
    /// The same as text.
    #[arg(long, env, value_name = "YAML")]
    pub config_text: Option<String>,
    /// The configuration of an LLM filter, in YAML or JSON: rules by model and headers. Read again every 5 s and on SIGHUP; a
    /// bad one changes nothing. Not together with isthmus.llmFilter in the configuration file.
    #[arg(long, env, value_name = "PATH")]
    pub llm_filter_config: Option<PathBuf>,
    /// What happens to types of plugins and to fields that this EPP does not know: strict refuses them, lenient ignores
    /// them with a warning.
    #[arg(long, env, value_name = "MODE", default_value = "strict")]
    pub config_compat: Compat,
}

/// Flags of the ports.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Ports")]
pub struct ListenArgs {
    /// Port of ext_proc (and of gRPC health, for probes through the same way).
    #[arg(long, env, value_name = "PORT", default_value_t = 9002)]
    pub grpc_port: u16,
    /// Port of gRPC health, in plaintext.
    #[arg(long, env, value_name = "PORT", default_value_t = 9003)]
    pub grpc_health_port: u16,
    /// Port of /metrics, /healthz and /readyz.
    #[arg(long, env, value_name = "PORT", default_value_t = 9090)]
    pub metrics_port: u16,
    /// Largest message taken from Envoy, such as 16MiB [default: --max-request-body and 1 MiB more]. A lower one makes
    /// bodies that come in one message end in a gRPC error, not in 413.
    #[arg(long, env, value_name = "SIZE")]
    pub grpc_max_recv_msg_size: Option<Size>,
    /// Largest message sent to Envoy, such as 16MiB [default: as for those that are taken].
    #[arg(long, env, value_name = "SIZE")]
    pub grpc_max_send_msg_size: Option<Size>,
    /// Streams of one connection, which is one request each.
    #[arg(long, env, value_name = "N", default_value_t = 50_000)]
    pub max_streams: u32,
    /// Serve /debug/state (members, queue, configuration) and /debug/picks (the last 256 picks, explained) on
    /// --metrics-port, to all who reach it. Each pick then costs some microseconds more.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub enable_debug: bool,
    /// After SIGTERM: time for the open streams to end, such as 30s. In its first half, 14 s at most, new ones are taken:
    /// up to 10 s as before, until another EPP is ready, then 4 s not ready, until every proxy has seen it.
    #[arg(long, env, value_name = "DURATION", default_value = "30s")]
    pub drain_timeout: Span,
}

/// Flags of an EPP beside others of the same pool.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Replicas")]
pub struct ElectionArgs {
    /// Be ready only while holding the Lease epp-NAMESPACE-POOL.isthmus.dev in the pool's namespace, so that one EPP of
    /// several answers; the others stay warm. Without it all of them answer. Not with a file of endpoints.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub ha_enable_leader_election: bool,
}

/// Flags of request handling.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Requests")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each flag that is on or off"
)]
pub struct RequestArgs {
    /// Body mode assumed where the proxy does not send its own.
    #[arg(long, env, value_name = "MODE", default_value = "FULL_DUPLEX_STREAMED")]
    pub default_body_mode: BodyMode,
    /// Largest request body that is read, such as 64MiB; a larger one gets 413.
    #[arg(long, env, value_name = "SIZE", default_value = "64MiB")]
    pub max_request_body: Size,
    /// What all request bodies being read may take together, such as 1GiB; beyond it requests get 429. Messages
    /// above 128 KiB that are being received count too. Not counted: messages being sent, and bodies that are passed
    /// on unread.
    #[arg(long, env, value_name = "SIZE", default_value = "1GiB")]
    pub max_buffered_bytes: Size,
    /// Let the proxy choose its route anew after the pick.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = true,
          num_args = 0..=1, default_missing_value = "true")]
    pub clear_route_cache: bool,
    /// Refuse models that nobody lists with 404: auto, where the configuration or an InferenceModel lists models; strict, always; off, never.
    #[arg(long, env, value_name = "WHEN", default_value = "auto")]
    pub model_match: ModelMatch,
    /// Ignore the endpoint subset that the proxy sends.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub disable_endpoint_subset_filter: bool,
    /// Give the proxy the scores of all candidates in the answer's metadata, under
    /// x-gateway-destination-endpoint-scores of envoy.lb.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub emit_endpoint_scores: bool,
    /// Only for the conformance suite: clients may choose the endpoint by the header test-epp-endpoint-selection, and
    /// responses name theirs in x-conformance-test-served-endpoint.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub conformance_headers: bool,
}

// === impl Args ===

impl process::Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }
}

// === impl PoolArgs ===

impl PoolArgs {
    /// The pool's name in metrics and logs; `standalone` where there is no pool.
    pub fn display_name(&self) -> &str {
        self.pool_name.as_deref().unwrap_or("standalone")
    }

    /// The pool's namespace.
    pub fn namespace(&self) -> &str {
        self.pool_namespace.as_deref().unwrap_or(&self.namespace)
    }
}

/// Each scrape costs the server a page: a hundred a second are the most.
fn parse_interval(text: &str) -> Result<Span, String> {
    let span: Span = text.parse()?;
    if span.0 < Duration::from_millis(10) {
        return Err(format!(
            "{text:?} is too short: at least 10ms, such as 50ms"
        ));
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, path::Path};

    use clap::CommandFactory;
    use process::docs::{check_part, flags};
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_flag_is_documented() {
        let command = Args::command();
        let mut headings: Vec<&str> = Vec::new();
        for heading in command
            .get_arguments()
            .filter_map(|arg| arg.get_help_heading())
        {
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        let mut text = String::new();
        for heading in headings {
            let args = command
                .get_arguments()
                .filter(|arg| arg.get_help_heading() == Some(heading));
            let _ = write!(text, "\n## {heading}\n\n{}", flags(args));
        }
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/epp-flags.md");
        let again = "UPDATE_DOCS=1 cargo test -p epp every_flag_is_documented";
        let checked = check_part(&file, "flags", &text, again);
        checked.unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn every_flag_has_a_variable_of_its_name() {
        for arg in Args::command()
            .get_arguments()
            .filter(|arg| arg.get_long() != Some("help"))
        {
            let Some(long) = arg.get_long().filter(|long| *long != "version") else {
                continue;
            };
            let env = arg.get_env().map(|env| env.to_string_lossy().into_owned());
            assert_eq!(env, Some(long.to_uppercase().replace('-', "_")), "--{long}");
        }
    }

    #[test]
    fn the_defaults_are_the_ecosystems() {
        let args = Args::try_parse_from(["epp", "--pool-name", "llm"]).unwrap();
        assert_eq!(
            (
                args.listen.grpc_port,
                args.listen.grpc_health_port,
                args.listen.metrics_port
            ),
            (9002, 9003, 9090)
        );
        assert_eq!(
            args.pool.refresh_metrics_interval,
            Span(Duration::from_millis(50))
        );
        assert_eq!(
            args.requests.default_body_mode,
            BodyMode::FullDuplexStreamed
        );
        assert!(args.tls.secure_serving && args.requests.clear_route_cache);
        assert!(args.tls.enable_cert_reload && !args.tls.metrics_endpoint_auth);
        assert!(!args.election.ha_enable_leader_election);
    }

    /// Charts set them to nothing, and operators to what another sampler reads.
    #[rstest]
    #[case("", None, 2048)]
    #[case("0.5", Some(0.5), 2048)]
    #[case("endpoint=http://c,initialSamplingRate=0.1", None, 2048)]
    #[case("7", Some(7.0), 7)]
    fn numbers_for_spans_that_cannot_be_read_are_as_none(
        #[case] text: &str,
        #[case] share: Option<f64>,
        #[case] queue: usize,
    ) {
        let sampler = format!("--otel-traces-sampler-arg={text}");
        let size = format!("--otel-bsp-max-queue-size={text}");
        let endpoint = "--otel-exporter-otlp-endpoint=http://c:4317";
        let words = ["epp", "--pool-name", "llm", endpoint, &sampler, &size];
        let setup = Args::try_parse_from(words).unwrap().tracing.setup();
        let setup = setup.unwrap();
        assert_eq!((setup.sampler_arg, setup.queue), (share, queue));
    }

    #[rstest]
    #[case::not_configured(&[], None)]
    #[case::configured(&["--otel-exporter-otlp-endpoint=http://c:4317"], Some("http://c:4317"))]
    #[case::of_traces(
        &["--otel-exporter-otlp-endpoint=http://c:1", "--otel-exporter-otlp-traces-endpoint=http://t:2"],
        Some("http://t:2")
    )]
    #[case::off(&["--otel-exporter-otlp-endpoint=http://c:4317", "--tracing=false"], None)]
    #[case::none(&["--otel-exporter-otlp-endpoint=http://c:4317", "--otel-traces-exporter=none"], None)]
    #[case::disabled(&["--otel-exporter-otlp-endpoint=http://c:4317", "--otel-sdk-disabled=TRUE"], None)]
    #[case::other_protocol(
        &["--otel-exporter-otlp-endpoint=http://c:4318", "--otel-exporter-otlp-protocol=http/protobuf"],
        None
    )]
    #[case::empty(&["--otel-exporter-otlp-endpoint="], None)]
    fn spans_are_sent_where_a_collector_is_named(
        #[case] flags: &[&str],
        #[case] endpoint: Option<&str>,
    ) {
        let words = ["epp", "--pool-name", "llm"].iter().chain(flags);
        let args = Args::try_parse_from(words).unwrap();
        let setup = args.tracing.setup();
        assert_eq!(setup.map(|setup| setup.endpoint).as_deref(), endpoint);
    }

    #[rstest]
    #[case(&["--secure-serving=false"], true)]
    #[case(&["--secure-serving", "false"], true)]
    #[case(&["--secure-serving"], true)]
    #[case(&["--secure-serving=maybe"], false)]
    #[case(&["--refresh-metrics-interval", "5ms"], false)]
    #[case(&["--refresh-metrics-interval", "50"], false)]
    #[case(&["--default-body-mode", "BUFFERED_PARTIAL"], true)]
    #[case(&["--default-body-mode", "GRPC"], false)]
    #[case(&["--pool-group", "inference.networking.x-k8s.io"], false)]
    #[case(&["--max-request-body", "0"], false)]
    #[case(&["--config-file", "/etc/epp.yaml"], true)]
    #[case(&["--config-text", "kind: EndpointPickerConfig", "--config-compat", "lenient"], true)]
    #[case(&["--config-file", "/etc/epp.yaml", "--config-text", "{}"], false)]
    #[case(&["--config-compat", "loose"], false)]
    #[case(&["--endpoint-selector", "app in (a,b),!c", "--endpoint-target-ports", "8000,8001"], true)]
    #[case(&["--endpoint-selector", "app in a"], false)]
    #[case(&["--endpoint-selector", ""], false)]
    #[case(&["--endpoint-target-ports", "8000,8000"], false)]
    #[case(&["--tls-min-version", "VersionTLS13"], true)]
    #[case(&["--tls-min-version", "VersionTLS11"], false)]
    #[case(&["--tls-min-version", "1.2"], false)]
    #[case(&["--client-san", "a.example", "--client-san", "spiffe://a/b,10.0.0.1"], true)]
    #[case(&["--client-san", ""], false)]
    #[case(&["--client-ca-file", ""], false)]
    #[case(&["--enable-pprof=false", "--zap-devel", "--tls-cipher-suites", "A,B"], true)]
    #[case(&["--zap-devel=maybe"], false)]
    fn values_are_checked(#[case] flags: &[&str], #[case] good: bool) {
        let words = ["epp", "--pool-name", "llm"].iter().chain(flags);
        let parsed = Args::try_parse_from(words);
        assert_eq!(parsed.is_ok(), good, "{flags:?}");
        if let Err(error) = parsed {
            let named = flags.first().and_then(|flag| flag.split('=').next());
            let text = error.to_string();
            assert!(text.contains(named.unwrap_or_default()), "{text}");
        }
    }

    #[rstest]
    #[case(&["--pool-name", "llm"], "llm")]
    #[case(&["--endpoints-file", "e.yaml"], "standalone")]
    #[case(&["--endpoints-file", "e.yaml", "--pool-name", "llm"], "llm")]
    fn without_a_pool_the_name_is_standalone(#[case] flags: &[&str], #[case] name: &str) {
        let args = Args::try_parse_from(["epp"].iter().chain(flags)).unwrap();
        assert_eq!(args.pool.display_name(), name);
    }

    #[test]
    fn an_empty_name_is_refused() {
        let refused = Args::try_parse_from(["epp", "--pool-name", ""]).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("a value is required for '--pool-name"),
            "{text}"
        );
    }

    /// Beyond some 9e18 s the end of a drain could not be computed; beyond 1.8e19 s no `Duration` is so long.
    #[rstest]
    #[case("--drain-timeout=8760h1ms")]
    #[case("--drain-timeout=9300000000000000000s")]
    #[case("--refresh-metrics-interval=99999999999999999999999999h")]
    #[case("--metrics-staleness-threshold=1000000h")]
    fn no_duration_is_longer_than_a_year(#[case] flag: &str) {
        let refused = Args::try_parse_from(["epp", "--pool-name", "llm", flag]).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("is too long: at most 8760h"), "{text}");
    }
}
