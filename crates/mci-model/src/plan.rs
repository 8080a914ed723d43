//! The plan: from the world to the imports and pool conditions that should exist. Pure: no client, no clock.
//!
//! ```text
//!  World ── decide(member, key) ── desired_for(key) ──► KeyPlan { imports: per importer, pools: per exporter }
//!                                   │ diff with the live import        │ diff with the live condition
//!                                   ▼                                  ▼
//!                                 Step (create, apply, delete, …)    PoolStep
//! ```

mod address;
mod carry_over;
mod cover;
pub mod decision;
pub mod diff;
mod entry;
mod exported;
mod import;
mod known;
pub mod ledger;
mod parent;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    sync::Arc,
};

use crd::{Condition, RoutingMode};
use jiff::Timestamp;

pub use self::{address::Rejection, import::join_names};
use self::{
    carry_over::{CarriedOver, Exporters, carry_over},
    decision::{CountedAs, Decision, EntryAction, ImportAction, Known, Mark, decide},
    entry::{Derived, derive_entry},
    exported::{Importer, PoolInput},
    import::Exports,
};
use crate::{
    index::{
        World,
        entry::{Entry, ImportStatus},
        facts::{Claim, LiveImport},
        flavour::Flavour,
        member::Member,
    },
    name::{ClusterName, Key},
};
use moment::Moment;

/// What the operator configured.
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
    /// The controller's own namespace, in every member: exported only where it is named.
    pub own_namespace: String,
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

/// The plan of one key, in every member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyPlan {
    /// For every member, also for those that take no writes.
    pub imports: BTreeMap<ClusterName, ImportPlan>,
    /// For every member that has the pool.
    pub pools: BTreeMap<ClusterName, PoolPlan>,
    /// Addresses left out, by exporter.
    pub rejected: Vec<(ClusterName, Rejection)>,
    /// Annotations that name a port which the EPP's Service lacks, by exporter.
    pub ignored: BTreeMap<ClusterName, Vec<&'static str>>,
    /// Exporters whose entries have no room beside those of older pools.
    pub crowded_out: BTreeSet<ClusterName>,
    /// When it next changes by time alone: a drain ends.
    pub next_change_at: Option<Moment>,
    /// The decision about every member, by name.
    decisions: Vec<(ClusterName, Decision)>,
    exports: Exports,
}

/// The result of [`KeyPlan::replan_import`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replanned {
    /// The plan is the same.
    Same,
    /// The plan changed.
    Changed,
    /// More than this import changes: the whole key must be planned again.
    Not,
}

/// The plan of the import in one member.
#[derive(Clone, Debug, PartialEq)]
pub enum ImportPlan {
    /// Nothing can be decided or written there: the import stays as it is.
    Hold(Hold),
    /// No other member exports the key: an import of ours is deleted.
    Absent,
    /// The import has this status.
    Present(Arc<PlannedImport>),
}

/// Why nothing is written into a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// Its objects are not known yet, or it is not used.
    Unreachable,
    /// Its credentials, or a permission on its imports, are refused.
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

/// Importers that get the same body: usually all members that do not export share one, and each exporter has its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Audience {
    /// The shape of status that their CRD accepts.
    pub flavour: Flavour,
    /// The member whose own entry is left out.
    pub excluded: Option<ClusterName>,
    /// The import's generation, which its own conditions repeat.
    pub generation: i64,
    /// Fingerprint of what is carried over from its live import; zero: nothing.
    pub carried_over: u64,
}

/// What the import of a member is planned from.
enum ImportBasis {
    /// The decision alone.
    Fixed(ImportPlan),
    /// The exports, for this audience, with what is carried over from its live import.
    Derived(Audience, CarriedOver),
}

/// What our entry in a pool's status should be.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolPlan {
    /// No entry: the pool asks for no export.
    NoEntry,
    /// `Exported`, without its time.
    Exported {
        /// Status, reason and message for `status.parents`.
        condition: Condition,
        /// No importer is still pending.
        settled: bool,
    },
}

/// The plan of every key.
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

/// Plans one key.
pub fn desired_for(world: &World, policy: &Policy, key: &Key, now: Moment) -> KeyPlan {
    let mut plan = KeyPlan::default();
    let mut entries = Vec::new();
    let mut carried_by_age = BTreeMap::new();
    for (name, member) in &world.members {
        let decision = decide(Known::of(world, member, key, now));
        plan.decisions.push((name.clone(), decision));
        let mark = match decision.entry {
            EntryAction::Publish => Mark::None,
            EntryAction::Retain(mark) => mark,
            EntryAction::Carry(_) => {
                if let Some(record) = member.pools.get(key) {
                    carried_by_age.insert(name, record.facts.created);
                }
                continue;
            }
            EntryAction::Drain(_) | EntryAction::Remove(_) => continue,
        };
        if let Some(export) = derive(&mut plan, policy, name, member, key, mark) {
            entries.push((name.clone(), export));
        }
    }
    plan.exports = Exports::new(entries, carried_by_age);
    plan.crowded_out = plan.exports.crowded_out().cloned().collect();
    let mut shared = BTreeMap::new();
    for (at, (name, member)) in world.members.iter().enumerate() {
        let import = match plan.import_basis(world, policy, key, at, member, now) {
            ImportBasis::Fixed(import) => import,
            ImportBasis::Derived(audience, carried_over) => {
                plan.note_change(carried_over.next_change_at, world, now);
                let (exports, cut) = (&plan.exports, &mut plan.crowded_out);
                let made = shared.entry(audience).or_insert_with_key(|audience| {
                    import::make(policy, audience, exports, carried_over, cut)
                });
                made.clone()
            }
        };
        plan.imports.insert(name.clone(), import);
    }
    plan.plan_pools(world, policy, key);
    plan
}

