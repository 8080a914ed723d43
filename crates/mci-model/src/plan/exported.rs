//! `Exported`: where a pool's export stands, judged by the live imports of the others, never by write results.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use crd::conditions::{self, Status};

use super::{
    Hold, ImportPlan, PlannedImport, Policy, PoolPlan, cover::covers_entry, decision::Word,
};
use crate::export::Export;
use crate::{
    index::{
        digest::LiveStatus,
        entry::{Entry, ImportStatus},
        facts::Claim,
        flavour::Flavour,
        member::{Link, Member, PoolRecord},
        pools::MAX_EXPORTED,
    },
    name::ClusterName,
};

/// A member as the exporters of a key see it.
pub(super) struct Importer<'a> {
    pub(super) name: &'a ClusterName,
    pub(super) member: &'a Member,
    pub(super) word: Word,
    pub(super) plan: &'a ImportPlan,
}

/// What an exporter's condition is judged by.
pub(super) struct Judgement<'a> {
    pub(super) policy: &'a Policy,
    pub(super) exporter: &'a ClusterName,
    pub(super) member: &'a Member,
    pub(super) record: &'a PoolRecord,
    /// Every member.
    pub(super) importers: &'a [Importer<'a>],
    /// The same by name.
    pub(super) imports: &'a BTreeMap<ClusterName, ImportPlan>,
    /// Its entry does not fit into some import.
    pub(super) crowded_out: bool,
}

/// Members named in a message; the rest is counted.
const MAX_NAMED: usize = 8;

/// What an importer says of the export.
#[derive(Clone, Copy)]
enum Verdict {
    Carries,
    /// The same in upstream's shape, which names the exporter and tells nothing of it.
    NamesOnly,
    /// On its way.
    Pending,
    /// Not to be had now: named and counted.
    Blocked(&'static str),
    /// No such namespace there: named, and counted only if the operator is strict.
    NamespaceMissing,
    /// Removed from the inventory.
    NotCounted,
}

/// What importers were found to say, by their plan and their status: most share the one, and say the same or what they
/// said before.
#[derive(Default)]
struct Seen<'a> {
    verdicts: [Option<(&'a Arc<PlannedImport>, &'a LiveStatus, Verdict)>; 2],
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
    /// The first of those that are worth a word.
    named: Vec<String>,
    unnamed: usize,
}

// === impl Judgement ===

impl Judgement<'_> {
    /// What our entry in the pool's status should be.
    pub(super) fn judge(&self) -> PoolPlan {
        let settled = |reason, message: String| self.exported(Status::False, reason, message, true);
        if self.member.link == Link::Removing {
            return PoolPlan::NoEntry;
        }
        match &self.record.facts.export {
            Export::NotRequested { .. } => return PoolPlan::NoEntry,
            Export::Invalid(invalid) => return settled("NotSupported", invalid.to_string()),
            Export::Requested(_) => {}
        }
        if self.member.over_cap.contains(&self.record.facts.key) {
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
        self.exported(status, reason, tally.message(), !tally.pending)
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
        let mut seen = Seen::default();
        for importer in self.importers {
            if importer.name != self.exporter {
                let verdict = self.verdict(importer, &mut seen);
                tally.count(importer.name, &verdict, self.policy.strict_exported);
            }
        }
        tally
    }

    fn verdict<'p>(&self, importer: &Importer<'p>, seen: &mut Seen<'p>) -> Verdict {
        match importer.word {
            Word::NotCounted => return Verdict::NotCounted,
            Word::NamespaceMissing => return Verdict::NamespaceMissing,
            Word::Blocked(hold) => return Verdict::Blocked(hold.reason()),
            Word::Import => {}
        }
        let planned = match importer.plan {
            ImportPlan::Present(planned) => planned,
            ImportPlan::Hold(hold) => return Verdict::Blocked(hold.reason()),
            ImportPlan::Absent => return Verdict::Pending,
        };
        let Some(live) = importer.member.imports.items.get(&self.record.facts.key) else {
            return Verdict::Pending;
        };
        if live.claim == Claim::Foreign {
            return Verdict::Blocked("Conflict");
        }
        if importer
            .member
            .undone_imports
            .is_in_conflict(&self.record.facts.key)
        {
            // whatever it says just now
            return Verdict::Blocked("Conflict");
        }
        seen.get_or(planned, &live.status, || self.shown(&live.status, planned))
    }

    /// What a status says of the export, where this is planned.
    fn shown(&self, live: &ImportStatus, planned: &PlannedImport) -> Verdict {
        let exporter = self.exporter.as_str();
        if planned.audience.flavour == Flavour::Upstream {
            return if self.is_named(live) {
                Verdict::NamesOnly
            } else if self.is_named(&planned.status) {
                Verdict::Pending
            } else {
                self.not_planned()
            };
        }
        let Some((at, wanted)) = entry_of(&planned.status.clusters, exporter, 0) else {
            return self.not_planned();
        };
        match entry_of(&live.clusters, exporter, at) {
            Some((_, found)) if found.says(wanted) || covers_entry(found, wanted) => {
                debug_assert!(covers_entry(found, wanted), "{exporter}");
                Verdict::Carries
            }
            _ => Verdict::Pending,
        }
    }

    /// Whether our part of an import names the exporter.
    fn is_named(&self, status: &ImportStatus) -> bool {
        let ours = status.controllers.iter();
        let mut ours = ours.filter(|one| one.name == self.policy.controller_name);
        ours.any(|one| {
            let mut exporting = one.exporting_clusters.iter();
            exporting.any(|one| one.name == self.exporter.as_str())
        })
    }

    /// An import is planned without the exporter: there is no room for it, or not all of it is known yet.
    fn not_planned(&self) -> Verdict {
        if self.crowded_out {
            Verdict::Blocked("TooManyExporters")
        } else {
            Verdict::Pending
        }
    }
}

