//! What became of the events of a message.

use kv_router::{Applied, Event, Refused};

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Blocks were cached.
    Stored,
    /// Blocks went.
    Removed,
    /// All blocks went.
    Cleared,
    /// The kind of the event could not be read.
    Unknown,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// It was applied.
    Applied,
    /// It is of a cache group that is not indexed.
    OtherGroup,
    /// The block before is not known.
    Orphan,
    /// The engine's blocks have another size.
    BlockSize,
    /// It has more or fewer ids than its blocks.
    Length,
    /// The event belongs to a store that all workers share.
    Shared,
    /// The event could not be read.
    Unreadable,
}

/// How many events of each kind came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([[u32; EventResult::ALL.len()]; EventKind::ALL.len()]);

// === impl EventKind ===

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stored, Self::Removed, Self::Cleared, Self::Unknown];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Removed => "removed",
            Self::Cleared => "cleared",
            Self::Unknown => "unknown",
        }
    }
}

// === impl EventResult ===

impl EventResult {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Applied,
        Self::OtherGroup,
        Self::Orphan,
        Self::BlockSize,
        Self::Length,
        Self::Shared,
        Self::Unreadable,
    ];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::OtherGroup => "other-group",
            Self::Orphan => "orphan",
            Self::BlockSize => "block-size",
            Self::Length => "length",
            Self::Shared => "shared",
            Self::Unreadable => "unreadable",
        }
    }
}

// === impl Counts ===

impl Counts {
    /// Events of this kind that came to this.
    pub fn get(&self, kind: EventKind, result: EventResult) -> u32 {
        self.0[kind as usize][result as usize]
    }

    /// All that are not zero.
    pub fn iter(&self) -> impl Iterator<Item = (EventKind, EventResult, u32)> {
        EventKind::ALL
            .into_iter()
            .flat_map(|kind| EventResult::ALL.map(|result| (kind, result)))
            .map(|(kind, result)| (kind, result, self.get(kind, result)))
            .filter(|(.., count)| *count > 0)
    }

    pub(crate) fn count(&mut self, event: &Event<'_>, applied: Result<Applied, Refused>) {
        let kind = match event {
            Event::Stored(_)
            | Event::Shared { is_stored: true }
            | Event::Unreadable {
                is_stored: true, ..
            } => EventKind::Stored,
            Event::Removed(_) | Event::Shared { is_stored: false } => EventKind::Removed,
            Event::Cleared => EventKind::Cleared,
            Event::Unreadable {
                is_stored: false, ..
            } => EventKind::Unknown,
        };
        let result = match applied {
            Ok(Applied::OtherGroup) => EventResult::OtherGroup,
            Ok(Applied::Shared) => EventResult::Shared,
            Ok(_) => EventResult::Applied,
            Err(Refused::Orphan) => EventResult::Orphan,
            Err(Refused::BlockSize(_)) => EventResult::BlockSize,
            Err(Refused::Length(..)) => EventResult::Length,
            Err(Refused::Unreadable(_)) => EventResult::Unreadable,
        };
        let count = &mut self.0[kind as usize][result as usize];
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_by_kind_and_result() {
        let mut counts = Counts::default();
        let removed = Event::Removed(kv_router::Removed::default());
        counts.count(&Event::Cleared, Ok(Applied::Cleared));
        counts.count(&removed, Ok(Applied::OtherGroup));
        counts.count(
            &Event::Stored(kv_router::Stored::default()),
            Err(Refused::Orphan),
        );
        counts.count(&Event::Cleared, Ok(Applied::Cleared));
        let all: Vec<_> = counts
            .iter()
            .map(|(kind, result, count)| (kind.name(), result.name(), count))
            .collect();
        assert_eq!(
            all,
            [
                ("stored", "orphan", 1),
                ("removed", "other-group", 1),
                ("cleared", "applied", 2)
            ]
        );
    }
}
