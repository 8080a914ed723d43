//! promtool from Debian's package of Prometheus: nothing is installed.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{debian, find, keep};
use crate::{command::on_path, workspace};

const NAME: &str = "promtool";
const VARIABLE: &str = "PROMTOOL_BIN";
const PACKAGE: &str = "prometheus";
/// How the cache is laid out.
const LAYOUT: &str = "debian 1";

/// Finds or fetches it. Order: `PROMTOOL_BIN`, `PATH`, `target/tools`, Debian's package.
pub(super) fn promtool() -> Result<PathBuf> {
    if let Some(path) = find(NAME, VARIABLE, LAYOUT)? {
        return Ok(path);
    }
    if on_path("apt-get").is_none() || on_path("dpkg").is_none() {
        bail!("no {NAME}: install {PACKAGE}, or set {VARIABLE}");
    }
    let part = workspace::tools().join("promtool.part");
    let root = debian::unpack("Prometheus", &[PACKAGE], &part).with_context(|| {
        format!("fetching {NAME} from Debian: install {PACKAGE}, or set {VARIABLE}")
    })?;
    let kept = keep(NAME, &root.join("usr/bin").join(NAME), LAYOUT)?;
    debian::clear(&part)?;
    Ok(kept)
}
