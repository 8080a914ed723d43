//! Endpoints, apart from the rest of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::Key;

/// Endpoints, apart from the rest of the world: pod churn changes these alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endpoints {
    /// By EndpointSlice.
    pub(crate) slices: BTreeMap<Key, Slice>,
    /// Names of the slices of each Service.
    pub(crate) by_service: BTreeMap<Key, BTreeSet<Key>>,
    /// IPs of the ready pods of each pool.
    pub(crate) pods: BTreeMap<Key, BTreeMap<String, IpAddr>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) service: Key,
    /// Port number by port name.
    pub(crate) ports: BTreeMap<String, u16>,
    /// Addresses of endpoints that are ready.
    pub(crate) ready: Vec<IpAddr>,
    /// Addresses of endpoints that still serve while they terminate: the last resort of the whole Service.
    pub(crate) terminating: Vec<IpAddr>,
}

// === impl Endpoints ===

impl Endpoints {
    /// The slice is one of its Service's from now on, which is returned.
    pub(crate) fn link(&mut self, name: &Key) -> Option<Key> {
        let service = self.slices.get(name)?.service.clone();
        let names = self.by_service.entry(service.clone()).or_default();
        names.insert(name.clone());
        Some(service)
    }

    /// The slice is none of the Service's any more.
    pub(crate) fn unlink(&mut self, name: &Key, service: &Key) {
        if let Some(names) = self.by_service.get_mut(service) {
            names.remove(name);
            if names.is_empty() {
                self.by_service.remove(service);
            }
        }
    }

    /// Ready addresses of the Service's port named `port_name`, sorted, each once. As for kube-proxy, all its slices count
    /// together: only while no endpoint has the port and is ready, those serve on that terminate.
    pub(crate) fn of_service(&self, service: &Key, port_name: &str) -> Vec<SocketAddr> {
        let that_are = |state: fn(&Slice) -> &[IpAddr]| -> BTreeSet<SocketAddr> {
            let names = self.by_service.get(service).into_iter().flatten();
            names
                .filter_map(|name| self.slices.get(name))
                .filter_map(|slice| slice.ports.get(port_name).map(|port| (slice, *port)))
                .flat_map(|(slice, port)| {
                    let ips = state(slice).iter();
                    ips.map(move |ip| SocketAddr::new(*ip, port))
                })
                .collect()
        };
        let mut found = that_are(|slice| &slice.ready);
        if found.is_empty() {
            found = that_are(|slice| &slice.terminating);
        }
        found.into_iter().collect()
    }

    /// Addresses of all endpoints of the Service that serve, whichever their port.
    pub(crate) fn addresses_of(&self, service: &Key) -> BTreeSet<IpAddr> {
        let names = self.by_service.get(service).into_iter().flatten();
        let slices = names.filter_map(|name| self.slices.get(name));
        let ips = slices.flat_map(|slice| slice.ready.iter().chain(&slice.terminating));
        ips.copied().collect()
    }

    /// Each ready pod of the pool at each of its ports, sorted.
    pub(crate) fn of_pool(&self, pool: &Key, ports: &[u16]) -> Vec<SocketAddr> {
        let pods = self.pods.get(pool).into_iter().flat_map(BTreeMap::values);
        let found: BTreeSet<SocketAddr> = pods
            .flat_map(|ip| ports.iter().map(move |port| SocketAddr::new(*ip, *port)))
            .collect();
        found.into_iter().collect()
    }
}
