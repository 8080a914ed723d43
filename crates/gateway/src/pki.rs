//! Certificates of the control channel: one authority for each cluster, which signs the certificate of the ADS server and one
//! for the Envoys of each Gateway (pure), and the Secret that keeps the authority.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType, date_time_ymd,
};
use tls::CertificateInfo;

mod identity;
pub(crate) mod store;

pub(crate) use identity::{Former, Identity};

const DAY: u64 = 24 * 60 * 60;

/// Of the authority: longer than any installation keeps it, as there is one way alone to replace it, by hand.
const AUTHORITY_LIFE: u64 = 3650 * DAY;

/// Life of the server's certificate, which is in memory alone and is replaced each [`SERVER_RENEWAL`].
const SERVER_LIFE: u64 = 2 * DAY;
pub(crate) const SERVER_RENEWAL: Duration = Duration::from_secs(DAY / 2);

/// Of an Envoy's certificate, which is renewed so long before its end.
const CLIENT_LIFE: u64 = 90 * DAY;
const CLIENT_MARGIN: u64 = 30 * DAY;

/// Clocks of nodes differ: what is signed is valid from so long before.
const CLOCK_MARGIN: u64 = 60 * 60;

/// Subject of the authority. It is the same after a replacement: certificates name their authority by its key as well.
const AUTHORITY_NAME: &str = "isthmus-gateway-ca";

/// Signs certificates of the control channel. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Authority {
    pem: Arc<str>,
    not_after: i64,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

/// A certificate and its private key, both PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("tls.crt cannot be used: {0}")]
    Certificate(#[from] tls::PairError),
    #[error("tls.key is no private key of a kind that is supported")]
    Key,
    #[error("tls.crt and tls.key do not fit together")]
    Mismatch,
    #[error("{0:?} can be in no certificate")]
    Name(String),
}

/// The time of certificates: seconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0)
}

/// What both kinds of certificates, and the authority, have in common.
fn params(name: &str, from: u64, until: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(from);
    params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(until);
    params
}

