//! Secrets with a certificate and its key. What Envoy would refuse is found here, and no text has anything of a key.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use rustls::SignatureAlgorithm;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::value::RawValue;
use x509_parser::parse_x509_certificate;

use crate::resource::{self, Resource};
use crate::text::quoted;

use super::{Key, project};

mod credential;

#[cfg(test)]
pub(crate) use credential::tests as credentials;
pub(crate) use credential::{BadCredential, Credential, Listed, ListedCredential};

/// The type of Secrets that have a certificate and its key.
const TLS_TYPE: &str = "kubernetes.io/tls";

/// Bytes of chain and key together: ten times a chain of three certificates with keys of RSA 4096. A response has up to 500
/// certificates.
const MAX_PAIR: usize = 64 << 10;

/// A Secret as the API server sends it. Its data is taken apart only in [`FromSecret::from_secret`], since the errors of serde
/// quote what they find.
#[derive(Clone, Deserialize, kube::Resource)]
#[resource(inherit = "Secret")]
pub(crate) struct RawSecret {
    metadata: ObjectMeta,
    r#type: Option<String>,
    data: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
struct Data {
    #[serde(rename = "tls.crt")]
    chain: Option<ByteString>,
    #[serde(rename = "tls.key")]
    key: Option<ByteString>,
}

/// What is kept of a Secret: which one it is, and what was read of it.
#[derive(Clone, Debug)]
pub(crate) struct SecretOf<T: FromSecret> {
    metadata: ObjectMeta,
    pub(crate) content: Result<T, T::Error>,
}

/// What a Secret is read for.
pub(crate) trait FromSecret: Sized {
    /// Why a Secret is of no use for it.
    type Error;

    fn from_secret(key: &Key, raw: &RawSecret) -> Result<Self, Self::Error>;
}

/// A Secret that a listener names.
pub(crate) type ListedSecret = SecretOf<Certificate>;

/// A chain of certificates and the key of the first, as Envoy gets them. The one copy of the key that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate(Arc<Resource>);

/// Why a Secret is of no use to a listener. The texts follow the Secret's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadSecret {
    #[error("does not exist")]
    NotFound,
    #[error("may not be read: the gateway's role has to allow list and watch of it")]
    Denied,
    #[error("cannot be decoded")]
    Undecodable,
    #[error("is of type {}: {} is needed", quoted(.0), TLS_TYPE)]
    WrongType(String),
    #[error("has {0} bytes in tls.crt and tls.key: at most {max} are served", max = MAX_PAIR)]
    TooLarge(usize),
    #[error("has no {0}")]
    Missing(&'static str),
    #[error("has no certificate in PEM in tls.crt: {0}")]
    Chain(&'static str),
    #[error("has in tls.crt what is no certificate, number {0} of the chain")]
    Certificate(usize),
    #[error("has no private key in PEM in tls.key: {0}")]
    Key(&'static str),
    #[error(
        "has in tls.key a private key that is not supported: RSA from 2048 bits, or ECDSA with P-256, P-384 or P-521, is needed"
    )]
    UnsupportedKey,
    #[error(
        "has in tls.key a private key that does not belong to the first certificate in tls.crt"
    )]
    Mismatch,
}

// === impl RawSecret ===

impl fmt::Debug for RawSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            metadata,
            r#type,
            data: _,
        } = self;
        f.debug_struct("RawSecret")
            .field("key", &project::key(metadata))
            .field("type", r#type)
            .finish_non_exhaustive()
    }
}

// === impl SecretOf ===

impl<T: FromSecret> SecretOf<T> {
    pub(crate) fn read(raw: RawSecret) -> Self {
        let key = project::key(&raw.metadata);
        Self {
            content: T::from_secret(&key, &raw),
            metadata: ObjectMeta {
                namespace: raw.metadata.namespace,
                name: raw.metadata.name,
                ..ObjectMeta::default()
            },
        }
    }

    pub(crate) fn key(&self) -> Key {
        project::key(&self.metadata)
    }
}

