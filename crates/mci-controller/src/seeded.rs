//! Bugs that withdraw without evidence, each in another mechanism, to prove that the soak finds them. Without the feature
//! `seeded-faults` there is no way to switch one on, and the compiler removes what asks for them.

#[cfg(feature = "seeded-faults")]
use std::sync::OnceLock;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "seeded-faults", derive(clap::ValueEnum))]
pub(crate) enum SeededFault {
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
pub(crate) fn switch_on(fault: SeededFault) {
    tracing::error!(
        ?fault,
        "this program withdraws entries without evidence, on purpose"
    );
    // one of a process
    let _ = ON.set(fault);
}

/// Whether the bug is on.
#[cfg(feature = "seeded-faults")]
pub(crate) fn is_on(fault: SeededFault) -> bool {
    ON.get() == Some(&fault)
}

/// Never.
#[cfg(not(feature = "seeded-faults"))]
pub(crate) const fn is_on(_: SeededFault) -> bool {
    false
}
