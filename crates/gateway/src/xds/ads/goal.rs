//! What an Envoy shall have: the newest snapshot, by way of an earlier one where that is under way.
//!
//! Listeners and route tables wait for what they lead to. If they were always those of the newest snapshot, clusters and hops that
//! come faster than an Envoy takes them would hold them back for ever. So they are those of one snapshot, the pinned one, until
//! they are sent and acknowledged; then the newest is pinned.

use std::sync::Arc;

use crate::xds::{Kind, Resource, Snapshot};

use super::stage::hops_of;

#[derive(Clone, Debug)]
pub(super) struct Goal {
    newest: Arc<Snapshot>,
    /// Listeners and route tables are of this one.
    pinned: Arc<Snapshot>,
}

// === impl Goal ===

impl Goal {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            newest: Arc::clone(&snapshot),
            pinned: snapshot,
        }
    }

    pub(super) fn newest(&self) -> &Snapshot {
        &self.newest
    }

    pub(super) fn set_newest(&mut self, snapshot: Arc<Snapshot>) {
        self.newest = snapshot;
    }

    /// No other snapshot comes before the newest.
    pub(super) fn is_newest(&self) -> bool {
        Arc::ptr_eq(&self.newest, &self.pinned)
    }

    pub(super) fn pin_newest(&mut self) {
        self.pinned = Arc::clone(&self.newest);
    }

    /// The resource that the Envoy shall have next. Of clusters, hosts and secrets it is the newest; what only the pinned snapshot
    /// has is there for as long as its tables are on their way.
    pub(super) fn of(&self, kind: Kind, name: &str) -> Option<&Arc<Resource>> {
        let (newest, pinned) = (self.newest.of(kind), self.pinned.of(kind));
        match kind {
            Kind::Listener | Kind::Routes => pinned.get(name),
            Kind::Endpoints if self.is_of_pinned(name) => pinned.get(name),
            Kind::Cluster | Kind::Endpoints | Kind::Secret => {
                newest.get(name).or_else(|| pinned.get(name))
            }
        }
    }

    /// The names of all that the Envoy shall have next.
    pub(super) fn names(&self, kind: Kind) -> impl Iterator<Item = &String> {
        let (newest, pinned) = (self.newest.of(kind), self.pinned.of(kind));
        let is_of_pinned = matches!(kind, Kind::Listener | Kind::Routes);
        let of_newest = newest.keys().filter(move |_| !is_of_pinned);
        let others = pinned.keys();
        let others = others.filter(move |name| is_of_pinned || !newest.contains_key(*name));
        of_newest.chain(others)
    }

    /// Hosts of a cluster that are those of the pinned snapshot: the newest lead to hops that are not there yet.
    pub(super) fn is_of_pinned(&self, assignment: &str) -> bool {
        if self.is_newest() || !self.pinned.endpoints.contains_key(assignment) {
            return false;
        }
        let Some(hops) = hops_of(assignment) else {
            return false;
        };
        let newest = self.newest.listeners.range(hops.clone()..);
        let mut newest = newest.take_while(|(name, _)| name.starts_with(&hops));
        newest.any(|(name, _)| !self.pinned.listeners.contains_key(name))
    }

    /// Whether a table of the pinned snapshot may lead to the cluster.
    pub(super) fn is_cluster_of_pinned(&self, name: &str) -> bool {
        self.pinned.clusters.contains_key(name)
    }

    /// Whether it is in one of both snapshots.
    pub(super) fn knows(&self, kind: Kind, name: &str) -> bool {
        self.newest.of(kind).contains_key(name) || self.pinned.of(kind).contains_key(name)
    }

    /// Whether it is of this version in one of both snapshots.
    pub(super) fn has(&self, kind: Kind, name: &str, version: u64) -> bool {
        let snapshots = [&self.newest, &self.pinned];
        let mut found = snapshots
            .into_iter()
            .filter_map(|one| one.of(kind).get(name));
        found.any(|resource| resource.version == version)
    }
}
