//! Secrets with a credential for the metrics of another cluster's endpoint picker.

use std::fmt;
use std::sync::Arc;

use crd::annotations::METRICS_CREDENTIAL;
use http::HeaderValue;
use k8s_openapi::ByteString;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tls::Trust;

use crate::world::Key;

use super::{FromSecret, RawSecret, SecretOf};

/// Bytes of all keys together: a chain of CAs is the largest of them.
const MAX_CREDENTIAL: usize = 256 << 10;

/// How an endpoint picker's metrics are asked for. Equal ones have the same bytes.
#[derive(Clone)]
pub(crate) struct Credential(Arc<Parts>);

struct Parts {
    given: Given,
    authorization: Option<HeaderValue>,
    /// With anything of TLS in the Secret: https.
    trust: Option<Trust>,
    /// What the certificate is for, where that is not the address.
    server_name: Option<String>,
}

#[derive(Default, Deserialize, PartialEq, Eq)]
struct Given {
    token: Option<ByteString>,
    #[serde(rename = "tls.crt")]
    chain: Option<ByteString>,
    #[serde(rename = "tls.key")]
    key: Option<ByteString>,
    #[serde(rename = "ca.crt")]
    ca: Option<ByteString>,
    #[serde(rename = "server-name")]
    server_name: Option<ByteString>,
}

/// A Secret that an import names.
pub(crate) type ListedCredential = SecretOf<CredentialFor>;

pub(crate) type Listed = Result<CredentialFor, BadCredential>;

/// A credential and the exporting cluster that it may be sent to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CredentialFor {
    pub(crate) cluster: String,
    pub(crate) credential: Credential,
}

/// Why a Secret is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadCredential {
    NotFound,
    Denied,
    Undecodable,
    NotLabelled,
    TooLarge,
    Empty,
    Token,
    TokenWithoutTls,
    ServerName,
    Tls,
}

// === impl BadCredential ===

impl BadCredential {
    /// For people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NotFound => "the Secret for its metrics does not exist",
            Self::Denied => {
                "the Secret for its metrics may not be read: the gateway's role has to allow list and watch of it"
            }
            Self::Undecodable => "the Secret for its metrics cannot be decoded",
            Self::NotLabelled => {
                "the Secret for its metrics does not allow it: the label isthmus.dev/metrics-credential has to be the cluster's name"
            }
            Self::TooLarge => "the Secret for its metrics is too large",
            Self::Empty => {
                "the Secret for its metrics has none of ca.crt, server-name, and tls.crt with tls.key"
            }
            Self::Token => "the Secret for its metrics has a token that no header can hold",
            Self::TokenWithoutTls => {
                "the Secret for its metrics has a token and nothing of TLS, and no token is sent in clear text: add ca.crt, or server-name for an authority of the system"
            }
            Self::ServerName => {
                "the Secret for its metrics has a server-name that is neither a name nor an address"
            }
            Self::Tls => "the Secret for its metrics has certificates or a key that cannot be used",
        }
    }
}

// === impl Credential ===

impl Credential {
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.0.authorization.clone()
    }

    /// What TLS is spoken with; `None`: plaintext.
    pub(crate) fn trust(&self) -> Option<&Trust> {
        self.0.trust.as_ref()
    }

    /// What the certificate of the server is for; `None`: its host.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.0.server_name.as_deref()
    }

    fn new(given: Given) -> Result<Self, BadCredential> {
        let size = [
            &given.token,
            &given.chain,
            &given.key,
            &given.ca,
            &given.server_name,
        ];
        let size: usize = size.into_iter().flatten().map(|part| part.0.len()).sum();
        if size > MAX_CREDENTIAL {
            return Err(BadCredential::TooLarge);
        }
        let authorization = match &given.token {
            None => None,
            Some(token) => {
                let token = std::str::from_utf8(&token.0).map_err(|_| BadCredential::Token)?;
                Some(bearer(token.trim()).ok_or(BadCredential::Token)?)
            }
        };
        let server_name = match &given.server_name {
            None => None,
            Some(name) => Some(server_name(&name.0).ok_or(BadCredential::ServerName)?),
        };
        let bytes = |part: &Option<ByteString>| part.as_ref().map(|part| part.0.clone());
        let pair = match (bytes(&given.chain), bytes(&given.key)) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            _ => return Err(BadCredential::Tls),
        };
        let ca = bytes(&given.ca);
        let trust = if ca.is_some() || pair.is_some() || server_name.is_some() {
            Some(Trust::of_pem(ca, pair).map_err(|_| BadCredential::Tls)?)
        } else {
            None
        };
        if trust.is_none() {
            // The exporting side chose the address, and whoever is on the way reads what is sent.
            return Err(match authorization {
                Some(_) => BadCredential::TokenWithoutTls,
                None => BadCredential::Empty,
            });
        }
        Ok(Self(Arc::new(Parts {
            given,
            authorization,
            trust,
            server_name,
        })))
    }
}

