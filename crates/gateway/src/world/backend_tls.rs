//! `BackendTLSPolicy` as it was written, and the authorities that ConfigMaps have for it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crd::backend_tls_policy as api;
use foreign_text::{MAX_MESSAGE, clipped};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as KubeResource;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::Value;
use x509_parser::parse_x509_certificate;

use crate::resource::{self, Resource};
use crate::text::quoted;

use super::secret::problem;
use super::{Key, World, project};

/// The key of a ConfigMap with authorities.
const FILE: &str = "ca.crt";

/// Bytes of the authorities in one ConfigMap, and in all that a policy names: as many as a whole system trusts.
pub(crate) const MAX_BUNDLE: usize = 256 << 10;

/// As the CRD has them: at most so many targets, names and references. They are checked again, since a CRD of another
/// release may have other bounds.
const MAX_TARGETS: usize = 16;
const MAX_NAMES: usize = 16;
const MAX_REFS: usize = 8;

/// Bytes of a name: Envoy takes no longer server name.
const MAX_NAME: usize = 253;

/// The value of `wellKnownCACertificates` that is supported.
const SYSTEM: &str = "System";

/// How backends are connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendTlsPolicy {
    pub(crate) generation: i64,
    /// Seconds since 1970: of two policies for one target the older one holds.
    pub(crate) created: i64,
    pub(crate) targets: Vec<TlsTarget>,
    /// What it asks for, or why it cannot be followed.
    pub(crate) validation: Result<TlsValidation, String>,
}

/// An object of the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsTarget {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    /// A part of it alone, such as a port of a Service.
    pub(crate) section: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsValidation {
    /// The server name of TLS.
    pub(crate) hostname: String,
    /// The certificate has one of these at least; never empty.
    pub(crate) names: Vec<SubjectName>,
    pub(crate) authorities: Authorities,
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubjectName {
    Dns(String),
    Uri(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Authorities {
    /// Those that most systems trust.
    System,
    /// At least one.
    Named(Vec<AuthorityRef>),
}

/// An object of the policy's namespace that has certificates of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorityRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// Certificates of authorities, as Envoy gets them by name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bundle {
    name: String,
    /// Empty where it is merged of others.
    pem: Arc<str>,
    resource: Arc<Resource>,
}

/// Why a ConfigMap has no authorities. The texts follow the ConfigMap's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadBundle {
    #[error("does not exist")]
    NotFound,
    #[error("has no key {FILE}, or nothing in it")]
    Missing,
    #[error("has {0} bytes in {FILE}: at most {max} are supported", max = MAX_BUNDLE)]
    TooLarge(usize),
    #[error("has no certificate in PEM in {FILE}: {0}")]
    Pem(&'static str),
    #[error("has in {FILE} what is no certificate, number {0} of them")]
    Certificate(usize),
}

/// A `BackendTLSPolicy` as the API server has it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawTlsPolicy {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    pub(crate) status: Option<Value>,
}

/// What a policy names is known even where the rest of it does not decode: it is not connected to without TLS then.
pub(crate) fn backend_tls_policy(object: &RawTlsPolicy) -> BackendTlsPolicy {
    let meta = &object.metadata;
    let created = meta.creation_timestamp.as_ref();
    let targets = targets(&object.spec);
    let validation = match api::BackendTlsPolicySpec::deserialize(&object.spec) {
        Ok(_) if targets.len() > MAX_TARGETS => Err(format!(
            "spec.targetRefs has {} entries: at most {MAX_TARGETS} are supported",
            targets.len()
        )),
        Ok(spec) => validation(&spec.validation),
        Err(error) => Err(format!(
            "spec has what this version does not know: {}",
            clipped(error.to_string(), MAX_MESSAGE)
        )),
    };
    BackendTlsPolicy {
        generation: meta.generation.unwrap_or(0),
        created: created.map_or(0, |time| time.0.as_second()),
        targets,
        validation,
    }
}

/// All of them: what is left out would be connected to without TLS.
fn targets(spec: &Value) -> Vec<TlsTarget> {
    let all = spec.get("targetRefs").and_then(Value::as_array);
    let all = all.into_iter().flatten();
    let read = all.filter_map(|target| {
        let text = |field: &str| target.get(field).and_then(Value::as_str);
        let section = text("sectionName").filter(|name| !name.is_empty());
        Some(TlsTarget {
            group: text("group").unwrap_or_default().to_owned(),
            kind: text("kind")?.to_owned(),
            name: text("name")?.to_owned(),
            section: section.map(ToOwned::to_owned),
        })
    });
    read.collect()
}

fn validation(given: &api::BackendTlsPolicyValidation) -> Result<TlsValidation, String> {
    let hostname = name("hostname", Some(&given.hostname))?;
    let given_names = given.subject_alt_names.as_deref().unwrap_or_default();
    if given_names.len() > MAX_NAMES {
        return Err(format!(
            "spec.validation.subjectAltNames has {} entries: at most {MAX_NAMES} are supported",
            given_names.len()
        ));
    }
    let mut names = Vec::new();
    for one in given_names {
        use api::BackendTlsPolicyValidationSubjectAltNamesType as Type;
        names.push(match one.r#type {
            Type::Hostname => {
                let text = name("subjectAltNames[].hostname", one.hostname.as_ref())?;
                SubjectName::Dns(text)
            }
            Type::Uri => SubjectName::Uri(name("subjectAltNames[].uri", one.uri.as_ref())?),
        });
    }
    if names.is_empty() {
        names.push(SubjectName::Dns(hostname.clone()));
    }
    Ok(TlsValidation {
        hostname,
        names,
        authorities: authorities(given)?,
    })
}

