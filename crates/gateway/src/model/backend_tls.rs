//! Which `BackendTLSPolicy` holds for a backend, what it asks for, and what policies report (pure).
//!
//! A backend that a policy names is never connected to without TLS: where the policy cannot be followed, requests get 503.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use crd::conditions::{ACCEPTED, RESOLVED_REFS};
use parking_lot::Mutex;

use crate::feedback::Feedback;
use crate::text::quoted;
use crate::world::{
    Authorities, AuthorityRef, BackendTlsPolicy, BadBundle, Bundle, Key, MAX_BUNDLE, SubjectName,
    TlsValidation, World,
};

use super::refs::{IMPORT_GROUP, POOL_GROUP, find_port, kind_of, picker};
use super::{Backend, Cond, EppTls, ParentStatus, Settings, is_h2c, status};

mod maps;
mod merged;

pub(crate) use maps::{NamedMaps, named_maps};

use maps::{MAX_LISTS, MAX_MAPS, by_age, held, merged_lists};
use merged::Merged;

/// How a backend is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Plaintext,
    /// By TLS, whatever certificate is shown.
    Unverified,
    Verified(Arc<Verification>),
}

/// How the certificate of a backend is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verification {
    /// The server name of TLS.
    pub(crate) hostname: String,
    /// The certificate has one of these at least; never empty.
    pub(crate) names: Vec<SubjectName>,
    pub(crate) authorities: Trusted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trusted {
    /// Those in Envoy's image.
    System,
    Bundle(Bundle),
}

/// Why a backend is not connected to at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSecured {
    #[error("BackendTLSPolicy {0} names it and cannot be followed: its status says why")]
    Policy(Key),
    #[error("no BackendTLSPolicy names it, and --epp-tls is required")]
    PolicyMissing,
}

/// What the policy for a backend asks for.
pub(crate) type Policed = Result<Arc<Verification>, NotSecured>;

/// By policy, the Gateways at which its targets are used, and what is against it there.
pub(crate) type TlsUsers = BTreeMap<Key, BTreeMap<Key, Option<AgainstTarget>>>;

/// Why a policy does not hold for a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AgainstTarget {
    #[error("BackendTLSPolicy {0} names the same target and is older, or first by name")]
    Conflicted(Key),
    #[error("Service {0} has no port of the name {1}")]
    NoSuchPort(Key, String),
    #[error(
        "InferencePool {0} is no target of a policy: only the Service of its endpoint picker can be, and its pods are connected to without TLS"
    )]
    Pool(Key),
}

/// Why a reference leads to no authorities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum BadAuthority {
    #[error(
        "caCertificateRefs names {} of {}: only a ConfigMap of the core group is supported",
        quoted(name),
        kind_of(group, kind)
    )]
    NotAConfigMap {
        group: String,
        kind: String,
        name: String,
    },
    #[error("ConfigMap {0} {1}")]
    Unusable(Key, BadBundle),
    #[error(
        "ConfigMap {0} is not read: the policies of a namespace may name {max} ConfigMaps in all, and older ones name as many",
        max = MAX_MAPS
    )]
    TooMany(Key),
    /// Nothing is reported until it is listed.
    #[error("ConfigMap {0} is not listed yet")]
    NotListed(Key),
    #[error("no connection is made that they verify: {0}")]
    Refused(String),
}

/// What a policy may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Service,
    Import,
    /// Its pods are connected to without TLS: a policy that names it is told so.
    Pool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    kind: Kind,
    object: Key,
    section: Option<String>,
}

/// What one policy comes to, wherever it holds.
#[derive(Debug, Default)]
struct Resolved {
    /// Reason and message of `Accepted` that is False.
    invalid: Option<(&'static str, String)>,
    bad: Option<BadAuthority>,
    /// Made for the first backend that it holds for.
    verification: OnceLock<Option<Arc<Verification>>>,
}

/// The authorities that a policy names.
struct Sources<'w> {
    /// ConfigMaps, each once.
    maps: BTreeSet<Key>,
    /// Of those that can be used.
    bundles: Vec<&'w Bundle>,
    /// What is against the first one that cannot.
    bad: Option<BadAuthority>,
}