/// `Bearer` and a token, which no log shows.
fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn server_name(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?.trim();
    ServerName::try_from(name).ok().map(|_| name.to_owned())
}

impl PartialEq for Credential {
    fn eq(&self, other: &Self) -> bool {
        self.0.given == other.0.given
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

// === impl CredentialFor ===

impl FromSecret for CredentialFor {
    type Error = BadCredential;

    /// The exporting cluster names the Secret, and its credential is sent there: only the Secret itself can allow that.
    fn from_secret(_: &Key, raw: &RawSecret) -> Result<Self, BadCredential> {
        let labels = raw.metadata.labels.as_ref();
        let cluster = labels.and_then(|labels| labels.get(METRICS_CREDENTIAL));
        let cluster = cluster.ok_or(BadCredential::NotLabelled)?;
        let given = match &raw.data {
            Some(data) => {
                serde_json::from_str(data.get()).map_err(|_| BadCredential::Undecodable)?
            }
            None => Given::default(),
        };
        Ok(Self {
            cluster: cluster.clone(),
            credential: Credential::new(given)?,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};
    use tls::test_pki::Ca;

    use super::*;

    /// A token for this cluster.
    pub(crate) fn mk(cluster: &str, token: &str) -> CredentialFor {
        CredentialFor {
            cluster: cluster.to_owned(),
            credential: mk_credential(Some(token), Ca::new("a").pem(), None),
        }
    }

    pub(crate) fn mk_credential(
        token: Option<&str>,
        ca: Vec<u8>,
        server_name: Option<&str>,
    ) -> Credential {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let given = Given {
            token: token.map(bytes),
            ca: Some(ByteString(ca)),
            server_name: server_name.map(bytes),
            ..Given::default()
        };
        Credential::new(given).unwrap()
    }

    fn mk_listed(labels: &Value, data: &[(&str, &str)]) -> ListedCredential {
        let data = data.iter().map(|(name, text)| {
            let bytes = ByteString(text.as_bytes().to_vec());
            ((*name).to_owned(), serde_json::to_value(bytes).unwrap())
        });
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"namespace": "ns", "name": "epp", "labels": labels},
            "data": data.collect::<serde_json::Map<_, _>>(),
        });
        ListedCredential::read(serde_json::from_str(&object.to_string()).unwrap())
    }

    fn labels() -> Value {
        json!({METRICS_CREDENTIAL: "east"})
    }

    #[test]
    fn a_secret_is_sent_only_to_the_cluster_that_it_names() {
        let ca = String::from_utf8(Ca::new("a").pem()).unwrap();
        let data = [("token", "s3cret"), ("ca.crt", &ca)];
        let unlabelled = mk_listed(&json!({"app": "x"}), &data);
        assert_eq!(unlabelled.content, Err(BadCredential::NotLabelled));
        let listed = mk_listed(&labels(), &data);
        assert!(!format!("{listed:?}").contains("s3cret"), "{listed:?}");
        let read = listed.content.unwrap();
        assert_eq!(read.cluster, "east");
        let header = read.credential.authorization().unwrap();
        assert_eq!(header, "Bearer s3cret");
        assert!(header.is_sensitive());
    }

    #[test]
    fn anything_of_tls_means_https() {
        let ca = String::from_utf8(Ca::new("a").pem()).unwrap();
        let read = mk_listed(&labels(), &[("ca.crt", &ca)]).content.unwrap();
        assert!(read.credential.trust().is_some());
        assert_eq!(read.credential.authorization(), None);
    }

    #[rstest]
    #[case::nothing(&[], BadCredential::Empty)]
    #[case::other_keys(&[("password", "x")], BadCredential::Empty)]
    #[case::no_header(&[("token", "a\nb")], BadCredential::Token)]
    #[case::clear_text(&[("token", "a")], BadCredential::TokenWithoutTls)]
    #[case::no_name(&[("token", "a"), ("server-name", "a b")], BadCredential::ServerName)]
    #[case::half_a_pair(&[("token", "a"), ("tls.crt", "x")], BadCredential::Tls)]
    #[case::no_certificate(&[("ca.crt", "x")], BadCredential::Tls)]
    fn what_cannot_be_used_says_why(
        #[case] data: &[(&str, &str)],
        #[case] expected: BadCredential,
    ) {
        assert_eq!(mk_listed(&labels(), data).content, Err(expected));
    }

    #[test]
    fn a_secret_of_any_size_is_not_kept() {
        let large = "x".repeat(MAX_CREDENTIAL + 1);
        let listed = mk_listed(&labels(), &[("token", &large)]);
        assert_eq!(listed.content, Err(BadCredential::TooLarge));
    }
}
