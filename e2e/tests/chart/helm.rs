//! The real helm, and the chart it is given.

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

/// helm, with nothing of the user's.
pub(crate) struct Helm {
    program: PathBuf,
    home: PathBuf,
}

// === impl Helm ===

impl Helm {
    /// `HELM_BIN`, else on `PATH`, else in `target/tools`.
    pub(crate) fn find() -> Result<Self> {
        let target = workspace().join("target");
        let program = if let Some(program) = std::env::var_os("HELM_BIN") {
            PathBuf::from(program)
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let mut places = std::env::split_paths(&path).chain([target.join("tools")]);
            let found = places.find_map(|place| {
                let file = place.join("helm");
                file.is_file().then_some(file)
            });
            found.context("no helm: run `cargo xtask tools --only helm`")?
        };
        Ok(Self {
            program,
            home: target.join("helm"),
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

    /// The manifests of a release `pool` in the namespace `llm` with these further arguments.
    pub(crate) fn template(&self, arguments: &[&str]) -> Result<String> {
        let output = self.try_template(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "helm template {arguments:?}: {error}"
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(crate) fn try_template(&self, arguments: &[&str]) -> Result<Output> {
        let chart = chart();
        let chart = chart.to_string_lossy();
        let begin = [
            "template",
            "pool",
            &*chart,
            "--namespace",
            "llm",
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

pub(crate) fn chart() -> PathBuf {
    workspace().join("charts/isthmus-pool")
}
