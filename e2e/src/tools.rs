//! Where tools are that tests run.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The real helm: `HELM_BIN`, else on `PATH`, else in `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn helm() -> Result<PathBuf> {
    find("helm", "HELM_BIN")
}

/// Prometheus' promtool: `PROMTOOL_BIN`, else on `PATH`, else in `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn promtool() -> Result<PathBuf> {
    find("promtool", "PROMTOOL_BIN")
}

/// The echo server of the official conformance suites: `ECHO_BASIC_BIN`, else on `PATH`, else in `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn echo_server() -> Result<PathBuf> {
    find("echo-basic", "ECHO_BASIC_BIN")
}

/// The program of an official conformance suite: `CONFORMANCE_<SUITE>_BIN`, else `conformance-<suite>` on `PATH`, else in
/// `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn official_suite(suite: &str) -> Result<PathBuf> {
    let variable = format!("CONFORMANCE_{}_BIN", suite.to_uppercase());
    find(&format!("conformance-{suite}"), &variable)
}

/// istiod: `PILOT_DISCOVERY_BIN`, else `pilot-discovery` on `PATH`, else in `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn pilot_discovery() -> Result<PathBuf> {
    find("pilot-discovery", "PILOT_DISCOVERY_BIN")
}

/// The definitions of Istio's kinds, a file: `ISTIO_CRDS`, else in `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn istio_definitions() -> Result<PathBuf> {
    let found = find("istio-crds.yaml", "ISTIO_CRDS");
    found.context("they come with pilot-discovery: run `cargo xtask tools --only pilot-discovery`")
}

fn find(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os(variable) {
        return Ok(PathBuf::from(program));
    }
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([workspace.join("target/tools")]);
    let found = places.find_map(|place| {
        let file = place.join(name);
        file.is_file().then_some(file)
    });
    found.with_context(|| format!("no {name}: run `cargo xtask tools --only {name}`"))
}
