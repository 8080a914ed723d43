//! What should be: from the world to imports and pool conditions. Pure; nothing here knows a client or a clock.
//!
//! ```text
//!  World ── desired_for(key) ──► KeyPlan { imports: per importer, pools: per exporter }
//!                                   │ diff with the live import        │ diff with the live condition
//!                                   ▼                                  ▼
//!                                 Step (create, apply, delete, …)    PoolStep
//! ```

mod address;
pub(crate) mod diff;
mod entry;
pub(crate) mod export;
mod exported;
mod import;
pub(crate) mod ledger;
mod parent;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crd::{
    Condition, ImportedCluster, InferencePoolImportStatus, RoutingMode,
    conditions::{self},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

pub(crate) use self::{
    address::Rejection,
    import::{MAX_ENTRIES, join_names},
};
use self::{
    entry::{Derived, derive_entry, services_of, set_reach},
    export::{Export, parse_export},
};
use crate::{
    index::{
        World,
        facts::Claim,
        member::{Coverage, Link, Member, PoolRecord, Reach},
    },
    name::{ClusterName, Key},
};
use moment::Moment;

/// What the operator decided.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// Label of our imports.
    pub(crate) clusterset: String,
    /// Label of our imports.
    pub(crate) instance: String,
    /// Name of our entry in `status.controllers` and in the pools' `status.parents`.
    pub(crate) controller_name: String,
    /// A member without the namespace counts against `Exported`.
    pub(crate) strict_exported: bool,
    /// Mode of exports that name none (C15).
    pub(crate) default_mode: RoutingMode,
}

/// What should be of one key, in every member.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KeyPlan {
    pub(crate) imports: BTreeMap<ClusterName, ImportPlan>,
    /// Every member that has the pool.
    pub(crate) pools: BTreeMap<ClusterName, PoolPlan>,
    /// Addresses left out, by exporter.
    pub(crate) rejected: Vec<(ClusterName, Rejection)>,
}

/// What should be of the import in one member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ImportPlan {
    /// Nothing can be decided or written there: what is there stays.
    Hold(Hold),
    /// No other member exports the key: an import of ours goes.
    Absent,
    /// It should say this.
    Present(Arc<PlannedImport>),
}

/// Why nothing is written into a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hold {
    /// What is in it is not known yet, or it is not used.
    Unreachable,
    AuthFailed,
    IdentityChanged,
    /// It cannot hold imports.
    CrdAbsent,
    /// No such namespace there, or it is going.
    NamespaceMissing,
}

/// The status of an import. Its conditions have no times yet: see [`ledger`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedImport {
    pub(crate) audience: Audience,
    pub(crate) status: InferencePoolImportStatus,
}

/// Who reads the same body: normally all members that do not export share one, and each exporter has its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Audience {
    /// The member whose own entry is left out.
    pub(crate) excluded: Option<ClusterName>,
    /// The import's generation, as the top conditions repeat it.
    pub(crate) generation: i64,
    /// The member whose live import lends entries of members not heard of yet.
    pub(crate) carrier: Option<ClusterName>,
}

/// What our entry in a pool's status should be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PoolPlan {
    /// None: the pool asks for no export.
    NoEntry,
    /// `Exported`, without its time.
    Exported {
        condition: Condition,
        /// No importer is still on its way to the plan.
        settled: bool,
    },
}

/// What we know of a member's export of a key.
enum Standing<'a> {
    No,
    Yes(&'a PoolRecord, export::ExportRequest),
    /// It exports in ParentMode, and its Gateways and routes are not known yet: importers keep the entry that they have.
    Pending(&'a PoolRecord),
    /// Not heard of it since the start: importers keep the entry that they have.
    Unknown,
}

/// An exporter whose entry cannot be derived now: importers keep the one that they have.
#[derive(Clone, Copy)]
pub(crate) struct Kept<'a> {
    exporter: &'a ClusterName,
    reach: Reach,
    /// Whether the pool behind the entry still stands is not known.
    doubtful: bool,
}

