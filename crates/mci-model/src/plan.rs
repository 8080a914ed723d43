//! What should be: from the world to imports and pool conditions. Pure; nothing here knows a client or a clock.
//!
//! ```text
//!  World ── decide(member, key) ── desired_for(key) ──► KeyPlan { imports: per importer, pools: per exporter }
//!                                   │ diff with the live import        │ diff with the live condition
//!                                   ▼                                  ▼
//!                                 Step (create, apply, delete, …)    PoolStep
//! ```

mod address;
mod cover;
pub mod decision;
pub mod diff;
mod entry;
mod exported;
mod import;
mod known;
pub mod ledger;
mod lend;
mod parent;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    sync::Arc,
};

use crd::{Condition, RoutingMode};

pub use self::{address::Rejection, import::join_names};
use self::{
    decision::{Decision, EntryFate, ImportsFate, Known, Mark, decide},
    entry::{Derived, derive_entry},
    lend::{Fates, Lender, lend},
};
use crate::{
    index::{
        World,
        entry::{Entry, ImportStatus},
        flavour::Flavour,
        member::Member,
    },
    name::{ClusterName, Key},
};
use moment::Moment;

/// What the operator decided.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Label of our imports.
    pub clusterset: String,
    /// Label of our imports.
    pub instance: String,
    /// Name of our entry in `status.controllers` and in the pools' `status.parents`.
    pub controller_name: String,
    /// A member without the namespace counts against `Exported`.
    pub strict_exported: bool,
    /// Mode of exports that name none (C15).
    pub default_mode: RoutingMode,
    /// A sole exporter keeps an import that names it alone (C4).
    pub import_in_exporter: ImportInExporter,
    /// Entries name the ready pods of their EPPs.
    pub epp_endpoints: bool,
}

/// When there is an import in a cluster that exports the pool itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImportInExporter {
    /// When another cluster exports it too.
    #[default]
    WhenRemote,
    /// Whenever the cluster exports the pool: an import that names it alone has no entries and is not ready.
    Always,
}

/// What should be of one key, in every member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyPlan {
    /// Every member, those too into which nothing can be written.
    pub imports: BTreeMap<ClusterName, ImportPlan>,
    /// Every member that has the pool.
    pub pools: BTreeMap<ClusterName, PoolPlan>,
    /// Addresses left out, by exporter.
    pub rejected: Vec<(ClusterName, Rejection)>,
    /// Annotations that ask for a port which the EPP's Service has not got, by exporter.
    pub ignored: BTreeMap<ClusterName, Vec<&'static str>>,
    /// Exporters whose entries do not fit beside those of older pools.
    pub crowded_out: BTreeSet<ClusterName>,
    /// When it changes with time alone: a drain ends.
    pub ripens: Option<Moment>,
}

/// What should be of the import in one member.
#[derive(Clone, Debug, PartialEq)]
pub enum ImportPlan {
    /// Nothing can be decided or written there: what is there stays.
    Hold(Hold),
    /// No other member exports the key: an import of ours goes.
    Absent,
    /// It should say this.
    Present(Arc<PlannedImport>),
}

/// Why nothing is written into a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// What is in it is not known yet, or it is not used.
    Unreachable,
    /// Credentials or a permission that its imports need are refused.
    AuthFailed,
    /// Its credentials lead to another cluster than before.
    IdentityChanged,
    /// It cannot hold imports.
    CrdAbsent,
    /// No such namespace there, or it is going.
    NamespaceMissing,
}

/// The status of an import. Its conditions have no times yet: see [`ledger`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedImport {
    /// Members with an equal audience share the plan.
    pub audience: Audience,
    /// Conditions carry no times of their own.
    pub status: ImportStatus,
    /// See [`digest`](crate::index::digest::digest()).
    pub digest: u64,
}

/// Who reads the same body: normally all members that do not export share one, and each exporter has its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Audience {
    /// Shape of status that their CRD takes.
    pub flavour: Flavour,
    /// The member whose own entry is left out.
    pub excluded: Option<ClusterName>,
    /// The import's generation, as the top conditions repeat it.
    pub generation: i64,
    /// Of what its own live import lends; zero: nothing.
    pub lent: u64,
}

/// What our entry in a pool's status should be.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolPlan {
    /// None: the pool asks for no export.
    NoEntry,
    /// `Exported`, without its time.
    Exported {
        /// Status, reason and message as they should be in `status.parents`.
        condition: Condition,
        /// No importer is still on its way to the plan.
        settled: bool,
    },
}

