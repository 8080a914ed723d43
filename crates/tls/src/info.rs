//! What a certificate says of itself.

use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use super::{PairError, pem_problem};

/// What a certificate says of itself; nothing in it is verified here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The URIs among its subject alternative names, such as a SPIFFE id.
    pub uris: Vec<String>,
    /// The first second at which it is valid, since 1970.
    pub not_before: i64,
    /// The last one.
    pub not_after: i64,
    /// The subject's public key, as it stands in the certificate.
    pub public_key: Vec<u8>,
}

// === impl CertificateInfo ===

impl CertificateInfo {
    /// Of the first certificate of a PEM.
    ///
    /// # Errors
    /// When there is none, or it cannot be parsed.
    pub fn of_pem(pem: &[u8]) -> Result<Self, PairError> {
        let first = CertificateDer::from_pem_slice(pem)
            .map_err(|error| PairError::Chain(pem_problem(&error)))?;
        Self::of(&first)
    }

    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// When it cannot be parsed.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, PairError> {
        let bad = |error: String| PairError::Certificate(error);
        let (_, parsed) =
            parse_x509_certificate(certificate).map_err(|error| bad(error.to_string()))?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|error| bad(error.to_string()))?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let uris = names.filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
        Ok(Self {
            uris: uris.collect(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, PublicKeyData as _, SanType, date_time_ymd};

    use super::super::test_pki::Ca;
    use super::*;

    #[test]
    fn a_certificate_says_its_uris_its_time_and_its_key() {
        let mut params = CertificateParams::new(vec!["envoy.west".to_owned()]).unwrap();
        let uri = "spiffe://west/gateway/ns/gw";
        params
            .subject_alt_names
            .push(SanType::URI(uri.try_into().unwrap()));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2040, 1, 1);
        let (certificate, key) = Ca::new("a").sign(params);
        let info = CertificateInfo::of_pem(certificate.pem().as_bytes()).unwrap();
        let expected = CertificateInfo {
            uris: vec![uri.to_owned()],
            not_before: 1_577_836_800,
            not_after: 2_208_988_800,
            public_key: key.der_bytes().to_vec(),
        };
        assert_eq!(info, expected);
        assert!(CertificateInfo::of_pem(key.serialize_pem().as_bytes()).is_err());
    }
}
