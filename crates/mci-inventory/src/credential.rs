//! The protocol between us and a credential plugin: `client.authentication.k8s.io`, as kubectl has it. Pure.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};
use serde_json::json;

/// Versions of the protocol that are supported.
pub(super) const API_VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];
/// Extension of a cluster that is handed to the plugin.
const CONFIG_EXTENSION: &str = "client.authentication.k8s.io/exec";
/// A credential that ends sooner than this is as good as expired: a connect alone may take 10 s.
const SHORTEST: Duration = Duration::from_secs(5);
/// A credential that ends later than this is a mistake: ten years, the usual life of a cluster's own CA.
const LONGEST: Duration = Duration::from_hours(10 * 366 * 24);

/// What a plugin issued.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) user: AuthInfo,
    /// How long it lasts; none: until the server refuses it.
    pub(super) life: Option<Duration>,
}

/// Why a plugin's answer is not used. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialError {
    #[error(
        "the plugin's output is no ExecCredential (line {line}, column {column}): JSON with apiVersion, kind and status is expected"
    )]
    Malformed { line: usize, column: usize },
    #[error("the plugin answered in another version of the protocol than it was asked in")]
    Version,
    #[error(
        "the plugin issued nothing: a token, or clientCertificateData and clientKeyData, is expected in status"
    )]
    Nothing,
    #[error("expirationTimestamp is no time: RFC 3339 is expected")]
    BadTime,
    #[error("the credential has expired, or does within 5 s: look at the clocks")]
    Expired,
    #[error("the credential claims to last more than ten years: leave expirationTimestamp out")]
    Absurd,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    expiration_timestamp: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    token: Option<SecretString>,
    #[serde(default)]
    client_certificate_data: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    client_key_data: Option<SecretString>,
}

/// A text that is wiped when it is dropped.
fn secret<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SecretString>, D::Error> {
    let text = Option::<String>::deserialize(value)?;
    Ok(text.map(Into::into))
}

/// Value of `KUBERNETES_EXEC_INFO`, the plugin's input; with the cluster where the plugin asks for it.
pub(super) fn exec_info(api_version: &str, cluster: Option<&Cluster>) -> String {
    let mut info = json!({
        "apiVersion": api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": false},
    });
    if let Some(cluster) = cluster {
        let mut cluster_info = json!({"server": cluster.server});
        let fields = [
            ("tls-server-name", &cluster.tls_server_name),
            (
                "certificate-authority-data",
                &cluster.certificate_authority_data,
            ),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                cluster_info[field] = json!(value);
            }
        }
        let mut extensions = cluster.extensions.iter().flatten();
        if let Some(config) = extensions.find(|one| one.name == CONFIG_EXTENSION) {
            cluster_info["config"] = config.extension.clone();
        }
        info["spec"]["cluster"] = cluster_info;
    }
    info.to_string()
}

/// Reads what the plugin printed.
/// # Errors
/// Why it is not used.
pub(super) fn parse(
    output: &[u8],
    api_version: &str,
    now: Timestamp,
) -> Result<Issued, CredentialError> {
    let credential: ExecCredential = serde_json::from_slice(output).map_err(|error| {
        // its text may quote the token
        CredentialError::Malformed {
            line: error.line(),
            column: error.column(),
        }
    })?;
    if credential.api_version != api_version || credential.kind != "ExecCredential" {
        return Err(CredentialError::Version);
    }
    let Status {
        expiration_timestamp,
        token,
        client_certificate_data,
        client_key_data,
    } = credential.status.unwrap_or_default();
    let life = expiration_timestamp
        .map(|text| life(&text, now))
        .transpose()?;
    let mut user = AuthInfo {
        token: token.filter(|text| !text.expose_secret().is_empty()),
        ..AuthInfo::default()
    };
    match (client_certificate_data, client_key_data) {
        (Some(certificate), Some(key)) => {
            user.client_certificate_data = Some(STANDARD.encode(certificate));
            user.client_key_data = Some(STANDARD.encode(key.expose_secret()).into());
        }
        (None, None) if user.token.is_some() => {}
        _ => return Err(CredentialError::Nothing),
    }
    Ok(Issued { user, life })
}