/// An exporter's entry and where it is; `near` is where to look first.
fn entry_of<'a>(clusters: &'a [Entry], exporter: &str, near: usize) -> Option<(usize, &'a Entry)> {
    match clusters.get(near) {
        Some(entry) if entry.name == exporter => Some((near, entry)),
        _ => clusters
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.name == exporter),
    }
}

// === impl Seen ===

impl<'a> Seen<'a> {
    fn get_or(
        &mut self,
        planned: &'a Arc<PlannedImport>,
        live: &'a LiveStatus,
        look: impl FnOnce() -> Verdict,
    ) -> Verdict {
        let mut known = self.verdicts.iter().flatten();
        let known = known.find(|(of, said, _)| said.is_one_with(live) && Arc::ptr_eq(of, planned));
        if let Some((_, _, verdict)) = known {
            return *verdict;
        }
        let verdict = look();
        if let Some(place) = self.verdicts.get_mut(self.next) {
            *place = Some((planned, live, verdict));
        }
        self.next = (self.next + 1) % self.verdicts.len();
        verdict
    }
}

// === impl Tally ===

impl Tally {
    fn count(&mut self, name: &ClusterName, verdict: &Verdict, strict: bool) {
        let (counts, word) = match verdict {
            Verdict::NotCounted => return,
            Verdict::Carries => (true, None),
            Verdict::NamesOnly => (true, Some("UpstreamCRD")),
            Verdict::Pending => (true, Some("Pending")),
            Verdict::Blocked(reason) => (true, Some(*reason)),
            Verdict::NamespaceMissing => (strict, Some(Hold::NamespaceMissing.reason())),
        };
        self.others += 1;
        self.counted += usize::from(counts);
        self.carrying += usize::from(matches!(verdict, Verdict::Carries | Verdict::NamesOnly));
        self.missing += usize::from(matches!(verdict, Verdict::NamespaceMissing));
        self.pending |= matches!(verdict, Verdict::Pending);
        match word {
            Some(word) if self.named.len() < MAX_NAMED => self.named.push(format!("{name} {word}")),
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

/// The message of an EPP Service type that is never exported, as the planned entry has it.
fn unsupported(
    exporter: &ClusterName,
    imports: &BTreeMap<ClusterName, ImportPlan>,
) -> Option<String> {
    let entry = super::entry_of(imports, exporter)?;
    let accepted = conditions::find(&entry.conditions, conditions::ACCEPTED)?;
    (accepted.reason == "UnsupportedServiceType").then(|| accepted.message.clone())
}
