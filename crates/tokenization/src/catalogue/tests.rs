use std::fs;

use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::fixtures::{byte_level, special};

const FILE: &str = "
models:
- name: llama-instruct
  aliases: [llama]
  path: one
  chatTemplate: ''
  contentFormat: auto
  maxModelLen: 131072
  loraAdapters: [sql]
- name: broken
  path: two
";

/// A directory of the model `one`; that of `two` has nothing.
fn mk_base() -> TempDir {
    let base = TempDir::new().unwrap();
    fs::create_dir(base.path().join("one")).unwrap();
    fs::write(
        base.path().join("one/tokenizer.json"),
        byte_level(&special()),
    )
    .unwrap();
    base
}

fn load(text: &str, base: &TempDir, former: &Catalogue) -> Result<Catalogue, CatalogueError> {
    let mut number = 0;
    Catalogue::load(text, base.path(), former, || {
        number += 1;
        number
    })
}

#[test]
fn a_model_is_found_by_each_of_its_names_and_a_failed_one_is_named() {
    let base = mk_base();
    let catalogue = load(FILE, &base, &Catalogue::default()).unwrap();
    let found = |name: &str| {
        let served = catalogue.get(name)?;
        Some((
            served.name.to_string(),
            served.lora_name.as_deref().map(str::to_owned),
        ))
    };
    let name = || "llama-instruct".to_owned();
    assert_eq!(found("llama-instruct"), Some((name(), None)));
    assert_eq!(found("llama"), Some((name(), None)));
    assert_eq!(found("sql"), Some((name(), Some("sql".to_owned()))));
    assert_eq!(found("gpt"), None);
    assert!(catalogue.get("broken").unwrap().model.is_none());
    let failed: Vec<_> = catalogue.failed().collect();
    assert_eq!(failed.len(), 1);
    let (name, why) = failed[0];
    assert_eq!(name, "broken");
    assert!(why.contains("tokenizer.json"), "{why}");
    assert_eq!(catalogue.loaded().count(), 1);
}

#[test]
fn a_reload_keeps_what_has_not_changed_and_loads_what_has() {
    let base = mk_base();
    let model = |catalogue: &Catalogue| catalogue.get("llama").unwrap().model.clone().unwrap();
    let first = load(FILE, &base, &Catalogue::default()).unwrap();
    let renamed = FILE.replace("llama-instruct", "chat");
    let second = load(&renamed, &base, &first).unwrap();
    assert!(Arc::ptr_eq(&model(&first), &model(&second)));
    let shorter = load(&FILE.replace("131072", "4096"), &base, &second).unwrap();
    assert!(!Arc::ptr_eq(&model(&second), &model(&shorter)));
    fs::write(base.path().join("one/chat_template.jinja"), "x").unwrap();
    let third = load(FILE, &base, &second).unwrap();
    assert!(!Arc::ptr_eq(&model(&second), &model(&third)));
    assert_ne!(model(&second).tag(), model(&third).tag());
}

#[test]
fn a_model_whose_tokenizer_the_engine_builds_otherwise_fails_unless_it_has_the_version_before() {
    let base = mk_base();
    let config = r#"{"tokenizer_class": "GPT2Tokenizer"}"#;
    fs::write(base.path().join("one/tokenizer_config.json"), config).unwrap();
    let catalogue = load(FILE, &base, &Catalogue::default()).unwrap();
    let (_, why) = catalogue.failed().next().unwrap();
    assert!(why.contains("builds another tokenizer"), "{why}");
    let text = FILE.replace("  maxModelLen", "  transformers: 4\n  maxModelLen");
    let catalogue = load(&text, &base, &catalogue).unwrap();
    assert_eq!(catalogue.loaded().count(), 1);
}

#[rstest]
#[case::unknown_field("models:\n- name: a\n  path: a\n  maxLen: 1", "models[0]", "line 4")]
#[case::other_type(
    "models:\n- name: a\n  path: a\n  maxModelLen: many",
    "models[0].maxModelLen",
    "line 4"
)]
#[case::other_format(
    "models:\n- name: a\n  path: a\n  contentFormat: html",
    "models[0].contentFormat",
    "line 4"
)]
#[case::no_path("models:\n- name: a", "models[0]", "path")]
#[case::no_yaml("models: [", "", "line")]
#[case::twice("models: [{name: a, path: a}]\nmodels: []", "", "is there twice")]
#[case::no_models("models: []", "models is empty", "for example")]
#[case::empty_name("models: [{name: '', path: a}]", "models[0].name", "empty")]
#[case::zero(
    "models: [{name: a, path: a, maxModelLen: 0}]",
    "models[0].maxModelLen",
    "0"
)]
#[case::other_version(
    "models:\n- name: a\n  path: a\n  transformers: 3",
    "models[0]",
    "use 4 or 5"
)]
#[case::names_clash(
    "models: [{name: a, path: a}, {name: b, path: b, aliases: [a]}]",
    "models[1].aliases",
    "models[0]"
)]
#[case::adapter_clashes(
    "models: [{name: a, path: a, loraAdapters: [a]}]",
    "models[0].loraAdapters",
    "\"a\""
)]
fn a_file_that_cannot_be_used_is_refused_by_path_and_line(
    #[case] text: &str,
    #[case] path: &str,
    #[case] part: &str,
) {
    let error = load(text, &mk_base(), &Catalogue::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains(path) && error.contains(part), "{error}");
}