/// Whole plan: the fold of [`desired_for`] over every key.
#[cfg(test)]
pub(crate) fn desired(world: &World, policy: &Policy, now: Moment) -> BTreeMap<Key, KeyPlan> {
    world
        .all_keys()
        .into_iter()
        .map(|key| {
            let plan = desired_for(world, policy, &key, now);
            (key, plan)
        })
        .collect()
}

/// What should be of one key.
pub(crate) fn desired_for(world: &World, policy: &Policy, key: &Key, now: Moment) -> KeyPlan {
    let mut plan = KeyPlan::default();
    let mut entries: BTreeMap<&ClusterName, ImportedCluster> = BTreeMap::new();
    let mut created = BTreeMap::new();
    let mut pending: BTreeSet<&ClusterName> = BTreeSet::new();
    let mut kept: Vec<Kept<'_>> = Vec::new();
    for (name, member) in &world.members {
        let reach = world.reach(member, now);
        match standing(member, key) {
            Standing::No => {}
            Standing::Unknown => kept.push(Kept {
                exporter: name,
                reach,
                doubtful: true,
            }),
            Standing::Pending(record) => {
                pending.insert(name);
                created.insert(name.to_string(), record.facts.created);
                kept.push(Kept {
                    exporter: name,
                    reach,
                    doubtful: record.doubt.is_some(),
                });
            }
            Standing::Yes(record, request) => {
                let Derived { entry, rejected } =
                    derive_entry(name, member, record, &request, reach);
                plan.rejected
                    .extend(rejected.into_iter().map(|why| (name.clone(), why)));
                entries.insert(name, entry);
                created.insert(name.to_string(), record.facts.created);
            }
        }
    }
    let mut shared: BTreeMap<Audience, Arc<PlannedImport>> = BTreeMap::new();
    for (name, member) in &world.members {
        let import = match hold(member, key) {
            Some(hold) => ImportPlan::Hold(hold),
            None if member.link == Link::Removing => ImportPlan::Absent,
            None => {
                let carried = carry(member, key, name, &kept);
                let exports = entries.contains_key(name) || pending.contains(name);
                let audience = Audience {
                    excluded: exports.then(|| name.clone()),
                    generation: generation(member, key),
                    carrier: (!carried.is_empty()).then(|| name.clone()),
                };
                match shared.get(&audience) {
                    Some(planned) => ImportPlan::Present(planned.clone()),
                    None => match import::make(policy, &audience, &entries, &created, carried) {
                        None => ImportPlan::Absent,
                        Some(planned) => {
                            let planned = Arc::new(planned);
                            shared.insert(audience, planned.clone());
                            ImportPlan::Present(planned)
                        }
                    },
                }
            }
        };
        plan.imports.insert(name.clone(), import);
    }
    for (name, member) in &world.members {
        if let Some(record) = member.pools.get(key) {
            let pool = exported::judge(world, policy, name, member, record, &plan.imports, now);
            plan.pools.insert(name.clone(), pool);
        }
    }
    plan
}

/// Whether a member exports the key. Silence is no answer: what was known stands.
fn standing<'a>(member: &'a Member, key: &Key) -> Standing<'a> {
    if member.link == Link::Removing {
        return Standing::No;
    }
    let Some(record) = member.pools.get(key) else {
        return if member.knows_pool(key) {
            Standing::No
        } else {
            Standing::Unknown
        };
    };
    match parse_export(&record.facts.annotations) {
        Export::NotRequested | Export::Invalid(_) => Standing::No,
        Export::Requested(_) if !member.exports_known() => Standing::Unknown,
        Export::Requested(request)
            if request.mode.unwrap_or(member.default_mode) == RoutingMode::ParentMode
                && !member.parents.known() =>
        {
            Standing::Pending(record)
        }
        Export::Requested(request) => Standing::Yes(record, request),
    }
}

