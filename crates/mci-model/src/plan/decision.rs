//! The decision table (spec 8) as one pure function: from what is known of a member, with regard to one key, to what
//! becomes of its entry in the others' imports, of the import in it, and of its word in the others' `Exported`.
//!
//! Nothing else decides these three. The plan uses [`decide`] for all that it plans, and explanations quote [`Decision`].

use super::Hold;
use crate::{
    evidence::{Evidence, Removal, on_evidence},
    index::{
        flavour::Flavour,
        member::{Fault, Reach, Refusal},
    },
    seeded::{self, SeededFault},
};

/// What is known of a member, with regard to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whether it is a member, and may be used.
    pub tie: Tie,
    /// What is known of its own export.
    pub export: ExportKnown,
    /// Contact, as its entries show it.
    pub reach: Reach,
    /// Kinds that its exports are made of are hidden from us: how that shows.
    pub exports_denied: Option<Reach>,
    /// Was in contact since the program's start.
    pub met: bool,
    /// Its import CRD; none: not seen yet, or hidden from us.
    pub import_crd: Option<Flavour>,
    /// Which imports it holds is known.
    pub imports: ImportsKnown,
    /// Whether an import could be created in it.
    pub namespace: NamespaceKnown,
}

/// Whether it is ours to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// In the inventory, with usable credentials; contact is another matter.
    Member,
    /// Its credentials are not used, or it is not the cluster it should be.
    Refused(Refusal),
    /// Left the inventory.
    Removed,
}

/// What is known of its export of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKnown {
    /// Not heard of since the start.
    Unheard,
    /// It has the pool, and asks for its export.
    Asked,
    /// It had, until the pool vanished in a way that proves nothing: its CRD went or was replaced.
    CrdMissing,
    /// It had, until the pool vanished while the fault may be ours.
    Guarded,
    /// It asks for it, but what its entry is made of has not been listed yet: its Gateways and routes.
    PartsUnknown,
    /// It asks for more exports than one member may have: nothing new of this one is passed on.
    OverCap,
    /// Ended, or never was.
    Ended(Evidence),
}

/// What is known of the imports in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportsKnown {
    /// Not listed yet.
    No,
    /// The server does not serve the kind.
    NotServed,
    /// They, or the namespaces, are hidden from us.
    Denied,
    /// Listed completely, and the namespaces too: a write can be compared with what is there.
    Listed,
}

/// What is known of the key's namespace in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKnown {
    /// There, and not terminating.
    Present,
    /// Missing, or on its way out.
    Missing,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its entry in the imports of the others.
    pub entry: EntryFate,
    /// The import in it.
    pub imports: ImportsFate,
    /// What it counts for in the others' condition `Exported`.
    pub word: Word,
}

/// What becomes of its entry in the imports of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFate {
    /// As it shows the pool.
    Publish,
    /// As last known, and marked.
    Retain(Mark),
    /// What each importer's own live import says, marked: nothing else is known since the start.
    Carry(Mark),
    /// The export ended. What a running drain keeps stays as long; then, or without one, the entry goes.
    Drain(Evidence),
    /// The export ended: the entry goes at once.
    Remove(Evidence),
}

/// Why an entry is last known only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Not marked: the silence is too short to be told, or the fault may be ours.
    None,
    /// The CRD of its pools is gone or new.
    CrdMissing,
    /// No contact.
    Silent(Fault),
    /// No contact for so long that its readiness is unknown.
    Stale(Fault),
}

/// What becomes of the import in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportsFate {
    /// Kept as planned, in the shape that it takes.
    Apply(Flavour),
    /// The same, but nothing can be sent now: the keys wait.
    Queue(Flavour),
    /// Nothing is decided or written: what is there stays.
    Pause(Hold),
    /// Taken away with the last credentials.
    TakeAway,
}

/// What it counts for in the others' `Exported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Its live import tells.
    Import,
    /// Counted as missing, for this reason.
    Blocked(Hold),
    /// Named; counted only if the operator is strict.
    NamespaceMissing,
    /// No member any more.
    NotCounted,
}

/// The table.
pub fn decide(known: Known) -> Decision {
    Decision {
        entry: entry(known),
        imports: imports(known),
        word: word(known),
    }
}

fn entry(known: Known) -> EntryFate {
    if known.tie == Tie::Removed {
        return EntryFate::Remove(Evidence::MemberRemoved);
    }
    let reach = match (known.reach, known.exports_denied) {
        (Reach::Reachable, Some(denied)) => denied,
        (reach, _) => reach,
    };
    let silence = match reach {
        Reach::Reachable => None,
        Reach::Lost(fault) => Some(Mark::Silent(fault)),
        Reach::Stale(fault) => Some(Mark::Stale(fault)),
    };
    match (known.export, silence) {
        (ExportKnown::Ended(evidence), _) => match on_evidence(evidence, false) {
            Removal::AtOnce => EntryFate::Remove(evidence),
            Removal::Drain | Removal::Held => EntryFate::Drain(evidence),
        },
        (ExportKnown::Unheard, _) if seeded::is_on(SeededFault::CarriedEntriesDropped) => {
            EntryFate::Remove(Evidence::PoolAbsent)
        }
        // one that answers but whose pools are not all known: in doubt, like one whose CRD is missing
        (ExportKnown::Unheard, silence) => EntryFate::Carry(silence.unwrap_or(Mark::CrdMissing)),
        (ExportKnown::PartsUnknown | ExportKnown::OverCap, silence) => {
            EntryFate::Carry(silence.unwrap_or(Mark::None))
        }
        (ExportKnown::Asked, None) => EntryFate::Publish,
        (ExportKnown::CrdMissing, None) => EntryFate::Retain(Mark::CrdMissing),
        (ExportKnown::Guarded, None) => EntryFate::Retain(Mark::None),
        (_, Some(mark)) => EntryFate::Retain(mark),
    }
}

