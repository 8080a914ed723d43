//! What the events of a message tell of their stream.

use kv_router::{Applied, Event, Refused, Tier};

/// What the events of a message tell of their stream.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Some blocks are of our size.
    pub(crate) is_our_size: bool,
    /// Blocks in the accelerator's memory are of this one.
    pub(crate) other_size: Option<u64>,
    /// The parent of some blocks is not known.
    pub(crate) is_orphan: bool,
    /// Why an event was left out that may have changed something.
    pub(crate) unreadable: Option<Refused>,
    /// All blocks were forgotten for it.
    pub(crate) is_forgotten: bool,
}

// === impl Seen ===

impl Seen {
    pub(crate) fn note(&mut self, event: &Event<'_>, applied: Result<Applied, Refused>) {
        let stored = match event {
            Event::Stored(stored) => Some(stored).filter(|it| !it.ids.is_empty()),
            _ => None,
        };
        match applied {
            Ok(Applied::Blocks(_)) if stored.is_some() => self.is_our_size = true,
            Ok(_) => {}
            Err(Refused::Orphan) => (self.is_our_size, self.is_orphan) = (true, true),
            // Offloaded blocks may be larger than the engine's own.
            Err(Refused::BlockSize(size)) => {
                if stored.is_some_and(|it| it.tier == Tier::Gpu) {
                    self.other_size = Some(size);
                }
            }
            Err(error @ (Refused::Length(..) | Refused::Unreadable(_))) => {
                self.unreadable = Some(error);
                self.is_forgotten |= matches!(
                    event,
                    Event::Unreadable {
                        is_stored: false,
                        ..
                    }
                );
            }
        }
    }
}