/// Why nothing may be written into this member for the key.
fn hold(member: &Member, key: &Key) -> Option<Hold> {
    use crate::index::member::{Fault, Refusal};
    match member.link {
        Link::Refused(Refusal::IdentityChanged) => return Some(Hold::IdentityChanged),
        Link::Refused(_) => return Some(Hold::Unreachable),
        _ => {}
    }
    if member.import_crd == Some(false) || member.imports.coverage == Coverage::NotServed {
        return Some(Hold::CrdAbsent);
    }
    if !member.imports_known() {
        let denied = member
            .silence
            .is_some_and(|silence| silence.fault == Fault::AuthFailed);
        return Some(if denied {
            Hold::AuthFailed
        } else {
            Hold::Unreachable
        });
    }
    let namespace = member.namespaces.items.get(&*key.namespace);
    match namespace {
        Some(namespace) if !namespace.terminating => None,
        _ => Some(Hold::NamespaceMissing),
    }
}

/// Entries that cannot be derived now, as this importer's own live import has them: a restart withdraws nothing (R27),
/// and a forged import fools only its owner.
pub(crate) fn carry(
    importer: &Member,
    key: &Key,
    importer_name: &ClusterName,
    kept: &[Kept<'_>],
) -> Vec<ImportedCluster> {
    let Some(live) = importer
        .imports
        .items
        .get(key)
        .filter(|live| live.claim == Claim::Ours)
    else {
        return Vec::new();
    };
    let mut carried = Vec::new();
    for one in kept {
        let entry = live
            .status
            .clusters
            .iter()
            .find(|entry| entry.name == one.exporter.as_str());
        if let Some(entry) = entry
            && one.exporter != importer_name
        {
            let mut entry = entry.clone();
            for service in services_of(&mut entry) {
                let addresses = service.addresses.iter().map(String::as_str);
                service.addresses = address::sanitise(addresses).0;
            }
            set_reach(&mut entry, one.reach, one.doubtful);
            carried.push(entry);
        }
    }
    carried
}

/// The generation of the live import; a new one gets 1.
fn generation(member: &Member, key: &Key) -> i64 {
    let live = member.imports.items.get(key);
    live.map_or(1, |live| live.generation)
}

/// Whether a live entry says all that the planned one says, whatever its times and whatever else others put into it.
fn covers_entry(live: &ImportedCluster, planned: &ImportedCluster) -> bool {
    let bare = |entry: &ImportedCluster| {
        let mut entry = ImportedCluster {
            conditions: Vec::new(),
            ..entry.clone()
        };
        let parents = entry.parents.iter_mut();
        for condition in parents.flat_map(|parent| &mut parent.conditions) {
            condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
        }
        json!(entry)
    };
    covers_conditions(&live.conditions, &planned.conditions) && covers(&bare(live), &bare(planned))
}

/// Whether the live conditions include the planned ones, whatever their times.
fn covers_conditions(live: &[Condition], planned: &[Condition]) -> bool {
    planned.iter().all(|wanted| {
        let found = conditions::find(live, &wanted.type_);
        found.is_some_and(|found| {
            conditions::same(std::slice::from_ref(found), std::slice::from_ref(wanted))
        })
    })
}

/// Whether every planned field is there with its value; lists count as a whole.
fn covers(live: &Value, planned: &Value) -> bool {
    match (live, planned) {
        (Value::Object(live), Value::Object(planned)) => planned
            .iter()
            .all(|(key, wanted)| live.get(key).is_some_and(|found| covers(found, wanted))),
        _ => live == planned,
    }
}

// === impl Hold ===

impl Hold {
    /// As messages of `Exported` say it.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::AuthFailed => "AuthFailed",
            Self::IdentityChanged => "IdentityChanged",
            Self::CrdAbsent => "CRDAbsent",
            Self::NamespaceMissing => "NamespaceMissing",
        }
    }
}
