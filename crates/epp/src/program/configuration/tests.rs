use std::{fs, path::Path};

use rstest::rstest;

use super::*;
use crate::config::Compat;

const FILTER: &str = "{protocol: openai, model_mapping_rule: {m: {rules: [{cluster: c}]}}}";

fn mk_args(
    config_file: Option<&str>,
    config_text: Option<&str>,
    llm_filter_config: Option<&Path>,
) -> ConfigArgs {
    ConfigArgs {
        config_file: config_file.map(Into::into),
        config_text: config_text.map(str::to_owned),
        llm_filter_config: llm_filter_config.map(Into::into),
        config_compat: Compat::Strict,
    }
}

fn read(config_file: Option<&str>, config_text: Option<&str>) -> anyhow::Result<Config> {
    let args = mk_args(config_file, config_text, None);
    let freshness = Freshness {
        fresh_for: Duration::from_millis(7),
        stale_for: STALE_FOR,
    };
    let (config, _) = configuration(args, freshness, false)?;
    Ok(Config::clone(&config.load()))
}

#[test]
fn without_a_file_the_default_holds_with_the_freshness_of_the_flags() {
    let mut config = read(None, None).unwrap();
    assert_eq!(config.profile.freshness.fresh_for, Duration::from_millis(7));
    config.profile.freshness = Freshness::default();
    assert_eq!(config, Config::default());
}

/// Which the program ends with exit code 64 for.
#[rstest]
#[case(None, Some("{"), "--config-text: the file: ")]
#[case(
    None,
    Some("{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugin: []}"),
    "--config-text: plugin (line 1): "
)]
#[case(
    Some("/nonexistent/epp.yaml"),
    None,
    "--config-file /nonexistent/epp.yaml: cannot read it: "
)]
fn a_bad_configuration_is_an_error_of_the_caller(
    #[case] file: Option<&str>,
    #[case] text: Option<&str>,
    #[case] want: &str,
) {
    let error = read(file, text).unwrap_err();
    let error = error.downcast_ref::<ConfigError>().expect("exit code 64");
    assert!(error.to_string().starts_with(want), "{error}");
}

#[test]
fn an_llm_filter_has_a_file_of_its_own_or_is_in_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llm.yaml");
    fs::write(&path, FILTER).unwrap();
    let nested = format!(
        "{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, isthmus: {{llmFilter: {FILTER}}}}}"
    );
    let models = |text: Option<&str>, file: Option<&Path>| {
        let (config, _) = configuration(mk_args(None, text, file), Freshness::default(), false)?;
        let config = config.load();
        let filter = config
            .llm_filter()
            .map(|filter| filter.rules.names().count());
        anyhow::Ok((filter, config.models().get("m").is_some()))
    };
    assert_eq!(models(None, None).unwrap(), (None, false));
    assert_eq!(models(None, Some(&path)).unwrap(), (Some(1), true));
    assert_eq!(models(Some(&nested), None).unwrap(), (Some(1), true));
    let error = models(Some(&nested), Some(&path)).unwrap_err();
    let error = error.downcast_ref::<ConfigError>().expect("exit code 64");
    let want = "--config-text: isthmus.llmFilter: --llm-filter-config names a file of it, too";
    assert!(error.to_string().starts_with(want), "{error}");
    let file = dir.path().join("epp.yaml");
    fs::write(&file, &nested).unwrap();
    let args = mk_args(file.to_str(), None, Some(&path));
    let error = configuration(args, Freshness::default(), false)
        .err()
        .expect("both");
    assert!(
        error.is::<ConfigError>() && error.to_string().contains("isthmus.llmFilter"),
        "{error}"
    );
}

#[test]
fn a_bad_llm_filter_is_an_error_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llm.yaml");
    fs::write(
        &path,
        "protocol: openai\nmodel_mapping_rule: {m: {rules: []}}\n",
    )
    .unwrap();
    let args = mk_args(None, None, Some(&path));
    let error = configuration(args, Freshness::default(), false)
        .err()
        .expect("refused");
    let error = error.downcast_ref::<ConfigError>().expect("exit code 64");
    let want = format!(
        "--llm-filter-config {}: model_mapping_rule.m.rules (line 2): there is none",
        path.display()
    );
    assert!(error.to_string().starts_with(&want), "{error}");
    fs::write(&path, "{}").unwrap();
    let args = mk_args(None, None, Some(&path));
    let error = configuration(args, Freshness::default(), false)
        .err()
        .expect("refused");
    let want = "expected the configuration of an LLM filter, for example {protocol: ";
    assert!(
        error.to_string().contains(want),
        "of several places: {error}"
    );
}

/// Wherever it stands.
#[test]
fn lengths_in_tokens_need_a_processor() {
    let filter = FILTER.replace("{protocol", "{length_unit: tokens, protocol");
    let nested = format!(
        "{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, isthmus: {{llmFilter: {filter}}}}}"
    );
    let dir = tempfile::tempdir().unwrap();
    let (alone, beside) = (dir.path().join("llm.yaml"), dir.path().join("epp.yaml"));
    fs::write(&alone, filter).unwrap();
    fs::write(&beside, &nested).unwrap();
    for args in [
        mk_args(None, None, Some(&alone)),
        mk_args(beside.to_str(), None, None),
        mk_args(None, Some(&nested), None),
    ] {
        let counted = configuration(args.clone(), Freshness::default(), true);
        counted.expect("a Processor counts them");
        let error = configuration(args, Freshness::default(), false).err();
        let error = error.expect("nobody counts them").to_string();
        assert!(error.contains("length_unit: \"tokens\" needs"), "{error}");
    }
}
