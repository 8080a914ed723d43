//! Flags, and what they become once checked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use crd::networks::Cidr;
use process::{ConfigError, LogArgs};
use rustls::pki_types::ServerName;

use crate::infra::InfraSettings;
use crate::model::{EppTls, Settings, parse_duration};
use crate::select::{ClusterCidr, denied};
use crate::text::{is_label, quoted};
use crate::xds::Options;

/// Where the images of Envoy have the authorities that most systems trust.
const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Who has this Lease writes, of the gateways with the default controller name.
const LEASE: &str = "isthmus-gateway";

/// Of a controller name: with what is before and after it, it is a name of an object.
const MAX_CONTROLLER_NAME: usize = 200;

/// The importing gateway: serves Gateways of class isthmus with Envoys, and routes to local
/// InferencePools and to pools imported from other clusters.
///
/// It watches Gateway API objects, InferencePools and InferencePoolImports of its cluster, runs an
/// Envoy Deployment and a Service per Gateway, configures the Envoys over delta ADS and writes status.
/// Every flag can be set by its variable; flags win.
#[derive(Clone, Debug, Parser)]
#[command(name = "gateway", version)]
#[expect(
    clippy::doc_markdown,
    reason = "these comments are the help text, which shows backticks"
)]
pub struct Args {
    /// This cluster's name in the ClusterSet: lower case letters, digits and '-'. The certificates of Envoys have it, and
    /// requests to Gateways of other clusters.
    #[arg(long, env)]
    cluster_name: String,

    /// Serve GatewayClasses with this spec.controllerName.
    #[arg(long, env, default_value = crd::annotations::GATEWAY_CONTROLLER)]
    controller_name: String,

    /// The namespace this program runs in.
    #[arg(long, env, default_value = "isthmus-system")]
    namespace: String,

    /// Address and port where Envoys get their configuration.
    #[arg(long, env, default_value = "0.0.0.0:18000")]
    ads_address: SocketAddr,

    /// Name or IP address by which Envoys reach this program [default: isthmus-gateway.NAMESPACE.svc]
    #[arg(long, env)]
    ads_hostname: Option<String>,

    /// How Envoys are authenticated: "mutual" gives the Envoys of each Gateway a certificate, and serves them the
    /// configuration of that Gateway alone. "off" serves whoever asks, in plaintext, and only on a loopback address.
    #[arg(long, env, value_enum, default_value_t = AdsTls::Mutual)]
    ads_tls: AdsTls,

    /// Address and port of /metrics, /healthz, /readyz and /debug.
    #[arg(long, env, default_value = "0.0.0.0:8080")]
    admin_address: SocketAddr,

    /// Write status and what runs Envoys only while holding the Lease isthmus-gateway in --namespace (with another
    /// --controller-name DOMAIN/PATH: isthmus-gateway.PATH.DOMAIN), so that of several replicas one writes, and all serve
    /// Envoys. Without it (false), run one.
    #[arg(
        long,
        env,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    leader_elect: bool,

    /// How long Envoys have to leave after SIGTERM, such as 10s.
    #[arg(long, env, default_value = "10s", value_parser = duration)]
    drain_timeout: Duration,

