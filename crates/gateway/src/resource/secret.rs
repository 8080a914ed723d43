//! What Envoy asks for by SDS: certificates with their keys, which listeners name, and authorities, which clusters name.

use std::fmt::Display;
use std::sync::Arc;

use prost::Message as _;

use crate::xds::proto::{core, tls};

use super::Resource;

/// The name of the certificate of a Kubernetes Secret, by the Secret's key.
pub(crate) fn certificate_name(secret: &impl Display) -> String {
    format!("cert/{secret}")
}

/// The name of the authorities in a `ConfigMap`, by its key.
pub(crate) fn authorities_name(map: &impl Display) -> String {
    format!("ca/{map}")
}

/// Whether the secret of this name has authorities, and nothing that must not be read.
pub(crate) fn is_authorities(secret: &str) -> bool {
    secret.starts_with("ca/")
}

/// A chain of certificates and the key of the first, in PEM.
pub(crate) fn certificate(name: String, chain: Vec<u8>, private: Vec<u8>) -> Arc<Resource> {
    let inline = |bytes| {
        Some(core::DataSource {
            specifier: Some(core::data_source::Specifier::InlineBytes(bytes)),
            ..core::DataSource::default()
        })
    };
    let pair = tls::TlsCertificate {
        certificate_chain: inline(chain),
        private_key: inline(private),
        ..tls::TlsCertificate::default()
    };
    let secret = tls::Secret {
        name,
        r#type: Some(tls::secret::Type::TlsCertificate(pair)),
    };
    Resource::new(&secret, false)
}

/// Certificates of authorities in PEM, which those of backends are verified by.
pub(crate) fn authorities(name: &str, pem: &str) -> Arc<Resource> {
    let trusted = core::DataSource {
        specifier: Some(core::data_source::Specifier::InlineString(pem.to_owned())),
        ..core::DataSource::default()
    };
    let validation = tls::CertificateValidationContext {
        trusted_ca: Some(trusted),
        ..tls::CertificateValidationContext::default()
    };
    let secret = tls::Secret {
        name: name.to_owned(),
        r#type: Some(tls::secret::Type::ValidationContext(validation)),
    };
    Resource::new(&secret, false)
}

/// What [`authorities`] was made of.
pub(crate) fn pem_of_authorities(resource: &Resource) -> Option<String> {
    let secret = tls::Secret::decode(resource.bytes.clone()).ok()?;
    let Some(tls::secret::Type::ValidationContext(validation)) = secret.r#type else {
        return None;
    };
    match validation.trusted_ca?.specifier? {
        core::data_source::Specifier::InlineString(pem) => Some(pem),
        _ => None,
    }
}
