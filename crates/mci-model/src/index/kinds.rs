//! A member's Services, EndpointSlices, namespaces and imports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Changes,
    facts::{Claim, LiveImport, NamespaceFacts, ServiceFacts, SliceFacts},
    flavour::ImportCrd,
    left_out::Room,
    member::{Coverage, Member, PoolRecord, Remembered},
    pools::MAX_EXPORTED,
    update::Change,
    weighed::Weighed,
};
use crate::name::Key;
use moment::Moment;

/// Services of one member: past them, only those that a pool names are kept (spec 5.2).
const MAX_SERVICES: usize = 20_000;
/// EndpointSlices of one member: past them, those known stay. Only those of EPPs are watched, so ten for each that it
/// may export.
pub(super) const MAX_SLICES: usize = 10 * MAX_EXPORTED;
/// Namespaces of one member, twice what Kubernetes is tested with: past them, new ones are not written into.
pub(super) const MAX_NAMESPACES: usize = 20_000;
/// Imports in one member, ten times what we are measured with: past them, or past [`IMPORT_BYTES`], what it holds counts
/// as not known, and nothing is written there until all fits again.
///
/// [`IMPORT_BYTES`]: super::weighed::IMPORT_BYTES
pub(super) const MAX_IMPORTS: usize = 50_000;

// === impl Member ===

