//! The decision table (spec 8) as one pure function. Input: what is known of a member with regard to one key. Output: what
//! to do with its entry in the others' imports and with the import in it, and how it counts in the others' `Exported`.
//!
//! Nothing else decides these three: the plan calls [`decide`], and explanations quote [`Decision`].

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
    /// Whether it is a member that is in use.
    pub membership: Membership,
    /// What is known of its own export.
    pub export: ExportKnown,
    /// Contact, as shown in its entries.
    pub reach: Reach,
    /// How its entries show that we may not read what it exports; none: we may.
    pub exports_denied: Option<Reach>,
    /// Was in contact since the program's start.
    pub met: bool,
    /// Its import CRD; none: not seen yet, or not readable for us.
    pub import_crd: Option<Flavour>,
    /// What is known of the imports in it.
    pub imports: ImportsKnown,
    /// Whether an import can be created in it.
    pub namespace: NamespaceKnown,
}

/// Whether it is a member that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// In the inventory, with usable credentials; it may be out of contact.
    Member,
    /// Its credentials are not used, or it is not the cluster it should be.
    Refused(Refusal),
    /// Left the inventory.
    Removed,
}

/// What is known of its export of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKnown {
    /// The pool has not been seen since the start.
    NotSeen,
    /// The pool exists and asks for its export.
    Asked,
    /// The pool vanished without proof of its deletion: the CRD was deleted or replaced.
    CrdMissing,
    /// The pool vanished while the isolation guard was active.
    Guarded,
    /// The pool asks for its export, but its Services, EndpointSlices, Gateways or routes are not all known.
    PartsUnknown,
    /// The member asks for more exports than it may have: this one is not updated.
    OverCap,
    /// The pool requests its export, but the inventory's value for the member's right to export it, or for the networks
    /// of its pods, cannot be read.
    RightUnknown,
    /// Not exported: ended, or never began.
    Ended(Evidence),
}

/// What is known of the imports in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportsKnown {
    /// Not listed yet.
    No,
    /// The server does not serve the kind.
    NotServed,
    /// We may not read them, or the namespaces.
    Denied,
    /// Listed completely, and the namespaces too: the plan can be compared with them.
    Listed,
}

/// What is known of the key's namespace in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKnown {
    /// It exists and is not terminating.
    Present,
    /// Missing or terminating.
    Missing,
}

/// What is decided about a member, with regard to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do with its entry in the others' imports.
    pub entry: EntryAction,
    /// What to do with the import in it.
    pub imports: ImportAction,
    /// How it counts in the others' condition `Exported`.
    pub counted_as: CountedAs,
}

/// What to do with its entry in the others' imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAction {
    /// Written from the pool's current state.
    Publish,
    /// Kept as last known, and marked.
    Retain(Mark),
    /// Carried over from each importer's live import, and marked: nothing else is known since the start.
    Carry(Mark),
    /// The export ended. The entry stays while it drains, and is then removed.
    Drain(Evidence),
    /// The export ended: the entry is removed at once.
    Remove(Evidence),
}

/// Why an entry shows only the last known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Not marked: the silence is too short to be reported, or the fault may be ours.
    None,
    /// The CRD of its pools is missing or new.
    CrdMissing,
    /// No contact.
    Silent(Fault),
    /// No contact for so long that its readiness is unknown.
    Stale(Fault),
}

/// What to do with the import in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportAction {
    /// Written as planned, in the shape that its CRD accepts.
    Apply(Flavour),
    /// The same, but nothing can be sent now: the writes wait in the queue.
    Queue(Flavour),
    /// Nothing is decided or written: the import stays as it is.
    Pause(Hold),
    /// Deleted, with the last credentials of the member.
    TakeAway,
}

/// How it counts in the others' `Exported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedAs {
    /// Its live import decides.
    Import,
    /// Counted as missing, for this reason.
    Blocked(Hold),
    /// Named; counted only with `--strict-exported`.
    NamespaceMissing,
    /// It is not a member any more.
    NotCounted,
}

/// Looks a member up in the table.
pub fn decide(known: Known) -> Decision {
    Decision {
        entry: entry(known),
        imports: imports(known),
        counted_as: counted_as(known),
    }
}

