//! The shared libraries that a program is linked against, its loader among them. Those of our images are static and have none.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result};
use object::{
    Endianness,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{Dyn, FileHeader, ProgramHeader},
};

use super::{
    files::Files,
    sbom::Component,
    system::{C_LIBRARY, COMPILER, Package},
};
use crate::tools;

/// What an ELF file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// Path of the loader.
    loader: Option<String>,
    /// Names of libraries.
    libraries: Vec<String>,
}

/// Whether a program brings all that it needs.
pub(super) fn is_static(program: &Path) -> Result<bool> {
    Ok(needs_of(program)?.loader.is_none())
}

/// The oldest GNU C library that has all that the program asks of it, such as 2.34. None where it is linked statically.
pub(super) fn c_library_needed(program: &Path) -> Result<Option<String>> {
    let versions = versions(&super::read(program)?)
        .with_context(|| format!("reading {}", program.display()))?;
    let newest = versions
        .iter()
        .filter_map(|version| version.strip_prefix("GLIBC_"))
        // the loader's other promises have names such as GLIBC_ABI_DT_RELR
        .filter(|version| version.starts_with(|it: char| it.is_ascii_digit()))
        .max_by_key(|version| {
            let numbers = version.split('.');
            numbers
                .map(|it| it.parse().unwrap_or(0))
                .collect::<Vec<u32>>()
        });
    Ok(newest.map(ToOwned::to_owned))
}

/// Adds what the program needs, from Debian's packages; names the packages.
pub(super) fn add(files: &mut Files, program: &Path) -> Result<Vec<Component>> {
    let needs = needs_of(program)?;
    let Some(loader) = needs.loader else {
        return Ok(Vec::new());
    };
    let found = tools::c_libraries()?;
    let from = |name: &str| {
        let path = found.path(name);
        path.with_context(|| format!("{} needs {name}, which no package has", program.display()))
    };
    files.add_file(&loader, 0o755, &from(file_name(&loader))?)?;
    let (mut open, mut added) = (needs.libraries, BTreeSet::new());
    while let Some(name) = open.pop() {
        // the loader is a library too
        if name == file_name(&loader) || !added.insert(name.clone()) {
            continue;
        }
        let bytes = super::read(&from(&name)?)?;
        open.extend(self::needs(&bytes)?.libraries);
        files.add(&format!("/lib/{name}"), 0o755, bytes);
    }
    let packages = found.packages.iter();
    Ok(packages
        .map(|(name, version)| {
            let is_c_library = name == "libc6";
            let package = Package {
                name: name.clone(),
                version: version.clone(),
                source: is_c_library.then(|| "glibc".to_owned()),
            };
            let library = if is_c_library { &C_LIBRARY } else { &COMPILER };
            Component::package(&package, library)
        })
        .collect())
}

fn needs_of(program: &Path) -> Result<Needs> {
    needs(&super::read(program)?)
        .with_context(|| format!("{} is no program of this machine", program.display()))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn needs(elf: &[u8]) -> Result<Needs> {
    let header = FileHeader64::<Endianness>::parse(elf)?;
    let endian = header.endian()?;
    let mut needs = Needs::default();
    for segment in header.program_headers(endian, elf)? {
        if let Some(loader) = segment.interpreter(endian, elf)? {
            needs.loader = Some(String::from_utf8_lossy(loader).into_owned());
        }
    }
    let sections = header.sections(endian, elf)?;
    if let Some((entries, strings)) = sections.dynamic(endian, elf)? {
        let strings = sections.strings(endian, elf, strings)?;
        for entry in entries {
            if entry.tag(endian) == DT_NEEDED {
                let name = entry.string(endian, strings)?;
                let name = String::from_utf8_lossy(name).into_owned();
                needs.libraries.push(name);
            }
        }
    }
    Ok(needs)
}

/// Versions of symbols that an ELF file asks of its libraries.
fn versions(elf: &[u8]) -> Result<BTreeSet<String>> {
    let header = FileHeader64::<Endianness>::parse(elf)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, elf)?;
    let mut versions = BTreeSet::new();
    if let Some((libraries, strings)) = sections.gnu_verneed(endian, elf)? {
        let strings = sections.strings(endian, elf, strings)?;
        for library in libraries {
            for version in library?.1 {
                let name = version?.name(endian, strings)?;
                versions.insert(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_loader_and_the_c_library() {
        let this = std::env::current_exe().unwrap();
        let needs = needs(&std::fs::read(this).unwrap()).unwrap();
        let loader = needs.loader.as_deref().map(file_name).unwrap();
        assert!(loader.starts_with("ld-linux-"), "{loader}");
        assert!(
            needs.libraries.contains(&"libc.so.6".to_owned()),
            "{needs:?}"
        );
    }

    #[test]
    fn a_program_names_the_oldest_c_library_that_it_runs_with() {
        let this = std::env::current_exe().unwrap();
        let needed = c_library_needed(&this).unwrap().unwrap();
        // since that one the threads are in the C library itself; the standard library takes them from there
        let minor: u32 = needed.strip_prefix("2.").unwrap().parse().unwrap();
        assert!((17..100).contains(&minor), "{needed}");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        needs(b"#!/bin/sh\n").unwrap_err();
    }
}
