//! The C library, its loader and the compiler's library from Debian's packages, for images of programs that need them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{debian, stamp};
use crate::workspace;

const NAME: &str = "c-library";
const PACKAGES: [&str; 2] = ["libc6", "libgcc-s1"];
/// How the cache is laid out.
const LAYOUT: &str = "debian 1";

/// Unpacked packages.
pub(crate) struct Libraries {
    root: PathBuf,
    /// Names and versions.
    pub(crate) packages: Vec<(String, String)>,
}

/// Finds them in `target/tools`, or else fetches them.
pub(super) fn c_libraries() -> Result<Libraries> {
    let root = workspace::tools().join(NAME);
    let noted = fs::read_to_string(stamp(NAME)).unwrap_or_default();
    if let Some(packages) = noted.strip_prefix(LAYOUT)
        && root.is_dir()
    {
        let packages = packages.lines().filter_map(package_of).collect();
        return Ok(Libraries { root, packages });
    }
    let part = workspace::tools().join(format!("{NAME}.part"));
    let unpacked = debian::unpack("the C library", &PACKAGES, &part)
        .context("fetching libc6 from Debian, for a program that is not linked statically")?;
    let mut files: Vec<String> = debian::packages_in(&part)?
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    files.sort_unstable();
    debian::clear(&root)?;
    fs::rename(&unpacked, &root).with_context(|| format!("placing {}", root.display()))?;
    fs::write(stamp(NAME), format!("{LAYOUT}\n{}", files.join("\n")))
        .with_context(|| format!("noting what {NAME} is"))?;
    debian::clear(&part)?;
    let packages = files.iter().filter_map(|file| package_of(file)).collect();
    Ok(Libraries { root, packages })
}

/// `libc6_2.36-9+deb12u14_amd64.deb` → its name and version; a colon of the version is `%3a` there.
fn package_of(file: &str) -> Option<(String, String)> {
    let mut parts = file.split('_');
    let (name, version) = (parts.next()?, parts.next()?);
    let wanted = PACKAGES.contains(&name);
    wanted.then(|| (name.to_owned(), version.replace("%3a", ":")))
}

// === impl Libraries ===

impl Libraries {
    /// Where the file of this name is. Links are passed over: some lead to the machine's own.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        find(&self.root, name)
    }
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            return find(&entry.path(), name);
        }
        (kind.is_file() && entry.file_name() == name).then(|| entry.path())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_known_by_their_files_and_others_passed_over() {
        let package = package_of("libgcc-s1_1%3a12.2.0-14_amd64.deb").unwrap();
        assert_eq!(package, ("libgcc-s1".to_owned(), "1:12.2.0-14".to_owned()));
        assert_eq!(package_of("libc6-dev_2.36-9_amd64.deb"), None);
    }
}