    /// Image of the Envoys; a Gateway's parameters may name another. 1.38.2 or newer.
    #[arg(
        long,
        env,
        default_value = "docker.io/envoyproxy/envoy:distroless-v1.40.0"
    )]
    envoy_image: String,

    /// How endpoint pickers are spoken to, unless a BackendTLSPolicy names them, or their Service port says appProtocol
    /// kubernetes.io/h2c. With "required" those of which neither holds are not used, and requests get 503.
    #[arg(long, env, value_enum, default_value_t = EppTls::Unverified)]
    epp_tls: EppTls,

    /// Service name in gRPC health checks of endpoint pickers.
    #[arg(
        long,
        env,
        default_value = "envoy.service.ext_proc.v3.ExternalProcessor"
    )]
    epp_health_service: String,

    /// Streams without a byte for this long end, such as 300s.
    #[arg(long, env, default_value = "300s", value_parser = duration)]
    stream_idle_timeout: Duration,

    /// Requests with bodies up to this size can be sent to another cluster; units B, KiB, MiB.
    #[arg(long, env, default_value = "8MiB", value_parser = size)]
    retry_body_limit: u64,

    /// How long Envoys keep a cluster after its last route.
    #[arg(long, env, default_value = "30s", value_parser = duration)]
    removal_delay: Duration,

    /// Where the endpoint picker of an exporting cluster may send requests, as cluster=prefix; repeatable.
    /// It overrides what the import's entry says (podCIDRs, which the controller has from the member's
    /// object at home); '*' is for clusters that have neither. Without any, the entry is AddressDenied.
    #[arg(long, env, value_delimiter = ',')]
    pod_cidr: Vec<ClusterCidr>,

    /// Where no request to another cluster may go, and no endpoint picker of it be; repeatable. Always
    /// denied are loopback, link-local and multicast addresses, the metadata services of clouds, IPv6
    /// addresses that stand for IPv4 ones, and this cluster's Services (ServiceCIDRs), nodes and pods
    /// (podCIDRs of its nodes). A cluster whose API has no ServiceCIDR (before Kubernetes 1.33) needs those
    /// of its Services here.
    #[arg(long, env, value_delimiter = ',')]
    deny_cidr: Vec<Cidr>,

    /// Where endpoint pickers and Gateways of other clusters may be; repeatable. Other addresses of an import's entry
    /// are left out, host names too, and an entry without any is AddressDenied. What is denied stays so. Without this
    /// flag they may be anywhere else, and host names are resolved.
    #[arg(long, env, value_delimiter = ',')]
    remote_cidr: Vec<Cidr>,

    #[command(flatten)]
    log: LogArgs,
}

/// How Envoys are authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AdsTls {
    /// Both ends show a certificate.
    Mutual,
    /// Plaintext.
    Off,
}

/// The checked flags.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    pub(crate) options: Options,
    pub(crate) infra: InfraSettings,
    pub(crate) cluster_name: String,
    pub(crate) namespace: String,
    /// Name of the Lease; the replicas that contend for it share what they know under a name that begins with it.
    pub(crate) lease: String,
    pub(crate) ads_address: SocketAddr,
    pub(crate) admin_address: SocketAddr,
    pub(crate) leader_elect: bool,
    pub(crate) drain_timeout: Duration,
    pub(crate) removal_delay: Duration,
}

// === impl Args ===

impl process::Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }
}

