//! The ZeroMQ library out of a published Python package, with the one library that it needs.

use std::{
    env::consts::ARCH,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{
    stamp,
    wheel::{pinned, unpacked},
};
use crate::workspace;

pub(super) const PACKAGE: &str = "pyzmq";
const NAME: &str = "libzmq";
const VARIABLE: &str = "LIBZMQ";
/// Where the package has its libraries.
const LIBRARIES: &str = "pyzmq.libs";
/// A library is a Python's extension in the rest of the package: that of any version will do, so that one hash is enough.
const PYTHON: [&str; 6] = [
    "--python-version",
    "3.12",
    "--implementation",
    "cp",
    "--abi",
    "abi3",
];

/// Finds or fetches it. Order: `LIBZMQ`, `target/tools`, the package.
pub(super) fn libzmq() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|it| !it.is_empty()) {
        let named = PathBuf::from(named);
        if !named.is_file() {
            bail!(
                "{VARIABLE} is set, but {} is not there: correct or unset it",
                named.display()
            );
        }
        return Ok(named);
    }
    let pin = pinned(PACKAGE)?;
    let kept = workspace::tools().join(NAME);
    let library = kept.join("libzmq.so");
    let made_of = fs::read_to_string(stamp(NAME)).unwrap_or_default();
    if !library.is_file() || made_of != pin {
        fetch(&pin, &kept).with_context(|| format!("or set {VARIABLE} to a libzmq.so"))?;
    }
    Ok(library)
}

fn fetch(pin: &str, kept: &Path) -> Result<()> {
    let platform = format!("manylinux_2_28_{ARCH}");
    let options = [&PYTHON[..], &["--platform", &platform]].concat();
    let dir = unpacked(NAME, pin, &options)?;
    let libraries = dir.join(LIBRARIES);
    let named = fs::read_dir(&libraries)
        .with_context(|| format!("reading {}", libraries.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|it| it.to_string_lossy().starts_with(NAME))
        })
        .with_context(|| format!("no {NAME} in {}", libraries.display()))?;
    fs::rename(&named, libraries.join("libzmq.so")).context("naming the library")?;
    if kept.exists() {
        fs::remove_dir_all(kept).with_context(|| format!("clearing {}", kept.display()))?;
    }
    fs::rename(&libraries, kept).with_context(|| format!("placing {}", kept.display()))?;
    fs::write(stamp(NAME), pin).with_context(|| format!("noting what {NAME} is"))?;
    fs::remove_dir_all(&dir).with_context(|| format!("clearing {}", dir.display()))
}