fn name(field: &str, text: Option<&String>) -> Result<String, String> {
    let text = text.map_or("", String::as_str);
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(format!(
            "spec.validation.{field} has {} bytes: expected 1 to {MAX_NAME}",
            text.len()
        ));
    }
    Ok(text.to_owned())
}

fn authorities(given: &api::BackendTlsPolicyValidation) -> Result<Authorities, String> {
    let refs = given.ca_certificate_refs.as_deref().unwrap_or_default();
    let known = given.well_known_ca_certificates.as_deref();
    match (refs, known.filter(|known| !known.is_empty())) {
        ([], Some(SYSTEM)) => Ok(Authorities::System),
        ([], Some(other)) => Err(format!(
            "spec.validation.wellKnownCACertificates {} is not supported: use {SYSTEM} or caCertificateRefs",
            quoted(other)
        )),
        ([], None) => Err(format!(
            "spec.validation names no authorities: use caCertificateRefs, or wellKnownCACertificates: {SYSTEM}"
        )),
        (_, Some(_)) => Err(
            "spec.validation has both caCertificateRefs and wellKnownCACertificates: use one of them"
                .to_owned(),
        ),
        (refs, None) if refs.len() > MAX_REFS => Err(format!(
            "spec.validation.caCertificateRefs has {} entries: at most {MAX_REFS} are supported",
            refs.len()
        )),
        (refs, None) => {
            let refs = refs.iter().map(|one| AuthorityRef {
                group: one.group.clone(),
                kind: one.kind.clone(),
                name: one.name.clone(),
            });
            Ok(Authorities::Named(refs.collect()))
        }
    }
}

// === impl RawTlsPolicy ===

impl KubeResource for RawTlsPolicy {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        api::BackendTlsPolicy::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        api::BackendTlsPolicy::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        api::BackendTlsPolicy::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        api::BackendTlsPolicy::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl World ===

impl World {
    /// The first ConfigMap of the policy that is not listed yet, of those that are read for what policies ask for `now`.
    pub(crate) fn awaited_authorities(&self, policy: &Key, now: &BTreeSet<Key>) -> Option<Key> {
        let validation = self.tls_policies.get(policy)?.validation.as_ref().ok()?;
        let mut maps = validation.maps(policy);
        maps.find(|map| now.contains(map) && !self.authorities.contains_key(map))
    }
}

// === impl TlsValidation ===

impl TlsValidation {
    /// The ConfigMaps that it names for authorities.
    pub(crate) fn maps<'p>(&'p self, policy: &'p Key) -> impl Iterator<Item = Key> + 'p {
        let refs = match &self.authorities {
            Authorities::Named(refs) => &refs[..],
            Authorities::System => &[],
        };
        refs.iter().filter_map(|one| one.map(policy))
    }
}

// === impl AuthorityRef ===

impl AuthorityRef {
    /// The ConfigMap; `None`: it is of another kind, or of a name that no object has.
    pub(crate) fn map(&self, policy: &Key) -> Option<Key> {
        // The name goes into a field selector, where other characters mean something else.
        let part = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
        let is_name = !self.name.is_empty() && self.name.bytes().all(part);
        (self.is_of_config_map() && is_name).then(|| Key::new(&policy.namespace, &self.name))
    }

