//! Tests with the real crane, which `cargo xtask test` provides. Without it these tests fail.

use std::{fs, io::Read};

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::tools;

/// The path of crane. Without it a test fails, as a test that checks nothing must not pass.
fn crane_for_tests() -> PathBuf {
    tools::crane_that_is_there().expect(
        "no crane: set CRANE_BIN to it, or run `cargo xtask tools --only crane`, which builds it",
    )
}

fn small() -> Files {
    let mut files = Files::default();
    files.add("/thing", 0o755, b"#!/no/such/shell\n".to_vec());
    files.add(
        "/etc/ssl/certs/ca-certificates.crt",
        0o644,
        b"none".to_vec(),
    );
    files
}

fn settings() -> Settings<'static> {
    Settings {
        name: "thing",
        tag: "1.2.3",
        entry: "/thing".to_owned(),
        user: "65532:65532",
        labels: vec![("description", "A thing, small".to_owned())],
    }
}

fn blob(archive: &[u8], digest: &Value) -> Value {
    entry(archive, &place(digest))
}

fn place(digest: &Value) -> String {
    let digest = digest.as_str().unwrap().replace(':', "/");
    format!("blobs/{digest}")
}

fn entry(archive: &[u8], path: &str) -> Value {
    serde_json::from_slice(&bytes(archive, path)).unwrap()
}

fn bytes(archive: &[u8], path: &str) -> Vec<u8> {
    let mut archive = tar::Archive::new(archive);
    let found = archive.entries().unwrap().find_map(|entry| {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        (entry.path().unwrap().to_str() == Some(path)).then(|| {
            entry.read_to_end(&mut bytes).unwrap();
            bytes
        })
    });
    found.unwrap_or_else(|| panic!("no {path}"))
}

#[test]
fn an_image_of_the_same_files_is_byte_for_byte_the_same() {
    let crane = crane_for_tests();
    let made = || {
        let directory = TempDir::new().unwrap();
        let registry = Registry::start(&crane).unwrap();
        let archive = registry.assemble(&settings(), &small(), directory.path());
        let digest = archive.unwrap().digest().to_owned();
        let kept: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(kept.len(), 1, "the archive alone stays: {kept:?}");
        (
            digest,
            fs::read(directory.path().join("thing.tar")).unwrap(),
        )
    };
    let (digest, bytes) = made();
    assert!(digest.starts_with("sha256:"), "{digest}");
    assert!((digest, bytes) == made());
}

#[test]
fn an_image_says_its_name_how_to_run_it_and_what_it_is() {
    let crane = crane_for_tests();
    let directory = TempDir::new().unwrap();
    let registry = Registry::start(&crane).unwrap();
    let archive = registry.assemble(&settings(), &small(), directory.path());
    let archive = fs::read(archive.unwrap().path).unwrap();

    let index = entry(&archive, "index.json");
    let named = &index["manifests"][0];
    let name = &named["annotations"]["io.containerd.image.name"];
    assert!(
        name.as_str().unwrap().ends_with("/isthmus/thing:1.2.3"),
        "{name}"
    );
    let manifest = blob(&archive, &named["digest"]);
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
    let layer = bytes(&archive, &place(&manifest["layers"][0]["digest"]));
    let ours = compressed(&small().layer().unwrap()).unwrap();
    assert!(layer == ours, "the layer was compressed by another");
    let description = "org.opencontainers.image.description";
    assert_eq!(manifest["annotations"][description], "A thing, small");
    let config = blob(&archive, &manifest["config"]["digest"]);
    assert_eq!(config["os"], "linux");
    let config = &config["config"];
    assert_eq!(config["Entrypoint"], serde_json::json!(["/thing"]));
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Labels"][description], "A thing, small");
}

#[test]
fn a_registry_has_the_very_image_that_was_pushed() {
    let crane = crane_for_tests();
    let directory = TempDir::new().unwrap();
    let (ours, theirs) = (
        Registry::start(&crane).unwrap(),
        Registry::start(&crane).unwrap(),
    );
    let archive = ours
        .assemble(&settings(), &small(), directory.path())
        .unwrap();
    let image = format!("{}/a/prefix/thing:1.2.3", theirs.address);
    archive.push(&image).unwrap();
    let digest = super::crane(Command::new(&crane).args(["digest", &image])).unwrap();
    assert_eq!(digest, archive.digest());

    let gone = theirs.address.clone();
    drop(theirs);
    let error = archive.push(&format!("{gone}/thing:1")).unwrap_err();
    assert!(error.to_string().contains("connection refused"), "{error}");
}