impl Args {
    pub(crate) fn check(self) -> Result<Config, ConfigError> {
        let Self {
            cluster_name,
            controller_name,
            namespace,
            ads_address,
            ads_hostname,
            ads_tls,
            admin_address,
            leader_elect,
            drain_timeout,
            envoy_image,
            epp_tls,
            epp_health_service,
            stream_idle_timeout,
            retry_body_limit,
            removal_delay,
            pod_cidr,
            deny_cidr,
            remote_cidr,
            log: _, // the boundary of the program has used it
        } = self;
        if !is_label(&cluster_name) {
            let value = format!("--cluster-name {}", quoted(&cluster_name));
            let expected = "1 to 63 lower case letters, digits and '-', not at the ends";
            return Err(ConfigError::new(value, expected, "--cluster-name west"));
        }
        let Some(lease) = lease_name(&controller_name) else {
            let value = format!("--controller-name {}", quoted(&controller_name));
            let expected = "a domain and a path, of 200 characters at most";
            return Err(ConfigError::new(
                value,
                expected,
                "--controller-name isthmus.dev/gateway",
            ));
        };
        if stream_idle_timeout.is_zero() {
            let expected = "more than 0s: a hung endpoint picker would hold requests for ever";
            let value = "--stream-idle-timeout 0s";
            return Err(ConfigError::new(
                value,
                expected,
                "--stream-idle-timeout 300s",
            ));
        }
        if ads_tls == AdsTls::Off && !ads_address.ip().is_loopback() {
            let value = format!("--ads-tls off with --ads-address {ads_address}");
            let expected = "a loopback address: without TLS whoever reaches the port reads the configuration of all Gateways";
            return Err(ConfigError::new(
                value,
                expected,
                "--ads-tls mutual, which needs nothing else, or --ads-address 127.0.0.1:18000",
            ));
        }
        let ads_hostname =
            ads_hostname.unwrap_or_else(|| format!("isthmus-gateway.{namespace}.svc"));
        if ServerName::try_from(&*ads_hostname).is_err() {
            let value = format!("--ads-hostname {}", quoted(&ads_hostname));
            return Err(ConfigError::new(
                value,
                "a host name or an IP address, without a port",
                "--ads-hostname isthmus-gateway.isthmus-system.svc",
            ));
        }
        Ok(Config {
            settings: Settings {
                controller: controller_name.clone(),
                cluster_name: cluster_name.clone(),
                epp_tls,
                pod_cidrs: by_cluster(pod_cidr),
                deny_cidrs: denied(&deny_cidr),
                remote_cidrs: remote_cidr,
            },
            options: Options {
                health_service: epp_health_service,
                stream_idle_timeout,
                retry_body_limit,
                bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                cluster_name: cluster_name.clone(),
                roots: ROOTS.to_owned(),
            },
            infra: InfraSettings {
                controller: controller_name,
                ads_hostname,
                ads_port: ads_address.port(),
                ads_tls: ads_tls == AdsTls::Mutual,
                envoy_image,
            },
            cluster_name,
            namespace,
            lease,
            ads_address,
            admin_address,
            leader_elect,
            drain_timeout,
            removal_delay,
        })
    }
}

/// The Lease of the gateways with this controller name: those of one name in a namespace exclude each other, and no others. The
/// chart makes the same names, for the rights on them. None where it is no name of a controller.
fn lease_name(controller: &str) -> Option<String> {
    let (domain, path) = controller.split_once('/')?;
    if !domain.split('.').all(is_label) || controller.len() > MAX_CONTROLLER_NAME {
        return None;
    }
    if controller == crd::annotations::GATEWAY_CONTROLLER {
        return Some(LEASE.to_owned());
    }
    let part = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '-',
    };
    let path: String = path.chars().map(part).collect();
    let path = path.trim_matches('-');
    (!path.is_empty()).then(|| format!("{LEASE}.{path}.{domain}"))
}

fn by_cluster(given: Vec<ClusterCidr>) -> BTreeMap<String, Vec<Cidr>> {
    let mut cidrs: BTreeMap<String, Vec<Cidr>> = BTreeMap::new();
    for ClusterCidr { cluster, cidr } in given {
        cidrs.entry(cluster).or_default().push(cidr);
    }
    cidrs
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration, for example 10s or 1m30s".to_owned())
}

