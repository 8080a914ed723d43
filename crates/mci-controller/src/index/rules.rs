//! What the operator decided about time and caution.

use std::time::Duration;

/// How long things may take, and what holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Silence after which readiness is unknown; also what a reinstalled pools CRD is given.
    pub(crate) stale_after: Duration,
    /// Silence after which exports are withdrawn; none: never.
    pub(crate) withdraw_after: Option<Duration>,
    /// How long a withdrawn entry stays where the pool does not say; zero: not at all.
    pub(crate) drain: Duration,
    /// Whether most members going silent or leaving at once is taken for a fault of ours.
    pub(crate) isolation_guard: bool,
    /// How long members that left under the guard are kept.
    pub(crate) removal_hold: Duration,
}