impl<T: FromSecret> kube::Resource for SecretOf<T> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Secret::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Secret::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Secret::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Secret::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl Certificate ===

impl Certificate {
    /// As Envoy gets it.
    pub(crate) fn resource(&self) -> &Arc<Resource> {
        &self.0
    }
}

impl FromSecret for Certificate {
    type Error = BadSecret;

    fn from_secret(key: &Key, raw: &RawSecret) -> Result<Self, BadSecret> {
        let kind = raw.r#type.as_deref().unwrap_or("Opaque");
        if kind != TLS_TYPE {
            return Err(BadSecret::WrongType(kind.to_owned()));
        }
        let data = match &raw.data {
            Some(data) => serde_json::from_str(data.get()).map_err(|_| BadSecret::Undecodable)?,
            None => Data::default(),
        };
        let given = |bytes: Option<ByteString>, name| {
            let bytes = bytes.map(|bytes| bytes.0).filter(|bytes| !bytes.is_empty());
            bytes.ok_or(BadSecret::Missing(name))
        };
        let chain = given(data.chain, "tls.crt")?;
        let private = given(data.key, "tls.key")?;
        let length = chain.len() + private.len();
        if length > MAX_PAIR {
            return Err(BadSecret::TooLarge(length));
        }
        check(&chain, &private)?;
        let name = resource::certificate_name(key);
        Ok(Self(resource::certificate(name, chain, private)))
    }
}

/// Whether Envoy can serve the pair, which it reads as these same bytes.
fn check(chain: &[u8], private: &[u8]) -> Result<(), BadSecret> {
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BadSecret::Chain(problem(&error)))?;
    if chain.is_empty() {
        return Err(BadSecret::Chain(problem(&pem::Error::NoItemsFound)));
    }
    for (index, certificate) in chain.iter().enumerate() {
        if !parse_x509_certificate(certificate).is_ok_and(|(rest, _)| rest.is_empty()) {
            return Err(BadSecret::Certificate(index + 1));
        }
    }
    let private =
        PrivateKeyDer::from_pem_slice(private).map_err(|error| BadSecret::Key(problem(&error)))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let pair = CertifiedKey::from_der(chain, private, &provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => BadSecret::Mismatch,
        rustls::Error::InvalidCertificate(_) => BadSecret::Certificate(1),
        _ => BadSecret::UnsupportedKey,
    })?;
    match pair.key.algorithm() {
        SignatureAlgorithm::RSA | SignatureAlgorithm::ECDSA => Ok(()),
        _ => Err(BadSecret::UnsupportedKey),
    }
}

