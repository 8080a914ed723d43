//! A certificate chain and its key.

use std::sync::Arc;

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::parse_x509_certificate;

use super::{pem_problem, provider};

/// What a self-signed certificate is for; the proxy does not check it.
const SELF_SIGNED_NAMES: [&str; 2] = ["localhost", "epp"];

/// A chain and the key of its first certificate.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    key: Arc<CertifiedKey>,
    /// Of the first certificate, in seconds since 1970.
    not_after: i64,
}

/// The files of a pair, as they were read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PairPem {
    pub(super) chain: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file cannot be read.
    #[error("{0}")]
    Read(String),
    /// `tls.crt` is no PEM, or not all of it.
    #[error("tls.crt holds no chain of certificates in PEM: {0}")]
    Chain(String),
    /// `tls.key` is no PEM, or not all of it.
    #[error("tls.key holds no private key in PEM: {0}")]
    Key(String),
    /// The first certificate cannot be parsed.
    #[error("the first certificate of tls.crt cannot be parsed: {0}")]
    Certificate(String),
    /// The key is of another certificate, or of a kind that is not supported.
    #[error("tls.crt and tls.key do not fit together: {0}")]
    Mismatch(#[source] rustls::Error),
    /// The pair is of no use any more.
    #[error("the certificate has expired, {0} s ago")]
    Expired(i64),
    /// No key could be made.
    #[error("cannot make a self-signed certificate: {0}")]
    Make(#[source] rcgen::Error),
}

// === impl Pair ===

impl Pair {
    /// Parses a pair, and checks that its parts fit together.
    pub(super) fn parse(pem: &PairPem) -> Result<Self, PairError> {
        let chain = CertificateDer::pem_slice_iter(&pem.chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PairError::Chain(pem_problem(&error)))?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key)
            .map_err(|error| PairError::Key(pem_problem(&error)))?;
        Self::of(chain, key)
    }

    /// Makes a P-256 key and a certificate that signs itself.
    pub(super) fn self_signed() -> Result<Self, PairError> {
        let names = SELF_SIGNED_NAMES.map(str::to_owned).to_vec();
        let made = rcgen::generate_simple_self_signed(names).map_err(PairError::Make)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Self::of(vec![made.cert.der().clone()], key.into())
    }

    fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, PairError> {
        let first = chain
            .first()
            .ok_or_else(|| PairError::Chain("there is none".to_owned()))?;
        let (_, parsed) = parse_x509_certificate(first)
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let not_after = parsed.validity().not_after.timestamp();
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(PairError::Mismatch)?;
        Ok(Self {
            key: Arc::new(key),
            not_after,
        })
    }

    pub(super) fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key)
    }

    /// Seconds since 1970.
    pub(super) fn not_after(&self) -> i64 {
        self.not_after
    }

    /// Fails if it has expired by `now`, in seconds since 1970.
    pub(super) fn check_expiry(&self, now: i64) -> Result<(), PairError> {
        if now <= self.not_after {
            Ok(())
        } else {
            Err(PairError::Expired(now.saturating_sub(self.not_after)))
        }
    }
}

// === impl PairError ===

impl PairError {
    /// Stable: log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Chain(_) => "chain",
            Self::Key(_) => "key",
            Self::Certificate(_) => "certificate",
            Self::Mismatch(_) => "mismatch",
            Self::Expired(_) => "expired",
            Self::Make(_) => "make",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::test_pki::{Ca, mk_pair};
    use super::*;

    fn reason(pem: &PairPem) -> Option<&'static str> {
        Pair::parse(pem).err().map(|error| error.reason())
    }

    #[test]
    fn a_pair_is_taken_with_its_end() {
        let pem = mk_pair(&Ca::new("a"), 2040);
        let pair = Pair::parse(&pem).unwrap();
        // 2040-01-01
        assert_eq!(pair.not_after(), 2_208_988_800);
        assert!(pair.check_expiry(2_208_988_800).is_ok());
        assert!(matches!(
            pair.check_expiry(2_208_988_801),
            Err(PairError::Expired(1))
        ));
    }

    #[rstest]
    #[case::no_certificate(|pem: &mut PairPem| pem.chain.clear(), "chain")]
    #[case::half_of_the_chain(|pem: &mut PairPem| pem.chain.truncate(200), "chain")]
    #[case::half_of_the_key(|pem: &mut PairPem| pem.key.truncate(60), "key")]
    #[case::no_key(|pem: &mut PairPem| pem.key.clone_from(&pem.chain), "key")]
    #[case::another_key(|pem: &mut PairPem| pem.key = mk_pair(&Ca::new("b"), 2040).key, "mismatch")]
    fn what_is_no_pair_is_named(#[case] spoil: fn(&mut PairPem), #[case] expected: &str) {
        let mut pem = mk_pair(&Ca::new("a"), 2040);
        spoil(&mut pem);
        assert_eq!(reason(&pem), Some(expected));
    }

    #[test]
    fn an_encoding_that_is_no_certificate_is_named() {
        let pem = mk_pair(&Ca::new("a"), 2040);
        let chain = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let chain = chain.as_bytes().to_vec();
        assert_eq!(reason(&PairPem { chain, ..pem }), Some("certificate"));
    }
}
