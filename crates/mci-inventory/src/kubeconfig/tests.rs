use rstest::rstest;

use super::*;

/// A kubeconfig with these lines under `cluster` and `user`.
fn mk(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
         contexts: [{{name: it, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    )
}

const SERVER: &str = "server: 'https://192.0.2.1:6443'";
const SECRET: &str = "s3cr3t-t0ken";

fn parse(text: &str) -> Result<Credentials, KubeconfigError> {
    Credentials::parse(text.as_bytes(), false)
}

#[test]
fn a_token_in_the_file_is_taken_and_never_shown() {
    let credentials = parse(&mk(SERVER, &format!("token: {SECRET}"))).expect("taken");
    assert_eq!(credentials.server(), "https://192.0.2.1:6443/");
    let shown = format!("{credentials:?}");
    assert_eq!(shown, "Credentials(https://192.0.2.1:6443/)");
}

#[rstest]
#[case::exec(
    "",
    "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/evil, interactiveMode: Never}"
)]
#[case::auth_provider("", "auth-provider: {name: gcp, config: {}}")]
#[case::token_file("", "tokenFile: /etc/shadow")]
#[case::certificate_path("", "client-certificate: /etc/cert.pem")]
#[case::key_path("", "client-key: /etc/key.pem")]
#[case::basic("", "username: root, password: x")]
#[case::impersonation("", "as: root")]
#[case::impersonated_groups("", "as-groups: ['system:masters']")]
#[case::skip_verify(", insecure-skip-tls-verify: true", "token: x")]
#[case::ca_path(", certificate-authority: /etc/ca.pem", "token: x")]
#[test]
fn what_could_harm_is_refused(#[case] cluster: &str, #[case] user: &str) {
    let error = parse(&mk(&format!("{SERVER}{cluster}"), user)).expect_err("refused");
    assert_eq!(error.refusal(), Refusal::InsecureCredentials, "{error}");
}

#[rstest]
#[case::not_yaml("]{ garbage")]
#[case::a_list("[1, 2]")]
#[case::empty("")]
#[case::no_context("clusters: []\nusers: []\ncontexts: []\n")]
#[case::dangling_context("current-context: nowhere\nclusters: []\nusers: []\ncontexts: []\n")]
#[test]
fn garbage_is_refused(#[case] text: &str) {
    let error = parse(text).expect_err("refused");
    assert_eq!(error.refusal(), Refusal::BadCredentials, "{error}");
}

#[test]
fn no_error_quotes_the_file() {
    // a token where a number or map is expected makes serde quote it
    let text = format!("current-context: [{SECRET}]\nusers: {SECRET}\n");
    let error = parse(&text).expect_err("refused");
    assert!(error.to_string().contains("(line 1, column"), "{error}");
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    let bad_ca = format!("{SERVER}, certificate-authority-data: '{SECRET}'");
    let error = parse(&mk(&bad_ca, "token: x")).expect_err("refused");
    assert_eq!(error, KubeconfigError::BadMaterial);
}

#[test]
fn clear_text_needs_the_flag() {
    let text = mk("server: 'http://192.0.2.1:8080'", "token: x");
    let error = parse(&text).expect_err("refused");
    assert_eq!(error.refusal(), Refusal::InsecureCredentials);
    let allowed = Credentials::parse(text.as_bytes(), true);
    assert!(allowed.is_ok());
}

#[test]
fn a_megabyte_is_the_limit() {
    let mut text = mk(SERVER, "token: x");
    text.push_str("# ");
    text.push_str(&"x".repeat(MAX_BYTES));
    assert_eq!(
        parse(&text).expect_err("refused"),
        KubeconfigError::TooLarge
    );
}

#[rstest]
#[case::user("https://me:s3cr3t-t0ken@192.0.2.1:6443")]
#[case::query("https://192.0.2.1:6443/?access=s3cr3t-t0ken")]
#[test]
fn secrets_in_the_server_url_are_refused_and_not_shown(#[case] server: &str) {
    let text = mk(&format!("server: '{server}'"), "token: x");
    let error = parse(&text).expect_err("refused");
    assert_eq!(error.refusal(), Refusal::InsecureCredentials);
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
}

#[test]
fn proxies_are_refused_by_name() {
    let text = mk(
        &format!("{SERVER}, proxy-url: 'http://192.0.2.9:3128'"),
        "token: x",
    );
    assert_eq!(parse(&text).expect_err("refused"), KubeconfigError::Proxy);
}

#[test]
fn unknown_fields_are_no_fault() {
    let text = mk(SERVER, "token: x, future-field: 7");
    assert!(parse(&text).is_ok());
}

/// A member's administrator writes this text: 100 kB that expand to 100 MB.
#[test]
fn aliases_do_not_multiply() {
    let long = "x".repeat(100_000);
    let text = mk(
        SERVER,
        &format!("token: &a '{long}', x: [{}]", "*a,".repeat(1000)),
    );
    let error = parse(&text).expect_err("refused");
    assert!(matches!(error, KubeconfigError::Malformed(_)), "{error}");
}
