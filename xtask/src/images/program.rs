//! The programs as images have them, and what of the checkout is noted in them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{Profile, paths::Paths};
use crate::{
    command::{cargo, output, run},
    workspace,
};

/// What is known of the source.
pub(super) struct Checkout {
    /// Commit, with `-dirty` where files differ from it.
    pub(super) revision: String,
    /// Of the commit, in UTC as SPDX wants it.
    pub(super) time: String,
    pub(super) source: Option<String>,
}

/// What a program takes from the system that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// Nothing: one file that runs on every Linux of this architecture, and nothing beside it to be kept up to date.
    Static,
    /// The C library, which looks names up as that system is set up to: with modules for directories or mDNS.
    Dynamic,
}

/// Programs that are there.
pub(super) struct Built {
    directory: PathBuf,
}

/// Builds programs without paths of this machine, in a directory of its own: these flags would otherwise make every other
/// build start anew.
///
/// The features of a dependency depend on which packages are built together: name the same ones for the same program.
pub(super) fn build(
    packages: &[&str],
    programs: &[&str],
    profile: Profile,
    linkage: Linkage,
    paths: &Paths,
    checkout: &Checkout,
) -> Result<Built> {
    let target = target()?;
    let profile_name = profile.directory();
    let mut build = cargo(&["build", "--locked", "--profile", profile_name]);
    build.args(["--target", &target]);
    for package in packages {
        build.args(["--package", package]);
    }
    for program in programs {
        build.args(["--bin", program]);
    }
    build
        .env_remove("RUSTFLAGS")
        // what C code takes for the time at which it is compiled, as the allocator's does
        .env("SOURCE_DATE_EPOCH", "0")
        .env("CARGO_ENCODED_RUSTFLAGS", flags(linkage, paths))
        .env("ISTHMUS_COMMIT", &checkout.revision)
        .env("ISTHMUS_BUILD_REF", super::VERSION);
    run(&mut build)?;
    let built = Built {
        directory: workspace::target().join(target).join(profile_name),
    };
    for program in programs {
        paths.check(&built.path(program))?;
    }
    Ok(built)
}

fn flags(linkage: Linkage, paths: &Paths) -> OsString {
    let sign = match linkage {
        Linkage::Static => '+',
        Linkage::Dynamic => '-',
    };
    let mut flags = OsString::from(format!("-C\u{1f}target-feature={sign}crt-static"));
    flags.push(paths.flags());
    flags
}

/// The compiler's target: this machine with the GNU C library.
pub(super) fn target() -> Result<String> {
    let arch = std::env::consts::ARCH;
    if !cfg!(target_os = "linux") {
        bail!("images are built on Linux");
    }
    Ok(format!("{arch}-unknown-linux-gnu"))
}

/// As its own `--version` says: `…/1.40.0/…`.
pub(super) fn envoy_version(envoy: &Path) -> Result<String> {
    let text = output(Command::new(envoy).arg("--version"))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let version = version_among(&text).with_context(|| format!("no version in {text:?}"))?;
    Ok(version.to_owned())
}

/// The first part between slashes that begins as a version does.
fn version_among(text: &str) -> Option<&str> {
    text.split('/').find(|part| {
        let mut numbers = part.split('.');
        (0..3).all(|_| {
            let number = numbers.next().and_then(|it| it.chars().next());
            number.is_some_and(|it| it.is_ascii_digit())
        })
    })
}

// === impl Profile ===

impl Profile {
    /// Its name to cargo, and where cargo puts what it builds.
    fn directory(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::QuickRelease => "quick-release",
        }
    }
}

// === impl Built ===

impl Built {
    /// Programs that somebody else built.
    pub(super) fn found(directory: &Path, programs: &[&str]) -> Result<Self> {
        if let Some(missing) = programs.iter().find(|it| !directory.join(it).is_file()) {
            bail!("no {missing} in {}", directory.display());
        }
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }
}

// === impl Checkout ===

impl Checkout {
    pub(super) fn read(source: Option<String>) -> Result<Self> {
        let commit = git(&["rev-parse", "HEAD"])?;
        let revision = if is_dirty()? {
            format!("{commit}-dirty")
        } else {
            commit
        };
        let time = git(&[
            "log",
            "-1",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
            "--format=%cd",
        ])?;
        // not from the remote `origin`: that differs from clone to clone, and may hold a token
        Ok(Self {
            revision,
            time,
            source,
        })
    }
}

/// Whether files differ from the commit.
pub(crate) fn is_dirty() -> Result<bool> {
    Ok(!git(&["status", "--porcelain"])?.is_empty())
}

fn git(args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(args)
        .current_dir(workspace::root())
        .env("TZ", "UTC");
    let text = output(&mut git).context("images name the commit that they are built from")?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_an_envoy_is_found_in_what_it_says() {
        let text = "envoy  version: 0a1b2c/1.40.0/Clean/RELEASE/BoringSSL\n";
        assert_eq!(version_among(text), Some("1.40.0"));
        assert_eq!(version_among("envoy version: none"), None);
    }
}
