//! The shape of import that a member's CRD accepts.

/// What may be written into a member's imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// The whole status, as our CRD has it.
    Superset,
    /// The whole status but for the networks of an entry's pods, as our CRD of an earlier release has it.
    Earlier,
    /// Upstream's: only `controllers`; everything else is refused (K7).
    Upstream,
    /// Nothing: the CRD is missing, being deleted, not ready, or unknown to us.
    Absent,
}

/// The import CRD of a member, as its watch last showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportCrd {
    /// What may be written under it.
    pub flavour: Flavour,
    /// Uid of the CRD, or of the last one; none: none was ever seen. A new uid is a new CRD, without the objects of the
    /// one before.
    pub uid: Option<String>,
    /// Its generation: a write that was refused under one may be accepted under the next.
    pub generation: i64,
}

// === impl Flavour ===

impl Flavour {
    /// Name in metric labels and debug pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superset => "Superset",
            Self::Earlier => "Earlier",
            Self::Upstream => "Upstream",
            Self::Absent => "Absent",
        }
    }
}

// === impl ImportCrd ===

impl ImportCrd {
    /// There is no CRD.
    pub const ABSENT: Self = Self {
        flavour: Flavour::Absent,
        uid: None,
        generation: 0,
    };
}
