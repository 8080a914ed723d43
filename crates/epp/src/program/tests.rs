use rstest::rstest;

use super::*;
use crate::config::Compat;

fn read(config_file: Option<&str>, config_text: Option<&str>) -> anyhow::Result<Config> {
    let args = ConfigArgs {
        config_file: config_file.map(Into::into),
        config_text: config_text.map(str::to_owned),
        config_compat: Compat::Strict,
    };
    let freshness = Freshness {
        fresh_for: Duration::from_millis(7),
        stale_for: STALE_FOR,
    };
    let (config, _) = configuration(args, freshness)?;
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
    "--config-text: plugin: "
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
