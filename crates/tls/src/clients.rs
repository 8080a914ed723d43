//! Which clients are let in: those with a certificate of a CA, and among them those with one of some names.

use std::{net::IpAddr, str::FromStr, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use super::{pem_problem, provider};

/// A subject alternative name (SAN) that a client's certificate may have. It equals one of the same kind, byte for byte;
/// nothing in it is a wildcard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum San {
    /// An IP address.
    Ip(IpAddr),
    /// A URI, such as a SPIFFE id. What has a colon and is no address is one.
    Uri(String),
    /// An e-mail address.
    Email(String),
    /// A host name.
    Dns(String),
}

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of a certificate: expected a host name, a URI, an IP address or an e-mail address, \
     such as spiffe://west/ns/isthmus-system/sa/gateway"
)]
pub struct SanError(String);

/// Why there is no CA.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(String),
    /// It is no PEM, or not all of it.
    #[error("it is no PEM: {0}")]
    Pem(String),
    /// It is PEM without a certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// A certificate of it cannot be used.
    #[error("certificate {0} of it cannot be used: {1}")]
    Certificate(usize, String),
}

/// Lets in who the CA lets in, if one of the names is there.
#[derive(Debug)]
struct NamedClients {
    chain: Arc<dyn ClientCertVerifier>,
    names: Vec<San>,
}

/// Verifies clients against the CAs in `pem`; with `names`, against these as well.
pub(super) fn verifier(pem: &[u8], names: &[San]) -> Result<Arc<dyn ClientCertVerifier>, CaError> {
    let roots = Arc::new(roots(pem)?);
    let chain = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(|_| CaError::Empty)?;
    if names.is_empty() {
        return Ok(chain);
    }
    Ok(Arc::new(NamedClients {
        chain,
        names: names.to_vec(),
    }))
}

/// The CAs in `pem`, at least one.
pub(super) fn roots(pem: &[u8]) -> Result<RootCertStore, CaError> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let certificate = certificate.map_err(|error| CaError::Pem(pem_problem(&error)))?;
        roots
            .add(certificate)
            .map_err(|error| CaError::Certificate(at + 1, error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(CaError::Empty);
    }
    Ok(roots)
}

// === impl San ===

impl San {
    fn equals(&self, name: &GeneralName<'_>) -> bool {
        match (self, name) {
            (Self::Uri(uri), GeneralName::URI(name)) => uri == name,
            (Self::Email(email), GeneralName::RFC822Name(name)) => email == name,
            (Self::Dns(host), GeneralName::DNSName(name)) => host == name,
            (Self::Ip(IpAddr::V4(ip)), GeneralName::IPAddress(name)) => ip.octets() == *name,
            (Self::Ip(IpAddr::V6(ip)), GeneralName::IPAddress(name)) => ip.octets() == *name,
            _ => false,
        }
    }
}

impl FromStr for San {
    type Err = SanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err(SanError(text.to_owned()));
        }
        Ok(if let Ok(ip) = text.parse() {
            Self::Ip(ip)
        } else if text.contains(':') {
            Self::Uri(text.to_owned())
        } else if text.contains('@') {
            Self::Email(text.to_owned())
        } else {
            Self::Dns(text.to_owned())
        })
    }
}

// === impl CaError ===

impl CaError {
    /// Stable: log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Pem(_) => "pem",
            Self::Empty => "empty",
            Self::Certificate(..) => "certificate",
        }
    }
}

// === impl NamedClients ===

impl NamedClients {
    /// Whether the certificate has one of the names.
    fn names(&self, certificate: &CertificateDer<'_>) -> Result<bool, Error> {
        let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
        let (_, parsed) = parse_x509_certificate(certificate).map_err(|_| bad())?;
        let names = parsed.subject_alternative_name().map_err(|_| bad())?;
        Ok(names.is_some_and(|names| {
            let mut names = names.value.general_names.iter();
            names.any(|name| self.names.iter().any(|wanted| wanted.equals(name)))
        }))
    }
}

impl ClientCertVerifier for NamedClients {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)?;
        if self.names(end_entity)? {
            Ok(verified)
        } else {
            let refused = CertificateError::ApplicationVerificationFailure;
            Err(Error::InvalidCertificate(refused))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, SanType};
    use rstest::rstest;

    use super::super::test_pki::Ca;
    use super::*;

    const SPIFFE: &str = "spiffe://west/ns/gateways/sa/envoy";

    fn mk_certificate() -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![
            SanType::DnsName("envoy.west".try_into().unwrap()),
            SanType::URI(SPIFFE.try_into().unwrap()),
            SanType::Rfc822Name("ops@west.example".try_into().unwrap()),
            SanType::IpAddress("10.0.0.1".parse().unwrap()),
            SanType::IpAddress("fd00::1".parse().unwrap()),
        ];
        Ca::new("a").sign(params).0.der().clone()
    }

    #[rstest]
    #[case("envoy.west", true)]
    #[case("ENVOY.west", false)]
    #[case("west", false)]
    #[case("*.west", false)]
    #[case(SPIFFE, true)]
    #[case("spiffe://west/ns/gateways/sa/envoy/", false)]
    #[case("spiffe://west/ns/gateways", false)]
    #[case("ops@west.example", true)]
    #[case("ops@west", false)]
    #[case("10.0.0.1", true)]
    #[case("10.0.0.2", false)]
    #[case("fd00:0::1", true)]
    #[case("a00:1::", false)]
    fn a_name_of_any_kind_must_be_equal(#[case] wanted: &str, #[case] expected: bool) {
        let chain = verifier(&Ca::new("a").pem(), &[]).unwrap();
        let absent = "absent".parse().unwrap();
        let names = vec![absent, wanted.parse().unwrap()];
        let clients = NamedClients { chain, names };
        assert_eq!(clients.names(&mk_certificate()), Ok(expected));
    }

    #[test]
    fn a_certificate_without_names_has_none_of_them() {
        let chain = verifier(&Ca::new("a").pem(), &[]).unwrap();
        let names = vec!["envoy.west".parse().unwrap()];
        let clients = NamedClients { chain, names };
        let certificate = Ca::new("a").sign(CertificateParams::default()).0;
        assert_eq!(clients.names(certificate.der()), Ok(false));
    }

    #[rstest]
    #[case("")]
    #[case("envoy west")]
    #[case("bücher.example")]
    fn what_no_certificate_has_is_no_name(#[case] text: &str) {
        assert_eq!(text.parse::<San>(), Err(SanError(text.to_owned())));
    }

    #[test]
    fn a_file_without_usable_cas_is_refused() {
        let reason = |pem: &[u8]| verifier(pem, &[]).err().map(|error| error.reason());
        let good = Ca::new("a").pem();
        assert_eq!(reason(&good), None);
        assert_eq!(reason(b""), Some("empty"));
        let (half, _) = good.split_at(good.len() / 2);
        assert_eq!(reason(half), Some("pem"));
        let both = [&*good, half].concat();
        assert_eq!(reason(&both), Some("pem"), "the second is half-written");
        let other = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(reason(other), Some("certificate"));
    }
}
