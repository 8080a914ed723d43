//! Which parts of this crate name which others.

use std::fs;
use std::path::{Path, PathBuf};

/// What is known, and what follows from it.
const PURE: [&str; 4] = ["feedback", "model", "parameters", "world"];

/// What is made of that for Envoys and for the API server.
const MADE_OF_IT: [&str; 2] = ["crate::infra", "crate::xds"];

/// The files of a module, those of its tests as well.
fn files(module: &Path) -> Vec<PathBuf> {
    let mut found = vec![module.with_extension("rs")];
    let Ok(entries) = fs::read_dir(module) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(files(&path.with_extension("")));
        } else if path.is_dir() && !path.with_extension("rs").exists() {
            found.extend(files(&path).split_off(1));
        }
    }
    found
}

#[test]
fn routing_names_nothing_of_what_is_made_of_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for module in PURE {
        for file in files(&source.join(module)) {
            let text = fs::read_to_string(&file).unwrap();
            for named in MADE_OF_IT {
                assert!(!text.contains(named), "{} names {named}", file.display());
            }
        }
    }
}
