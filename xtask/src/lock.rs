//! A lock for each tool: two `cargo xtask` at once, or two threads of one, do not build the same tool twice, nor over each
//! other.

use std::fs::{File, TryLockError};

use anyhow::{Context, Result};

use crate::workspace;

/// Holds `target/tools/.lock-NAME` until dropped; the kernel frees it however the process ends.
pub(crate) fn tool(name: &str) -> Result<File> {
    let dir = workspace::tools();
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let path = dir.join(format!(".lock-{name}"));
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("  waiting for {name}, which is being made already ...");
            file.lock()
                .with_context(|| format!("locking {}", path.display()))?;
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    Ok(file)
}
