//! The evidence that permits a withdrawal, and what follows from it (spec 4.3).

use crate::seeded::{self, SeededFault};

/// What permits a withdrawal (spec 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// The watch sent DELETED, and the CRD still exists.
    PoolDeleted,
    /// A complete list lacks the pool, and the CRD still exists.
    PoolAbsent,
    /// The pool no longer has the export annotation.
    AnnotationGone,
    /// The value of an export annotation is not legal; it is never defaulted.
    AnnotationInvalid,
    /// The inventory does not allow the member to export the pool's namespace.
    NotAllowed,
    /// The member left the inventory.
    MemberRemoved,
    /// The member was silent for `--withdraw-after`.
    WithdrawAfter,
}

/// What evidence leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// At once, with no drain.
    AtOnce,
    /// After the drain that the exporter asked for, if any.
    Drain,
    /// Not now: the fault may be ours (the isolation guard).
    Held,
}

/// What follows from the evidence that an export ended, with and without the isolation guard (spec 4.3). Events of a
/// connected member's watch count under the guard too.
pub fn on_evidence(evidence: Evidence, guarded: bool) -> Removal {
    match evidence {
        Evidence::MemberRemoved if seeded::is_on(SeededFault::RemovalIgnoresGuard) => {
            Removal::AtOnce
        }
        Evidence::PoolAbsent | Evidence::MemberRemoved | Evidence::WithdrawAfter if guarded => {
            Removal::Held
        }
        Evidence::PoolDeleted
        | Evidence::PoolAbsent
        | Evidence::AnnotationGone
        | Evidence::AnnotationInvalid => Removal::Drain,
        Evidence::NotAllowed | Evidence::MemberRemoved | Evidence::WithdrawAfter => Removal::AtOnce,
    }
}

// === impl Evidence ===

impl Evidence {
    /// Each kind of evidence once.
    pub const ALL: [Self; 7] = [
        Self::PoolDeleted,
        Self::PoolAbsent,
        Self::AnnotationGone,
        Self::AnnotationInvalid,
        Self::NotAllowed,
        Self::MemberRemoved,
        Self::WithdrawAfter,
    ];

    /// The label value of the metrics, the reason in explanations and the text in the log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::PoolDeleted => "PoolDeleted",
            Self::PoolAbsent => "PoolAbsent",
            Self::AnnotationGone => "AnnotationGone",
            Self::AnnotationInvalid => "AnnotationInvalid",
            Self::NotAllowed => "NotAllowed",
            Self::MemberRemoved => "MemberRemoved",
            Self::WithdrawAfter => "WithdrawAfter",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_the_name_of_its_evidence() {
        for evidence in Evidence::ALL {
            assert_eq!(evidence.reason(), format!("{evidence:?}"));
        }
    }
}