/// What follows from the policies and the ConfigMaps that they name. It holds until one of these is other than before, and what
/// is costly of it is made for the backends that routes use alone.
#[derive(Debug, Default)]
pub(super) struct TlsTable {
    /// The policies that name a place, the one that holds first.
    by_place: BTreeMap<Place, Vec<Key>>,
    maps: NamedMaps,
    lists: BTreeSet<BTreeSet<Key>>,
    resolved: BTreeMap<Key, OnceLock<Resolved>>,
    merged: Mutex<Merged>,
}

/// All policies of the world.
pub(crate) struct TlsPolicies<'w> {
    world: &'w World,
    table: Arc<TlsTable>,
}

// === impl Verification ===

impl Verification {
    /// The server name, where it is the one name that the certificate must have.
    pub(crate) fn only_name(&self) -> Option<&str> {
        let is_host = self.names == [SubjectName::Dns(self.hostname.clone())];
        is_host.then_some(self.hostname.as_str())
    }
}

// === impl TlsTable ===

impl TlsTable {
    /// What is as in the table of `before` is taken from there.
    pub(super) fn new(world: &World, before: &Self) -> Self {
        let mut by_place: BTreeMap<Place, Vec<Key>> = BTreeMap::new();
        for (key, policy) in by_age(world) {
            for place in places(key, policy) {
                let there = by_place.entry(place).or_default();
                if there.last() != Some(key) {
                    there.push(key.clone());
                }
            }
        }
        let policies = world.tls_policies.keys();
        Self {
            by_place,
            maps: NamedMaps::of(world),
            lists: merged_lists(world),
            resolved: policies.map(|key| (key.clone(), OnceLock::new())).collect(),
            merged: Mutex::new(before.merged.lock().take_over()),
        }
    }

    /// All that is in use is made: what is left of the table before is not kept for longer.
    pub(super) fn forget_before(&self) {
        self.merged.lock().forget_before();
    }
}

// === impl TlsPolicies ===

impl<'w> TlsPolicies<'w> {
    /// The table is of this world.
    pub(super) fn new(world: &'w World, table: Arc<TlsTable>) -> Self {
        Self { world, table }
    }

