use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{DOCUMENT, make::document};

#[test]
fn the_document_is_that_of_the_routes_and_types() {
    let made = format!("{:#}\n", document());
    if made == DOCUMENT {
        return;
    }
    let again = "UPDATE_DOCS=1 cargo test -p metadata-center the_document";
    assert!(
        std::env::var_os("UPDATE_DOCS").is_some(),
        "config/openapi/metadata-center.json is outdated: run\n  {again}"
    );
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/openapi/metadata-center.json");
    fs::write(file, made).unwrap();
}

#[test]
fn every_example_parses_and_every_reference_leads_somewhere() {
    let document = document();
    let mut targets = BTreeSet::new();
    visit(&document, &mut |key, value| match key {
        "example" => assert!(!value.is_null(), "an example that does not parse"),
        "$ref" => {
            let to = value.as_str().unwrap();
            targets.insert(to.strip_prefix('#').expect(to).to_owned());
        }
        _ => {}
    });
    assert!(targets.len() > 10, "{targets:?}");
    for to in targets {
        assert!(document.pointer(&to).is_some(), "{to}");
    }
}

fn visit(value: &Value, see: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                see(key, value);
                visit(value, see);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| visit(item, see)),
        _ => {}
    }
}
