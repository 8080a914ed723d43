//! Where the CRD manifests are: the foreign ones inside their Go modules, ours in `config/crd`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::error::TestbedError;

const GATEWAY_API: &str = "sigs.k8s.io/gateway-api";
const INFERENCE_EXTENSION: &str = "sigs.k8s.io/gateway-api-inference-extension";
/// The modules are in the module cache; finding them is local work.
const GO_LIMIT: Duration = Duration::from_mins(1);

/// The manifests of the custom resources a testbed may install.
#[derive(Clone, Debug)]
pub struct Manifests {
    /// Gateway API, standard channel.
    pub gateway_api: Vec<PathBuf>,
    /// The upstream InferencePool.
    pub inference_pool: PathBuf,
    /// The upstream InferencePoolImport, which ours stands in for; not installed unless a test asks for it.
    pub upstream_import: PathBuf,
    /// Ours, generated; empty when there are none yet.
    pub own: Vec<PathBuf>,
}

// === impl Manifests ===

impl Manifests {
    /// Asks `go` where the modules are.
    ///
    /// # Errors
    /// When `go` cannot be run or does not have the modules.
    pub async fn find() -> Result<Self, TestbedError> {
        let directories = module_directories(&crate::workspace().join("e2e/tools/crds")).await?;
        let [gateway_api, inference_extension] = &*directories else {
            return Err(TestbedError::Manifests(format!(
                "go list answered {directories:?}"
            )));
        };
        let bases = inference_extension.join("config/crd/bases");
        Ok(Self {
            gateway_api: yaml_files(&gateway_api.join("config/crd/standard"))?
                .into_iter()
                // an admission policy against downgrades, which needs nothing of what we test
                .filter(|path| !path.to_string_lossy().contains("_vap_"))
                .collect(),
            inference_pool: bases.join("inference.networking.k8s.io_inferencepools.yaml"),
            upstream_import: bases.join("inference.networking.x-k8s.io_inferencepoolimports.yaml"),
            own: yaml_files(&crate::workspace().join("config/crd"))?,
        })
    }

    /// All but the upstream import.
    pub fn default_set(&self) -> Vec<PathBuf> {
        let mut paths = self.gateway_api.clone();
        paths.push(self.inference_pool.clone());
        paths.extend(self.own.iter().cloned());
        paths
    }
}

async fn module_directories(module: &Path) -> Result<Vec<PathBuf>, TestbedError> {
    let mut command = Command::new("go");
    command
        .args([
            "list",
            "-m",
            "-f",
            "{{.Dir}}",
            GATEWAY_API,
            INFERENCE_EXTENSION,
        ])
        .current_dir(module)
        // there is no network in here to fetch anything from
        .env("GOPROXY", "off")
        .kill_on_drop(true);
    let output = match tokio::time::timeout(GO_LIMIT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => output,
        Ok(Ok(output)) => {
            let problem = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(TestbedError::Manifests(problem));
        }
        Ok(Err(error)) => return Err(TestbedError::Manifests(format!("cannot run go: {error}"))),
        Err(_) => {
            return Err(TestbedError::Manifests(format!(
                "go list: no end after {GO_LIMIT:?}"
            )));
        }
    };
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines
        .lines()
        .filter(|line| !line.is_empty())
        .map(PathBuf::from)
        .collect())
}

/// Sorted; none when the directory is missing.
fn yaml_files(directory: &Path) -> Result<Vec<PathBuf>, TestbedError> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(directory).map_err(|source| TestbedError::File {
        path: directory.to_owned(),
        source,
    })?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    Ok(files)
}
