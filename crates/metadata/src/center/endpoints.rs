//! Load of the endpoints of one cluster.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use hashbrown::HashMap;
use moment::Moment;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Now;
use crate::{
    fault::{Bound, Fault},
    name::Address,
    wire::load::Load,
};

/// What one live request adds to its endpoint, beside 1 request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    /// Its place among those of the cluster, which stays while it has charges.
    pub(super) endpoint: u32,
    /// Unfinished prefill.
    pub(super) prefill: u32,
}

#[derive(Debug, Default)]
pub(super) struct Endpoints(RwLock<Table>);

/// Endpoints by place and by address.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: Vec<Option<Endpoint>>,
    free: Vec<u32>,
    by_address: HashMap<Address, u32>,
    /// Sorted by address.
    order: Vec<(Address, u32)>,
}

/// Sums cannot overflow: 2^20 requests of less than 2^31 each are less than 2^51. A cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Endpoint {
    address: Address,
    requests: AtomicI64,
    prefill: AtomicI64,
    changed_unix_ns: AtomicI64,
    /// On the monotonic clock, in nanoseconds.
    changed: AtomicU64,
}

// === impl Charge ===

impl Charge {
    pub(super) fn prefill(self) -> i64 {
        self.prefill.into()
    }
}

// === impl Endpoints ===

impl Endpoints {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read()
    }

    /// The endpoints, those of all `addresses` among them: unknown ones begin now, all or none.
    pub(super) fn with<'a>(
        &self,
        addresses: impl Iterator<Item = &'a Address> + Clone,
        limit: usize,
        now: Now,
    ) -> Result<RwLockReadGuard<'_, Table>, Fault> {
        let table = self.0.read();
        if addresses.clone().all(|it| table.find(it).is_some()) {
            return Ok(table);
        }
        drop(table);
        let mut table = self.0.write();
        let mut missing: Vec<Address> = addresses
            .filter(|it| table.find(it).is_none())
            .copied()
            .collect();
        missing.sort_unstable();
        missing.dedup();
        if table.order.len() + missing.len() > limit {
            return Err(Fault::Limit(Bound::Endpoints));
        }
        for address in missing {
            table.create(address, now);
        }
        Ok(RwLockWriteGuard::downgrade(table))
    }

    /// Removes those without requests that nothing changed for `unused`; says how many.
    pub(super) fn sweep(&self, unused: Duration, now: Moment) -> usize {
        let is_unused = |table: &Table| {
            table
                .order
                .iter()
                .any(|(_, at)| table.over(*at, unused, now))
        };
        // Nearly always there is nothing to write.
        if !is_unused(&self.0.read()) {
            return 0;
        }
        let table = &mut *self.0.write();
        let before = table.order.len();
        let order = std::mem::take(&mut table.order);
        let (over, order): (Vec<_>, Vec<_>) = order
            .into_iter()
            .partition(|(_, at)| table.over(*at, unused, now));
        table.order = order;
        for (address, at) in over {
            table.by_address.remove(&address);
            table.places[at as usize] = None;
            table.free.push(at);
        }
        before - table.order.len()
    }
}

// === impl Table ===

impl Table {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn find(&self, address: &Address) -> Option<u32> {
        self.by_address.get(address).copied()
    }

    pub(super) fn address(&self, at: u32) -> Option<Address> {
        self.get(at).map(|it| it.address)
    }

    /// Unfinished requests and prefill.
    pub(super) fn load(&self, at: u32) -> (i64, i64) {
        self.get(at).map_or((0, 0), Endpoint::load)
    }

    pub(super) fn change(&self, at: u32, requests: i64, prefill: i64, now: Now) {
        let Some(endpoint) = self.get(at) else {
            return;
        };
        if requests != 0 {
            endpoint.requests.fetch_add(requests, Ordering::Relaxed);
        }
        if prefill != 0 {
            endpoint.prefill.fetch_add(prefill, Ordering::Relaxed);
        }
        let at = nanos(now.at);
        endpoint.changed.store(at, Ordering::Relaxed);
        endpoint
            .changed_unix_ns
            .store(now.unix_ns, Ordering::Relaxed);
    }

    pub(super) fn add(&self, charge: Charge, now: Now) {
        self.change(charge.endpoint, 1, charge.prefill(), now);
    }

    pub(super) fn subtract(&self, charge: Charge, now: Now) {
        self.change(charge.endpoint, -1, -charge.prefill(), now);
    }

    /// The charge `old` is now `new`.
    pub(super) fn replace(&self, old: Charge, new: Charge, now: Now) {
        if old.endpoint != new.endpoint {
            self.subtract(old, now);
            self.add(new, now);
        } else if old.prefill != new.prefill {
            self.change(new.endpoint, 0, new.prefill() - old.prefill(), now);
        }
    }

    pub(super) fn loads(&self) -> Vec<Load> {
        let load = |(address, at): &(Address, u32)| {
            let endpoint = self.get(*at)?;
            let (requests, prefill) = endpoint.load();
            let changed = endpoint.changed_unix_ns.load(Ordering::Relaxed);
            Some(Load::new(*address, requests, prefill, changed))
        };
        self.order.iter().filter_map(load).collect()
    }

    /// Unfinished requests and prefill of all.
    pub(super) fn sum(&self) -> (i64, i64) {
        let loads = self.places.iter().flatten().map(Endpoint::load);
        loads.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    }

    fn get(&self, at: u32) -> Option<&Endpoint> {
        self.places.get(at as usize)?.as_ref()
    }

    fn over(&self, at: u32, unused: Duration, now: Moment) -> bool {
        self.get(at).is_none_or(|it| {
            let changed = Duration::from_nanos(it.changed.load(Ordering::Relaxed));
            it.requests.load(Ordering::Relaxed) == 0
                && now.since(Moment::after_start(changed)) >= unused
        })
    }

    fn create(&mut self, address: Address, now: Now) {
        let endpoint = Some(Endpoint {
            address,
            requests: AtomicI64::new(0),
            prefill: AtomicI64::new(0),
            changed_unix_ns: AtomicI64::new(now.unix_ns),
            changed: AtomicU64::new(nanos(now.at)),
        });
        let at = if let Some(at) = self.free.pop() {
            self.places[at as usize] = endpoint;
            at
        } else {
            self.places.push(endpoint);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        };
        self.by_address.insert(address, at);
        let place = self.order.partition_point(|(it, _)| *it < address);
        self.order.insert(place, (address, at));
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn load(&self) -> (i64, i64) {
        let requests = self.requests.load(Ordering::Relaxed);
        (requests, self.prefill.load(Ordering::Relaxed))
    }
}

/// What [`Moment::after_start`] takes back.
pub(super) fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_start().as_nanos()).unwrap_or(u64::MAX)
}
