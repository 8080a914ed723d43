//! How long a request may wait.

use std::time::Duration;

use super::config::Config;
use moment::Moment;

/// Whether the pool has endpoints. It decides how long requests may wait, and what a request is answered
/// whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Regime {
    /// It has: `defaultRequestTTL` counts, and a request whose time is over gets 429.
    Serving,
    /// It has none: `noEndpointRequestTTL` counts, and a request whose time is over gets 503.
    Empty,
}

/// How long one request may wait in each regime; `None`: without end. Fixed when it comes, so that a
/// reload shortens nobody's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    serving: Option<Duration>,
    empty: Option<Duration>,
}

// === impl Budget ===

impl Budget {
    /// The budget under `config` of a request that wants to wait for `wish` at most. A wish shortens the
    /// wait for a busy pool and never lengthens it; a wish of zero is none.
    pub(super) fn new(config: &Config, wish: Option<Duration>) -> Self {
        let Config {
            default_ttl,
            no_endpoint_ttl,
            ..
        } = config;
        let configured = bounded(*default_ttl);
        let wished = wish.and_then(bounded);
        Self {
            serving: match (configured, wished) {
                (Some(configured), Some(wished)) => Some(configured.min(wished)),
                (configured, wished) => configured.or(wished),
            },
            empty: no_endpoint_ttl.map_or(configured, bounded),
        }
    }

    /// When the time is over of a request that came at `enqueued` and waits in `regime` since `since`;
    /// `None`: never. A regime that begins while the request waits gives it the whole time again, for what
    /// it waited for has changed; all its waiting together stays within the longer of both times.
    pub(super) fn due(self, enqueued: Moment, regime: Regime, since: Moment) -> Option<Moment> {
        let Self { serving, empty } = self;
        let current = match regime {
            Regime::Serving => serving,
            Regime::Empty => empty,
        };
        let due = since + current?;
        Some(match serving.zip(empty) {
            Some((serving, empty)) => due.min(enqueued + serving.max(empty)),
            None => due,
        })
    }

    /// The deadline by which a request that came at `enqueued` is ordered.
    pub(super) fn deadline(self, enqueued: Moment) -> Option<Moment> {
        self.serving.map(|serving| enqueued + serving)
    }
}

fn bounded(ttl: Duration) -> Option<Duration> {
    (!ttl.is_zero()).then_some(ttl)
}
