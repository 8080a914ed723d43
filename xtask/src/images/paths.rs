//! Paths of this machine, which programs must not hold: elsewhere the same commit would give other programs.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use memchr::memmem;

use super::{metadata::Metadata, toolchain::Toolchain};
use crate::workspace;

/// Directories of this machine, and what programs have in their place. Of two that hold a path, the later one counts.
pub(super) struct Paths(Vec<(PathBuf, String)>);

// === impl Paths ===

impl Paths {
    pub(super) fn read(metadata: &Metadata, toolchain: &Toolchain) -> Result<Self> {
        let home = match std::env::var_os("CARGO_HOME") {
            Some(home) => PathBuf::from(home),
            None => std::env::home_dir()
                .context("no home directory: set CARGO_HOME")?
                .join(".cargo"),
        };
        let mut paths = Self::new(
            home,
            workspace::root(),
            workspace::target(),
            sources(metadata),
        );
        paths.0.push(toolchain.source());
        Ok(paths)
    }

    fn new(home: PathBuf, root: PathBuf, target: PathBuf, sources: BTreeSet<PathBuf>) -> Self {
        let mut paths = vec![
            (home, "/cargo".to_owned()),
            (root, "/isthmus".to_owned()),
            (target, "/isthmus/target".to_owned()),
        ];
        let sources = sources.into_iter();
        paths.extend(sources.map(|from| (from, "/cargo/registry/src".to_owned())));
        Self(paths)
    }

    /// For the compiler, each after the separator of `CARGO_ENCODED_RUSTFLAGS`.
    pub(super) fn flags(&self) -> OsString {
        let mut flags = OsString::new();
        for (from, to) in &self.0 {
            flags.push("\u{1f}--remap-path-prefix=");
            flags.push(from);
            flags.push("=");
            flags.push(to);
        }
        flags
    }

    /// Refuses a program that names a directory of this machine.
    pub(super) fn check(&self, program: &Path) -> Result<()> {
        let bytes = super::read(program)?;
        // where it is the name here too it says nothing
        let differing = self.0.iter().filter(|(from, to)| from != Path::new(to));
        for (directory, _) in differing {
            if names(&bytes, directory) {
                let (program, directory) = (program.display(), directory.display());
                bail!(
                    "{program} holds the path {directory} of this machine, so it would differ elsewhere"
                );
            }
        }
        Ok(())
    }
}

/// Where the crates are unpacked. That directory's name depends on how the registry is reached, by a mirror perhaps.
fn sources(metadata: &Metadata) -> BTreeSet<PathBuf> {
    let packages = metadata.packages.iter();
    packages
        .filter_map(|package| Some(package.fetched_into()?.parent()?.to_owned()))
        .collect()
}

fn names(program: &[u8], directory: &Path) -> bool {
    let directory = directory.join(""); // with the slash at its end
    memmem::find(program, directory.as_os_str().as_encoded_bytes()).is_some()
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

    /// As the compiler does it: the last one that holds the path.
    fn mapped(paths: &Paths, path: &str) -> String {
        let mut last_first = paths.0.iter().rev();
        let found = last_first.find_map(|(from, to)| {
            let rest = Path::new(path).strip_prefix(from).ok()?;
            Some(Path::new(to).join(rest).display().to_string())
        });
        found.unwrap_or_else(|| path.to_owned())
    }

    #[test]
    fn a_path_has_the_same_name_wherever_the_directories_are() {
        let metadata = |registry: &str| {
            let package = format!(
                r#"{{"packages": [{{"name": "bytes", "version": "1.0.0", "license": null, "description": null, "authors": [],
                "source": "registry", "manifest_path": "{registry}/bytes-1.0.0/Cargo.toml"}}]}}"#
            );
            sources(&Metadata::parse(package.as_bytes()).unwrap())
        };
        for (home, root, target, registry) in [
            (
                "/a/.cargo",
                "/a/x",
                "/a/x/target",
                "/a/.cargo/registry/src/index-1",
            ),
            (
                "/b/.cargo",
                "/b/y",
                "/big/disk",
                "/b/.cargo/registry/src/mirror-2",
            ),
            ("/c/.cargo", "/c/z", "/c/z/out", "/c/z/vendor"),
        ] {
            let paths = Paths::new(home.into(), root.into(), target.into(), metadata(registry));
            let mapped = |from: &str, rest: &str| mapped(&paths, &format!("{from}/{rest}"));
            assert_eq!(
                mapped(registry, "bytes-1.0.0/src/lib.rs"),
                "/cargo/registry/src/bytes-1.0.0/src/lib.rs"
            );
            assert_eq!(
                mapped(target, "build/out.rs"),
                "/isthmus/target/build/out.rs"
            );
            assert_eq!(mapped(root, "crates/epp"), "/isthmus/crates/epp");
            assert_eq!(mapped(home, "git/x"), "/cargo/git/x");
        }
    }
}
