//! The condition `Exported` of a pool: computed from the live imports of the others, never from write results.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use crd::{
    annotations::EXPORT_NAMESPACES,
    conditions::{self, Status},
};

use super::{
    Hold, ImportPlan, PlannedImport, Policy, PoolPlan, cover::covers_entry, decision::CountedAs,
};
use crate::export::Export;
use crate::{
    index::{
        digest::LiveStatus,
        entry::{Entry, ImportStatus},
        facts::Claim,
        flavour::Flavour,
        grant::MayExport,
        member::{Link, Member, PoolRecord},
        origin::Origin,
        pools::MAX_EXPORTED,
    },
    name::ClusterName,
};

/// A member, as the exporters of a key need it.
pub(super) struct Importer<'a> {
    pub(super) name: &'a ClusterName,
    pub(super) member: &'a Member,
    pub(super) counted_as: CountedAs,
    pub(super) plan: &'a ImportPlan,
}

/// What the condition of one exporter is computed from.
pub(super) struct PoolInput<'a> {
    pub(super) policy: &'a Policy,
    pub(super) exporter: &'a ClusterName,
    pub(super) member: &'a Member,
    pub(super) record: &'a PoolRecord,
    /// Every member.
    pub(super) importers: &'a [Importer<'a>],
    /// The same by name.
    pub(super) imports: &'a BTreeMap<ClusterName, ImportPlan>,
    /// Some import has no room for its entry.
    pub(super) crowded_out: bool,
}

/// Number of members named in a message; the others are only counted.
const MAX_NAMED: usize = 8;

/// How the export stands in one importer.
#[derive(Clone, Copy)]
enum ImporterState {
    Carries,
    /// The same in upstream's shape, which names the exporter and has no entry.
    NamesOnly,
    /// Not written yet.
    Pending,
    /// It cannot be written now: named and counted.
    Blocked(&'static str),
    /// It has no such namespace: named, and counted only with `--strict-exported`.
    NamespaceMissing,
    /// Removed from the inventory.
    NotCounted,
}

/// The last computed states, by plan and live status. Most importers share one plan, and have the same status or the one
/// before it.
#[derive(Default)]
struct StateCache<'a> {
    states: [Option<(&'a Arc<PlannedImport>, &'a LiveStatus, ImporterState)>; 2],
    next: usize,
}

/// The importers, counted.
#[derive(Default)]
struct Tally {
    others: usize,
    counted: usize,
    carrying: usize,
    missing: usize,
    pending: bool,
    /// Members to name in the message, with the reason; at most [`MAX_NAMED`].
    named: Vec<String>,
    unnamed: usize,
}

// === impl PoolInput ===

