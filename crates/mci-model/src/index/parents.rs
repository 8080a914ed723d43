//! A member's Gateways and HTTPRoutes, kept only while it exports something in ParentMode.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use crd::RoutingMode;

use super::{
    Changes,
    facts::{GatewayFacts, PoolFacts, RouteFacts},
    member::{Coverage, Member, PoolRecord, Store},
    update::{Change, ParentKind},
};
use crate::name::Key;

/// The Gateways and HTTPRoutes of a member.
#[derive(Clone, Debug, Default)]
pub struct Parents {
    pub gateways: Store<Key, GatewayFacts>,
    pub(super) routes: Store<Key, RouteFacts>,
    /// Routes by the pools and imports that they lead to: both have the same key.
    by_target: BTreeMap<Key, BTreeSet<Key>>,
}

/// Gateways of one member: beyond it, only those that a pool names are kept. As many as pools that it may export.
const MAX_GATEWAYS: usize = 2_000;
/// Routes to pools or imports of one member: beyond it, only those to a pool that it has are kept. As many as Services.
const MAX_ROUTES: usize = 20_000;

// === impl Parents ===

impl Parents {
    /// Whether each of the two kinds was listed, or is known not to be readable.
    pub fn known(&self) -> bool {
        let known = |one| matches!(one, Coverage::Listed | Coverage::NotServed);
        known(self.gateways.coverage) && known(self.routes.coverage)
    }

    /// Whether the absence of a Gateway means that there is none.
    pub fn gateways_listed(&self) -> bool {
        self.gateways.coverage == Coverage::Listed
    }

    /// The routes that lead to the pool or the import of this key; none if routes are not listed.
    pub fn routes_to(&self, key: &Key) -> Option<Vec<&RouteFacts>> {
        if self.routes.coverage != Coverage::Listed {
            return None;
        }
        let keys = self.by_target.get(key).into_iter().flatten();
        Some(keys.filter_map(|key| self.routes.items.get(key)).collect())
    }

    /// Returns the Gateways that changed.
    fn change_gateways(&mut self, change: Change<GatewayFacts>) -> BTreeSet<Key> {
        match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.gateways.reset(items)
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let changed = self.gateways.apply(key.clone(), item);
                changed.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                let known = self.gateways.items.remove(&key);
                known.map(|_| key).into_iter().collect()
            }
        }
    }

    /// Returns the targets of routes that changed, before and after.
    fn change_routes(&mut self, change: Change<RouteFacts>) -> BTreeSet<Key> {
        match change {
            Change::Listed(items) => {
                let listed: BTreeSet<Key> = items.iter().map(|item| item.key.clone()).collect();
                let known = self.routes.items.keys();
                let gone: Vec<Key> = known
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                let mut targets = BTreeSet::new();
                for key in gone {
                    targets.extend(self.remove_route(&key));
                }
                for item in items {
                    targets.extend(self.apply_route(item));
                }
                self.routes.coverage = Coverage::Listed;
                targets
            }
            Change::Applied(item) => self.apply_route(item),
            Change::Deleted(key) => self.remove_route(&key),
        }
    }

    fn apply_route(&mut self, route: RouteFacts) -> BTreeSet<Key> {
        if self.routes.items.get(&route.key) == Some(&route) {
            return BTreeSet::new();
        }
        let new = route.targets();
        // most routes of a cluster lead to Services: those are not kept
        if new.is_empty() {
            return self.remove_route(&route.key);
        }
        let mut targets = self.remove_route(&route.key);
        for target in &new {
            let routes = self.by_target.entry(target.clone()).or_default();
            routes.insert(route.key.clone());
        }
        self.routes.items.insert(route.key.clone(), route);
        targets.extend(new);
        targets
    }

    fn remove_route(&mut self, key: &Key) -> BTreeSet<Key> {
        let Some(route) = self.routes.items.remove(key) else {
            return BTreeSet::new();
        };
        let targets = route.targets();
        for target in &targets {
            if let Some(routes) = self.by_target.get_mut(target) {
                routes.remove(key);
                if routes.is_empty() {
                    self.by_target.remove(target);
                }
            }
        }
        targets
    }
}

