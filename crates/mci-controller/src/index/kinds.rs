//! A member's Services, EndpointSlices, namespaces and imports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Changes, Dirty,
    facts::{LiveImport, NamespaceFacts, ServiceFacts, SliceFacts},
    member::{Coverage, Member, PoolRecord},
    update::Change,
};
use crate::name::Key;

// === impl Member ===

impl Member {
    pub(super) fn change_services(&mut self, change: Change<ServiceFacts>) -> Changes {
        let changed = match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.services.reset(items.collect())
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let news = self.services.apply(key.clone(), item);
                news.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.services.items.remove(&key);
                BTreeSet::from([key])
            }
        };
        self.pools_of(&changed)
    }

    pub(super) fn change_slices(&mut self, change: Change<SliceFacts>) -> Changes {
        let service = |slice: &SliceFacts| Key {
            namespace: slice.key.namespace.clone(),
            name: slice.service.clone(),
        };
        let mut services = BTreeSet::new();
        match change {
            Change::Listed(items) => {
                let items: BTreeMap<_, _> = items
                    .into_iter()
                    .map(|item| (item.key.clone(), item))
                    .collect();
                let old = std::mem::take(&mut self.slices.items);
                let changed = items
                    .iter()
                    .filter(|(key, item)| old.get(key) != Some(item));
                services.extend(changed.map(|(_, item)| service(item)));
                let gone = old
                    .iter()
                    .filter(|(key, item)| items.get(key) != Some(item));
                services.extend(gone.map(|(_, item)| service(item)));
                self.slices.items = items;
                self.slices.coverage = Coverage::Listed;
            }
            Change::Applied(item) => {
                let old = self.slices.items.get(&item.key);
                if old != Some(&item) {
                    services.extend(old.map(service));
                    services.insert(service(&item));
                    self.slices.items.insert(item.key.clone(), item);
                }
            }
            Change::Deleted(key) => {
                services.extend(self.slices.items.remove(&key).as_ref().map(service));
            }
        }
        self.pools_of(&services)
    }

    pub(super) fn change_namespaces(
        &mut self,
        change: Change<NamespaceFacts>,
    ) -> BTreeSet<Arc<str>> {
        match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.name.clone(), item));
                self.namespaces.reset(items.collect())
            }
            Change::Applied(item) => {
                let name = item.name.clone();
                let news = self.namespaces.apply(name.clone(), item);
                news.then_some(name).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.namespaces.items.remove(&key.name);
                BTreeSet::from([key.name])
            }
        }
    }

    pub(super) fn change_imports(&mut self, change: Change<LiveImport>) -> Changes {
        let keys = match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.imports.reset(items.collect())
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let news = self.imports.apply(key.clone(), item);
                news.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.imports.items.remove(&key);
                BTreeSet::from([key])
            }
        };
        Changes {
            dirty: Dirty { all: false, keys },
            ..Changes::default()
        }
    }

    /// The exported pools behind these Services.
    pub(super) fn pools_of(&self, services: &BTreeSet<Key>) -> Changes {
        let mut changes = Changes::default();
        for service in services {
            let pools = self.pools_of_service(service);
            let concerned =
                pools.filter(|key| self.pools.get(*key).is_some_and(PoolRecord::concerns_us));
            changes.dirty.keys.extend(concerned.cloned());
        }
        changes
    }
}
