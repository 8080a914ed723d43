//! What goes wrong on demand. Pure.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Faults that are to come. The next batch takes one of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Pending {
    /// Batches that are kept for replays, and not sent.
    drop: u64,
    /// Batches that are sent twice.
    duplicate: u64,
    /// Numbers that no batch has: as if those had been lost for good.
    gap: u64,
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strike {
    /// Numbers before it that no batch has.
    pub(super) skipped: u64,
    /// How often it is sent.
    pub(super) copies: usize,
}

/// What is asked for; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultPatch {
    drop: Option<u64>,
    duplicate: Option<u64>,
    gap: Option<u64>,
    /// The engine ends and another one starts in its place, at once.
    #[serde(default)]
    pub(crate) restart: bool,
}

/// What is published, and what is to go wrong.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(super) events: Option<SocketAddr>,
    pub(super) replay: Option<SocketAddr>,
    pub(super) subscribers: usize,
    pub(super) next_sequence: u64,
    pub(super) kept_batches: usize,
    #[serde(flatten)]
    pub(super) pending: Pending,
}

// === impl Pending ===

impl Pending {
    pub(super) fn patch(&mut self, patch: &FaultPatch) {
        let Self {
            drop,
            duplicate,
            gap,
        } = self;
        *drop = patch.drop.unwrap_or(*drop);
        *duplicate = patch.duplicate.unwrap_or(*duplicate);
        *gap = patch.gap.unwrap_or(*gap);
    }

    /// What becomes of the next batch.
    pub(super) fn strike(&mut self) -> Strike {
        let skipped = std::mem::take(&mut self.gap);
        let mut copies = 1;
        if let Some(left) = self.drop.checked_sub(1) {
            self.drop = left;
            copies = 0;
        } else if let Some(left) = self.duplicate.checked_sub(1) {
            self.duplicate = left;
            copies = 2;
        }
        Strike { skipped, copies }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_batch_takes_one_of_each_fault_and_a_gap_whole() {
        let mut pending = Pending::default();
        pending.patch(&FaultPatch {
            drop: Some(1),
            duplicate: Some(2),
            gap: Some(5),
            restart: false,
        });
        pending.patch(&FaultPatch {
            duplicate: Some(1),
            ..FaultPatch::default()
        });
        let strikes = [(); 3].map(|()| pending.strike());
        let strikes = strikes.map(|strike| (strike.skipped, strike.copies));
        assert_eq!(strikes, [(5, 0), (0, 2), (0, 1)]);
    }
}