/// Derives the entry of a pool; none if the pool is not exported.
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

/// The entry of an exporter, from the plan of any importer.
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

// === impl KeyPlan ===

impl KeyPlan {
    /// Plans the import of one member again, after a change of that import alone. The plans of other members do not
    /// depend on it.
    pub fn replan_import(
        &mut self,
        world: &World,
        policy: &Policy,
        key: &Key,
        name: &ClusterName,
        now: Moment,
    ) -> Replanned {
        let (Some(member), Some(planned), Ok(at)) = (
            world.members.get(name),
            self.imports.get(name),
            self.decisions.binary_search_by(|(one, _)| one.cmp(name)),
        ) else {
            return Replanned::Not;
        };
        if planned.is_shown_by(member.imports.items.get(key)) {
            return Replanned::Same;
        }
        let import = match self.import_basis(world, policy, key, at, member, now) {
            ImportBasis::Fixed(_) => return Replanned::Same,
            ImportBasis::Derived(audience, carried_over) => {
                if planned.is_for(&audience) {
                    return Replanned::Same;
                }
                if !self.crowded_out.is_empty() {
                    // which exporters have no room beside carried-over entries is known for the whole key only
                    return Replanned::Not;
                }
                self.note_change(carried_over.next_change_at, world, now);
                let mut others = self.imports.values();
                if let Some(same) = others.find(|import| import.is_for(&audience)) {
                    same.clone()
                } else {
                    let mut cut = BTreeSet::new();
                    let made =
                        import::make(policy, &audience, &self.exports, carried_over, &mut cut);
                    if !cut.is_empty() {
                        return Replanned::Not;
                    }
                    made
                }
            }
        };
        self.imports.insert(name.clone(), import);
        Replanned::Changed
    }

    /// Whether `Exported` waits for this importer while its import does not show the plan.
    pub fn is_awaited(&self, name: &ClusterName) -> bool {
        let at = self.decisions.binary_search_by(|(one, _)| one.cmp(name));
        let decision = at.ok().and_then(|at| self.decisions.get(at));
        decision.is_some_and(|(_, decision)| decision.counted_as == CountedAs::Import)
    }

    fn note_change(&mut self, at: Option<Timestamp>, world: &World, now: Moment) {
        let at = at.map(|time| world.moment_at(time, now));
        self.next_change_at = self.next_change_at.into_iter().chain(at).min();
    }

    /// Computes the exporters' conditions from what the importers show now, against this plan.
    pub fn plan_pools(&mut self, world: &World, policy: &Policy, key: &Key) {
        let members = self.decisions.iter().zip(&self.imports);
        let importers = members.filter_map(|((name, decision), (of, plan))| {
            debug_assert_eq!(name, of, "both are sorted by name");
            Some(Importer {
                name,
                member: world.members.get(name)?,
                counted_as: decision.counted_as,
                plan,
            })
        });
        let importers: Vec<Importer<'_>> = importers.collect();
        let pools = importers.iter().filter_map(|exporter| {
            let record = exporter.member.pools.get(key)?;
            let input = PoolInput {
                policy,
                exporter: exporter.name,
                member: exporter.member,
                record,
                importers: &importers,
                imports: &self.imports,
                crowded_out: self.crowded_out.contains(exporter.name),
            };
            Some((exporter.name.clone(), input.plan()))
        });
        self.pools = pools.collect();
    }

    /// What the import of the member at this place is planned from.
    fn import_basis(
        &self,
        world: &World,
        policy: &Policy,
        key: &Key,
        at: usize,
        member: &Member,
        now: Moment,
    ) -> ImportBasis {
        let Some((name, decision)) = self.decisions.get(at) else {
            return ImportBasis::Fixed(ImportPlan::Absent);
        };
        let flavour = match decision.imports {
            ImportAction::Pause(hold) => return ImportBasis::Fixed(ImportPlan::Hold(hold)),
            ImportAction::TakeAway => return ImportBasis::Fixed(ImportPlan::Absent),
            ImportAction::Apply(flavour) | ImportAction::Queue(flavour) => flavour,
        };
        let live = member.imports.items.get(key);
        let exporters = Exporters {
            world,
            key,
            decisions: &self.decisions,
            now,
        };
        let remembered = member.remembered_entries(key);
        let controller = &policy.controller_name;
        let carried_over = carry_over(name, live, remembered, flavour, exporters, controller);
        let audience = Audience {
            flavour,
            excluded: self.exports.asks(name, member, key).then(|| name.clone()),
            generation: live.map_or(1, |live| live.generation),
            carried_over: carried_over.fingerprint(),
        };
        ImportBasis::Derived(audience, carried_over)
    }
}

// === impl ImportPlan ===

impl ImportPlan {
    /// Whether an import shows this plan, and nothing is carried over from it.
    fn is_shown_by(&self, live: Option<&LiveImport>) -> bool {
        let (Self::Present(planned), Some(live)) = (self, live) else {
            return false;
        };
        !self.has_carried_over()
            && live.claim == Claim::Ours
            && live.generation == planned.audience.generation
            && live.status.digest() == Some(planned.digest)
    }

    fn is_for(&self, audience: &Audience) -> bool {
        matches!(self, Self::Present(planned) if planned.audience == *audience)
    }

    fn has_carried_over(&self) -> bool {
        matches!(self, Self::Present(planned) if planned.audience.carried_over != 0)
    }
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
    /// As in the messages of `Exported`.
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
