//! Where workers publish their KV events.

use std::net::SocketAddr;

/// The ports of a worker's first rank; a further rank has those above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPorts {
    /// Where events are published.
    pub events: u16,
    /// Where the last of them are published again.
    pub replay: Option<u16>,
}

// === impl EventPorts ===

impl EventPorts {
    /// Of one rank of the worker at this address.
    pub(crate) fn of(self, worker: SocketAddr, rank: u8) -> (SocketAddr, Option<SocketAddr>) {
        // Flags leave room for all ranks.
        let at = |port: u16| SocketAddr::new(worker.ip(), port.saturating_add(rank.into()));
        (at(self.events), self.replay.map(at))
    }
}
