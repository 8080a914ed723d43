//! The shared libraries that a program is linked against, its loader among them. Ours are static and have none.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result};
use object::{
    Endianness,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{Dyn, FileHeader, ProgramHeader},
};

use super::{files::Files, sbom::Component};
use crate::tools;

/// What an ELF file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// Path of the loader.
    loader: Option<String>,
    /// Names of libraries.
    libraries: Vec<String>,
}

/// Adds what the program needs, from Debian's packages; names the packages.
pub(super) fn add(files: &mut Files, program: &Path) -> Result<Vec<Component>> {
    let needs = needs(&super::read(program)?)
        .with_context(|| format!("{} is no program of this machine", program.display()))?;
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
        .map(|(name, version)| Component::debian(name, version))
        .collect())
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
    fn what_is_no_program_is_refused() {
        needs(b"#!/bin/sh\n").unwrap_err();
    }
}
