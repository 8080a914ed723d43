//! The official conformance suites of Gateway API and of its Inference Extension, run against our gateway.
//!
//! A suite is a Go test program. It runs in the testbed's network namespace, where it reaches the API server and the
//! addresses of load balancers, and it learns of the cluster by a kubeconfig alone.
//!
//! ```text
//! suite (Go) ──► kube-apiserver ◄── gateway
//!     │                                │ ADS
//!     └─ HTTP ─► load balancer ─► Envoy ─► epp (in place of lwepp), echo-basic
//! ```

mod output;
mod report;
mod suite;

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::error::TestbedError;
use crate::isthmus;
use crate::testbed::Builder;

pub use output::{Ended, Outcome};
pub use report::{Counts, ReportError};
pub use suite::{Suite, UnknownSuite};

use output::Reader;

/// The GatewayClass of the chart.
const CLASS: &str = "isthmus";
/// `ConfigMap` of the class's parameters, as the chart names it.
const PARAMETERS: &str = "isthmus-gateway-parameters";
/// Each Gateway of a suite has its Envoys, and one with one thread is enough to answer a suite. Nobody sends requests to
/// an Envoy that is being stopped, so it need not go on serving.
const PARAMETERS_TEXT: &str = "{replicas: 1, concurrency: 1, drainSeconds: 1}\n";
/// Request of the set-up.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// After the limit that the program has itself.
const END_MARGIN: Duration = Duration::from_mins(1);

/// A run of a suite.
#[derive(Clone, Debug)]
pub struct Run {
    /// The suite to run.
    pub suite: Suite,
    /// Its test program, built from `e2e/conformance`.
    pub program: PathBuf,
    /// The only test to run; absent: all of them.
    pub only: Option<String>,
    /// Where the report goes.
    pub report: PathBuf,
    /// Where everything that the program prints goes.
    pub log: PathBuf,
}

/// Adds the images of the suites: the echo server, our endpoint picker in place of the suite's light one, and a process
/// that only waits for each image that no test sends requests to.
///
/// # Errors
/// When the endpoint picker is not built.
pub fn with_images(builder: Builder, echo: &Path) -> Result<Builder, TestbedError> {
    let picker = isthmus::program("epp")?;
    let builder = isthmus::with_programs(builder)?
        .image("echo-basic", echo)
        .image_with("lwepp", picker, &["--conformance-headers"])
        .idle_for_other_images();
    Ok(builder)
}

/// Runs the gateway as its chart installs it, with parameters of the class that suit a small machine.
///
/// # Errors
/// When the API server refuses, or the gateway is not ready in a minute.
pub async fn install(cluster: &Cluster) -> Result<(), TestbedError> {
    isthmus::install_gateway(cluster).await?;
    let parameters = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PARAMETERS, "namespace": isthmus::NAMESPACE},
        "data": {"parameters.yaml": PARAMETERS_TEXT},
    });
    cluster.apply_yaml(&parameters.to_string()).await?;
    let classes: Api<crd::gateway_class::GatewayClass> = Api::all(cluster.client());
    let patch = json!({"spec": {"parametersRef": {
        "group": "",
        "kind": "ConfigMap",
        "namespace": isthmus::NAMESPACE,
        "name": PARAMETERS,
    }}});
    let failed = |problem: String| TestbedError::Request {
        cluster: cluster.name().to_owned(),
        what: format!("parameters of GatewayClass {CLASS}"),
        problem,
    };
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    timeout(REQUEST_LIMIT, classes.patch(CLASS, &params, &patch))
        .await
        .map_err(|elapsed| failed(elapsed.to_string()))?
        .map_err(|error| failed(error.to_string()))?;
    Ok(())
}

// === impl Run ===

impl Run {
    /// Runs the suite on a cluster that has the gateway; `ended` gets each of its tests as it ends. Returns how the program
    /// ended.
    ///
    /// # Errors
    /// When the program cannot be started or read, or does not end in time.
    pub async fn start(
        &self,
        cluster: &Cluster,
        ended: impl FnMut(Ended),
    ) -> Result<ExitStatus, TestbedError> {
        let failed = |source| TestbedError::Start {
            name: format!("suite {}", self.suite.name()),
            program: self.program.clone(),
            source,
        };
        let (sender, receiver) = pipe::pipe().map_err(failed)?;
        let output = sender.into_blocking_fd().map_err(failed)?;
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments())
            .env_clear()
            .env("KUBECONFIG", cluster.kubeconfig_path())
            .env("HOME", "/")
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        // our own ends of the pipe would keep it open
        drop(command);
        let limit = self.suite.limit() + END_MARGIN;
        let run = async {
            self.read(receiver, ended).await?;
            child.wait().await.map_err(failed)
        };
        timeout(limit, run).await.unwrap_or_else(|_| {
            Err(TestbedError::NotReady {
                what: format!("end of suite {}", self.suite.name()),
                limit,
                last: "it runs on".to_owned(),
                log: self.log.clone(),
                tail: crate::logs::tail(&self.log, 20),
            })
        })
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("-gateway-class={CLASS}"),
            format!("-report-output={}", self.report.display()),
            // what a report must name
            "-organization=Isthmus".to_owned(),
            "-project=isthmus".to_owned(),
            "-url=https://isthmus.dev".to_owned(),
            format!("-version=v{}", env!("CARGO_PKG_VERSION")),
            "-contact=https://isthmus.dev".to_owned(),
            // lines that announce tests begin with a mark
            "-test.v=test2json".to_owned(),
            format!("-test.timeout={}s", self.suite.limit().as_secs()),
        ];
        arguments.extend(self.only.as_ref().map(|name| format!("-run-test={name}")));
        arguments
    }

    async fn read(
        &self,
        output: pipe::Receiver,
        mut ended: impl FnMut(Ended),
    ) -> Result<(), TestbedError> {
        let failed = |source| TestbedError::File {
            path: self.log.clone(),
            source,
        };
        let mut log = File::create(&self.log).await.map_err(failed)?;
        let mut reader = Reader::new(self.suite.prefix());
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).await.map_err(failed)? > 0 {
            log.write_all(&line).await.map_err(failed)?;
            let text = String::from_utf8_lossy(&line);
            if let Some(test) = reader.read(text.trim_end_matches('\n')) {
                ended(test);
            }
            line.clear();
        }
        log.flush().await.map_err(failed)
    }

    /// What the report counts.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn counts(&self) -> Result<Counts, ReportError> {
        report::read(&self.report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_run(only: Option<&str>) -> Run {
        Run {
            suite: Suite::Gateway,
            program: "suite".into(),
            only: only.map(ToOwned::to_owned),
            report: "/tmp/report.yaml".into(),
            log: "/tmp/log".into(),
        }
    }

    #[test]
    fn nothing_is_skipped_or_exempted_and_one_test_is_run_by_its_name() {
        let all = mk_run(None).arguments();
        for flag in ["skip", "exempt", "run-test", "allow", "supported"] {
            assert!(!all.iter().any(|it| it.contains(flag)), "{flag}: {all:?}");
        }
        assert!(all.contains(&"-report-output=/tmp/report.yaml".to_owned()));
        let one = mk_run(Some("HTTPRouteWeight")).arguments();
        assert_eq!(one.last().unwrap(), "-run-test=HTTPRouteWeight");
    }
}
