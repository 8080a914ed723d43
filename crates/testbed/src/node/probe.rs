//! Probes: when to look, what counts, and the looks themselves.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// How often to look until the first success, where the period is longer: a testbed should not wait for a period
/// that was chosen to spare real nodes. Failures still count by the period.
const EAGER_PERIOD: Duration = Duration::from_millis(200);

/// The probes of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probes {
    pub(crate) startup: Option<ProbeSpec>,
    pub(crate) readiness: Option<ProbeSpec>,
    pub(crate) liveness: Option<ProbeSpec>,
}

/// One probe, with Kubernetes' defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeSpec {
    check: Check,
    initial_delay: Duration,
    period: Duration,
    timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    Http {
        port: u16,
        path: String,
        host: Option<String>,
        headers: Vec<(String, String)>,
    },
    Tcp {
        port: u16,
    },
    Grpc {
        port: u16,
        service: String,
    },
}

/// A probe that cannot be done here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsupportedProbe {
    #[error("probe: only httpGet with scheme HTTP, grpc and tcpSocket are supported here")]
    Kind,
    #[error("probe: port {0:?} is not a number and names no port of the container")]
    Port(String),
}

/// Counts looks; pure.
#[derive(Debug)]
pub(crate) struct Tally {
    period: Duration,
    success_threshold: u32,
    /// The time of failing that makes a failure.
    failing_limit: Duration,
    successes: u32,
    failing_for: Duration,
    ever_passed: bool,
}

/// What a container's probes have to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Started,
    Ready(bool),
}

// === impl Probes ===

impl Probes {
    pub(crate) fn of(container: &Container) -> Result<Self, UnsupportedProbe> {
        let make = |probe: &Option<Probe>| {
            probe
                .as_ref()
                .map(|probe| ProbeSpec::of(probe, container))
                .transpose()
        };
        Ok(Self {
            startup: make(&container.startup_probe)?,
            readiness: make(&container.readiness_probe)?,
            liveness: make(&container.liveness_probe)?,
        })
    }

    /// Probes a container that runs at `address`; ends when it must be restarted, with the reason.
    pub(crate) async fn run(&self, address: IpAddr, report: impl Fn(Report)) -> String {
        if let Some(startup) = &self.startup
            && !startup.watch(address, Some).await
        {
            return "startup probe failed".to_owned();
        }
        report(Report::Started);
        let readiness = async {
            if self.readiness.is_none() {
                report(Report::Ready(true));
            }
            self.watch_readiness(address, &report).await
        };
        let liveness = async {
            match &self.liveness {
                None => std::future::pending().await,
                Some(liveness) => {
                    liveness
                        .watch(address, |passed| (!passed).then_some(()))
                        .await;
                }
            }
        };
        tokio::select! {
            never = readiness => match never {},
            () = liveness => {}
        }
        "liveness probe failed".to_owned()
    }

    /// Only whether it is ready, which counts to the end of a pod that is being deleted.
    pub(crate) async fn watch_readiness(
        &self,
        address: IpAddr,
        report: impl Fn(Report),
    ) -> Infallible {
        if let Some(readiness) = &self.readiness {
            let tell = |passed| {
                report(Report::Ready(passed));
                None
            };
            return readiness.watch(address, tell).await;
        }
        std::future::pending().await
    }
}

// === impl ProbeSpec ===

