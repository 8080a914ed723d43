//! How requests are shared among the clusters of each import, as of one moment.

use std::collections::BTreeMap;

use crate::world::Key;

/// By import, then by cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection(BTreeMap<Key, BTreeMap<String, Assigned>>);

/// What one cluster gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// Of its priority, in permille.
    pub(crate) weight: u32,
    pub(crate) priority: u32,
    pub(crate) health: Health,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Healthy,
    Unhealthy,
    Draining,
}

impl Selection {
    pub(crate) fn new(
        imports: impl IntoIterator<Item = (Key, BTreeMap<String, Assigned>)>,
    ) -> Self {
        Self(imports.into_iter().collect())
    }

    pub(crate) fn of(&self, import: &Key, cluster: &str) -> Option<Assigned> {
        self.0.get(import)?.get(cluster).copied()
    }
}