// === impl RouteFacts ===

impl RouteFacts {
    fn targets(&self) -> BTreeSet<Key> {
        self.pools.union(&self.imports).cloned().collect()
    }
}

// === impl Member ===

impl Member {
    pub(super) fn change_gateways(&mut self, change: Change<GatewayFacts>) -> Changes {
        let before = self.parents.known();
        // needed only if there are too many
        let named: LazyCell<BTreeSet<&Key>, _> = LazyCell::new(|| {
            let pools = self.pools.records.values();
            pools.flat_map(|pool| &pool.facts.parents).collect()
        });
        let change = self.parents.gateways.cap(
            ParentKind::Gateways.into(),
            MAX_GATEWAYS,
            change,
            |it| &it.key,
            |it| named.contains(&it.key),
        );
        let Some(change) = change else {
            return Changes::default();
        };
        let changed = self.parents.change_gateways(change);
        let all = self.parents.known() != before;
        self.dirty_parents(|_, record| {
            let mut parents = record.facts.parents.iter();
            all || parents.any(|gateway| changed.contains(gateway))
        })
    }

    pub(super) fn change_routes(&mut self, change: Change<RouteFacts>) -> Changes {
        let before = self.parents.known();
        let change = match change {
            Change::Listed(mut items) => {
                items.retain(|route| !route.targets().is_empty());
                Change::Listed(items)
            }
            change => change,
        };
        let needed = |route: &RouteFacts| {
            let mut targets = route.pools.union(&route.imports);
            targets.any(|key| self.pools.records.contains_key(key))
        };
        let routes = &mut self.parents.routes;
        let kind = ParentKind::Routes.into();
        let change = routes.cap(kind, MAX_ROUTES, change, |it| &it.key, needed);
        let Some(change) = change else {
            return Changes::default();
        };
        let targets = self.parents.change_routes(change);
        let all = self.parents.known() != before;
        self.dirty_parents(|key, _| all || targets.contains(key))
    }

    /// The kind is not served, or we may not read it. What is known of it stays.
    pub(super) fn hide_parents(&mut self, kind: ParentKind) -> Changes {
        let coverage = match kind {
            ParentKind::Gateways => &mut self.parents.gateways.coverage,
            ParentKind::Routes => &mut self.parents.routes.coverage,
        };
        if *coverage != Coverage::Never {
            return Changes::default();
        }
        *coverage = Coverage::NotServed;
        self.dirty_parents(|_, _| true)
    }

    /// They are not watched any more: what is known of them is dropped, since it would become stale.
    pub(super) fn unwatch_parents(&mut self) -> Changes {
        let Parents {
            gateways, routes, ..
        } = &self.parents;
        if gateways.coverage == Coverage::Never && routes.coverage == Coverage::Never {
            return Changes::default();
        }
        self.parents = Parents::default();
        self.dirty_parents(|_, _| true)
    }

    /// The mode of a pool's export; none without one.
    pub fn mode_of(&self, pool: &PoolFacts) -> Option<RoutingMode> {
        let request = pool.export.requested().ok()?;
        Some(request.mode.unwrap_or(self.default_mode))
    }

    /// Marks its exports in ParentMode that are `concerned`.
    fn dirty_parents(&self, concerned: impl Fn(&Key, &PoolRecord) -> bool) -> Changes {
        let mut changes = Changes::default();
        let exported = self.pools.iter().filter(|(key, record)| {
            concerned(key, record) && self.mode_of(&record.facts) == Some(RoutingMode::ParentMode)
        });
        let keys = exported.map(|(key, _)| key.clone());
        changes.dirty.keys.extend(keys);
        changes
    }
}

#[cfg(test)]
mod tests;
