//! Two clusters, a kubeconfig with both, and kubectl with the plugin on its path.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::programs::Programs;
use serde_json::Value;
use testbed::{Cluster, Inside, Manifests, Testbed, isthmus};
use tokio::{process::Command, sync::OnceCell, time::timeout};

/// The waits of the commands themselves are shorter.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// The clusters.
pub(crate) struct Stand {
    testbed: Testbed,
    manifests: Manifests,
    pub(crate) east: Cluster,
    pub(crate) west: Cluster,
    /// Installed once, by the first test that needs it.
    installed: OnceCell<()>,
}

/// How a command ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

// === impl Stand ===

impl Programs for Stand {
    async fn start(inside: &Inside) -> Result<Self> {
        let testbed = isthmus::with_programs(Testbed::builder(inside))?
            .cluster("east")
            .cluster("west")
            .without_definitions()
            .start(|_| {})
            .await?;
        Ok(Self {
            east: testbed.cluster("east")?.clone(),
            west: testbed.cluster("west")?.clone(),
            manifests: Manifests::find().await?,
            testbed,
            installed: OnceCell::new(),
        })
    }

    async fn stop(self) {
        self.testbed.stop().await;
    }
}

impl Stand {
    /// Definitions in both clusters, the controller in west, and a pool in east; no member yet.
    pub(crate) async fn install(&self) -> Result<()> {
        let install = async || {
            self.define().await?;
            let nobody = std::collections::BTreeMap::new();
            let (controller, pool, gateway) = tokio::join!(
                isthmus::install_controller(&self.west, &nobody),
                isthmus::install_pool(&self.east),
                isthmus::install_gateway(&self.west),
            );
            controller?;
            pool?;
            gateway?;
            Ok(())
        };
        self.installed.get_or_try_init(install).await.copied()
    }

    /// The definitions of others and ours.
    pub(crate) async fn define(&self) -> Result<()> {
        let both = [&self.east, &self.west].map(async |cluster| {
            // one by one: a busy API server answers each in time
            for path in self.manifests.default_set() {
                cluster.apply_file(&path).await?;
            }
            anyhow::Ok(())
        });
        futures::future::try_join_all(both).await?;
        Ok(())
    }

    /// As [`install`](Self::install); both are members, and west imports the pool of east.
    pub(crate) async fn joined(&self) -> Result<()> {
        self.install().await?;
        let namespace = ["create", "namespace", isthmus::POOL_NAMESPACE];
        // once is enough
        let _ = self.west.kubectl(&namespace).await;
        tokio::try_join!(
            self.done("join east --token-lifetime 2h"),
            self.done("join west"),
        )?;
        self.done("export llm/llama --context east --wait").await?;
        Ok(())
    }

    /// `kubectl mci` with these words; home is west, the current context too.
    pub(crate) async fn mci(&self, line: &str) -> Result<Ended> {
        let kubectl = &self.testbed.tools().kubectl;
        let programs = std::env::var_os("ISTHMUS_BIN_DIR").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/debug"),
            PathBuf::from,
        );
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path: OsString =
            std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)))?;
        // kubectl takes the current context of the first
        let kubeconfigs = [self.west.kubeconfig_path(), self.east.kubeconfig_path()];
        let mut command = Command::new(kubectl);
        command
            .arg("mci")
            .args(line.split_whitespace())
            .env("PATH", path)
            .env(
                "KUBECONFIG",
                std::env::join_paths(kubeconfigs.map(Path::new))?,
            )
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = timeout(LIMIT, command.output())
            .await
            .with_context(|| format!("kubectl mci {line}: no end after {LIMIT:?}"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ended = Ended {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        };
        // whatever it did: a JWT begins so
        ensure!(
            !ended.out.contains("eyJ") && !ended.err.contains("eyJ"),
            "kubectl mci {line} prints a token"
        );
        Ok(ended)
    }

    /// As [`mci`](Self::mci), which must succeed; what it printed.
    pub(crate) async fn done(&self, line: &str) -> Result<String> {
        let ended = self.mci(line).await?;
        ensure!(ended.code == Some(0), "kubectl mci {line}: {ended:#?}");
        Ok(ended.out)
    }

    /// As [`mci`](Self::mci) with JSON; whatever its exit code.
    pub(crate) async fn json(&self, line: &str) -> Result<Value> {
        let ended = self.mci(&format!("{line} -o json")).await?;
        serde_json::from_str(&ended.out).with_context(|| format!("kubectl mci {line}: {ended:#?}"))
    }
}