    pub(crate) fn world(&self) -> &'w World {
        self.world
    }

    /// The Services that policies name.
    pub(super) fn services(&self) -> BTreeSet<&Key> {
        self.objects(Kind::Service)
    }

    /// The imports that policies name.
    pub(super) fn imports(&self) -> BTreeSet<&Key> {
        self.objects(Kind::Import)
    }

    /// The pools that policies name.
    pub(super) fn pools(&self) -> BTreeSet<&Key> {
        self.objects(Kind::Pool)
    }

    fn objects(&self, kind: Kind) -> BTreeSet<&Key> {
        let places = self.table.by_place.keys();
        let places = places.filter(|place| place.kind == kind);
        places.map(|place| &place.object).collect()
    }

    /// What holds for a port of a Service; `None`: no policy names it.
    pub(crate) fn of_service(&self, service: &Key, port_name: &str) -> Option<Policed> {
        self.of(Kind::Service, service, port_name)
    }

    /// What holds for endpoint picker and parents of one exporting cluster; `None`: no policy names it.
    pub(crate) fn of_import(&self, import: &Key, cluster: &str) -> Option<Policed> {
        self.of(Kind::Import, import, cluster)
    }

    /// A policy for the part goes before one for the whole.
    fn of(&self, kind: Kind, object: &Key, section: &str) -> Option<Policed> {
        let holding = |section: Option<&str>| {
            let place = Place {
                kind,
                object: object.clone(),
                section: section.map(ToOwned::to_owned),
            };
            self.table.by_place.get(&place)?.first()
        };
        let policy = holding(Some(section)).or_else(|| holding(None))?;
        let resolved = self.resolved(policy)?;
        let verification = resolved.verification.get_or_init(|| {
            let is_valid = resolved.invalid.is_none();
            is_valid.then(|| self.verification(policy)).flatten()
        });
        let verification = verification.clone();
        Some(verification.ok_or_else(|| NotSecured::Policy(policy.clone())))
    }

    fn resolved(&self, policy: &Key) -> Option<&Resolved> {
        let resolved = self.table.resolved.get(policy)?;
        let known = self.world.tls_policies.get(policy)?;
        Some(resolved.get_or_init(|| resolve(self.world, &self.table, policy, known)))
    }

    fn verification(&self, policy: &Key) -> Option<Arc<Verification>> {
        let known = self.world.tls_policies.get(policy)?;
        let validation = held(self.world, policy, known)?;
        let authorities = match &validation.authorities {
            Authorities::System => Trusted::System,
            Authorities::Named(refs) => {
                let sources = sources(self.world, &self.table.maps, policy, refs);
                let mut merged = self.table.merged.lock();
                Trusted::Bundle(merged.of(sources.maps, &sources.bundles)?)
            }
        };
        Some(Arc::new(Verification {
            hostname: validation.hostname.clone(),
            names: validation.names.clone(),
            authorities,
        }))
    }

    /// Notes that a route of the Gateway leads to the backend.
    pub(crate) fn note(&self, users: &mut TlsUsers, backend: &Backend, gateway: &Key) {
        if self.table.by_place.is_empty() {
            return;
        }
        let world = self.world;
        match backend {
            Backend::Service(key, port) => {
                let found = world.services.get(key).and_then(|s| find_port(s, *port));
                if let Some(found) = found {
                    self.note_object(users, Kind::Service, key, &found.name, gateway);
                }
            }
            Backend::Pool(key) => {
                self.note_object(users, Kind::Pool, key, "", gateway);
                let pool = world.pools.get(key);
                if let Some(Ok((service, _, port))) = pool.and_then(|p| picker(world, key, p)) {
                    self.note_object(users, Kind::Service, &service, &port.name, gateway);
                }
            }
            Backend::Import(key) => {
                let clusters = world.imports.get(key).into_iter();
                for cluster in clusters.flat_map(|import| &import.clusters) {
                    self.note_object(users, Kind::Import, key, &cluster.name, gateway);
                }
            }
            Backend::Invalid => {}
        }
    }

    fn note_object(
        &self,
        users: &mut TlsUsers,
        kind: Kind,
        object: &Key,
        section: &str,
        gateway: &Key,
    ) {
        let whole = Place {
            kind,
            object: object.clone(),
            section: None,
        };
        let places = self.table.by_place.range(whole..);
        let places = places.take_while(|(place, _)| place.kind == kind && place.object == *object);
        for (place, policies) in places {
            let misplaced = self.against_place(place);
            let is_used = place.section.as_ref().is_none_or(|one| one == section);
            if !is_used && misplaced.is_none() {
                continue;
            }
            for policy in policies {
                let holder = policies.first().filter(|holder| *holder != policy);
                let conflict = holder.map(|holder| AgainstTarget::Conflicted(holder.clone()));
                let against = misplaced.clone().or(conflict);
                let gateways = users.entry(policy.clone()).or_default();
                let noted = gateways.entry(gateway.clone()).or_default();
                if noted.is_none() {
                    *noted = against;
                }
            }
        }
    }

    fn against_place(&self, place: &Place) -> Option<AgainstTarget> {
        match place.kind {
            Kind::Service => self.missing_port(place),
            Kind::Import => None,
            Kind::Pool => Some(AgainstTarget::Pool(place.object.clone())),
        }
    }

    fn missing_port(&self, place: &Place) -> Option<AgainstTarget> {
        let section = place.section.as_ref()?;
        let service = self.world.services.get(&place.object)?;
        let is_there = service.ports.iter().any(|port| port.name == *section);
        (!is_there).then(|| AgainstTarget::NoSuchPort(place.object.clone(), section.clone()))
    }

    /// What is said of a policy whose authorities the Envoys of the Gateway refuse, though they could be read here.
    fn refused(resolved: &Resolved, feedback: &Feedback, gateway: &Key) -> Option<Resolved> {
        let verification = resolved.verification.get()?.as_ref()?;
        let Trusted::Bundle(bundle) = &verification.authorities else {
            return None;
        };
        let mut rejections = feedback.rejections_of(gateway).iter();
        let refused = rejections.find(|one| one.name == bundle.name() && !one.others_serve)?;
        let bad = BadAuthority::Refused(refused.message.clone());
        Some(Resolved {
            invalid: Some(("NoValidCACertificate", bad.to_string())),
            bad: Some(bad),
            ..Resolved::default()
        })
    }

    /// For each policy an entry for each Gateway at which it matters. One whose authorities are not listed yet keeps the
    /// status it has.
    pub(crate) fn status(
        &self,
        users: &TlsUsers,
        feedback: &Feedback,
    ) -> BTreeMap<Key, Vec<ParentStatus>> {
        let policies = self.world.tls_policies.iter();
        let status = policies.filter_map(|(key, policy)| {
            let Some(gateways) = users.get(key) else {
                return Some((key.clone(), Vec::new()));
            };
            let resolved = self.resolved(key)?;
            if matches!(resolved.bad, Some(BadAuthority::NotListed(_))) {
                return None;
            }
            let entries = gateways.iter().map(|(gateway, against)| ParentStatus {
                parent: status::gateway_ref(gateway),
                conditions: match Self::refused(resolved, feedback, gateway) {
                    Some(refused) if against.is_none() => {
                        refused.conditions(None, policy.generation)
                    }
                    _ => resolved.conditions(against.as_ref(), policy.generation),
                },
            });
            Some((key.clone(), entries.collect()))
        });
        status.collect()
    }
}

