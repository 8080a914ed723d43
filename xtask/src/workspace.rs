//! Where things are in the checkout.

use std::path::{Path, PathBuf};

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

/// Where programs of the `quick-release` profile come to stand.
pub(crate) fn quick_release() -> PathBuf {
    target().join("quick-release")
}
