//! Lists the crates that may use the YAML library directly.
#![cfg(test)]

use std::{fs, path::Path};

/// Crates whose programs depend on it, and why that is right.
const ALLOWED: [(&str, &str); 5] = [
    (
        "apiserver-sim",
        "a test server; reads the CRD that is built in",
    ),
    ("crd", "writes its CRDs"),
    ("foreign-text", "the bounded reader"),
    (
        "kubectl-mci",
        "writes YAML; reads the manifest that is built in",
    ),
    ("testbed", "tests; reads files of this repository"),
];

/// Whether a manifest's own dependencies have it: those of tests, and what only a feature for tests turns on, do not count.
fn depends(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let is_it = line.contains("serde_yaml") || line.contains("yaml_serde");
        section == "[dependencies]" && is_it && !line.contains("optional = true")
    })
}

/// No other crate can read YAML without bounds.
#[test]
fn the_yaml_library_is_used_where_nobody_elses_text_is_read() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path().join("Cargo.toml");
        let name = path.parent().and_then(Path::file_name).unwrap();
        if let Ok(manifest) = fs::read_to_string(&path)
            && depends(&manifest)
        {
            found.push(name.to_string_lossy().into_owned());
        }
    }
    found.sort();
    let allowed = ALLOWED.map(|(name, _)| name);
    assert_eq!(
        found, allowed,
        "read what others write with foreign_text::read"
    );
}
