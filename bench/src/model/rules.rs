//! Which fault excuses what. Pure.

use std::time::Duration;

/// What may be the matter with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Its API server is down.
    Stopped,
    /// It accepts connections and never answers.
    Hung,
    /// Its connections, watches or lists broke once.
    Broken,
    /// Its pools CRD is gone, and the pools with it.
    PoolsCrdGone,
    /// Its import CRD is upstream's.
    UpstreamCrd,
    /// The namespace is gone, and all that was in it.
    NamespaceGone,
    /// It left the inventory, alone.
    Removed,
    /// It left the inventory at once with most others: the inventory may be at fault.
    RemovedWithMost,
}

/// Whose fault it is, of the two members that an entry concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The one that the entry is of.
    Exporter,
    /// The one that the import is in.
    Importer,
}

/// What a fault excuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excuse {
    /// Nothing at all.
    Nothing,
    /// Nothing by itself: evidence from before it was over may be acted on after it.
    Delay,
    /// That the entry goes while the import still names its exporter.
    EntryIfNamed,
    /// That the entry goes: it is evidence.
    Any,
}

/// From the end of what excuses something until the controller no longer acts on it: a write in flight (5 s), a scan of
/// the inventory (2 s), and a second for a busy machine.
pub(super) const ALLOWANCE: Duration = Duration::from_secs(8);
/// From the end of an outage until the controller has connected and listed: its longest backoff, and some.
const RECONNECT: Duration = Duration::from_secs(35);
/// Watches that broke are made again, with a short backoff.
const REWATCH: Duration = Duration::from_secs(5);

/// The table.
pub(super) fn excuse(fault: Fault, side: Side) -> Excuse {
    match (fault, side) {
        // silence proves nothing; nor does a pool that goes with its CRD, or a member that goes with most others
        (
            Fault::Stopped | Fault::Hung | Fault::Broken | Fault::RemovedWithMost,
            Side::Exporter | Side::Importer,
        )
        | (Fault::PoolsCrdGone, Side::Exporter) => Excuse::Delay,
        // which pools it has concerns others alone, and so does the shape of its imports
        (Fault::PoolsCrdGone, Side::Importer) | (Fault::UpstreamCrd, Side::Exporter) => {
            Excuse::Nothing
        }
        // upstream's shape has no entries, but names (K6)
        (Fault::UpstreamCrd, Side::Importer) => Excuse::EntryIfNamed,
        (Fault::NamespaceGone | Fault::Removed, Side::Exporter | Side::Importer) => Excuse::Any,
    }
}

/// From the end of a fault that delays until the controller has seen how the member is now.
pub(super) fn blind_after(fault: Fault, stale_after: Duration) -> Duration {
    match fault {
        Fault::Stopped | Fault::Hung | Fault::RemovedWithMost => RECONNECT,
        Fault::Broken => REWATCH,
        // a CRD in doubt is read each half minute, and pools that did not come back have `--stale-after`
        Fault::PoolsCrdGone => RECONNECT + stale_after,
        Fault::UpstreamCrd | Fault::NamespaceGone | Fault::Removed => Duration::ZERO,
    }
}