// === impl Resolved ===

impl Resolved {
    fn conditions(&self, against: Option<&AgainstTarget>, generation: i64) -> Vec<Cond> {
        let accepted = match (against, &self.invalid) {
            (Some(against), _) => {
                let reason = against.reason();
                Cond::no(ACCEPTED, reason, against.to_string(), generation)
            }
            (None, Some((reason, message))) => Cond::no(ACCEPTED, reason, message, generation),
            (None, None) => Cond::yes(ACCEPTED, generation),
        };
        let resolved = match &self.bad {
            Some(bad) => Cond::no(RESOLVED_REFS, bad.reason(), bad.to_string(), generation),
            None => Cond::yes(RESOLVED_REFS, generation),
        };
        vec![accepted, resolved]
    }
}

// === impl AgainstTarget ===

impl AgainstTarget {
    fn reason(&self) -> &'static str {
        match self {
            Self::Conflicted(_) => "Conflicted",
            Self::NoSuchPort(..) => "TargetNotFound",
            Self::Pool(_) => "Invalid",
        }
    }
}

// === impl BadAuthority ===

impl BadAuthority {
    fn reason(&self) -> &'static str {
        match self {
            Self::NotAConfigMap { .. } => "InvalidKind",
            Self::Unusable(..) | Self::TooMany(_) | Self::NotListed(_) | Self::Refused(_) => {
                "InvalidCACertificateRef"
            }
        }
    }
}

/// How an endpoint picker is connected to, by what names it, what its port says, and the flags, in this order.
pub(crate) fn security(
    settings: &Settings,
    app_protocol: Option<&str>,
    policy: Option<Policed>,
) -> Result<Security, NotSecured> {
    match (policy, settings.epp_tls) {
        (Some(policy), _) => Ok(Security::Verified(policy?)),
        (None, _) if is_h2c(app_protocol) => Ok(Security::Plaintext),
        (None, EppTls::Plaintext) => Ok(Security::Plaintext),
        (None, EppTls::Unverified) => Ok(Security::Unverified),
        (None, EppTls::Required) => Err(NotSecured::PolicyMissing),
    }
}

