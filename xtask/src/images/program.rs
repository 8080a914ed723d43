//! The programs as images have them, and what of the checkout is noted in them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use memchr::memmem;

use super::{Profile, sbom::Component};
use crate::{
    command::{cargo, on_path, output, run},
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

/// Programs that are there.
pub(super) struct Built {
    directory: PathBuf,
    /// Built here, by the compiler and C library of this machine.
    here: bool,
}

/// Builds programs statically and without paths of this machine, in a directory of its own: these flags would otherwise make
/// every other build start anew.
///
/// The features of a dependency depend on which packages are built together: name the same ones for the same program.
pub(super) fn build(
    packages: &[&str],
    programs: &[&str],
    profile: Profile,
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
        .env("CARGO_ENCODED_RUSTFLAGS", flags()?)
        .env("ISTHMUS_COMMIT", &checkout.revision)
        .env("ISTHMUS_BUILD_REF", super::VERSION);
    run(&mut build)?;
    let built = Built {
        directory: workspace::target().join(target).join(profile_name),
        here: true,
    };
    for program in programs {
        check_paths(&built.path(program))?;
    }
    Ok(built)
}

/// Static: one file that runs on every Linux of this architecture, and nothing beside it to be kept up to date.
fn flags() -> Result<OsString> {
    let mut flags = OsString::from("-C\u{1f}target-feature=+crt-static");
    for (from, to) in replaced()? {
        flags.push("\u{1f}--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    Ok(flags)
}

/// Directories of this machine, and what programs have in their place.
fn replaced() -> Result<[(PathBuf, &'static str); 2]> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir()
            .context("no home directory: set CARGO_HOME")?
            .join(".cargo"),
    };
    Ok([(home, "/cargo"), (workspace::root(), "/isthmus")])
}

/// A program that names a directory of this machine would be another one elsewhere.
fn check_paths(program: &Path) -> Result<()> {
    let bytes = super::read(program)?;
    let directories = replaced()?.into_iter().filter_map(|(from, to)| {
        // where that is its name here it says nothing
        (from != Path::new(to)).then_some(from)
    });
    for directory in directories.chain([workspace::target()]) {
        if names(&bytes, &directory) {
            let (program, directory) = (program.display(), directory.display());
            bail!(
                "{program} holds the path {directory} of this machine, so it would differ elsewhere"
            );
        }
    }
    Ok(())
}

fn names(program: &[u8], directory: &Path) -> bool {
    let directory = directory.join(""); // with the slash at its end
    memmem::find(program, directory.as_os_str().as_encoded_bytes()).is_some()
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
            here: false,
        })
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// What is linked into each that no crate names.
    pub(super) fn components(&self) -> Result<Vec<Component>> {
        if !self.here {
            return Ok(Vec::new());
        }
        let rustc = output(
            Command::new("rustc")
                .arg("--version")
                .current_dir(workspace::root()),
        )?;
        let rustc = String::from_utf8_lossy(&rustc).into_owned();
        let version = rustc.split_whitespace().nth(1).unwrap_or("unknown");
        Ok(vec![
            Component::rust(version),
            Component::c_library(&c_library()?),
        ])
    }
}

/// The package's version where there is one, which says more than the library's own.
fn c_library() -> Result<String> {
    if on_path("dpkg-query").is_some() {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat=${Version}", "libc6-dev"]);
        if let Ok(version) = output(&mut query) {
            return Ok(String::from_utf8_lossy(&version).into_owned());
        }
    }
    let text = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.trim().trim_start_matches("glibc ").to_owned())
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
    fn directories_are_found_in_programs_and_files_beside_them_are_not() {
        let program = b"\0/home/me/.cargo/registry/src\0/isthmus/crates";
        assert!(names(program, Path::new("/home/me/.cargo")));
        assert!(!names(program, Path::new("/home/me/.car")));
        assert!(!names(program, Path::new("/home/you")));
    }

    #[test]
    fn the_version_of_an_envoy_is_found_in_what_it_says() {
        let text = "envoy  version: 0a1b2c/1.40.0/Clean/RELEASE/BoringSSL\n";
        assert_eq!(version_among(text), Some("1.40.0"));
        assert_eq!(version_among("envoy version: none"), None);
    }
}
