//! The engine's own time.

use std::time::Duration;

/// Time since the engine's start, on a clock that never goes back. Tests write `Moment::from_millis(1_500)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The moment that lies this long after the engine's start.
    pub fn new(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// The moment that lies this many milliseconds after the engine's start.
    pub fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Time since the engine's start.
    pub fn since_start(self) -> Duration {
        self.0
    }

    /// Time since `earlier`; zero if that lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `span` later; the last one there is, if that overflows.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}
