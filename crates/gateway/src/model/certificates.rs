//! The certificates of HTTPS listeners: the Secrets that they name, and why one cannot be used.

use std::collections::{BTreeMap, BTreeSet};

use crate::text::quoted;
use crate::world::{BadSecret, Certificate, CertificateRef, Gateway, Key, Listener, World};

use super::refs::{GATEWAY_GROUP, Referrer, is_granted, kind_of};
use super::{Chain, Protocol, is_ours};

/// Certificates of one listener: one for RSA and one for ECDSA, each of them once more while names move. Each Secret costs a
/// watch.
const MAX_REFS: usize = 4;

/// Secrets of one Gateway, each of which costs a watch of its own: 64 listeners with a certificate for every two of them.
const MAX_SECRETS: usize = 32;

/// What the references of an HTTPS listener lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// Those that can be served, in the order of the references.
    pub(crate) usable: Vec<Key>,
    /// The first reference that leads to none.
    pub(crate) bad: Option<BadCertificate>,
}

/// Why a listener lacks a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadCertificate {
    #[error(
        "tls.certificateRefs is empty: name a Secret of type kubernetes.io/tls (tls.options are not supported)"
    )]
    Missing,
    #[error("tls.certificateRefs has {0} entries: at most {max} are supported", max = MAX_REFS)]
    TooMany(usize),
    #[error(
        "tls.certificateRefs names {} of {}: only a Secret of the core group is supported",
        quoted(name),
        kind_of(group, kind)
    )]
    NotASecret {
        group: String,
        kind: String,
        name: String,
    },
    #[error(
        "Secret {key} is in another namespace: a ReferenceGrant there must allow Gateways of namespace {from} to name it"
    )]
    NotPermitted { key: Key, from: String },
    #[error(
        "Secret {0} is not read: the listeners of a Gateway may name {max} Secrets in all, and those before it name as many",
        max = MAX_SECRETS
    )]
    TooManySecrets(Key),
    #[error("Secret {0} {1}")]
    Unusable(Key, BadSecret),
    /// The Gateway keeps the status it has until the Secret is listed.
    #[error("Secret {0} is not listed yet")]
    NotListed(Key),
}

impl BadCertificate {
    /// Stable: the reason of condition `ResolvedRefs`.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotPermitted { .. } => "RefNotPermitted",
            Self::Missing
            | Self::TooMany(_)
            | Self::NotASecret { .. }
            | Self::TooManySecrets(_)
            | Self::Unusable(..)
            | Self::NotListed(_) => "InvalidCertificateRef",
        }
    }
}

/// `None`: the listener's protocol has no certificates. `watched`: those of the [`named`] Secrets of the Gateway.
pub(crate) fn resolve(
    world: &World,
    gateway: &Gateway,
    watched: &BTreeSet<Key>,
    listener: &Listener,
) -> Option<Certificates> {
    let refs = refs(listener)?;
    let mut found = Certificates::default();
    if refs.is_empty() {
        found.bad = Some(BadCertificate::Missing);
    } else if refs.len() > MAX_REFS {
        found.bad = Some(BadCertificate::TooMany(refs.len()));
    } else {
        for one in refs {
            match resolve_one(world, gateway, watched, one) {
                // a certificate twice is refused by Envoy
                Ok(key) if found.usable.contains(&key) => {}
                Ok(key) => found.usable.push(key),
                Err(bad) => {
                    found.bad.get_or_insert(bad);
                }
            }
        }
    }
    Some(found)
}

fn resolve_one(
    world: &World,
    gateway: &Gateway,
    watched: &BTreeSet<Key>,
    one: &CertificateRef,
) -> Result<Key, BadCertificate> {
    let key = permitted(world, gateway, one)?;
    match world.certificates.get(&key) {
        _ if is_name(&key.name) && !watched.contains(&key) => {
            Err(BadCertificate::TooManySecrets(key))
        }
        Some(Ok(_)) => Ok(key),
        Some(Err(bad)) => Err(BadCertificate::Unusable(key, bad.clone())),
        None if !is_name(&key.name) => Err(BadCertificate::Unusable(key, BadSecret::NotFound)),
        None => Err(BadCertificate::NotListed(key)),
    }
}

/// The Secret that the reference names, if the Gateway may name it. Nothing is said of one that it may not.
fn permitted(
    world: &World,
    gateway: &Gateway,
    one: &CertificateRef,
) -> Result<Key, BadCertificate> {
    if !one.group.is_empty() || one.kind != "Secret" {
        return Err(BadCertificate::NotASecret {
            group: one.group.clone(),
            kind: one.kind.clone(),
            name: one.name.clone(),
        });
    }
    let home = &gateway.key.namespace;
    let key = Key::new(one.namespace.as_ref().unwrap_or(home), &one.name);
    let referrer = Referrer {
        group: GATEWAY_GROUP,
        kind: "Gateway",
        namespace: home,
    };
    if key.namespace != *home && !is_granted(world, &referrer, "", "Secret", &key) {
        let from = home.clone();
        return Err(BadCertificate::NotPermitted { key, from });
    }
    Ok(key)
}

fn refs(listener: &Listener) -> Option<&[CertificateRef]> {
    (listener.protocol == "HTTPS").then(|| match &listener.tls {
        Some(tls) => &tls.certificates[..],
        None => &[],
    })
}

/// The name goes into a field selector, where other characters mean something else.
fn is_name(name: &str) -> bool {
    let part = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
    !name.is_empty() && name.bytes().all(part)
}

/// The Secrets that the Gateway's listeners name and may name, the first [`MAX_SECRETS`] of them.
pub(crate) fn named(world: &World, gateway: &Gateway) -> BTreeSet<Key> {
    let lists = gateway.listeners.iter().filter_map(refs);
    let keys = lists
        .filter(|refs| refs.len() <= MAX_REFS)
        .flatten()
        .filter_map(move |one| permitted(world, gateway, one).ok())
        .filter(|key| is_name(&key.name));
    let mut named = BTreeSet::new();
    for key in keys {
        if named.len() < MAX_SECRETS {
            named.insert(key);
        }
    }
    named
}

/// The Secrets that our Gateways name and may name: no others are read.
pub(crate) fn wanted(world: &World, controller: &str) -> Vec<Key> {
    let ours = world.gateways.values();
    let ours = ours.filter(|gateway| is_ours(world, controller, &gateway.class));
    ours.flat_map(|gateway| named(world, gateway)).collect()
}

/// Whether a Secret of the Gateway is not listed yet, so that nothing can be said of its listener.
pub(crate) fn is_unknown(world: &World, gateway: &Gateway) -> bool {
    named(world, gateway)
        .iter()
        .any(|key| !world.certificates.contains_key(key))
}

/// Those that chains are made with.
pub(crate) fn of_chains<'a>(
    world: &World,
    chains: impl Iterator<Item = &'a Chain>,
) -> BTreeMap<Key, Certificate> {
    let keys = chains.flat_map(|chain| match &chain.protocol {
        Protocol::Http => &[][..],
        Protocol::Https { certificates, .. } => certificates,
    });
    keys.filter_map(|key| {
        let certificate = world.certificates.get(key)?.as_ref().ok()?;
        Some((key.clone(), certificate.clone()))
    })
    .collect()
}
