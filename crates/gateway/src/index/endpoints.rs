//! Endpoints of Services and pools.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use watch::Update;

use crate::world::{Key, project};
use crate::xds::Reads;

use super::keep::keep_some;
use super::{Changes, Index};

impl Index {
    pub(super) fn slices(&mut self, update: Update<EndpointSlice>, odd: &BTreeSet<Key>) -> Changes {
        let named: Vec<Key> = match &update {
            Update::Reset(_) => self.endpoints.slices.keys().cloned().collect(),
            Update::Apply(one) | Update::Delete(one) => vec![project::key(&one.metadata)],
            Update::OddDelete(one) => vec![Key::new(&one.namespace, &one.name)],
            Update::Odd(_) | Update::Failed(_) => Vec::new(),
        };
        let services = named.into_iter().filter_map(|name| {
            let before = self.endpoints.slices.get(&name)?;
            let service = before.service.clone();
            Some((name, service))
        });
        let before: BTreeMap<Key, Key> = services.collect();
        let changed = keep_some(
            &mut self.endpoints.slices,
            update,
            odd,
            |o| &o.metadata,
            project::slice,
        );
        let mut services = BTreeSet::new();
        for name in changed {
            if let Some(service) = before.get(&name) {
                self.endpoints.unlink(&name, service);
                services.insert(service.clone());
            }
            services.extend(self.endpoints.link(&name));
        }
        let api_server = Key::new("default", "kubernetes");
        let mut changes = Changes::default();
        if services.contains(&api_server) {
            let addresses = self.endpoints.addresses_of(&api_server);
            let moved = self.api_servers != addresses;
            self.api_servers = addresses;
            changes = self.own_networks(moved);
        }
        changes.endpoints = services.into_iter().map(Reads::Service).collect();
        changes
    }

    /// A pool whose selector is refused has no pods, whatever it had before.
    pub(super) fn pods(&mut self, pool: &Key, update: Update<Pod>, odd: &BTreeSet<Key>) -> Changes {
        let mut changes = Changes::default();
        let update = match update {
            Update::Failed(failure) if failure.is_bad_request() => {
                let message = Some(failure.message.clone());
                let before = self
                    .world
                    .bad_selectors
                    .insert(pool.clone(), failure.message);
                if before != message {
                    changes.world.pools.insert(pool.clone());
                }
                Update::Reset(Vec::new())
            }
            Update::Reset(list) => {
                if self.world.bad_selectors.remove(pool).is_some() {
                    changes.world.pools.insert(pool.clone());
                }
                Update::Reset(list)
            }
            update => update,
        };
        let pods = self.endpoints.pods.entry(pool.clone()).or_default();
        let mut named: BTreeMap<Key, _> = std::mem::take(pods)
            .into_iter()
            .map(|(name, ip)| (Key::new(&pool.namespace, name), ip))
            .collect();
        let changed = keep_some(&mut named, update, odd, |o| &o.metadata, project::ready_pod);
        *pods = named.into_iter().map(|(key, ip)| (key.name, ip)).collect();
        if !changed.is_empty() {
            changes.endpoints.insert(Reads::Pool(pool.clone()));
        }
        changes
    }
}