/// What is wrong with a text in PEM, without the lines that the error has.
pub(super) fn problem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "there is none",
        pem::Error::MissingSectionEnd { .. } => "an END line is missing",
        _ => "it is damaged",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rstest::rstest;
    use serde_json::{Value, json};
    use tls::test_pki::Ca;

    use super::*;

    /// Certificate and key in PEM.
    pub(crate) fn mk_pem(ca: &Ca, host: &str) -> (String, String) {
        let (certificate, key) = ca.sign(CertificateParams::new(vec![host.to_owned()]).unwrap());
        (certificate.pem(), key.serialize_pem())
    }

    pub(crate) fn mk_secret(name: &str, kind: &str, chain: &str, private: &str) -> ListedSecret {
        let data = json!({
            "tls.crt": ByteString(chain.into()), "tls.key": ByteString(private.into()),
        });
        mk_of(name, kind, data)
    }

    fn mk_of(name: &str, kind: &str, data: Value) -> ListedSecret {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name}, "type": kind, "data": data,
        });
        ListedSecret::read(serde_json::from_str(&object.to_string()).unwrap())
    }

    pub(crate) fn mk_certificate(name: &str, ca: &Ca, host: &str) -> Certificate {
        let (chain, private) = mk_pem(ca, host);
        mk_secret(name, TLS_TYPE, &chain, &private).content.unwrap()
    }

    fn other_key() -> String {
        KeyPair::generate().unwrap().serialize_pem()
    }

    fn ed25519() -> (String, String) {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = CertificateParams::new(vec!["a.b".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    const NO_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[rstest]
    #[case::other_type("Opaque", |_: &mut String, _: &mut String| {}, BadSecret::WrongType("Opaque".into()))]
    #[case::no_chain(TLS_TYPE, |chain: &mut String, _: &mut String| chain.clear(), BadSecret::Missing("tls.crt"))]
    #[case::no_key(TLS_TYPE, |_: &mut String, key: &mut String| key.clear(), BadSecret::Missing("tls.key"))]
    #[case::too_large(TLS_TYPE, |chain: &mut String, key: &mut String| { key.clear(); key.push(' '); *chain = " ".repeat(MAX_PAIR); }, BadSecret::TooLarge(65_537))]
    #[case::text(TLS_TYPE, |chain: &mut String, _: &mut String| *chain = "Hello world\n".into(), BadSecret::Chain("there is none"))]
    #[case::half_a_chain(TLS_TYPE, |chain: &mut String, _: &mut String| chain.truncate(200), BadSecret::Chain("an END line is missing"))]
    #[case::damaged_chain(TLS_TYPE, |chain: &mut String, _: &mut String| chain.insert(60, '?'), BadSecret::Chain("it is damaged"))]
    #[case::no_certificate(TLS_TYPE, |chain: &mut String, _: &mut String| *chain = NO_CERTIFICATE.into(), BadSecret::Certificate(1))]
    #[case::no_second_certificate(TLS_TYPE, |chain: &mut String, _: &mut String| chain.push_str(NO_CERTIFICATE), BadSecret::Certificate(2))]
    #[case::key_is_text(TLS_TYPE, |_: &mut String, key: &mut String| *key = "Hello world\n".into(), BadSecret::Key("there is none"))]
    #[case::half_a_key(TLS_TYPE, |_: &mut String, key: &mut String| key.truncate(60), BadSecret::Key("an END line is missing"))]
    #[case::key_of_another(TLS_TYPE, |_: &mut String, key: &mut String| *key = other_key(), BadSecret::Mismatch)]
    #[case::kind_of_key(TLS_TYPE, |chain: &mut String, key: &mut String| (*chain, *key) = ed25519(), BadSecret::UnsupportedKey)]
    fn pair_that_envoy_cannot_serve_says_why(
        #[case] kind: &str,
        #[case] spoil: fn(&mut String, &mut String),
        #[case] expected: BadSecret,
    ) {
        let (mut chain, mut private) = mk_pem(&Ca::new("a"), "a.b");
        spoil(&mut chain, &mut private);
        let secret = mk_secret("cert", kind, &chain, &private);
        assert_eq!(secret.content, Err(expected));
    }

    /// An error of serde would quote the value.
    #[test]
    fn data_of_another_form_is_an_error_without_it() {
        for data in [json!("hidden"), json!({"tls.key": "hidden?", "tls.crt": 1})] {
            let secret = mk_of("cert", TLS_TYPE, data);
            assert_eq!(secret.content, Err(BadSecret::Undecodable));
        }
    }

    #[test]
    fn keys_are_not_in_debug_text() {
        let (chain, private) = mk_pem(&Ca::new("a"), "a.b");
        let data =
            json!({"tls.crt": ByteString(chain.into()), "tls.key": ByteString(private.into())});
        let object = json!({
            "metadata": {"namespace": "ns", "name": "cert"}, "type": TLS_TYPE, "data": data,
        });
        let raw: RawSecret = serde_json::from_str(&object.to_string()).unwrap();
        let text = format!("{raw:#?}");
        assert!(
            text.contains("kubernetes.io/tls") && text.len() < 200,
            "{text}"
        );
        let text = format!("{:#?}", ListedSecret::read(raw).content.unwrap());
        // a key in numbers or in PEM is longer than this
        assert!(text.contains("version") && text.len() < 200, "{text}");
    }
}
