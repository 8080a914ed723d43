//! Time limits and safeguards, as the operator configured them.

use std::time::Duration;

/// Time limits and safeguards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Silence after which readiness is unknown; also the time for pools to return after their CRD was reinstalled.
    pub stale_after: Duration,
    /// Silence after which exports are withdrawn; none: never.
    pub withdraw_after: Option<Duration>,
    /// How long a withdrawn entry stays if the pool does not set that; zero: not at all.
    pub drain: Duration,
    /// Whether it counts as a fault of ours if most members become silent or leave at once.
    pub isolation_guard: bool,
    /// How long members that left under the guard are kept.
    pub removal_hold: Duration,
}