/// Whole plan: the fold of [`desired_for`] over every key.
#[cfg(any(test, feature = "fixtures"))]
pub fn desired(world: &World, policy: &Policy, now: Moment) -> BTreeMap<Key, KeyPlan> {
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
pub fn desired_for(world: &World, policy: &Policy, key: &Key, now: Moment) -> KeyPlan {
    let wall = world.wall_at(now);
    let mut plan = KeyPlan::default();
    let mut entries = Vec::new();
    let mut fates = Fates::default();
    let mut kept = BTreeMap::new();
    let mut decisions: Vec<(&ClusterName, &Member, Decision)> = Vec::new();
    for (name, member) in &world.members {
        let known = Known::of(world, member, key, now);
        let decision = decide(known);
        decisions.push((name, member, decision));
        let mark = match decision.entry {
            EntryFate::Publish => Mark::None,
            EntryFate::Retain(mark) => mark,
            // nothing is lent of it
            EntryFate::Remove(_) => continue,
            EntryFate::Carry(_) | EntryFate::Drain(_) => {
                let lender = Lender {
                    fate: decision.entry,
                    reach: known.reach,
                    until: member.draining.until(key),
                    allowed: &member.origin.allowed,
                };
                fates.add(name.as_str(), lender);
                if let (EntryFate::Carry(_), Some(record)) = (lender.fate, member.pools.get(key)) {
                    kept.insert(name, record.facts.created);
                }
                continue;
            }
        };
        if let Some(export) = derive(&mut plan, policy, name, member, key, mark) {
            fates.publish(name.as_str());
            entries.push((name, export));
        }
    }
    let exports = import::Exports::new(entries, kept);
    let mut ripens = None;
    let mut cut = BTreeSet::new();
    let mut shared: BTreeMap<Audience, ImportPlan> = BTreeMap::new();
    for (name, member, decision) in &decisions {
        let import = match decision.imports {
            ImportsFate::Pause(hold) => ImportPlan::Hold(hold),
            ImportsFate::TakeAway => ImportPlan::Absent,
            ImportsFate::Apply(flavour) | ImportsFate::Queue(flavour) => {
                let live = member.imports.items.get(key);
                let remembered = member.remembered_entries(key);
                let lent = lend(
                    name,
                    live,
                    remembered,
                    flavour,
                    &fates,
                    &policy.controller_name,
                    wall,
                );
                if let Some(time) = lent.ripens {
                    let at = world.moment_at(time, now);
                    ripens = Some(ripens.map_or(at, |ripens: Moment| ripens.min(at)));
                }
                let audience = Audience {
                    flavour,
                    excluded: exports.asks(name, member, key).then(|| (*name).clone()),
                    generation: live.map_or(1, |live| live.generation),
                    lent: lent.fingerprint(),
                };
                let made = shared.entry(audience);
                let made = made.or_insert_with_key(|audience| {
                    import::make(policy, audience, &exports, lent, &mut cut)
                });
                made.clone()
            }
        };
        plan.imports.insert((*name).clone(), import);
    }
    plan.ripens = ripens;
    plan.crowded_out = exports.crowded_out().cloned().chain(cut).collect();
    for (name, member, _) in &decisions {
        if let Some(record) = member.pools.get(key) {
            let judgement = exported::Judgement {
                policy,
                exporter: name,
                member,
                record,
                decisions: &decisions,
                imports: &plan.imports,
                crowded_out: plan.crowded_out.contains(*name),
            };
            let pool = judgement.judge();
            plan.pools.insert((*name).clone(), pool);
        }
    }
    plan
}

/// The entry of a pool that is exported; none if it is not.
fn derive(
    plan: &mut KeyPlan,
    policy: &Policy,
    name: &ClusterName,
    member: &Member,
    key: &Key,
    mark: Mark,
) -> Option<import::ExportedEntry> {
    let record = member.pools.get(key)?;
    let request = record.facts.export.requested().ok()?;
    let (reach, _) = mark.as_reach();
    let Derived {
        entry,
        rejected,
        ignored,
        size,
    } = derive_entry(policy, name, member, record, request, reach);
    let rejected = rejected.into_iter().map(|why| (name.clone(), why));
    plan.rejected.extend(rejected);
    if !ignored.is_empty() {
        plan.ignored.insert(name.clone(), ignored);
    }
    Some(import::ExportedEntry {
        entry: Entry::new(entry),
        size,
        created: record.facts.created,
    })
}

/// The entry of an exporter, as any importer gets it.
pub fn entry_of<'a>(
    imports: &'a BTreeMap<ClusterName, ImportPlan>,
    exporter: &ClusterName,
) -> Option<&'a Entry> {
    imports.values().find_map(|plan| match plan {
        ImportPlan::Present(planned) => {
            let mut entries = planned.status.clusters.iter();
            entries.find(|entry| entry.name == exporter.as_str())
        }
        ImportPlan::Absent | ImportPlan::Hold(_) => None,
    })
}

// === impl ImportInExporter ===

impl FromStr for ImportInExporter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "when-remote" => Ok(Self::WhenRemote),
            "always" => Ok(Self::Always),
            other => Err(format!("{other:?} is unknown: use when-remote or always")),
        }
    }
}

// === impl Hold ===

impl Hold {
    /// As messages of `Exported` say it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::AuthFailed => "AuthFailed",
            Self::IdentityChanged => "IdentityChanged",
            Self::CrdAbsent => "CRDAbsent",
            Self::NamespaceMissing => "NamespaceMissing",
        }
    }
}
