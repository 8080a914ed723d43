//! Certificates with their keys, which listeners name and Envoy asks for by SDS.

use std::sync::Arc;

use crate::world::Key;

use super::proto::{core, tls};
use super::{Resource, names};

/// The pair of the Secret with this key, in PEM.
pub(crate) fn secret(key: &Key, chain: Vec<u8>, private: Vec<u8>) -> Arc<Resource> {
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
        name: names::certificate(key),
        r#type: Some(tls::secret::Type::TlsCertificate(pair)),
    };
    Resource::new(&secret, false)
}