impl Member {
    pub(super) fn change_services(&mut self, change: Change<ServiceFacts>) -> Changes {
        let changed = match change {
            Change::Listed(mut items) => {
                if items.len() > MAX_SERVICES || self.services.items.is_too_much(items.iter()) {
                    tracing::warn!(
                        services = items.len(),
                        "too many Services: keeping those of pools and some others"
                    );
                    items.sort_by_key(|item| self.pools_of_service(&item.key).next().is_none());
                    items.truncate(MAX_SERVICES);
                }
                let items = items.into_iter().map(|item| (item.key.clone(), item));
                self.services.reset(items)
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let is_named = self.pools_of_service(&key).next().is_some();
                let full = self.services.items.len() >= MAX_SERVICES;
                if full && !self.services.items.contains_key(&key) && !is_named {
                    return Changes::default();
                }
                if is_named {
                    let items = &mut self.services.items;
                    items.make_room(&key, &item, usize::MAX, || {
                        let named = named(&self.pools);
                        move |key: &Key, _: &ServiceFacts| is_in(&named, key)
                    });
                }
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
        let service =
            |slice: &SliceFacts| Key::of(slice.key.namespace.clone(), slice.service.clone());
        let mut services = BTreeSet::new();
        match change {
            Change::Listed(mut items) => {
                if items.len() > MAX_SLICES || self.slices.items.is_too_much(items.iter()) {
                    let named = named(&self.pools);
                    let known = &self.slices.items;
                    items.sort_by_key(|item| {
                        let is_named = is_in(&named, &service(item));
                        (!is_named, !known.contains_key(&item.key))
                    });
                    items.truncate(MAX_SLICES);
                }
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
                if self.pools_of_service(&service(&item)).next().is_some() {
                    let items = &mut self.slices.items;
                    items.make_room(&item.key, &item, MAX_SLICES, || {
                        let named = named(&self.pools);
                        move |_: &Key, slice: &SliceFacts| is_in(&named, &service(slice))
                    });
                }
                let old = self.slices.items.get(&item.key);
                let full = old.is_none() && self.slices.items.len() >= MAX_SLICES;
                if !full && old != Some(&item) {
                    let concerned = [old.map(service), Some(service(&item))];
                    if self.slices.items.insert(item.key.clone(), item) {
                        services.extend(concerned.into_iter().flatten());
                    }
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
            Change::Listed(mut items) => {
                if items.len() > MAX_NAMESPACES {
                    items.sort_by_key(|item| !self.namespaces.items.contains_key(&item.name));
                    items.truncate(MAX_NAMESPACES);
                }
                let items = items.into_iter().map(|item| (item.name.clone(), item));
                self.namespaces.reset(items)
            }
            Change::Applied(item) => {
                let name = item.name.clone();
                let full = self.namespaces.items.len() >= MAX_NAMESPACES;
                if full && !self.namespaces.items.contains_key(&name) {
                    return BTreeSet::new();
                }
                let news = self.namespaces.apply(name.clone(), item);
                news.then_some(name).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.namespaces.items.remove(&key.name);
                BTreeSet::from([key.name])
            }
        }
    }

    /// Another CRD than before has none of the objects of the one before: all is written again.
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
            // read through the other CRD, they may lack most of what is stored (K6): nothing is compared with that
            self.imports.coverage = Coverage::Never;
        }
        if old_uid.is_some() && old_uid != crd.uid {
            self.imports.items.take();
            self.remembered.take();
        }
        self.import_crd = Some(crd);
        Changes::all()
    }

    /// Keeps the entries of imports that are about to be read without them.
    fn remember_entries(&mut self) {
        let items = self.imports.items.iter();
        let items = items.filter(|(_, import)| {
            import.claim == Claim::Ours && !import.status.clusters.is_empty()
        });
        let kept = items.map(|(key, import)| {
            let remembered = Remembered {
                uid: import.uid.clone(),
                entries: import.status.clusters.clone(),
            };
            (key.clone(), remembered)
        });
        for (key, remembered) in kept {
            self.remembered.insert(key, remembered);
        }
    }

    /// Forgets the entries of imports that are gone, or that show entries again.
    fn forget_entries(&mut self) {
        let items = &self.imports.items;
        self.remembered.retain(|key, remembered| {
            let import = items.get(key).filter(|import| import.uid == remembered.uid);
            import.is_some_and(|import| import.status.clusters.is_empty())
        });
    }

    pub(super) fn change_imports(&mut self, change: Change<LiveImport>, now: Moment) -> Changes {
        let mut as_planned = false;
        let keys = match change {
            Change::Listed(items) => {
                let weights = items.iter().map(|item| (item.key.clone(), weight_of(item)));
                let weights: Vec<(Key, usize)> = weights.collect();
                let items = items.into_iter().take(MAX_IMPORTS);
                let items = items.map(|item| (item.key.clone(), item));
                let keys = self.imports.reset(items);
                self.imports_left_out.listed();
                let kept = &self.imports.items;
                for (key, bytes) in weights
                    .into_iter()
                    .filter(|(key, _)| !kept.contains_key(key))
                {
                    self.imports_left_out.add(key, bytes);
                }
                keys
            }
            Change::Applied(item) => {
                let key = item.key.clone();
                let full = self.imports.items.len() >= MAX_IMPORTS;
                let fits = !full || self.imports.items.contains_key(&key);
                if !fits || !self.imports.items.admits(&key, &item) {
                    // what it said before is no longer so
                    self.imports.items.remove(&key);
                    self.imports_left_out.add(key, weight_of(&item));
                    return Changes::default();
                }
                self.imports_left_out.settle(&key);
                as_planned = self.contests.shown(&item, now);
                let news = self.imports.apply(key.clone(), item);
                news.then_some(key).into_iter().collect()
            }
            Change::Deleted(key) => {
                self.imports.items.remove(&key);
                self.imports_left_out.settle(&key);
                BTreeSet::from([key])
            }
        };
        if !self.remembered.is_empty() {
            self.forget_entries();
        }
        let mut changes = Changes::default();
        if as_planned {
            changes.dirty.as_planned = keys;
        } else {
            changes.dirty.echoes = keys;
        }
        changes
    }

    /// How many more imports could be kept.
    pub(super) fn imports_room(&self) -> Room {
        Room {
            objects: MAX_IMPORTS.saturating_sub(self.imports.items.len()),
            bytes: self.imports.items.room(),
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

fn weight_of(import: &LiveImport) -> usize {
    Weighed::<Key, LiveImport>::weight(import)
}

/// Namespace and name of the Services that pools name: one walk over the pools, however many are looked up.
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
