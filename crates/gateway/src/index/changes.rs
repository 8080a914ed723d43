//! What an update changed, for whom follows it.

use std::collections::BTreeSet;

use crate::status::Target;
use crate::world::Touched;
use crate::xds::Reads;

/// What an update changed.
#[expect(clippy::struct_excessive_bools, reason = "each is followed by itself")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) world: Touched,
    /// Services and pools with other endpoints than before.
    pub(crate) endpoints: BTreeSet<Reads>,
    pub(crate) live: Live,
    /// What there is of our infrastructure.
    pub(crate) parts: bool,
    /// Whom to observe, and how, may be other than before.
    pub(crate) observed: bool,
    /// Shares, priorities or health of clusters of imports.
    pub(crate) selection: bool,
    /// What Envoys refuse, or what a writer of infrastructure met.
    pub(crate) feedback: bool,
}

/// Objects whose live status is other than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    /// Any object's may be.
    pub(crate) all: bool,
    pub(crate) targets: BTreeSet<Target>,
}

// === impl Changes ===

impl Changes {
    pub(crate) fn any(&self) -> bool {
        *self != Self::default()
    }

    pub(crate) fn add(&mut self, other: Self) {
        let Self {
            world,
            endpoints,
            live,
            parts,
            observed,
            selection,
            feedback,
        } = other;
        self.world.add(world);
        self.endpoints.extend(endpoints);
        self.live.all |= live.all;
        self.live.targets.extend(live.targets);
        self.parts |= parts;
        self.observed |= observed;
        self.selection |= selection;
        self.feedback |= feedback;
    }

    /// Any object of the world may depend on what is other than before.
    pub(super) fn world(changed: bool) -> Self {
        Self::touched(Touched::any(changed))
    }

    pub(super) fn touched(world: Touched) -> Self {
        Self {
            world,
            ..Self::default()
        }
    }

    pub(super) fn live(live: Live) -> Self {
        Self {
            live,
            ..Self::default()
        }
    }
}

// === impl Live ===

impl Live {
    pub(super) fn of(target: Target, changed: bool) -> Self {
        let target = Some(target).filter(|_| changed);
        Self {
            all: false,
            targets: target.into_iter().collect(),
        }
    }
}
