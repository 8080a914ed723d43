//! A member's Services, EndpointSlices, namespaces and imports.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Changes,
    facts::{Claim, LiveImport, NamespaceFacts, PoolFacts, ServiceFacts, SliceFacts},
    flavour::ImportCrd,
    member::{Coverage, Member, PoolRecord, Remembered},
    pools::MAX_EXPORTED,
    update::{Change, Kind},
};
use crate::name::Key;
use moment::Moment;

/// Services of one member: beyond it, only those that a pool names are kept (spec 5.2).
pub(super) const MAX_SERVICES: usize = 20_000;
/// EndpointSlices of one member: beyond it, only those of Services that a pool names are kept. Only those of EPPs are
/// watched, so this is ten for each pool that it may export.
pub(super) const MAX_SLICES: usize = 10 * MAX_EXPORTED;
/// Namespaces of one member, twice what Kubernetes is tested with: beyond it, new ones get no imports.
pub(super) const MAX_NAMESPACES: usize = 20_000;
/// Imports in one member, ten times what we are measured with: beyond it, they count as not listed, and nothing is
/// written there.
pub(super) const MAX_IMPORTS: usize = 50_000;

// === impl Member ===

impl Member {
    pub(super) fn change_services(&mut self, change: Change<ServiceFacts>) -> Changes {
        let named = LazyCell::new(|| named(&self.pools.records));
        let needed = |service: &ServiceFacts| is_in(&named, &service.key);
        let kind = Kind::Services.into();
        let services = &mut self.services;
        let Some(change) = services.cap(kind, MAX_SERVICES, change, |it| &it.key, needed) else {
            return Changes::default();
        };
        let changed = match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.services.reset(items)
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let changed = self.services.apply(key.clone(), item);
                changed.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.services.items.remove(&key);
                BTreeSet::from([key])
            }
        };
        self.pools_of(&changed)
    }

    /// If a pool names a Service that was possibly not kept, has the Services listed again: it is kept then.
    pub(super) fn miss_service(&mut self, pool: &PoolFacts) {
        let Some(epp) = &pool.epp else {
            return;
        };
        let key = Key::new(&pool.key.namespace, &epp.name);
        if self.services.capped && !self.services.items.contains_key(&key) {
            self.set_partial(Kind::Services.into());
        }
    }

    pub(super) fn change_slices(&mut self, change: Change<SliceFacts>) -> Changes {
        let service =
            |slice: &SliceFacts| Key::of(slice.key.namespace.clone(), slice.service.clone());
        let named = LazyCell::new(|| named(&self.pools.records));
        let needed = |slice: &SliceFacts| is_in(&named, &service(slice));
        let kind = Kind::Slices.into();
        let slices = &mut self.slices;
        let Some(change) = slices.cap(kind, MAX_SLICES, change, |it| &it.key, needed) else {
            return Changes::default();
        };
        let mut services = BTreeSet::new();
        match change {
            Change::Listed(items) => {
                let old = self.slices.items.take();
                for item in items {
                    self.slices.items.insert(item.key.clone(), item);
                }
                let items = &self.slices.items;
                let changed = items
                    .iter()
                    .filter(|(key, item)| old.get(key) != Some(item));
                services.extend(changed.map(|(_, item)| service(item)));
                let gone = old
                    .iter()
                    .filter(|(key, item)| items.get(key) != Some(item));
                services.extend(gone.map(|(_, item)| service(item)));
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
        let kind = Kind::Namespaces.into();
        let namespaces = &mut self.namespaces;
        let change = namespaces.cap(kind, MAX_NAMESPACES, change, |it| &it.name, |_| false);
        match change {
            None => BTreeSet::new(),
            Some(Change::Listed(items)) => {
                let items = items.into_iter().map(|item| (item.name.clone(), item));
                self.namespaces.reset(items)
            }
            Some(Change::Applied(item)) => {
                let name = item.name.clone();
                let changed = self.namespaces.apply(name.clone(), item);
                changed.then_some(name).into_iter().collect()
            }
            Some(Change::Deleted(key)) => {
                self.namespaces.items.remove(&key.name);
                BTreeSet::from([key.name])
            }
        }
    }

    /// A new CRD has none of the earlier objects: all imports are written again.
    pub(super) fn change_import_crd(&mut self, mut crd: ImportCrd) -> Changes {
        let old = self.import_crd.as_ref();
        let old_uid = old.and_then(|old| old.uid.clone());
        if crd.uid.is_none() {
            crd.uid.clone_from(&old_uid);
        }
        if old == Some(&crd) {
            return Changes::default();
        }
        if old.is_some_and(|old| old.flavour != crd.flavour) {
            self.remember_entries();
            // read through the other CRD, they may lack most of what is stored (K6): they must not be compared
            self.imports.coverage = Coverage::Never;
        }
        if old_uid.is_some() && old_uid != crd.uid {
            self.imports.items.take();
            self.remembered.take();
        }
        self.import_crd = Some(crd);
        Changes::all()
    }

    /// Remembers the entries of imports, which are not shown through the next CRD.
    fn remember_entries(&mut self) {
        for (key, import) in &self.imports.items {
            if import.claim == Claim::Ours && !import.status.clusters.is_empty() {
                let remembered = Remembered {
                    uid: import.uid.clone(),
                    entries: import.status.clusters.clone(),
                };
                self.remembered.insert(key.clone(), remembered);
            }
        }
    }

    /// Drops the remembered entries of imports that are gone, or that show entries again.
    fn forget_entries(&mut self) {
        let items = &self.imports.items;
        self.remembered.retain(|key, remembered| {
            let import = items.get(key).filter(|import| import.uid == remembered.uid);
            import.is_some_and(|import| import.status.clusters.is_empty())
        });
    }

    pub(super) fn change_imports(&mut self, change: Change<LiveImport>, now: Moment) -> Changes {
        let imports = &mut self.imports;
        let change = imports.cap(
            Kind::Imports.into(),
            MAX_IMPORTS,
            change,
            |it| &it.key,
            |_| false,
        );
        let Some(change) = change else {
            self.set_partial(Kind::Imports.into());
            return Changes::default();
        };
        let keys = match change {
            Change::Listed(items) => {
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                let keys = self.imports.reset(items);
                if self.imports.capped {
                    self.set_partial(Kind::Imports.into());
                }
                keys
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                self.undone_imports.observe_live(&item, now);
                let changed = self.imports.apply(key.clone(), item);
                changed.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.imports.items.remove(&key);
                BTreeSet::from([key])
            }
        };
        if !self.remembered.is_empty() {
            self.forget_entries();
        }
        let mut changes = Changes::default();
        changes.dirty.imports = keys;
        changes
    }

    /// Marks the pools whose EPP is one of these Services.
    pub(super) fn pools_of(&self, services: &BTreeSet<Key>) -> Changes {
        let mut changes = Changes::default();
        for service in services {
            let pools = self.pools.of_service(service);
            let concerned =
                pools.filter(|key| self.pools.get(key).is_some_and(PoolRecord::concerns_us));
            changes.dirty.keys.extend(concerned.cloned());
        }
        changes
    }
}

/// Namespace and name of the Services that pools name: one pass over the pools for any number of lookups.
fn named(pools: &BTreeMap<Key, PoolRecord>) -> BTreeSet<(&str, &str)> {
    let named = pools.iter().filter_map(|(key, record)| {
        let epp = record.facts.epp.as_ref()?;
        Some((&*key.namespace, &*epp.name))
    });
    named.collect()
}

fn is_in(named: &BTreeSet<(&str, &str)>, service: &Key) -> bool {
    named.contains(&(&*service.namespace, &*service.name))
}