/// Bytes.
fn size(text: &str) -> Result<u64, String> {
    let bad = || "expected a size, for example 8MiB, 512KiB or 65536".to_owned();
    let (number, unit) = [("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)]
        .into_iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))
        .ok_or_else(bad)?;
    let number: u64 = number.trim().parse().map_err(|_| bad())?;
    number.checked_mul(unit).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;

    fn mk_config(more: &[&str]) -> Result<Config, String> {
        let words = ["gateway", "--cluster-name", "west"].iter().chain(more);
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        args.check().map_err(|error| error.to_string())
    }

    #[test]
    fn command_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_flag_is_documented() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/gateway.md");
        let again = "UPDATE_DOCS=1 cargo test -p gateway documented";
        let made = process::docs::flags(Args::command().get_arguments());
        process::docs::check_part(&file, "flags", &made, again).unwrap();
    }

    /// Gateways of two controller names in one namespace do not wait for each other.
    #[rstest]
    #[case::default("isthmus.dev/gateway", "isthmus-gateway")]
    #[case::another("example.com/gateway", "isthmus-gateway.gateway.example.com")]
    #[case::another_domain("a.example.com/gateway", "isthmus-gateway.gateway.a.example.com")]
    #[case::another_path("isthmus.dev/gateway-2", "isthmus-gateway.gateway-2.isthmus.dev")]
    #[case::as_the_chart_has_it(
        "example.com/A/gateway_2",
        "isthmus-gateway.a-gateway-2.example.com"
    )]
    fn each_controller_has_a_lease_of_its_own(#[case] controller: &str, #[case] lease: &str) {
        let config = mk_config(&["--controller-name", controller]).unwrap();
        assert_eq!(config.lease, lease);
    }

    #[test]
    fn hostname_follows_the_namespace_unless_given() {
        let config = mk_config(&["--namespace", "mine"]).unwrap();
        assert_eq!(config.infra.ads_hostname, "isthmus-gateway.mine.svc");
        let config = mk_config(&["--ads-hostname", "10.1.0.5"]).unwrap();
        assert_eq!(config.infra.ads_hostname, "10.1.0.5");
    }

    #[test]
    fn envoys_are_authenticated_unless_only_this_machine_asks() {
        let is_secure = |flags: &[&str]| mk_config(flags).unwrap().infra.ads_tls;
        assert!(is_secure(&[]));
        for address in ["127.0.0.1:0", "127.0.3.1:18000", "[::1]:18000"] {
            assert!(!is_secure(&["--ads-tls", "off", "--ads-address", address]));
        }
    }

    #[test]
    fn no_network_is_guessed() {
        assert!(mk_config(&[]).unwrap().settings.pod_cidrs.is_empty());
        let flags = ["--pod-cidr", "east=10.2.0.0/16,*=10.0.0.0/8"];
        let cidrs = mk_config(&flags).unwrap().settings.pod_cidrs;
        let names: Vec<_> = cidrs.keys().map(String::as_str).collect();
        assert_eq!(names, ["*", "east"]);
    }

    #[rstest]
    #[case(&["--cluster-name", "West"], "--cluster-name west")]
    #[case(&["--controller-name", "gateway"], "isthmus.dev/gateway")]
    #[case(&["--controller-name", "Example.com/gateway"], "isthmus.dev/gateway")]
    #[case(&["--controller-name", "example.com/~"], "isthmus.dev/gateway")]
    #[case(&["--pod-cidr", "10.0.0.0/8"], "cluster=address/length")]
    #[case(&["--deny-cidr", "10.0.0.0"], "10.2.0.0/16")]
    #[case(&["--remote-cidr", "east=10.0.0.0/8"], "10.2.0.0/16")]
    #[case(&["--drain-timeout", "10"], "10s or 1m30s")]
    #[case(&["--retry-body-limit", "8MB"], "8MiB")]
    #[case(&["--stream-idle-timeout", "0s"], "300s")]
    #[case(&["--ads-tls", "on"], "mutual")]
    #[case(&["--ads-tls", "off"], "--ads-address 127.0.0.1:18000")]
    #[case(&["--ads-tls", "off", "--ads-address", "[::]:18000"], "--ads-tls mutual")]
    #[case(&["--ads-hostname", "gateway:18000"], "without a port")]
    fn bad_values_are_refused_with_an_example(#[case] flags: &[&str], #[case] said: &str) {
        let mut words = vec!["gateway", "--cluster-name", "west"];
        words.retain(|word| {
            flags[0] != "--cluster-name" || (*word != "--cluster-name" && *word != "west")
        });
        words.extend(flags);
        let error = match Args::try_parse_from(words) {
            Err(error) => error.to_string(),
            Ok(args) => args.check().unwrap_err().to_string(),
        };
        assert!(error.contains(said), "{error}");
    }
}