fn places<'p>(key: &'p Key, policy: &'p BackendTlsPolicy) -> impl Iterator<Item = Place> + 'p {
    policy.targets.iter().filter_map(|target| {
        let kind = match (target.group.as_str(), target.kind.as_str()) {
            ("", "Service") => Kind::Service,
            (IMPORT_GROUP, "InferencePoolImport") => Kind::Import,
            (POOL_GROUP, "InferencePool") => Kind::Pool,
            _ => return None,
        };
        Some(Place {
            kind,
            object: Key::new(&key.namespace, &target.name),
            section: target.section.clone(),
        })
    })
}

fn resolve(world: &World, table: &TlsTable, key: &Key, policy: &BackendTlsPolicy) -> Resolved {
    match (&policy.validation, world.tls_before.get(key)) {
        (Ok(validation), None) => resolve_validation(world, table, key, validation),
        (Ok(_), Some(before)) => {
            let awaited = world.awaited_authorities(key, &table.maps.now);
            Resolved {
                bad: awaited.map(BadAuthority::NotListed),
                ..resolve_validation(world, table, key, before)
            }
        }
        (Err(why), _) => Resolved {
            invalid: Some(("Invalid", why.clone())),
            ..Resolved::default()
        },
    }
}

fn resolve_validation(
    world: &World,
    table: &TlsTable,
    key: &Key,
    validation: &TlsValidation,
) -> Resolved {
    let Authorities::Named(refs) = &validation.authorities else {
        return Resolved::default();
    };
    let Sources { maps, bundles, bad } = sources(world, &table.maps, key, refs);
    let size = Bundle::merged_size(&bundles);
    let invalid = if bundles.is_empty() {
        let message = bad.as_ref().map(ToString::to_string).unwrap_or_default();
        Some(("NoValidCACertificate", message))
    } else if size > MAX_BUNDLE {
        let message = format!(
            "the ConfigMaps of spec.validation.caCertificateRefs have {size} bytes of authorities in all: at most {MAX_BUNDLE} are supported"
        );
        Some(("Invalid", message))
    } else if maps.len() > 1 && !table.lists.contains(&maps) {
        let message = format!(
            "spec.validation.caCertificateRefs names several ConfigMaps, and older policies of the namespace have {MAX_LISTS} such lists: use one ConfigMap, or a list of theirs"
        );
        Some(("Invalid", message))
    } else {
        None
    };
    Resolved {
        invalid,
        bad,
        ..Resolved::default()
    }
}

fn sources<'w>(
    world: &'w World,
    named: &NamedMaps,
    key: &Key,
    refs: &[AuthorityRef],
) -> Sources<'w> {
    let mut maps = BTreeSet::new();
    let mut usable = BTreeMap::new();
    let mut bad = None;
    for one in refs {
        match bundle(world, named, key, one) {
            Ok((map, bundle)) => {
                usable.insert(map, bundle);
            }
            Err(why) => bad = bad.or(Some(why)),
        }
        maps.extend(one.map(key));
    }
    Sources {
        maps,
        bundles: usable.into_values().collect(),
        bad,
    }
}

fn bundle<'w>(
    world: &'w World,
    maps: &NamedMaps,
    policy: &Key,
    one: &AuthorityRef,
) -> Result<(Key, &'w Bundle), BadAuthority> {
    if !one.is_of_config_map() {
        return Err(BadAuthority::NotAConfigMap {
            group: one.group.clone(),
            kind: one.kind.clone(),
            name: one.name.clone(),
        });
    }
    let Some(map) = one.map(policy) else {
        let key = Key::new(&policy.namespace, &one.name);
        return Err(BadAuthority::Unusable(key, BadBundle::NotFound));
    };
    match world.authorities.get(&map) {
        _ if !maps.all.contains(&map) => Err(BadAuthority::TooMany(map)),
        Some(Ok(bundle)) => Ok((map, bundle)),
        Some(Err(bad)) => Err(BadAuthority::Unusable(map, bad.clone())),
        None => Err(BadAuthority::NotListed(map)),
    }
}