    pub(crate) fn is_of_config_map(&self) -> bool {
        self.group.is_empty() && self.kind == "ConfigMap"
    }
}

// === impl Bundle ===

impl Bundle {
    pub(crate) fn read(map: &ConfigMap) -> Result<Self, BadBundle> {
        let text = map.data.as_ref().and_then(|data| data.get(FILE));
        let text = text.filter(|text| !text.trim().is_empty());
        let text = text.ok_or(BadBundle::Missing)?;
        if text.len() > MAX_BUNDLE {
            return Err(BadBundle::TooLarge(text.len()));
        }
        check(text.as_bytes())?;
        Ok(Self::new(&project::key(&map.metadata), text.as_str()))
    }

    fn new(key: &Key, pem: &str) -> Self {
        let name = resource::authorities_name(key);
        Self {
            resource: resource::authorities(&name, pem),
            pem: pem.into(),
            name,
        }
    }

    /// Bytes of what [`Self::merged`] makes of them.
    pub(crate) fn merged_size(bundles: &[&Self]) -> usize {
        let sizes = bundles.iter().map(|one| one.pem.len() + 1);
        sizes.sum::<usize>().saturating_sub(1)
    }

    /// The authorities of all: Envoy takes one list for a backend. `None`: there is none. It is named by the ConfigMaps that
    /// are asked for, and keeps its name where some of these have no authorities.
    pub(crate) fn merged(maps: &BTreeSet<Key>, bundles: &[&Self]) -> Option<Self> {
        if bundles.is_empty() {
            return None;
        }
        let pems: Vec<&str> = bundles.iter().map(|one| &*one.pem).collect();
        let names: Vec<String> = maps.iter().map(resource::authorities_name).collect();
        let (name, pem) = (names.join("+"), pems.join("\n"));
        Some(Self {
            resource: resource::authorities(&name, &pem),
            pem: Arc::default(),
            name,
        })
    }

    /// By which clusters name it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// All of it in PEM, which is made of what Envoy gets.
    pub(crate) fn pem(&self) -> Option<String> {
        resource::pem_of_authorities(&self.resource)
    }

    /// As Envoy gets it.
    pub(crate) fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            pem: _,
            resource,
        } = self;
        f.debug_struct("Bundle")
            .field("name", name)
            .field("resource", resource)
            .finish_non_exhaustive()
    }
}

