//! Clusters of the testbed, set up by the script that sets up any clusters, with the real helm, kubectl and its plugin.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use testbed::{Inside, Testbed, isthmus};
use tokio::{process::Command, time::timeout};

/// The script's own waits are shorter.
const LIMIT: Duration = Duration::from_mins(5);

/// Two clusters with nothing in them.
pub(crate) async fn start(inside: &Inside) -> Result<Testbed> {
    let builder = isthmus::with_programs(Testbed::builder(inside))?;
    let builder = builder.cluster("east").cluster("west");
    Ok(builder.without_definitions().start(|_| {}).await?)
}

/// Runs `kind/install.sh`; all that is handed over is a kubeconfig.
pub(crate) async fn install(testbed: &Testbed) -> Result<PathBuf> {
    let kubeconfig = testbed.merged_kubeconfig()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let home = root.join("target/helm");
    let mut script = Command::new(root.join("kind/install.sh"));
    script
        .env("PATH", path(testbed)?)
        .env("KUBECONFIG_OF_CLUSTERS", &kubeconfig)
        // nodes of the testbed have no ports of their own
        .env("SERVICE_TYPE", "LoadBalancer")
        .env("HELM_CACHE_HOME", home.join("cache"))
        .env("HELM_CONFIG_HOME", home.join("config"))
        .env("HELM_DATA_HOME", home.join("data"))
        // there is no network in here to fetch anything from
        .env("GOPROXY", "off")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, script.output()).await;
    let output = output.with_context(|| format!("install.sh: no end after {LIMIT:?}"))??;
    ensure!(
        output.status.success(),
        "install.sh ended with {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(kubeconfig)
}

/// With kubectl, helm and `kubectl-mci`, each the one that the tests use.
fn path(testbed: &Testbed) -> Result<OsString> {
    let tools = [
        testbed.tools().kubectl.clone(),
        e2e::tools::helm()?,
        isthmus::program("kubectl-mci")?,
    ];
    let places = tools.iter().filter_map(|tool| tool.parent());
    let path = env::var_os("PATH").unwrap_or_default();
    let places = places.map(Path::to_owned).chain(env::split_paths(&path));
    Ok(env::join_paths(places)?)
}
