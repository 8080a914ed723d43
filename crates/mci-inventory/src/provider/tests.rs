use rstest::rstest;
use serde_json::json;

use super::*;

fn exec() -> Value {
    json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/issue", "args": ["-x"],
        "env": [{"name": "REGION", "value": "eu"}], "provideClusterInfo": true})
}

fn mk(policies: &Value) -> ProviderFile {
    let mut first = json!({"name": "first", "execConfig": exec()});
    for (name, value) in policies.as_object().into_iter().flatten() {
        first[name] = value.clone();
    }
    let second = json!({"name": "second", "execConfig": exec()});
    let file = json!({"providers": [first, second]});
    ProviderFile::parse(file.to_string().as_bytes()).expect("a provider file")
}

fn status(names: &[&str]) -> ClusterProfileStatus {
    let offers: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({"name": name, "cluster": {"server": "https://192.0.2.1", "extensions": [
                {"name": ARGS_EXTENSION, "extension": ["--more"]},
                {"name": ENVS_EXTENSION, "extension": "REGION: us\nZONE: a\nPATH: /tmp\n"},
            ]}})
        })
        .collect();
    serde_json::from_value(json!({"accessProviders": offers})).expect("a status")
}

fn plan(file: &ProviderFile, names: &[&str], allowed: bool) -> ExecPlan {
    file.plan(&status(names), allowed, false).expect("a plan")
}

#[test]
fn the_order_of_the_file_decides_which_provider_is_used() {
    let file = mk(&json!({}));
    assert_eq!(plan(&file, &["second", "first"], false).provider, "first");
    assert_eq!(plan(&file, &["other", "second"], false).provider, "second");
    let refused = file.plan(&status(&["other"]), false, false);
    let refused = refused.expect_err("refused");
    assert_eq!(refused.refusal, Refusal::NoAccessProvider);
    assert!(
        refused.detail.contains("first, second"),
        "{}",
        refused.detail
    );
}

#[rstest]
#[case(json!({}), true, &["-x"], &[("REGION", "eu")])]
#[case(json!({"profileSourcedCLIArgsPolicy": "Append"}), true, &["-x", "--more"], &[("REGION", "eu")])]
#[case(json!({"profileSourcedCLIArgsPolicy": "Append", "profileSourcedEnvVarsPolicy": "Replace"}), false, &["-x"], &[("REGION", "eu")])]
#[case(json!({"profileSourcedEnvVarsPolicy": "AppendIfNotExists"}), true, &["-x"], &[("REGION", "eu"), ("ZONE", "a")])]
#[case(json!({"profileSourcedEnvVarsPolicy": "Replace"}), true, &["-x"], &[("PATH", "/tmp"), ("REGION", "us"), ("ZONE", "a")])]
fn a_profile_adds_only_what_policy_and_flag_allow(
    #[case] policies: Value,
    #[case] allowed: bool,
    #[case] args: &[&str],
    #[case] env: &[(&str, &str)],
) {
    let plan = plan(&mk(&policies), &["first"], allowed);
    assert_eq!(plan.args, args);
    let found: Vec<(&str, &str)> = plan
        .env
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    assert_eq!(found, env);
}

#[test]
fn one_profiles_arguments_are_in_no_other_plan() {
    let file = mk(&json!({"profileSourcedCLIArgsPolicy": "Append"}));
    assert_eq!(plan(&file, &["first"], true).args.len(), 2);
    let mut plain = status(&["first"]);
    for offer in plain.access_providers.iter_mut().flatten() {
        offer.cluster["extensions"] = json!([]);
    }
    let other = file.plan(&plain, true, false).expect("a plan");
    assert_eq!(other.args, ["-x"]);
}

#[rstest]
#[case(json!({"server": "https://192.0.2.1", "insecure-skip-tls-verify": true}), Refusal::InsecureCredentials)]
#[case(json!({"server": "https://192.0.2.1", "certificate-authority": "/etc/x"}), Refusal::InsecureCredentials)]
#[case(json!({"server": "http://192.0.2.1"}), Refusal::InsecureCredentials)]
#[case(json!({}), Refusal::BadCredentials)]
#[case(json!({"server": 7}), Refusal::BadCredentials)]
fn nothing_is_run_for_a_cluster_that_is_refused(#[case] cluster: Value, #[case] expected: Refusal) {
    let status = json!({"accessProviders": [{"name": "first", "cluster": cluster}]});
    let status = serde_json::from_value(status).expect("a status");
    let refused = mk(&json!({})).plan(&status, true, false);
    assert_eq!(refused.expect_err("refused").refusal, expected);
}

#[rstest]
#[case(json!({"providers": []}), "empty")]
#[case(json!({}), "providers")]
#[case(json!({"providers": [{"name": "a", "execConfig": exec()}, {"name": "a", "execConfig": exec()}]}), "twice")]
#[case(json!({"providers": [{"name": "a", "execConfig": {"apiVersion": "client.authentication.k8s.io/v1"}}]}), "no command")]
#[case(json!({"providers": [{"name": "a", "execConfig": {"apiVersion": "v9", "command": "x"}}]}), "v9")]
#[case(json!({"providers": [{"name": "a", "execConfig": exec(), "profileSourcedCLIArgsPolicy": "Sometimes"}]}), "line 1")]
fn the_error_for_a_bad_file_names_the_fault(#[case] file: Value, #[case] named: &str) {
    let error = ProviderFile::parse(file.to_string().as_bytes()).expect_err("refused");
    assert!(error.to_string().contains(named), "{error}");
}

#[test]
fn no_error_quotes_the_file() {
    let mut exec = exec();
    exec["env"] = json!("s3cr3t");
    let file = json!({"providers": [{"name": "a", "execConfig": exec}]});
    let error = ProviderFile::parse(file.to_string().as_bytes()).expect_err("refused");
    assert!(error.to_string().contains("at line 1"), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error}");
}

#[test]
fn unknown_fields_are_found_and_no_fault() {
    let file =
        json!({"more": 1, "providers": [{"name": "a", "execConfig": exec(), "cache": true}]});
    assert_eq!(unknown_fields(&file), ["/more", "/providers/cache"]);
    assert!(ProviderFile::parse(file.to_string().as_bytes()).is_ok());
}

#[test]
fn fields_of_the_file_and_of_profiles_are_in_the_reference() {
    let text = include_str!("../../../../docs/reference.md");
    let fields = KNOWN.into_iter().flat_map(|(_, fields)| fields);
    let extensions = [&ARGS_EXTENSION, &ENVS_EXTENSION];
    for name in fields.chain(extensions) {
        assert!(
            text.contains(&format!("`{name}`")),
            "{name} is not in docs/reference.md"
        );
    }
}
