//! Where a demo without Kubernetes has its files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory of the files and logs; it goes with this value, but where the demo failed.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) stays: bool,
}

// === impl Place ===

impl Place {
    /// Below `target`, in a directory of this name.
    pub(crate) fn make(name: &str) -> Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| workspace.join("target"), PathBuf::from);
        let path = target.join(name).join(std::process::id().to_string());
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        let path = path.canonicalize().context("the demo's directory")?;
        Ok(Self { path, stays: false })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.stays {
            // what cannot be removed is below `target`
            let _gone = std::fs::remove_dir_all(&self.path);
        }
    }
}
