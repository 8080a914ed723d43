//! Places of endpoints in tables.

use std::fmt;

/// The place of one endpoint in every table that is indexed by endpoint. The place of one that is gone is given to
/// another with the next generation, so that what still names the former matches nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index into tables; small, for places are used again.
    pub index: u32,
    /// How often the place was given away before.
    pub generation: u32,
}

/// Generations that a slot's own one stands for.
const RESTARTS: u32 = 256;

// === impl Slot ===

impl Slot {
    /// The place of what the endpoint has cached, which is gone when its engine starts again: a generation for each of
    /// up to 255 restarts; later ones keep the last.
    #[must_use]
    pub fn after_restarts(self, restarts: u32) -> Self {
        let restarts = restarts.min(RESTARTS - 1);
        Self {
            generation: self
                .generation
                .wrapping_mul(RESTARTS)
                .wrapping_add(restarts),
            ..self
        }
    }

    /// The slot of the endpoint, of the place of what it has cached: the reverse of [`Self::after_restarts`], but for
    /// generations that passed 2^24.
    #[must_use]
    pub fn life_of(self) -> Self {
        Self {
            generation: self.generation / RESTARTS,
            ..self
        }
    }
}

/// `7.2`: index, generation.
impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, generation } = self;
        write!(f, "{index}.{generation}")
    }
}
