//! Nothing is written before we know who the members are and what is in them (spec 4.3): a controller that has just
//! started must not take its own ignorance for their absence.

use std::time::Duration;

use crate::index::World;
use moment::Moment;

/// The gate in front of all writes; it opens once.
#[derive(Debug)]
pub(super) struct Gate {
    /// Members not synced for so long are carried instead of waited for.
    timeout: Duration,
    /// When that time is over. It begins when the inventory is listed: before that, there is nobody to sync with. None:
    /// it was not listed yet.
    deadline: Option<Moment>,
    open: bool,
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            deadline: None,
            open: false,
        }
    }

    pub(super) fn inventory_listed(&mut self, now: Moment) {
        self.deadline.get_or_insert(now + self.timeout);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Opens if it may; returns whether it did just now.
    pub(super) fn check(&mut self, world: &World, now: Moment) -> bool {
        let Some(deadline) = self.deadline.filter(|_| !self.open) else {
            return false;
        };
        let waiting: Vec<String> = world
            .members
            .iter()
            .filter(|(_, member)| !member.settled())
            .map(|(name, _)| name.to_string())
            .collect();
        if waiting.is_empty() {
            tracing::info!(
                members = world.members.len(),
                "all members are synced: writing"
            );
        } else if now >= deadline {
            tracing::warn!(
                missing = waiting.join(","),
                "not all members are synced in time: writing; what the others export is kept as it is"
            );
        } else {
            return false;
        }
        self.open = true;
        true
    }
}
