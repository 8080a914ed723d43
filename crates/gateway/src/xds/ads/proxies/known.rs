//! What one replica knows of the Envoys of a Gateway, and what follows from what all replicas know (pure).

use std::collections::{BTreeMap, BTreeSet};

use crate::world::Key;
use crate::xds::Snapshot;

use super::{ResourceId, Verdict};

#[cfg(test)]
mod tests;

/// What one replica knows, by Gateway.
pub(crate) type KnownByGateway = BTreeMap<Key, Known>;

/// What one replica knows of the Envoys of one Gateway that are connected to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// How many there are.
    pub(crate) connected: usize,
    /// The edges that those serve that are ready; none: no one is ready.
    pub(crate) served: BTreeSet<String>,
    pub(crate) refused: BTreeMap<ResourceId, Verdict>,
    /// More may be refused than is named here.
    pub(crate) is_partial: bool,
}

/// What Envoys of any replica refuse of the snapshot. Replicas may have other snapshots for a moment: what they say of another
/// version says nothing of this one.
pub(super) fn merged<'a>(
    all: impl Iterator<Item = &'a Known> + Clone,
    snapshot: &Snapshot,
) -> BTreeMap<ResourceId, Verdict> {
    let of = all.clone().map(|one| one.connected).sum();
    let mut merged: BTreeMap<ResourceId, Verdict> = BTreeMap::new();
    for (id, verdict) in all.clone().flat_map(|one| &one.refused) {
        let (kind, name, version) = id;
        let now = snapshot.of(*kind).get(name);
        if now.is_none_or(|resource| resource.version != *version) {
            continue;
        }
        let first = || Verdict {
            of,
            by: 0,
            ..verdict.clone()
        };
        let known = merged.entry(id.clone()).or_insert_with(first);
        known.by = known.by.saturating_add(verdict.by);
    }
    merged.retain(|id, verdict| {
        let mut others = all.clone().filter(|one| one.does_without(id));
        verdict.others_serve = others.clone().next().is_some();
        // those that refused it are gone, and ready Envoys of another replica do not refuse it
        let is_over = verdict.by == 0 && others.any(|one| !one.refused.contains_key(id));
        !is_over
    });
    merged
}

// === impl Known ===

impl Known {
    /// Whether Envoys that are ready do not refuse it.
    fn does_without(&self, id: &ResourceId) -> bool {
        match self.refused.get(id) {
            Some(verdict) => verdict.others_serve,
            None => !self.is_partial && !self.served.is_empty(),
        }
    }
}
