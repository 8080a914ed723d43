use clap::Parser;
use prometheus_client::registry::Registry;
use rstest::rstest;
use tls::test_pki::write_pair;

use super::*;
use crate::args::Args;

fn of(flags: &[&str]) -> Result<Security, ConfigError> {
    let metrics = TlsMetrics::register(&mut Registry::default(), "epp");
    Security::of(mk_args(flags), &metrics)
}

fn mk_args(flags: &[&str]) -> TlsArgs {
    let words = ["epp", "--pool-name", "llm"].iter().chain(flags);
    Args::try_parse_from(words).unwrap().tls
}

/// Which the program ends with exit code 64 for.
#[rstest]
#[case(&["--client-san", "a.example"], "--client-san without --client-ca-file: ")]
#[case(&["--client-ca-file", "/none", "--secure-serving=false"], "--client-ca-file with --secure-serving=false: ")]
#[case(&["--client-ca-file", "/none"], "--client-ca-file /none: No such file")]
#[case(&["--cert-path", "/none"], "--cert-path /none: tls.crt cannot be read: ")]
#[case(&["--metrics-client-ca-file", "/none"], "--metrics-client-ca-file without --metrics-cert-dir: ")]
#[case(&["--metrics-cert-dir", "/none"], "--metrics-cert-dir /none: tls.crt cannot be read: ")]
fn flags_that_cannot_work_are_errors_of_the_caller(#[case] flags: &[&str], #[case] start: &str) {
    let error = of(flags).err().expect("refused").to_string();
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn what_is_a_file_is_read_again_unless_it_is_not_to_be() {
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path());
    let path = dir.path().to_str().unwrap();
    let ca = dir.path().join("tls.crt");
    let ca = ca.to_str().unwrap();
    let reloads = |flags: &[&str]| of(flags).unwrap().reloads.len();
    assert_eq!(reloads(&[]), 0);
    assert_eq!(reloads(&["--cert-path", path]), 1);
    assert_eq!(reloads(&["--client-ca-file", ca]), 1);
    let both = ["--cert-path", path, "--metrics-cert-dir", path];
    assert_eq!(reloads(&both), 2);
    let never = [&both[..], &["--enable-cert-reload=false"]].concat();
    assert_eq!(reloads(&never), 0);
    assert_eq!(reloads(&["--cert-path", path, "--secure-serving=false"]), 0);
}