impl PoolInput<'_> {
    /// What our entry in the pool's status should be.
    pub(super) fn plan(&self) -> PoolPlan {
        let settled = |reason, message: String| self.exported(Status::False, reason, message, true);
        if self.member.contact.link == Link::Removing {
            return PoolPlan::NoEntry;
        }
        match &self.record.facts.export {
            Export::NotRequested { .. } => return PoolPlan::NoEntry,
            Export::Invalid(invalid) => return settled("NotSupported", invalid.to_string()),
            Export::Requested(_) => {}
        }
        let namespace = &self.record.facts.key.namespace;
        if self.member.may_export(namespace) == MayExport::No {
            return settled("NotAllowed", self.not_allowed());
        }
        if self.member.pools.over_cap.contains(&self.record.facts.key) {
            let message =
                format!("its cluster exports {MAX_EXPORTED} other pools, which is the limit");
            return settled("NotSupported", message);
        }
        if let Some(message) = unsupported(self.exporter, self.imports) {
            return settled("NotSupported", message);
        }
        let tally = self.tally();
        if tally.others == 0 {
            let message = "the ClusterSet has no other member".to_owned();
            return settled("NoOtherMember", message);
        }
        let (status, reason) = if tally.missing == tally.others {
            (Status::False, "NamespaceMissing")
        } else if tally.carrying == tally.counted {
            (Status::True, "Exported")
        } else {
            (Status::False, "PartiallyExported")
        };
        let mut message = tally.message();
        if tally.carrying > 0
            && let Some(why) = self.unusable()
        {
            // writing to a String cannot fail
            let _ = write!(message, "; usable by none: {why}");
        }
        self.exported(status, reason, message, !tally.pending)
    }

    /// Why no other cluster can use the entry. The pool's owner can correct it, and sees this condition alone.
    fn unusable(&self) -> Option<String> {
        let entry = super::entry_of(self.imports, self.exporter)?;
        let ready = conditions::find(&entry.conditions, conditions::READY)?;
        let is_false = ready.status == Status::False.as_str();
        is_false.then(|| format!("{}: {}", ready.reason, ready.message))
    }

    /// Which rule forbids the export of the pool, and which object has the rule.
    fn not_allowed(&self) -> String {
        let namespace = &self.record.facts.key.namespace;
        let Origin {
            source,
            export_namespaces,
            ..
        } = &*self.member.origin;
        let stated = match export_namespaces.known() {
            Some(namespaces) => format!("it allows {namespaces}"),
            None => "it says nothing, which allows all but those of the system".to_owned(),
        };
        format!(
            "{} may not export namespace {namespace}: see {EXPORT_NAMESPACES} of {source} at home ({stated}); namespaces of the system have to be named in full",
            self.exporter
        )
    }

    fn exported(&self, status: Status, reason: &str, message: String, settled: bool) -> PoolPlan {
        let generation = Some(self.record.facts.generation);
        PoolPlan::Exported {
            condition: conditions::make(conditions::EXPORTED, status, reason, message, generation),
            settled,
        }
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        let mut cache = StateCache::default();
        for importer in self.importers {
            if importer.name != self.exporter {
                let state = self.state(importer, &mut cache);
                tally.count(importer.name, &state, self.policy.strict_exported);
            }
        }
        tally
    }

    fn state<'p>(&self, importer: &Importer<'p>, cache: &mut StateCache<'p>) -> ImporterState {
        match importer.counted_as {
            CountedAs::NotCounted => return ImporterState::NotCounted,
            CountedAs::NamespaceMissing => return ImporterState::NamespaceMissing,
            CountedAs::Blocked(hold) => return ImporterState::Blocked(hold.reason()),
            CountedAs::Import => {}
        }
        let planned = match importer.plan {
            ImportPlan::Present(planned) => planned,
            ImportPlan::Hold(hold) => return ImporterState::Blocked(hold.reason()),
            ImportPlan::Absent => return ImporterState::Pending,
        };
        let key = &self.record.facts.key;
        if importer.member.undone_imports.is_in_conflict(key) {
            // whatever it shows just now
            return ImporterState::Blocked("Conflict");
        }
        let Some(live) = importer.member.imports.items.get(key) else {
            return ImporterState::Pending;
        };
        if live.claim == Claim::Foreign {
            return ImporterState::Blocked("Conflict");
        }
        cache.get_or_insert_with(planned, &live.status, || self.shown(&live.status, planned))
    }

    /// The state of the export in a live status, under this plan.
    fn shown(&self, live: &ImportStatus, planned: &PlannedImport) -> ImporterState {
        let exporter = self.exporter.as_str();
        if planned.audience.flavour == Flavour::Upstream {
            return if self.is_named(live) {
                ImporterState::NamesOnly
            } else if self.is_named(&planned.status) {
                ImporterState::Pending
            } else {
                self.not_planned()
            };
        }
        let Some((at, wanted)) = entry_of(&planned.status.clusters, exporter, 0) else {
            return self.not_planned();
        };
        match entry_of(&live.clusters, exporter, at) {
            Some((_, found)) if found.same_digest(wanted) || covers_entry(found, wanted) => {
                debug_assert!(covers_entry(found, wanted), "{exporter}");
                ImporterState::Carries
            }
            _ => ImporterState::Pending,
        }
    }

    /// Whether our part of an import names the exporter.
    fn is_named(&self, status: &ImportStatus) -> bool {
        status.controllers.iter().any(|controller| {
            let mut exporting = controller.exporting_clusters.iter();
            controller.name == self.policy.controller_name
                && exporting.any(|one| one.name == self.exporter.as_str())
        })
    }

    /// The import is planned without the exporter: there is no room for it, or it is not completely known yet.
    fn not_planned(&self) -> ImporterState {
        if self.crowded_out {
            ImporterState::Blocked("TooManyExporters")
        } else {
            ImporterState::Pending
        }
    }
}