fn imports(known: Known) -> ImportsFate {
    match known.tie {
        Tie::Refused(Refusal::IdentityChanged) => return ImportsFate::Pause(Hold::IdentityChanged),
        Tie::Refused(_) => return ImportsFate::Pause(Hold::Unreachable),
        Tie::Member | Tie::Removed => {}
    }
    let flavour = known.import_crd.unwrap_or(Flavour::Superset);
    if flavour == Flavour::Absent || known.imports == ImportsKnown::NotServed {
        return ImportsFate::Pause(Hold::CrdAbsent);
    }
    if known.imports == ImportsKnown::Denied {
        return ImportsFate::Pause(Hold::AuthFailed);
    }
    if known.imports == ImportsKnown::No {
        return ImportsFate::Pause(silence(known.reach));
    }
    if known.namespace == NamespaceKnown::Missing {
        return ImportsFate::Pause(Hold::NamespaceMissing);
    }
    match (known.tie, known.reach) {
        (Tie::Removed, _) => ImportsFate::TakeAway,
        (_, Reach::Reachable) => ImportsFate::Apply(flavour),
        (_, Reach::Lost(_) | Reach::Stale(_)) => ImportsFate::Queue(flavour),
    }
}

fn word(known: Known) -> Word {
    if known.tie == Tie::Removed {
        return Word::NotCounted;
    }
    let silent = known.met && known.reach != Reach::Reachable;
    match (imports(known), known.tie) {
        (ImportsFate::Pause(hold), Tie::Refused(_)) => Word::Blocked(hold),
        _ if silent => Word::Blocked(silence(known.reach)),
        (ImportsFate::Pause(Hold::NamespaceMissing), _) => Word::NamespaceMissing,
        (ImportsFate::Pause(hold), _) => Word::Blocked(hold),
        (ImportsFate::Apply(_) | ImportsFate::Queue(_) | ImportsFate::TakeAway, _) => Word::Import,
    }
}

fn silence(reach: Reach) -> Hold {
    match reach {
        Reach::Lost(Fault::AuthFailed) | Reach::Stale(Fault::AuthFailed) => Hold::AuthFailed,
        Reach::Reachable | Reach::Lost(_) | Reach::Stale(_) => Hold::Unreachable,
    }
}

// === impl EntryFate ===

impl EntryFate {
    /// Name of the rule, as explanations have it.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Publish => "entry-published",
            Self::Retain(_) => "entry-retained",
            Self::Carry(_) => "entry-carried",
            Self::Drain(_) => "export-ended",
            Self::Remove(_) => "entry-removed",
        }
    }

    /// The outcome in explanations; the evidence where the export ended.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Publish => "Exported",
            Self::Retain(mark) | Self::Carry(mark) => mark.reason(),
            Self::Drain(evidence) | Self::Remove(evidence) => evidence.reason(),
        }
    }
}

// === impl Mark ===

impl Mark {
    /// As entries are marked: the contact, and whether the CRD is missing.
    pub fn as_reach(self) -> (Reach, bool) {
        match self {
            Self::None => (Reach::Reachable, false),
            Self::CrdMissing => (Reach::Reachable, true),
            Self::Silent(fault) => (Reach::Lost(fault), false),
            Self::Stale(fault) => (Reach::Stale(fault), false),
        }
    }

    /// As the entry's conditions say it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::None => "Retained",
            Self::CrdMissing => "CRDMissing",
            Self::Silent(fault) => fault.reason(),
            Self::Stale(_) => "Stale",
        }
    }
}

// === impl ImportsFate ===

impl ImportsFate {
    /// Name of the rule, as explanations have it.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Apply(_) => "import-applied",
            Self::Queue(_) => "import-queued",
            Self::Pause(_) => "import-paused",
            Self::TakeAway => "import-taken-away",
        }
    }

    /// The outcome in explanations; for `Queue` it is always `Unreachable`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Apply(Flavour::Upstream) => "UpstreamCRD",
            Self::Apply(_) => "Active",
            Self::Queue(_) => Hold::Unreachable.reason(),
            Self::Pause(hold) => hold.reason(),
            Self::TakeAway => Evidence::MemberRemoved.reason(),
        }
    }
}

// === impl Word ===

impl Word {
    /// Name of the rule, as explanations have it.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Import => "counted-by-its-import",
            Self::Blocked(_) => "counted-as-missing",
            Self::NamespaceMissing => "named-not-counted",
            Self::NotCounted => "not-counted",
        }
    }

    /// The outcome in explanations.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Import => "Active",
            Self::Blocked(hold) => hold.reason(),
            Self::NamespaceMissing => Hold::NamespaceMissing.reason(),
            Self::NotCounted => Evidence::MemberRemoved.reason(),
        }
    }
}

#[cfg(test)]
mod tests;
