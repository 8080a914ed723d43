//! What the events of a message show about their stream.

use kv_router::{Applied, Event, Refused, Tier};

/// What the events of a message show about their stream.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Whether some blocks have the expected size.
    pub(crate) is_our_size: bool,
    /// The size of blocks in the accelerator's memory that have another size.
    pub(crate) other_size: Option<u64>,
    /// Whether the parent of some blocks is not known.
    pub(crate) is_orphan: bool,
    /// Why an event was left out that may have changed the cache.
    pub(crate) unreadable: Option<Refused>,
    /// Whether all blocks were forgotten because of it.
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

#[cfg(test)]
mod tests {
    use kv_router::{MalformedEvents, Stored};

    use super::*;

    fn mk_stored(ids: usize, tier: Tier) -> Event<'static> {
        Event::Stored(Stored {
            ids: vec![1; ids],
            tier,
            ..Stored::default()
        })
    }

    /// Whether blocks have the expected size, their other size, whether a block is missing, and whether all were
    /// forgotten.
    fn seen_of(
        event: &Event<'_>,
        applied: Result<Applied, Refused>,
    ) -> (bool, Option<u64>, bool, bool) {
        let mut seen = Seen::default();
        seen.note(event, applied);
        let Seen {
            is_our_size,
            other_size,
            unreadable,
            is_forgotten,
            ..
        } = seen;
        (is_our_size, other_size, unreadable.is_some(), is_forgotten)
    }

    #[test]
    fn only_blocks_with_ids_in_the_accelerators_memory_say_what_the_engines_size_is() {
        let (gpu, host) = (mk_stored(4, Tier::Gpu), mk_stored(4, Tier::Host));
        let other = Err(Refused::BlockSize(64));
        assert_eq!(seen_of(&gpu, other), (false, Some(64), false, false));
        assert_eq!(seen_of(&host, other), (false, None, false, false));
        let named = mk_stored(0, Tier::Gpu);
        assert_eq!(
            seen_of(&named, Ok(Applied::Blocks(1))),
            (false, None, false, false)
        );
        assert_eq!(
            seen_of(&gpu, Ok(Applied::Blocks(1))),
            (true, None, false, false)
        );
        assert_eq!(
            seen_of(&gpu, Err(Refused::Orphan)),
            (true, None, false, false)
        );
    }

    #[test]
    fn blocks_that_are_left_out_are_missing_and_removals_forget_all() {
        let gpu = mk_stored(4, Tier::Gpu);
        let length = Err(Refused::Length(1, 2));
        assert_eq!(seen_of(&gpu, length), (false, None, true, false));
        let error = MalformedEvents::Ends;
        for is_stored in [true, false] {
            let event = Event::Unreadable { error, is_stored };
            let seen = seen_of(&event, Err(Refused::Unreadable(error)));
            assert_eq!(seen, (false, None, true, !is_stored));
        }
    }
}
