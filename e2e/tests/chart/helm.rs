//! The real helm, and the charts it is given.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use testbed::Cluster;

/// What the renders are for, whatever the newest Kubernetes is that helm knows.
const KUBERNETES: &str = "1.34.2";
/// A release that is waited for, and helm's own work.
const LIMIT: Duration = Duration::from_mins(3);

/// A chart of ours, and the release of it that is rendered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chart {
    pub(crate) name: &'static str,
    release: &'static str,
    namespace: &'static str,
}

pub(crate) const CRDS: Chart = Chart {
    name: "isthmus-crds",
    release: "isthmus-crds",
    namespace: "isthmus-system",
};
pub(crate) const SYSTEM: Chart = Chart {
    name: "isthmus",
    release: "isthmus",
    namespace: "isthmus-system",
};
pub(crate) const POOL: Chart = Chart {
    name: "isthmus-pool",
    release: "pool",
    namespace: "llm",
};
pub(crate) const CHARTS: [Chart; 3] = [CRDS, SYSTEM, POOL];

/// helm, with nothing of the user's.
pub(crate) struct Helm {
    program: PathBuf,
    home: PathBuf,
}

// === impl Chart ===

impl Chart {
    pub(crate) fn path(self) -> PathBuf {
        workspace().join("charts").join(self.name)
    }
}

// === impl Helm ===

impl Helm {
    pub(crate) fn find() -> Result<Self> {
        Ok(Self {
            program: e2e::tools::helm()?,
            home: workspace().join("target/helm"),
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("HELM_CACHE_HOME", self.home.join("cache"))
            .env("HELM_CONFIG_HOME", self.home.join("config"))
            .env("HELM_DATA_HOME", self.home.join("data"))
            .env_remove("KUBECONFIG")
            .stdin(std::process::Stdio::null());
        command
    }

    /// What it says, whether or not it succeeds, without a cluster.
    pub(crate) fn try_offline(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.command(arguments).output();
        output.with_context(|| format!("running {}", self.program.display()))
    }

    /// The manifests of the chart's release with these further arguments.
    pub(crate) fn template(&self, chart: Chart, arguments: &[&str]) -> Result<String> {
        let output = self.try_template(chart, arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "helm template {arguments:?}: {error}"
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(crate) fn try_template(&self, chart: Chart, arguments: &[&str]) -> Result<Output> {
        let directory = chart.path();
        let directory = directory.to_string_lossy();
        let begin = [
            "template",
            chart.release,
            &*directory,
            "--namespace",
            chart.namespace,
            "--kube-version",
            KUBERNETES,
        ];
        self.try_offline(&[&begin, arguments].concat())
    }

    /// Runs it against a cluster, and returns its standard output.
    pub(crate) async fn run(&self, cluster: &Cluster, arguments: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::from(self.command(arguments));
        command
            .env("KUBECONFIG", cluster.kubeconfig_path())
            .kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output()).await;
        let Ok(output) = output else {
            bail!("helm {arguments:?}: no end after {LIMIT:?}");
        };
        let output = output?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {arguments:?}: {error}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

pub(crate) fn workspace() -> &'static Path {
    let member = Path::new(env!("CARGO_MANIFEST_DIR"));
    member.parent().unwrap_or(member)
}

/// Where the chart of a pool is.
pub(crate) fn chart() -> PathBuf {
    POOL.path()
}
