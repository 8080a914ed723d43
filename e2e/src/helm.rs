//! Where the real helm is.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// `HELM_BIN`, else on `PATH`, else in `target/tools`.
///
/// # Errors
/// Says how to get it.
pub fn find() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("HELM_BIN") {
        return Ok(PathBuf::from(program));
    }
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([workspace.join("target/tools")]);
    let found = places.find_map(|place| {
        let file = place.join("helm");
        file.is_file().then_some(file)
    });
    found.context("no helm: run `cargo xtask tools --only helm`")
}
