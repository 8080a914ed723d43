//! The packages that cargo knows: what they say of themselves, and where their source is.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command::{cargo, output};

#[derive(Deserialize)]
pub(super) struct Metadata {
    pub(super) packages: Vec<Package>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) license: Option<String>,
    pub(super) description: Option<String>,
    pub(super) authors: Vec<String>,
    /// Where it was fetched from; none for packages of the checkout.
    source: Option<String>,
    manifest_path: PathBuf,
}

// === impl Metadata ===

impl Metadata {
    pub(super) fn read(target: &str) -> Result<Self> {
        let text = output(&mut cargo(&[
            "metadata",
            "--locked",
            "--format-version=1",
            "--filter-platform",
            target,
        ]))?;
        Self::parse(&text)
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).context("what cargo metadata says")
    }
}

// === impl Package ===

impl Package {
    /// Where its source was unpacked; none for packages of the checkout.
    pub(super) fn fetched_into(&self) -> Option<&Path> {
        self.source.as_ref()?;
        self.manifest_path.parent()
    }
}