/// An exporter's entry and its place; `near` is tried first.
fn entry_of<'a>(clusters: &'a [Entry], exporter: &str, near: usize) -> Option<(usize, &'a Entry)> {
    match clusters.get(near) {
        Some(entry) if entry.name == exporter => Some((near, entry)),
        _ => clusters
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.name == exporter),
    }
}

// === impl StateCache ===

impl<'a> StateCache<'a> {
    fn get_or_insert_with(
        &mut self,
        planned: &'a Arc<PlannedImport>,
        live: &'a LiveStatus,
        compute: impl FnOnce() -> ImporterState,
    ) -> ImporterState {
        let mut known = self.states.iter().flatten();
        let known = known.find(|(of, status, _)| status.ptr_eq(live) && Arc::ptr_eq(of, planned));
        if let Some((_, _, state)) = known {
            return *state;
        }
        let state = compute();
        if let Some(place) = self.states.get_mut(self.next) {
            *place = Some((planned, live, state));
        }
        self.next = (self.next + 1) % self.states.len();
        state
    }
}

// === impl Tally ===

impl Tally {
    fn count(&mut self, name: &ClusterName, state: &ImporterState, strict: bool) {
        let (counts, reason) = match state {
            ImporterState::NotCounted => return,
            ImporterState::Carries => (true, None),
            ImporterState::NamesOnly => (true, Some("UpstreamCRD")),
            ImporterState::Pending => (true, Some("Pending")),
            ImporterState::Blocked(reason) => (true, Some(*reason)),
            ImporterState::NamespaceMissing => (strict, Some(Hold::NamespaceMissing.reason())),
        };
        self.others += 1;
        self.counted += usize::from(counts);
        self.carrying += usize::from(matches!(
            state,
            ImporterState::Carries | ImporterState::NamesOnly
        ));
        self.missing += usize::from(matches!(state, ImporterState::NamespaceMissing));
        self.pending |= matches!(state, ImporterState::Pending);
        match reason {
            Some(reason) if self.named.len() < MAX_NAMED => {
                self.named.push(format!("{name} {reason}"));
            }
            Some(_) => self.unnamed += 1,
            None => {}
        }
    }

    /// As `exported to 4/5: c3 Unreachable; c7 NamespaceMissing`.
    fn message(&self) -> String {
        let mut message = format!("exported to {}/{}", self.carrying, self.counted);
        if !self.named.is_empty() {
            message.push_str(": ");
            message.push_str(&self.named.join("; "));
        }
        if self.unnamed > 0 {
            let _ = write!(message, "; +{} more", self.unnamed);
        }
        message
    }
}

/// The message of the planned entry where the type of the EPP's Service is never exported.
fn unsupported(
    exporter: &ClusterName,
    imports: &BTreeMap<ClusterName, ImportPlan>,
) -> Option<String> {
    let entry = super::entry_of(imports, exporter)?;
    let accepted = conditions::find(&entry.conditions, conditions::ACCEPTED)?;
    (accepted.reason == "UnsupportedServiceType").then(|| accepted.message.clone())
}
