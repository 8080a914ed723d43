//! The Rust that builds programs, by its own account.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{command::output, workspace};

pub(super) struct Toolchain {
    pub(super) version: String,
    /// Of which the standard library is built.
    commit: String,
    sysroot: PathBuf,
}

impl Toolchain {
    /// Of the checkout, as `rust-toolchain.toml` has it.
    pub(super) fn read() -> Result<Self> {
        let about = rustc(&["--version", "--verbose"])?;
        let value = |key: &str| {
            let mut lines = about.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            let value = value.with_context(|| format!("rustc does not say its {key}:\n{about}"))?;
            anyhow::Ok(value.to_owned())
        };
        Ok(Self {
            version: value("release")?,
            commit: value("commit-hash")?,
            sysroot: rustc(&["--print", "sysroot"])?.trim().into(),
        })
    }

    /// The standard library's source where the component `rust-src` is installed, and its name in programs where it is not.
    pub(super) fn source(&self) -> (PathBuf, String) {
        let installed = self.sysroot.join("lib/rustlib/src/rust");
        (installed, format!("/rustc/{}", self.commit))
    }

    /// Of its documents.
    pub(super) fn document(&self, name: &str) -> PathBuf {
        self.sysroot.join("share/doc/rust").join(name)
    }
}

fn rustc(args: &[&str]) -> Result<String> {
    let mut rustc = Command::new("rustc");
    let text = output(rustc.args(args).current_dir(workspace::root()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
