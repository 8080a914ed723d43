use clap::CommandFactory;
use rstest::rstest;

use super::*;

fn parse(extra: &[&str]) -> Result<Settings, String> {
    let arguments = ["mci-controller", "--kubeconfig-dir", "/"];
    let args =
        Args::try_parse_from(arguments.iter().chain(extra)).map_err(|error| error.to_string())?;
    Settings::try_from(args).map_err(|error| error.to_string())
}

#[test]
fn the_command_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn every_flag_has_its_variable_and_help() {
    for arg in Args::command().get_arguments() {
        let Some(long) = arg
            .get_long()
            .filter(|long| !["help", "version"].contains(long))
        else {
            continue;
        };
        let variable = long.replace('-', "_").to_uppercase();
        let env = arg.get_env().and_then(|name| name.to_str());
        assert_eq!(env, Some(variable.as_str()), "{long}");
        assert!(arg.get_help().is_some(), "{long}");
    }
}

#[test]
fn defaults_are_the_documented_ones() {
    let settings = parse(&[]).expect("valid");
    assert_eq!(settings.policy.clusterset, "default");
    assert_eq!(settings.policy.instance, "default");
    assert_eq!(settings.policy.default_mode, RoutingMode::EndpointMode);
    let parents = parse(&["--default-export-mode", "ParentMode"]).expect("valid");
    assert_eq!(parents.policy.default_mode, RoutingMode::ParentMode);
    assert_eq!(settings.rules.stale_after, Duration::from_mins(1));
    assert_eq!(settings.rules.withdraw_after, None);
    assert_eq!(settings.rules.drain, Duration::ZERO);
    assert!(settings.rules.isolation_guard);
    let set = [
        "--withdraw-after",
        "24h",
        "--isolation-guard",
        "false",
        "--drain-seconds",
        "30",
    ];
    let rules = parse(&set).expect("valid").rules;
    assert_eq!(rules.withdraw_after, Some(Duration::from_hours(24)));
    assert_eq!(rules.drain, Duration::from_secs(30));
    assert!(!rules.isolation_guard);
    let named = parse(&["--clusterset", "prod"]).expect("valid");
    assert_eq!(named.policy.instance, "prod");
    assert!(named.instance_from_home);
    assert!(settings.needs_lease());
    assert!(
        !parse(&["--leader-elect=false"])
            .expect("valid")
            .needs_lease()
    );
    assert!(!parse(&["--dry-run"]).expect("valid").needs_lease());
    let given = parse(&["--instance-id", "blue"]).expect("valid");
    assert_eq!(given.policy.instance, "blue");
    assert!(!given.instance_from_home);
}

#[rstest]
#[case(&["--clusterset", "Prod"], "--clusterset Prod")]
#[case(&["--instance-id", "a b"], "--instance-id a b")]
#[case(&["--namespace", "a_b"], "--namespace a_b")]
#[case(&["--controller-name", "nodomain"], "--controller-name nodomain")]
#[case(&["--stale-after", "soon"], "soon")]
#[case(&["--withdraw-after", "soon"], "or never")]
#[case(&["--withdraw-after", "59s"], "--withdraw-after")]
#[case(&["--drain-seconds", "3601"], "--drain-seconds 3601")]
#[case(&["--import-in-exporter", "sometimes"], "sometimes")]
#[case(&["--isolation-guard", "perhaps"], "perhaps")]
#[case(&["--write-timeout", "0s"], "0s")]
#[case(&["--default-export-mode", "parentmode"], "parentmode")]
#[case(&["--kubeconfig-dir", "/nonexistent/members"], "/nonexistent/members")]
fn bad_values_are_named(#[case] extra: &[&str], #[case] named: &str) {
    let mut arguments = vec!["mci-controller"];
    if extra[0] != "--kubeconfig-dir" {
        arguments.extend(["--kubeconfig-dir", "/"]);
    }
    arguments.extend(extra);
    let error = match Args::try_parse_from(arguments) {
        Err(error) => error.to_string(),
        Ok(args) => Settings::try_from(args).expect_err("refused").to_string(),
    };
    assert!(error.contains(named), "{error}");
}

#[rstest]
#[case("500ms", 500)]
#[case("30s", 30_000)]
#[case("5m", 300_000)]
#[case("1h30m", 5_400_000)]
fn durations_are_read(#[case] text: &str, #[case] millis: u64) {
    assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))));
}

#[cfg(not(feature = "seeded-faults"))]
#[test]
fn no_bug_can_be_switched_on_without_the_feature_for_it() {
    let flag = "--seeded-fault=carried-entries-dropped";
    let parsed = Args::try_parse_from(["mci-controller", "--kubeconfig-dir", "/", flag]);
    let error = parsed.expect_err("no such flag").to_string();
    assert!(error.contains("--seeded-fault"), "{error}");
}
