//! Nothing is written before we know who the members are and what is in them (spec 4.3): a controller that has just
//! started must not take its own ignorance for their absence.

use crate::index::World;
use moment::Moment;

/// The gate in front of all writes; it opens once.
#[derive(Debug)]
pub(super) struct Gate {
    /// Members not synced by then are carried instead of waited for.
    deadline: Moment,
    inventory_listed: bool,
    open: bool,
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(deadline: Moment) -> Self {
        Self {
            deadline,
            inventory_listed: false,
            open: false,
        }
    }

    pub(super) fn inventory_listed(&mut self) {
        self.inventory_listed = true;
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Opens if it may; returns whether it did just now.
    pub(super) fn check(&mut self, world: &World, now: Moment) -> bool {
        if self.open || !self.inventory_listed {
            return false;
        }
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
        } else if now >= self.deadline {
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
