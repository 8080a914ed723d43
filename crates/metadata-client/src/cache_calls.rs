//! Whether the service has calls for prompt caches. The open version of the former service has none.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use moment::Moment;
use tracing::{info, warn};

/// How long to wait before a service without the calls is called again: by then another version may run.
pub(crate) const ASK_AGAIN: Duration = Duration::from_mins(1);

/// Whether the service supports the calls for caches, as earlier answers show.
#[derive(Debug, Default)]
pub(crate) struct CacheCalls {
    /// When the service is called again, in nanoseconds; 0 if it is not known to lack the calls.
    ask_again: AtomicU64,
}

/// Whether a request queries the service for caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The request queries the service: the calls are not known to be missing.
    Yes,
    /// The calls were missing; this request checks whether they still are.
    Again,
    /// The request does not query the service: the calls are missing.
    No,
}

// === impl CacheCalls ===

impl CacheCalls {
    /// Whether the service is known to lack the calls.
    pub(crate) fn are_missing(&self) -> bool {
        self.ask_again.load(Relaxed) != 0
    }

    /// Whether to query the service. While the calls are missing, one request in [`ASK_AGAIN`] does.
    pub(crate) fn ask(&self, now: Moment) -> Ask {
        let at = self.ask_again.load(Relaxed);
        if at == 0 {
            return Ask::Yes;
        }
        let is_first = || {
            let next = nanos(now + ASK_AGAIN);
            let exchanged = self.ask_again.compare_exchange(at, next, Relaxed, Relaxed);
            exchanged.is_ok()
        };
        if at <= nanos(now) && is_first() {
            Ask::Again
        } else {
            Ask::No
        }
    }

    /// Records that the service does not support a call.
    pub(crate) fn note_missing(&self, now: Moment) {
        let before = self.ask_again.swap(nanos(now + ASK_AGAIN), Relaxed);
        if before == 0 {
            warn!(
                "the Metadata-Center has no calls for prompt caches (it answers 404 to /v1/cache/query): load is shared, caches are \
                 not, and --metadata-center-fallback says what counts instead. To share them use the Metadata-Center of Isthmus, which \
                 takes the same calls. This is checked again each minute"
            );
        }
    }

    /// Records an answer to a query that was made with [`Ask::Again`].
    pub(crate) fn note_found(&self) {
        if self.ask_again.swap(0, Relaxed) != 0 {
            info!("the Metadata-Center has calls for prompt caches now: caches are shared");
        }
    }
}

/// The time in nanoseconds, at least 1, since 0 means that the calls are not missing.
fn nanos(moment: Moment) -> u64 {
    let nanos = u64::try_from(moment.since_start().as_nanos());
    nanos.unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_calls_are_asked_for_by_one_request_in_a_minute() {
        let at = |seconds: u64| Moment::from_millis(seconds * 1000);
        let calls = CacheCalls::default();
        assert_eq!(calls.ask(at(0)), Ask::Yes);
        calls.note_missing(at(0));
        let asked = [0, 59, 60, 60, 119, 120].map(|seconds| calls.ask(at(seconds)));
        let want = [Ask::No, Ask::No, Ask::Again, Ask::No, Ask::No, Ask::Again];
        assert_eq!(asked, want);
        calls.note_found();
        assert_eq!(calls.ask(at(120)), Ask::Yes);
    }
}
