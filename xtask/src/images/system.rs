//! What of this system is in a program that is linked statically: the C library and the compiler's.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::sbom::Component;
use crate::command::{on_path, output};

/// A static library that the linker takes from the system.
pub(super) struct Library {
    /// By which the C compiler finds it.
    file: &'static str,
    /// Where no package manager that we know has it.
    pub(super) name: &'static str,
    pub(super) licences: &'static str,
    /// The text that all of its source is under, by its name in Debian's `common-licenses`.
    pub(super) text: &'static str,
}

pub(super) const C_LIBRARY: Library = Library {
    file: "libc.a",
    name: "glibc",
    licences: "LGPL-2.1-or-later",
    text: "LGPL-2.1",
};

pub(super) const COMPILER: Library = Library {
    file: "libgcc.a",
    name: "libgcc",
    licences: "GPL-3.0-or-later WITH GCC-exception-3.1",
    text: "GPL-3",
};

/// A package of Debian's kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// The package of its source: by that name Debian knows its faults.
    pub(super) source: Option<String>,
}

/// The libraries, by the packages that they are from.
pub(super) fn linked() -> Result<Vec<Component>> {
    let libraries = [&C_LIBRARY, &COMPILER].into_iter();
    libraries.map(Library::component).collect()
}

/// `debian-12`, as package URLs name it. None where the system does not say.
pub(super) fn distribution() -> Option<String> {
    distribution_in(&std::fs::read_to_string("/etc/os-release").ok()?)
}

fn distribution_in(release: &str) -> Option<String> {
    let value = |key: &str| {
        let mut lines = release.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.trim_matches('"'))
    };
    Some(format!("{}-{}", value("ID")?, value("VERSION_ID")?))
}

// === impl Library ===

impl Library {
    fn component(&self) -> Result<Component> {
        let path = self.path()?;
        match Package::of(&path) {
            Some(package) => Ok(Component::package(&package, self)),
            None => Ok(Component::library(self, &self.version()?)),
        }
    }

    fn path(&self) -> Result<PathBuf> {
        let mut compiler = Command::new("cc");
        let path = output(compiler.arg(format!("-print-file-name={}", self.file)))?;
        let path = PathBuf::from(String::from_utf8_lossy(&path).trim());
        // what it does not find it gives back as it is
        path.canonicalize()
            .with_context(|| {
                let (file, name) = (self.file, self.name);
                format!("`cc` finds no {file}: install the static library of {name} (Debian: libc6-dev, gcc)")
            })
    }

    /// As the library itself counts.
    fn version(&self) -> Result<String> {
        let mut asked = if self.name == C_LIBRARY.name {
            let mut getconf = Command::new("getconf");
            getconf.arg("GNU_LIBC_VERSION");
            getconf
        } else {
            let mut compiler = Command::new("cc");
            compiler.arg("-dumpfullversion");
            compiler
        };
        let text = output(&mut asked)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.trim().trim_start_matches("glibc ").to_owned())
    }
}

// === impl Package ===

impl Package {
    /// The one that a file is from.
    fn of(file: &Path) -> Option<Self> {
        on_path("dpkg-query")?;
        let query = |args: &[&str]| {
            let text = output(Command::new("dpkg-query").args(args)).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        };
        let owner = query(&["--search", file.to_str()?])?;
        let name = owner.split_once(": ")?.0;
        let about = query(&[
            "--show",
            "--showformat=${Package} ${Version} ${source:Package}",
            name,
        ])?;
        Self::parse(&about)
    }

    fn parse(about: &str) -> Option<Self> {
        let mut words = about.split_whitespace().map(ToOwned::to_owned);
        Some(Self {
            name: words.next()?,
            version: words.next()?,
            source: words.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_named_with_their_version() {
        let release = "PRETTY_NAME=\"Debian\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(distribution_in(release).unwrap(), "debian-12");
        assert_eq!(distribution_in("ID=arch\n"), None);
    }

    #[test]
    fn the_c_library_is_that_of_the_compiler() {
        // no variable names it: the C compiler finds it, and the error names what to install
        let component = C_LIBRARY
            .component()
            .unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(component.licences.as_deref(), Some("LGPL-2.1-or-later"));
        assert!(component.version.starts_with('2'), "{component:?}");
    }
}
