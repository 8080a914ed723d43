//! Where things are in the checkout.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Root of the checkout.
pub(crate) fn root() -> PathBuf {
    // this file's crate stands directly below the root
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    // cargo takes a relative one from the directory it was called in, and that is ours
    std::env::var_os("CARGO_TARGET_DIR")
        .and_then(|dir| std::path::absolute(dir).ok())
        .unwrap_or_else(|| root().join("target"))
}

/// The cache of binaries that cargo does not build.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// Shell scripts of the checkout, relative to its root, in order.
pub(crate) fn scripts() -> Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from(".ci/run")];
    let root = root();
    collect_scripts(&root, &mut found).context("looking for scripts")?;
    let mut scripts: Vec<PathBuf> = found
        .into_iter()
        .map(|path| {
            path.strip_prefix(&root)
                .map(Path::to_path_buf)
                .unwrap_or(path)
        })
        .collect();
    scripts.sort_unstable();
    Ok(scripts)
}

/// What cargo, git and npm keep is not ours.
fn collect_scripts(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    const FOREIGN: [&str; 3] = ["target", ".git", "node_modules"];
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let foreign = FOREIGN.iter().any(|name| entry.file_name() == *name);
        if kind.is_dir() && !foreign {
            collect_scripts(&path, found)?;
        } else if kind.is_file() && path.extension().is_some_and(|ending| ending == "sh") {
            found.push(path);
        }
    }
    Ok(())
}
