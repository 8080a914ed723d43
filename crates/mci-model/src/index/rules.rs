//! What the operator decided about time and caution.

use std::time::Duration;

/// How long things may take, and what holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Silence after which readiness is unknown; also what a reinstalled pools CRD is given.
    pub stale_after: Duration,
    /// Silence after which exports are withdrawn; none: never.
    pub withdraw_after: Option<Duration>,
    /// How long a withdrawn entry stays where the pool does not say; zero: not at all.
    pub drain: Duration,
    /// Whether most members going silent or leaving at once is taken for a fault of ours.
    pub isolation_guard: bool,
    /// How long members that left under the guard are kept.
    pub removal_hold: Duration,
}