fn authority_params(now: u64) -> CertificateParams {
    let from = now.saturating_sub(CLOCK_MARGIN);
    let mut params = params(AUTHORITY_NAME, from, now.saturating_add(AUTHORITY_LIFE));
    // it signs what is shown on connections, and no further authority
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

/// When a client's certificate is to be renewed, in seconds since 1970.
fn renewal(not_after: i64) -> i64 {
    let margin = i64::try_from(CLIENT_MARGIN).unwrap_or(i64::MAX);
    not_after.saturating_sub(margin)
}

// === impl Authority ===

impl Authority {
    /// Makes one with an ECDSA key on P-256, and its private key as PEM. `now` is in seconds since 1970.
    pub(crate) fn make(now: u64) -> Result<(Self, String), PkiError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let pem = authority_params(now).self_signed(&key)?.pem();
        let text = key.serialize_pem();
        Ok((Self::parse(pem.as_bytes(), text.as_bytes())?, text))
    }

    /// Of PEM, as the Secret has it.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, PkiError> {
        let info = CertificateInfo::of_pem(certificate)?;
        let text = str::from_utf8(key).map_err(|_| PkiError::Key)?;
        let key = KeyPair::from_pem(text).map_err(|_| PkiError::Key)?;
        if key.der_bytes() != info.public_key {
            return Err(PkiError::Mismatch);
        }
        Ok(Self {
            pem: String::from_utf8_lossy(certificate).into(),
            not_after: info.not_after,
            issuer: Arc::new(Issuer::new(authority_params(0), key)),
        })
    }

    /// The certificate of this authority, in PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// In seconds since 1970.
    pub(crate) fn not_after(&self) -> i64 {
        self.not_after
    }

    /// A certificate of the ADS server, which Envoys reach by `host`, a name or an address.
    pub(crate) fn issue_server(&self, host: &str, now: u64) -> Result<Issued, PkiError> {
        let name = match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(
                host.try_into()
                    .map_err(|_| PkiError::Name(host.to_owned()))?,
            ),
        };
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue("isthmus-gateway", name, usage, now, SERVER_LIFE)
    }

    /// A certificate of the Envoys of one Gateway.
    pub(crate) fn issue_client(&self, identity: &Identity, now: u64) -> Result<Issued, PkiError> {
        let uri = identity.to_string();
        let name = uri.as_str().try_into().map_err(|_| PkiError::Name(uri))?;
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        self.issue("envoy", SanType::URI(name), usage, now, CLIENT_LIFE)
    }

    fn issue(
        &self,
        subject: &str,
        name: SanType,
        usage: ExtendedKeyUsagePurpose,
        now: u64,
        life: u64,
    ) -> Result<Issued, PkiError> {
        let from = now.saturating_sub(CLOCK_MARGIN);
        let mut params = params(subject, from, now.saturating_add(life));
        params.subject_alt_names = vec![name];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        Ok(Issued {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// When the certificate of these Envoys is to be renewed, in seconds since 1970; none: now. It is of this authority by
    /// `ca`, the one that they verify the server against.
    pub(crate) fn renewal(
        &self,
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
        identity: &Identity,
        now: u64,
    ) -> Option<u64> {
        let info = CertificateInfo::of_pem(certificate).ok()?;
        let key = KeyPair::from_pem(str::from_utf8(key).ok()?).ok()?;
        let is_of_it = ca == self.pem.as_bytes()
            && key.der_bytes() == info.public_key
            && Identity::of_uris(&info.uris).as_ref() == Some(identity);
        let begins = u64::try_from(info.not_before).ok()?;
        let due = u64::try_from(renewal(info.not_after)).ok()?;
        (is_of_it && begins <= now && now < due).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::world::Key;

    const NOW: u64 = 1_800_000_000;

    fn mk_identity(gateway: &str) -> Identity {
        Identity {
            cluster: "west".to_owned(),
            gateway: Key::new("ns", gateway),
            uid: "uid-1".to_owned(),
        }
    }

    #[test]
    fn an_authority_is_the_same_after_it_was_kept() {
        let (made, key) = Authority::make(NOW).unwrap();
        let kept = Authority::parse(made.pem().as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(made.pem(), kept.pem());
        // what the one has signed, the other takes for its own
        let identity = mk_identity("gw");
        let Issued { certificate, key } = made.issue_client(&identity, NOW).unwrap();
        let (ca, pair) = (kept.pem().as_bytes(), (certificate, key));
        let due = kept.renewal(ca, pair.0.as_bytes(), pair.1.as_bytes(), &identity, NOW);
        assert_eq!(due, Some(NOW + 60 * DAY));
    }

    #[test]
    fn what_is_no_authority_is_refused() {
        let (one, key) = Authority::make(NOW).unwrap();
        let (_, other) = Authority::make(NOW).unwrap();
        let parse = |certificate: &str, key: &str| {
            let parsed = Authority::parse(certificate.as_bytes(), key.as_bytes());
            parsed.err().map(|error| error.to_string())
        };
        assert_eq!(parse(one.pem(), &key), None);
        assert_eq!(
            parse(one.pem(), &other).unwrap(),
            PkiError::Mismatch.to_string()
        );
        assert_eq!(parse(one.pem(), "").unwrap(), PkiError::Key.to_string());
        assert!(parse("", &key).unwrap().contains("tls.crt"));
    }

    /// A certificate of 90 days is renewed when 60 have passed; what is of another authority or Gateway, at once.
    #[rstest]
    #[case::new(NOW, "gw", true, true)]
    #[case::last_second(NOW + 60 * DAY - 1, "gw", true, true)]
    #[case::sixty_days(NOW + 60 * DAY, "gw", true, false)]
    #[case::expired(NOW + 91 * DAY, "gw", true, false)]
    #[case::clock_of_another_node(NOW - 60, "gw", true, true)]
    #[case::clock_set_back(NOW - DAY, "gw", true, false)]
    #[case::another_gateway(NOW, "other", true, false)]
    #[case::made_anew(NOW, "gw:uid-2", true, false)]
    #[case::another_authority(NOW, "gw", false, false)]
    fn certificates_are_renewed_in_time(
        #[case] now: u64,
        #[case] gateway: &str,
        #[case] is_same_authority: bool,
        #[case] is_kept: bool,
    ) {
        let (authority, _) = Authority::make(NOW).unwrap();
        let issued = authority.issue_client(&mk_identity("gw"), NOW).unwrap();
        let ca = authority.pem().to_owned();
        let judge = if is_same_authority {
            authority
        } else {
            Authority::make(NOW).unwrap().0
        };
        let (certificate, key) = (issued.certificate.as_bytes(), issued.key.as_bytes());
        let mut identity = mk_identity(gateway);
        if let Some((name, uid)) = gateway.split_once(':') {
            identity = mk_identity(name);
            identity.uid = uid.to_owned();
        }
        let due = judge.renewal(ca.as_bytes(), certificate, key, &identity, now);
        assert_eq!(due, is_kept.then_some(NOW + 60 * DAY));
        // the key of another certificate
        let other = judge.issue_client(&identity, NOW).unwrap().key;
        let due = judge.renewal(ca.as_bytes(), certificate, other.as_bytes(), &identity, now);
        assert_eq!(due, None);
    }
}
