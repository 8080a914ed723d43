//! Where the texts of licences are: in the source of crates, with packages of the system, and the common ones with Rust.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::{Component, Texts, Toolchain};

/// Of packages of Debian: `PACKAGE/copyright`.
const DOCUMENTS: &str = "/usr/share/doc";
/// What these refer to.
const SHARED: &str = "/usr/share/common-licenses";
/// Of other distributions: files in `PACKAGE`.
const LICENCES: &str = "/usr/share/licenses";

/// What files with licences are called, and directories of them, in small letters.
const NAMES: [&str; 6] = [
    "licence",
    "license",
    "unlicense",
    "copying",
    "copyright",
    "notice",
];

/// All texts that a component has.
pub(super) fn texts(component: &Component, toolchain: &Toolchain) -> Result<Vec<String>> {
    match &component.texts {
        Texts::Ours => Ok(Vec::new()),
        Texts::Source { directory, authors } => {
            let texts = read_all(&files(directory)?)?;
            if !texts.is_empty() {
                return Ok(texts);
            }
            let mut texts = common(component, toolchain)?;
            let authors = if authors.is_empty() {
                "its authors".to_owned()
            } else {
                authors.join(", ")
            };
            let (name, version) = (&component.name, &component.version);
            texts.push(format!("{name} {version}: copyright of {authors}"));
            Ok(texts)
        }
        Texts::System(shared) => of_package(&component.name, shared),
        Texts::Rust => Ok(vec![format!(
            "In the file {} beside this one.",
            super::RUST
        )]),
        Texts::Notice(notice) => Ok(vec![(*notice).to_owned()]),
        Texts::Common => common(component, toolchain),
    }
}

/// The files of licences among these and below, in the order of their paths. Sources contain others' sources.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![(directory.to_owned(), false)];
    while let Some((directory, of_licences)) = open.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            let wanted = of_licences || is_licence(&path);
            if path.is_dir() {
                open.push((path, wanted));
            } else if wanted && path.extension().is_none_or(|it| it != "rs") {
                found.push(path);
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_lowercase();
    NAMES.iter().any(|beginning| name.starts_with(beginning))
}

/// As Rust has them, of each licence that the component names.
fn common(component: &Component, toolchain: &Toolchain) -> Result<Vec<String>> {
    let expression = component.licences.as_deref().unwrap_or_default();
    let files: Vec<PathBuf> = names(expression)
        .map(|name| toolchain.document(&format!("licenses/{name}.txt")))
        .filter(|file| file.is_file())
        .collect();
    ensure!(!files.is_empty(), "no text of {expression:?} is known");
    read_all(&files)
}

/// The licences of an SPDX expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|it: char| it.is_whitespace() || matches!(it, '(' | ')'));
    words.filter(|word| !matches!(*word, "" | "AND" | "OR" | "WITH"))
}

fn of_package(package: &str, shared: &str) -> Result<Vec<String>> {
    let copyright = Path::new(DOCUMENTS).join(package).join("copyright");
    if copyright.is_file() {
        return read_all(&[copyright, Path::new(SHARED).join(shared)]);
    }
    let directory = Path::new(LICENCES).join(package);
    if directory.is_dir() {
        let mut found = Vec::new();
        for entry in fs::read_dir(&directory)? {
            found.push(entry?.path());
        }
        found.sort_unstable();
        return read_all(&found);
    }
    bail!(
        "neither {} nor {} is there",
        copyright.display(),
        directory.display()
    );
}

fn read_all(files: &[PathBuf]) -> Result<Vec<String>> {
    let files = files.iter();
    files
        .map(|file| {
            let bytes = crate::images::read(file)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn licences_are_found_wherever_a_source_has_them() {
        let source = TempDir::new().unwrap();
        for file in [
            "Cargo.toml",
            "LICENSE-MIT",
            "LICENSES/Zlib.txt",
            "c/inner/COPYING",
            "src/license.rs",
            "src/lib.rs",
            "README.md",
            "unlicense.md",
        ] {
            let path = source.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = files(source.path()).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|path| path.strip_prefix(source.path()).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(
            found,
            [
                "LICENSE-MIT",
                "LICENSES/Zlib.txt",
                "c/inner/COPYING",
                "unlicense.md"
            ]
        );
    }

    #[test]
    fn expressions_name_licences_and_exceptions() {
        let expression = "(Apache-2.0 WITH LLVM-exception OR MIT) AND BSD-3-Clause";
        let names: Vec<_> = names(expression).collect();
        assert_eq!(
            names,
            ["Apache-2.0", "LLVM-exception", "MIT", "BSD-3-Clause"]
        );
    }

    #[test]
    fn a_crate_without_a_text_has_the_common_one_and_names_its_authors() {
        let source = TempDir::new().unwrap();
        let mut component = Component {
            name: "bare".to_owned(),
            version: "1.0.0".to_owned(),
            licences: Some("MIT OR Unheard-of".to_owned()),
            texts: Texts::Source {
                directory: source.path().to_owned(),
                authors: vec!["A. Uthor".to_owned()],
            },
            ..Component::default()
        };
        let toolchain = Toolchain::read().unwrap();
        let found = texts(&component, &toolchain).unwrap();
        assert!(
            found[0].contains("Permission is hereby granted"),
            "{found:?}"
        );
        assert_eq!(found[1], "bare 1.0.0: copyright of A. Uthor");
        component.licences = Some("Unheard-of".to_owned());
        texts(&component, &toolchain).unwrap_err();

        fs::write(source.path().join("COPYING"), "as you like").unwrap();
        assert_eq!(texts(&component, &toolchain).unwrap(), ["as you like"]);
    }
}
