//! Certificates and keys: those of a cluster, made anew for each run, and what a test makes besides.

use std::net::Ipv4Addr;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate authority, such as a cluster's.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its private key, PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// The keys ServiceAccount tokens are signed and checked with, PEM.
pub(crate) struct TokenKeys {
    pub(crate) private: String,
    pub(crate) public: String,
}

// === impl Authority ===

impl Authority {
    /// A new one, with a key of its own.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn make(cluster: &str) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&format!("{cluster}-ca"), None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// Its own certificate, by which others know it.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For a server that is reached by these addresses and names.
    ///
    /// # Errors
    /// For a name that is none.
    pub fn server(
        &self,
        addresses: &[Ipv4Addr],
        names: &[&str],
    ) -> Result<Certificate, rcgen::Error> {
        let addresses = addresses.iter().map(ToString::to_string);
        let names = names.iter().map(|&name| name.to_owned());
        let params = CertificateParams::new(addresses.chain(names).collect::<Vec<_>>())?;
        self.issue(
            params,
            name("kube-apiserver", None),
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    /// For a Kubernetes user: the common name is the user, the organization its group.
    pub(crate) fn client(&self, user: &str, group: &str) -> Result<Certificate, rcgen::Error> {
        let params = CertificateParams::default();
        self.issue(
            params,
            name(user, Some(group)),
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    /// For a client that is known by a URI, such as a SPIFFE id.
    ///
    /// # Errors
    /// For a URI that is not ASCII.
    pub fn workload(&self, uri: &str) -> Result<Certificate, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
        self.issue(
            params,
            name("workload", None),
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        name: DistinguishedName,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Certificate, rcgen::Error> {
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        Ok(Certificate {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

// === impl TokenKeys ===

impl TokenKeys {
    pub(crate) fn make() -> Result<Self, rcgen::Error> {
        let pair = KeyPair::generate()?;
        Ok(Self {
            private: pair.serialize_pem(),
            public: pair.public_key_pem(),
        })
    }
}

fn name(common: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}
