//! Seeded bugs that withdraw without evidence, each in another mechanism, to prove that the soak test finds them. Without
//! the feature `seeded-faults` none can be switched on, and the compiler removes the checks.

use std::str::FromStr;
#[cfg(feature = "seeded-faults")]
use std::sync::OnceLock;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeededFault {
    /// A watch of pools that breaks counts as an empty list.
    LostWatchIsEmptyList,
    /// A DELETED event of a pool counts although its CRD is gone.
    DeletedWithoutCrdCheck,
    /// After a restart, entries of members that were not reached yet are dropped instead of carried over.
    CarriedEntriesDropped,
    /// A member that leaves the inventory together with most others is removed as if it left alone.
    RemovalIgnoresGuard,
}

#[cfg(feature = "seeded-faults")]
static ON: OnceLock<SeededFault> = OnceLock::new();

/// Switches a bug on, for good.
#[cfg(feature = "seeded-faults")]
pub fn switch_on(fault: SeededFault) {
    tracing::error!(
        ?fault,
        "this program withdraws entries without evidence, on purpose"
    );
    // one per process
    let _ = ON.set(fault);
}

/// Whether the bug is on.
#[cfg(feature = "seeded-faults")]
pub fn is_on(fault: SeededFault) -> bool {
    ON.get() == Some(&fault)
}

/// Never.
#[cfg(not(feature = "seeded-faults"))]
pub const fn is_on(_: SeededFault) -> bool {
    false
}

// === impl SeededFault ===

impl SeededFault {
    /// All of them, with the names that flags know them by.
    pub const ALL: [(&str, Self); 4] = [
        ("lost-watch-is-empty-list", Self::LostWatchIsEmptyList),
        ("deleted-without-crd-check", Self::DeletedWithoutCrdCheck),
        ("carried-entries-dropped", Self::CarriedEntriesDropped),
        ("removal-ignores-guard", Self::RemovalIgnoresGuard),
    ];
}

impl FromStr for SeededFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, fault)| *fault).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("{text:?} is unknown: use one of {names}")
        })
    }
}