impl ProbeSpec {
    fn of(probe: &Probe, container: &Container) -> Result<Self, UnsupportedProbe> {
        let check = if let Some(http) = &probe.http_get {
            if http
                .scheme
                .as_deref()
                .is_some_and(|scheme| scheme != "HTTP")
            {
                return Err(UnsupportedProbe::Kind);
            }
            let headers = http.http_headers.iter().flatten();
            Check::Http {
                port: port_number(&http.port, container)?,
                path: http.path.clone().unwrap_or_else(|| "/".to_owned()),
                host: http.host.clone(),
                headers: headers
                    .map(|header| (header.name.clone(), header.value.clone()))
                    .collect(),
            }
        } else if let Some(tcp) = &probe.tcp_socket {
            Check::Tcp {
                port: port_number(&tcp.port, container)?,
            }
        } else if let Some(grpc) = &probe.grpc {
            Check::Grpc {
                port: port_number(&IntOrString::Int(grpc.port), container)?,
                service: grpc.service.clone().unwrap_or_default(),
            }
        } else {
            return Err(UnsupportedProbe::Kind);
        };
        let seconds = |value: Option<i32>, default: u64| {
            let given = value
                .and_then(|value| u64::try_from(value).ok())
                .filter(|value| *value > 0);
            Duration::from_secs(given.unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            let given = value.and_then(|value| u32::try_from(value).ok());
            given.filter(|value| *value > 0).unwrap_or(default)
        };
        Ok(Self {
            check,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        })
    }

    /// Looks until `decide` says it is enough; it is asked whenever the thresholds are reached.
    async fn watch<T>(&self, address: IpAddr, decide: impl Fn(bool) -> Option<T>) -> T {
        sleep(self.initial_delay).await;
        let mut tally = Tally::new(self);
        loop {
            let pause = tally.pause();
            let passed = matches!(
                timeout(self.timeout, self.check.look(address)).await,
                Ok(true)
            );
            if let Some(verdict) = tally.count(passed, pause)
                && let Some(end) = decide(verdict)
            {
                return end;
            }
            sleep(pause).await;
        }
    }
}

// === impl Tally ===

impl Tally {
    pub(crate) fn new(spec: &ProbeSpec) -> Self {
        Self {
            period: spec.period,
            success_threshold: spec.success_threshold,
            failing_limit: spec.period * spec.failure_threshold,
            successes: 0,
            failing_for: Duration::ZERO,
            ever_passed: false,
        }
    }

    /// Until the next look.
    pub(crate) fn pause(&self) -> Duration {
        if self.ever_passed {
            self.period
        } else {
            self.period.min(EAGER_PERIOD)
        }
    }

    /// Counts a look after which `pause` passes; some verdict when a threshold is reached.
    pub(crate) fn count(&mut self, passed: bool, pause: Duration) -> Option<bool> {
        if passed {
            self.ever_passed = true;
            self.failing_for = Duration::ZERO;
            self.successes = self.successes.saturating_add(1);
            (self.successes >= self.success_threshold).then_some(true)
        } else {
            self.successes = 0;
            self.failing_for = self.failing_for.saturating_add(pause);
            (self.failing_for >= self.failing_limit).then_some(false)
        }
    }
}

// === impl Check ===

impl Check {
    async fn look(&self, address: IpAddr) -> bool {
        match self {
            Self::Tcp { port } => TcpStream::connect(SocketAddr::new(address, *port))
                .await
                .is_ok(),
            Self::Http {
                port,
                path,
                host,
                headers,
            } => {
                let host = host.clone().unwrap_or_else(|| address.to_string());
                let mut request = http::Request::get(format!("http://{host}:{port}{path}"));
                for (name, value) in headers {
                    request = request.header(name, value);
                }
                let Ok(request) = request
                    .header("user-agent", "kube-probe/testbed")
                    .body(Empty::<Bytes>::new())
                else {
                    return false;
                };
                let client: Client<HttpConnector, Empty<Bytes>> =
                    Client::builder(TokioExecutor::new())
                        .pool_max_idle_per_host(0)
                        .build_http();
                let answer = client.request(request).await;
                answer.is_ok_and(|answer| {
                    answer.status().is_success() || answer.status().is_redirection()
                })
            }
            Self::Grpc { port, service } => {
                let Ok(endpoint) = Endpoint::from_shared(format!("http://{address}:{port}")) else {
                    return false;
                };
                let Ok(channel) = endpoint.connect().await else {
                    return false;
                };
                let request = HealthCheckRequest {
                    service: service.clone(),
                };
                let answer = HealthClient::new(channel).check(request).await;
                answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
            }
        }
    }
}

/// The number of a port given by number or by the container's name for it.
pub(crate) fn port_number(
    port: &IntOrString,
    container: &Container,
) -> Result<u16, UnsupportedProbe> {
    let number = match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_ref() == Some(name))
            .and_then(|port| u16::try_from(port.container_port).ok())
            .or_else(|| name.parse().ok()),
    };
    number.ok_or_else(|| {
        UnsupportedProbe::Port(match port {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(name) => name.clone(),
        })
    })
}

#[cfg(test)]
mod tests;