fn entry(known: Known) -> EntryAction {
    if known.membership == Membership::Removed {
        return EntryAction::Remove(Evidence::MemberRemoved);
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
            Removal::AtOnce => EntryAction::Remove(evidence),
            Removal::Drain | Removal::Held => EntryAction::Drain(evidence),
        },
        (ExportKnown::NotSeen, _) if seeded::is_on(SeededFault::CarriedEntriesDropped) => {
            EntryAction::Remove(Evidence::PoolAbsent)
        }
        // it answers, but not all its pools are known: marked as if its CRD were missing
        (ExportKnown::NotSeen, silence) => EntryAction::Carry(silence.unwrap_or(Mark::CrdMissing)),
        (ExportKnown::PartsUnknown | ExportKnown::OverCap | ExportKnown::RightUnknown, silence) => {
            EntryAction::Carry(silence.unwrap_or(Mark::None))
        }
        (ExportKnown::Asked, None) => EntryAction::Publish,
        (ExportKnown::CrdMissing, None) => EntryAction::Retain(Mark::CrdMissing),
        (ExportKnown::Guarded, None) => EntryAction::Retain(Mark::None),
        (_, Some(mark)) => EntryAction::Retain(mark),
    }
}

fn imports(known: Known) -> ImportAction {
    match known.membership {
        Membership::Refused(Refusal::IdentityChanged) => {
            return ImportAction::Pause(Hold::IdentityChanged);
        }
        Membership::Refused(_) => return ImportAction::Pause(Hold::Unreachable),
        Membership::Member | Membership::Removed => {}
    }
    let flavour = known.import_crd.unwrap_or(Flavour::Superset);
    if flavour == Flavour::Absent || known.imports == ImportsKnown::NotServed {
        return ImportAction::Pause(Hold::CrdAbsent);
    }
    if known.imports == ImportsKnown::Denied {
        return ImportAction::Pause(Hold::AuthFailed);
    }
    if known.imports == ImportsKnown::No {
        return ImportAction::Pause(hold_of(known.reach));
    }
    if known.namespace == NamespaceKnown::Missing {
        return ImportAction::Pause(Hold::NamespaceMissing);
    }
    match (known.membership, known.reach) {
        (Membership::Removed, _) => ImportAction::TakeAway,
        (_, Reach::Reachable) => ImportAction::Apply(flavour),
        (_, Reach::Lost(_) | Reach::Stale(_)) => ImportAction::Queue(flavour),
    }
}

fn counted_as(known: Known) -> CountedAs {
    if known.membership == Membership::Removed {
        return CountedAs::NotCounted;
    }
    let silent = known.met && known.reach != Reach::Reachable;
    match (imports(known), known.membership) {
        (ImportAction::Pause(hold), Membership::Refused(_)) => CountedAs::Blocked(hold),
        _ if silent => CountedAs::Blocked(hold_of(known.reach)),
        (ImportAction::Pause(Hold::NamespaceMissing), _) => CountedAs::NamespaceMissing,
        (ImportAction::Pause(hold), _) => CountedAs::Blocked(hold),
        (ImportAction::Apply(_) | ImportAction::Queue(_) | ImportAction::TakeAway, _) => {
            CountedAs::Import
        }
    }
}

fn hold_of(reach: Reach) -> Hold {
    match reach {
        Reach::Lost(Fault::AuthFailed) | Reach::Stale(Fault::AuthFailed) => Hold::AuthFailed,
        Reach::Reachable | Reach::Lost(_) | Reach::Stale(_) => Hold::Unreachable,
    }
}

// === impl EntryAction ===

impl EntryAction {
    /// Name of the rule in explanations.
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
    /// The contact that the entry shows, and whether the CRD is missing.
    pub fn as_reach(self) -> (Reach, bool) {
        match self {
            Self::None => (Reach::Reachable, false),
            Self::CrdMissing => (Reach::Reachable, true),
            Self::Silent(fault) => (Reach::Lost(fault), false),
            Self::Stale(fault) => (Reach::Stale(fault), false),
        }
    }

    /// As in the entry's conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::None => "Retained",
            Self::CrdMissing => "CRDMissing",
            Self::Silent(fault) => fault.reason(),
            Self::Stale(_) => "Stale",
        }
    }
}

// === impl ImportAction ===

impl ImportAction {
    /// Name of the rule in explanations.
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

// === impl CountedAs ===

impl CountedAs {
    /// Name of the rule in explanations.
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
