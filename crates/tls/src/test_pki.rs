//! Certificates for tests.
#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "only tests have it, of this crate or, with the feature, of others"
)]

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
    date_time_ymd,
};

use super::pair::PairPem;

/// A certificate authority.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    /// Signs itself.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Its certificate.
    pub fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A certificate of it, and its key.
    pub fn sign(&self, params: CertificateParams) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate, key)
    }
}

/// A pair for `localhost` that is valid until that year.
pub(crate) fn mk_pair(ca: &Ca, until: i32) -> PairPem {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = date_time_ymd(until, 1, 1);
    let (certificate, key) = ca.sign(params);
    PairPem {
        chain: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    }
}

/// A directory as `--cert-path` names it.
pub fn write_pair(dir: &std::path::Path) {
    write_pair_of(&Ca::new("a"), dir);
}

/// The same, with a certificate of this authority for `localhost`.
pub fn write_pair_of(ca: &Ca, dir: &std::path::Path) {
    let PairPem { chain, key } = mk_pair(ca, 2040);
    std::fs::write(dir.join("tls.crt"), chain).unwrap();
    std::fs::write(dir.join("tls.key"), key).unwrap();
}
