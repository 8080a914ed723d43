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
use jiff::Timestamp;

pub use self::{address::Rejection, import::join_names};
use self::{
    decision::{Decision, EntryFate, ImportsFate, Known, Mark, decide},
    entry::{Derived, derive_entry},
    exported::{Importer, Judgement},
    import::Exports,
    lend::{Lenders, Lent, lend},
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
    /// What was decided of every member, by name.
    decisions: Vec<(ClusterName, Decision)>,
    exports: Exports,
}

/// What became of the plan of one import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replanned {
    /// It is the same.
    Same,
    /// It is another.
    Changed,
    /// It takes more than this import to plan it: the key has to be planned as a whole.
    Not,
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

/// What decides the import of a member.
enum Scope {
    /// Nothing more is to be looked at.
    Fixed(ImportPlan),
    /// The exports, for this audience, with what its own import lends.
    Made(Audience, Lent),
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
    let mut plan = KeyPlan::default();
    let mut entries = Vec::new();
    let mut kept = BTreeMap::new();
    for (name, member) in &world.members {
        let decision = decide(Known::of(world, member, key, now));
        plan.decisions.push((name.clone(), decision));
        let mark = match decision.entry {
            EntryFate::Publish => Mark::None,
            EntryFate::Retain(mark) => mark,
            EntryFate::Carry(_) => {
                if let Some(record) = member.pools.get(key) {
                    kept.insert(name, record.facts.created);
                }
                continue;
            }
            EntryFate::Drain(_) | EntryFate::Remove(_) => continue,
        };
        if let Some(export) = derive(&mut plan, policy, name, member, key, mark) {
            entries.push((name.clone(), export));
        }
    }
    plan.exports = Exports::new(entries, kept);
    plan.crowded_out = plan.exports.crowded_out().cloned().collect();
    let mut shared = BTreeMap::new();
    for (at, (name, member)) in world.members.iter().enumerate() {
        let import = match plan.scope(world, policy, key, at, member, now) {
            Scope::Fixed(import) => import,
            Scope::Made(audience, lent) => {
                plan.ripens = earlier(plan.ripens, lent.ripens, world, now);
                let made = shared.entry(audience);
                let made = made.or_insert_with_key(|audience| {
                    import::make(policy, audience, &plan.exports, lent, &mut plan.crowded_out)
                });
                made.clone()
            }
        };
        plan.imports.insert(name.clone(), import);
    }
    plan.judge(world, policy, key);
    plan
}

fn earlier(
    ripens: Option<Moment>,
    lent: Option<Timestamp>,
    world: &World,
    now: Moment,
) -> Option<Moment> {
    let lent = lent.map(|time| world.moment_at(time, now));
    ripens.into_iter().chain(lent).min()
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

// === impl KeyPlan ===

impl KeyPlan {
    /// Plans the import of one member again, after that import changed and nothing else: what the others hold does not
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
            self.decisions
                .binary_search_by(|(known, _)| known.cmp(name)),
        ) else {
            return Replanned::Not;
        };
        if planned.is_said_by(member.imports.items.get(key)) {
            return Replanned::Same;
        }
        let import = match self.scope(world, policy, key, at, member, now) {
            Scope::Fixed(_) => return Replanned::Same,
            Scope::Made(audience, _) if planned.is_for(&audience) => return Replanned::Same,
            Scope::Made(audience, lent) => {
                let lends = audience.lent != 0 || planned.is_lent();
                self.ripens = earlier(self.ripens, lent.ripens, world, now);
                let mut others = self.imports.values();
                match others.find(|import| import.is_for(&audience)) {
                    Some(same) => same.clone(),
                    // whose entries find no room beside those that are lent is known of the whole key
                    None if lends && !self.crowded_out.is_empty() => return Replanned::Not,
                    None => {
                        let mut cut = BTreeSet::new();
                        let made = import::make(policy, &audience, &self.exports, lent, &mut cut);
                        if !cut.is_empty() {
                            return Replanned::Not;
                        }
                        made
                    }
                }
            }
        };
        self.imports.insert(name.clone(), import);
        Replanned::Changed
    }

    /// Judges the exports by what the importers show now, against the plan as it is.
    pub fn judge(&mut self, world: &World, policy: &Policy, key: &Key) {
        let members = self.decisions.iter().zip(&self.imports);
        let importers = members.filter_map(|((name, decision), (of, plan))| {
            debug_assert_eq!(name, of, "one for each, in the same order");
            Some(Importer {
                name,
                member: world.members.get(name)?,
                word: decision.word,
                plan,
            })
        });
        let importers: Vec<Importer<'_>> = importers.collect();
        let pools = importers.iter().filter_map(|exporter| {
            let record = exporter.member.pools.get(key)?;
            let judgement = Judgement {
                policy,
                exporter: exporter.name,
                member: exporter.member,
                record,
                importers: &importers,
                imports: &self.imports,
                crowded_out: self.crowded_out.contains(exporter.name),
            };
            Some((exporter.name.clone(), judgement.judge()))
        });
        let pools = pools.collect();
        self.pools = pools;
    }

    /// What decides the import of a member, the one at this place.
    fn scope(
        &self,
        world: &World,
        policy: &Policy,
        key: &Key,
        at: usize,
        member: &Member,
        now: Moment,
    ) -> Scope {
        let Some((name, decision)) = self.decisions.get(at) else {
            return Scope::Fixed(ImportPlan::Absent);
        };
        let flavour = match decision.imports {
            ImportsFate::Pause(hold) => return Scope::Fixed(ImportPlan::Hold(hold)),
            ImportsFate::TakeAway => return Scope::Fixed(ImportPlan::Absent),
            ImportsFate::Apply(flavour) | ImportsFate::Queue(flavour) => flavour,
        };
        let live = member.imports.items.get(key);
        let lenders = Lenders {
            world,
            key,
            decisions: &self.decisions,
            now,
        };
        let remembered = member.remembered_entries(key);
        let lent = lend(
            name,
            live,
            remembered,
            flavour,
            lenders,
            &policy.controller_name,
        );
        let audience = Audience {
            flavour,
            excluded: self.exports.asks(name, member, key).then(|| name.clone()),
            generation: live.map_or(1, |live| live.generation),
            lent: lent.fingerprint(),
        };
        Scope::Made(audience, lent)
    }
}

// === impl ImportPlan ===

impl ImportPlan {
    /// Whether an import shows this plan, and lends nothing to it.
    fn is_said_by(&self, live: Option<&LiveImport>) -> bool {
        let (Self::Present(planned), Some(live)) = (self, live) else {
            return false;
        };
        !self.is_lent()
            && live.claim == Claim::Ours
            && live.generation == planned.audience.generation
            && live.status.digest() == Some(planned.digest)
    }

    fn is_for(&self, audience: &Audience) -> bool {
        matches!(self, Self::Present(planned) if planned.audience == *audience)
    }

    fn is_lent(&self) -> bool {
        matches!(self, Self::Present(planned) if planned.audience.lent != 0)
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