fn life(text: &str, now: Timestamp) -> Result<Duration, CredentialError> {
    let end: Timestamp = text.parse().map_err(|_| CredentialError::BadTime)?;
    let life = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    if life <= SHORTEST {
        Err(CredentialError::Expired)
    } else if life > LONGEST {
        Err(CredentialError::Absurd)
    } else {
        Ok(life)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    const V1: &str = API_VERSIONS[0];

    /// 2026-01-01T00:00:00Z.
    fn now() -> Timestamp {
        Timestamp::from_second(1_767_225_600).expect("a time")
    }

    fn read(status: Value) -> Result<Issued, CredentialError> {
        let answer = json!({"apiVersion": V1, "kind": "ExecCredential", "status": status});
        parse(answer.to_string().as_bytes(), V1, now())
    }

    #[test]
    fn a_token_and_its_life_are_taken() {
        let issued = read(json!({"token": "t", "expirationTimestamp": "2026-01-01T01:00:00Z"}));
        let issued = issued.expect("good");
        assert_eq!(issued.life, Some(Duration::from_hours(1)));
        let token = issued.user.token.expect("a token");
        assert_eq!(token.expose_secret(), "t");
        assert_eq!(read(json!({"token": "t"})).expect("good").life, None);
    }

    #[test]
    fn a_certificate_comes_with_its_key() {
        let pair = json!({"clientCertificateData": "PEM", "clientKeyData": "KEY"});
        let user = read(pair).expect("good").user;
        assert_eq!(user.client_certificate_data.as_deref(), Some("UEVN"));
        let alone = read(json!({"clientCertificateData": "PEM", "token": "t"}));
        assert_eq!(alone.expect_err("bad"), CredentialError::Nothing);
    }

    #[rstest]
    #[case(json!({}), CredentialError::Nothing)]
    #[case(json!({"token": ""}), CredentialError::Nothing)]
    #[case(json!({"token": "t", "expirationTimestamp": "soon"}), CredentialError::BadTime)]
    #[case(json!({"token": "t", "expirationTimestamp": "2025-12-31T23:59:59Z"}), CredentialError::Expired)]
    #[case(json!({"token": "t", "expirationTimestamp": "2026-01-01T00:00:05Z"}), CredentialError::Expired)]
    #[case(json!({"token": "t", "expirationTimestamp": "0001-01-01T00:00:00Z"}), CredentialError::Expired)]
    #[case(json!({"token": "t", "expirationTimestamp": "9999-01-01T00:00:00Z"}), CredentialError::Absurd)]
    fn what_cannot_be_used_is_refused(#[case] status: Value, #[case] expected: CredentialError) {
        assert_eq!(read(status).expect_err("refused"), expected);
    }

    #[test]
    fn no_error_quotes_the_output() {
        let output = br#"{"apiVersion": ["s3cr3t"], "kind": "ExecCredential"}"#;
        let error = parse(output, V1, Timestamp::UNIX_EPOCH).expect_err("refused");
        assert!(error.to_string().contains("(line 1, column"), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{error}");
    }

    #[test]
    fn the_answer_is_in_the_version_of_the_question() {
        let answer = json!({"apiVersion": API_VERSIONS[1], "kind": "ExecCredential", "status": {"token": "t"}});
        let answer = answer.to_string();
        let read = |version| parse(answer.as_bytes(), version, Timestamp::UNIX_EPOCH);
        assert_eq!(read(V1).expect_err("refused"), CredentialError::Version);
        assert!(read(API_VERSIONS[1]).is_ok());
    }

    #[test]
    fn the_plugin_gets_the_cluster_where_it_asks_for_it() {
        let cluster: Cluster = serde_json::from_value(json!({
            "server": "https://x", "tls-server-name": "y", "certificate-authority-data": "Q0E=",
            "extensions": [{"name": CONFIG_EXTENSION, "extension": {"region": "eu"}}],
        }))
        .expect("a cluster");
        let spec = |cluster| {
            let text = exec_info(V1, cluster);
            serde_json::from_str::<Value>(&text).expect("JSON")["spec"].clone()
        };
        assert_eq!(spec(None), json!({"interactive": false}));
        let expected = json!({"interactive": false, "cluster": {"server": "https://x",
            "tls-server-name": "y", "certificate-authority-data": "Q0E=", "config": {"region": "eu"}}});
        assert_eq!(spec(Some(&cluster)), expected);
    }
}
