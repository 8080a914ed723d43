//! Which shape of import a member's CRD takes.

/// What may be written into a member's imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// The whole status, as our CRD has it.
    Superset,
    /// Upstream's: `controllers` alone; everything else is refused (K7).
    Upstream,
    /// None that we could write: no such CRD, one that is going or not ready, or a stranger's.
    Absent,
}

/// The import CRD of a member, as its watch last showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportCrd {
    /// What may be written under it.
    pub flavour: Flavour,
    /// Of the CRD that is there, or was last; none: none was ever seen. Another uid is another CRD, without the
    /// objects of the one before.
    pub uid: Option<String>,
    /// Of its spec: what was refused under one may be taken under the next.
    pub generation: i64,
}

// === impl Flavour ===

impl Flavour {
    /// Metric label, and what debug pages say.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superset => "Superset",
            Self::Upstream => "Upstream",
            Self::Absent => "Absent",
        }
    }
}

// === impl ImportCrd ===

impl ImportCrd {
    /// No CRD there.
    pub const ABSENT: Self = Self {
        flavour: Flavour::Absent,
        uid: None,
        generation: 0,
    };
}
