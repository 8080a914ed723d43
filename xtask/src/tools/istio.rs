//! istiod, Istio's control plane, from its Go module, and the definitions of its kinds that are in the module.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{GoTool, find, go, go_version, keep};
use crate::{
    command::{output, run_as_step},
    lock, workspace,
};

pub(super) const MODULE: &str = "e2e/tools/istio";
/// Version of Istio; `e2e/tools/istio/go.mod` holds the same. The Go proxy has no release of it.
pub(super) const ISTIO: &str = "v0.0.0-20260827124520-eed52ebb66ad";
/// Istio's own name of it; the program inside the image `istio/pilot`.
pub(super) const PILOT: GoTool = GoTool {
    name: "pilot-discovery",
    package: "istio.io/istio/pilot/cmd/pilot-discovery",
};
/// How the definitions are called in the cache.
const DEFINITIONS: &str = "istio-crds.yaml";
/// The same in the module.
const DEFINITIONS_IN_MODULE: &str = "manifests/charts/base/files/crd-all.gen.yaml";

/// Variables that say where istiod and the definitions are, and where they are.
pub(crate) type Istio = [(&'static str, PathBuf); 2];

/// Finds or builds istiod and its definitions.
pub(crate) fn istio() -> Result<Istio> {
    let (pilot, definitions) = ("PILOT_DISCOVERY_BIN", "ISTIO_CRDS");
    let _lock = lock::tool(PILOT.name)?;
    let version = go_version(ISTIO, MODULE)?;
    let found = find(PILOT.name, pilot, &version)?.zip(find(DEFINITIONS, definitions, &version)?);
    let (program, file) = match found {
        Some(found) => found,
        None => build(&version)?,
    };
    Ok([(pilot, program), (definitions, file)])
}

/// Modules and what Go compiles of them are 3 GB that nothing else needs: they have a place of their own, which goes afterwards.
/// It stays when the build fails, so that the next one goes on from there.
fn build(version: &str) -> Result<(PathBuf, PathBuf)> {
    let part = workspace::tools().join("istio.part");
    let (program, file) = build_in(&part, version).with_context(|| {
        let part = part.display();
        format!(
            "istiod is not built: {part} has up to 3 GB for another try; delete it if there is none"
        )
    })?;
    std::fs::remove_dir_all(&part).with_context(|| format!("clearing {}", part.display()))?;
    Ok((program, file))
}

fn build_in(part: &Path, version: &str) -> Result<(PathBuf, PathBuf)> {
    let binary = part.join(PILOT.name);
    let mut command = go()?;
    command
        .args(["build", "-v", "-modcacherw", "-trimpath"])
        .args(["-ldflags", "-s -w", "-o"])
        .arg(&binary)
        .arg(PILOT.package);
    apart(&mut command, part);
    run_as_step(
        "building pilot-discovery (once, 10 minutes of CPU)",
        &mut command,
    )?;
    let mut command = go()?;
    command.args(["list", "-m", "-f", "{{.Dir}}", "istio.io/istio"]);
    apart(&mut command, part);
    let directory = String::from_utf8(output(&mut command)?).context("the module's directory")?;
    let definitions = Path::new(directory.trim()).join(DEFINITIONS_IN_MODULE);
    let file = keep(DEFINITIONS, &definitions, version)?;
    let program = keep(PILOT.name, &binary, version)?;
    Ok((program, file))
}

/// Runs in the module, with Go's files in this directory.
fn apart(command: &mut std::process::Command, part: &Path) {
    command
        .current_dir(workspace::root().join(MODULE))
        .env("GOMODCACHE", part.join("modules"))
        .env("GOCACHE", part.join("compiled"))
        .env("CGO_ENABLED", "0");
}