/// Whether Envoy can read them, which gets these same bytes.
fn check(text: &[u8]) -> Result<(), BadBundle> {
    let certificates = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BadBundle::Pem(problem(&error)))?;
    if certificates.is_empty() {
        return Err(BadBundle::Pem("there is none"));
    }
    for (index, certificate) in certificates.iter().enumerate() {
        if !parse_x509_certificate(certificate).is_ok_and(|(rest, _)| rest.is_empty()) {
            return Err(BadBundle::Certificate(index + 1));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use rstest::rstest;
    use serde_json::json;
    use tls::test_pki::Ca;

    use super::*;

    pub(crate) fn mk_map(name: &str, text: &str) -> ConfigMap {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name}, "data": {"ca.crt": text},
        });
        serde_json::from_value(object).unwrap()
    }

    pub(crate) fn mk_bundle(name: &str, ca: &Ca) -> Bundle {
        let pem = String::from_utf8(ca.pem()).unwrap();
        Bundle::read(&mk_map(name, &pem)).unwrap()
    }

    const NO_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[rstest]
    #[case::nothing(|text: &mut String| text.clear(), BadBundle::Missing)]
    #[case::blank(|text: &mut String| *text = " \n".into(), BadBundle::Missing)]
    #[case::text(|text: &mut String| *text = "Hello world\n".into(), BadBundle::Pem("there is none"))]
    #[case::half_of_one(|text: &mut String| text.truncate(200), BadBundle::Pem("an END line is missing"))]
    #[case::second_is_none(|text: &mut String| text.push_str(NO_CERTIFICATE), BadBundle::Certificate(2))]
    #[case::too_large(|text: &mut String| *text = text.repeat(1 + MAX_BUNDLE / text.len()), BadBundle::TooLarge(0))]
    fn authorities_that_envoy_cannot_read_are_named(
        #[case] spoil: fn(&mut String),
        #[case] expected: BadBundle,
    ) {
        let mut text = String::from_utf8(Ca::new("a").pem()).unwrap();
        assert!(Bundle::read(&mk_map("ca", &text)).is_ok());
        spoil(&mut text);
        let found = Bundle::read(&mk_map("ca", &text)).unwrap_err();
        match (&expected, &found) {
            (BadBundle::TooLarge(_), BadBundle::TooLarge(bytes)) => assert_eq!(*bytes, text.len()),
            _ => assert_eq!(found, expected),
        }
        let none = ConfigMap {
            data: None,
            ..mk_map("ca", &text)
        };
        assert_eq!(Bundle::read(&none), Err(BadBundle::Missing));
    }

    fn read(validation: Value) -> Result<TlsValidation, String> {
        let object = json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"targetRefs": [], "validation": validation},
        });
        let object = serde_json::from_value(object).map_err(|error| error.to_string())?;
        backend_tls_policy(&object).validation
    }

    #[test]
    fn certificate_has_the_host_name_unless_other_names_are_given() {
        let names = |given: Value| {
            let given = json!({
                "hostname": "a.b", "wellKnownCACertificates": "System", "subjectAltNames": given,
            });
            read(given).unwrap().names
        };
        assert_eq!(names(json!(null)), [SubjectName::Dns("a.b".into())]);
        assert_eq!(names(json!([])), [SubjectName::Dns("a.b".into())]);
        let given = json!([
            {"type": "URI", "uri": "spiffe://x/y"}, {"type": "Hostname", "hostname": "c.d"},
        ]);
        let expected = [
            SubjectName::Uri("spiffe://x/y".into()),
            SubjectName::Dns("c.d".into()),
        ];
        assert_eq!(names(given), expected);
    }

    #[rstest]
    #[case::no_authorities(json!({"hostname": "a.b"}), "names no authorities")]
    #[case::unknown(json!({"hostname": "a.b", "wellKnownCACertificates": "x.y/z"}), "\"x.y/z\" is not supported")]
    #[case::both(json!({"hostname": "a.b", "wellKnownCACertificates": "System",
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}), "has both")]
    #[case::no_name(json!({"hostname": "", "wellKnownCACertificates": "System"}), "hostname has 0 bytes")]
    #[case::long_name(json!({"hostname": "a".repeat(254), "wellKnownCACertificates": "System"}), "hostname has 254 bytes")]
    #[case::empty_uri(json!({"hostname": "a.b", "wellKnownCACertificates": "System",
        "subjectAltNames": [{"type": "URI"}]}), "uri has 0 bytes")]
    fn what_a_schema_of_another_release_lets_through_is_refused(
        #[case] validation: Value,
        #[case] part: &str,
    ) {
        let error = read(validation).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    /// What is left out would be connected to without TLS.
    #[test]
    fn no_target_of_a_policy_with_too_many_is_left_out() {
        let read = |count: usize| {
            let targets: Vec<Value> = (0..count)
                .map(|n| json!({"group": "", "kind": "Service", "name": format!("s{n}")}))
                .collect();
            let object = json!({
                "metadata": {"namespace": "ns", "name": "p"},
                "spec": {
                    "targetRefs": targets,
                    "validation": {"hostname": "a.b", "wellKnownCACertificates": "System"},
                },
            });
            backend_tls_policy(&serde_json::from_value(object).unwrap())
        };
        assert!(read(16).validation.is_ok());
        let policy = read(17);
        assert_eq!(policy.targets.len(), 17);
        let why = policy.validation.unwrap_err();
        assert!(why.contains("targetRefs has 17 entries"), "{why}");
    }

    /// It would else be connected to without TLS.
    #[rstest]
    #[case::type_of_a_name(json!({"hostname": "a.b", "wellKnownCACertificates": "System",
        "subjectAltNames": [{"type": "IPAddress", "ipAddress": "10.0.0.1"}]}), "IPAddress")]
    #[case::shape(json!({"hostname": "a.b", "caCertificateRefs": [{"uri": "x"}]}), "missing field")]
    #[case::nothing(json!(null), "null")]
    fn targets_of_a_policy_that_does_not_decode_are_known(
        #[case] validation: Value,
        #[case] part: &str,
    ) {
        let object = json!({
            "metadata": {"namespace": "ns", "name": "p", "generation": 2},
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": "web", "sectionName": "http"}],
                "validation": validation,
            },
        });
        let policy = backend_tls_policy(&serde_json::from_value(object).unwrap());
        let web = TlsTarget {
            group: String::new(),
            kind: "Service".into(),
            name: "web".into(),
            section: Some("http".into()),
        };
        assert_eq!((policy.generation, policy.targets), (2, vec![web]));
        let why = policy.validation.unwrap_err();
        assert!(why.contains(part), "{why}");
    }
}
