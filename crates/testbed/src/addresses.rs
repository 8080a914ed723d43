//! Which address is what: the fixed plan of a cluster's /16, and the pools pods and load balancers draw from.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

/// The hub's own address: what clients inside the testbed process connect from, and where etcd listens.
pub(crate) const HUB: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The API servers' port, as everywhere.
pub(crate) const API_SERVER_PORT: u16 = 6443;

/// The address plan of one cluster: 10.N.0.0/16, N from 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterAddresses {
    number: u8,
}

/// Hands out the addresses of a range, each at most once at a time, the longest unused first.
#[derive(Debug)]
pub(crate) struct AddressPool {
    first: u32,
    count: u32,
    next: u32,
    used: BTreeSet<u32>,
}

// === impl ClusterAddresses ===

impl ClusterAddresses {
    /// `number` is the second octet; 0 belongs to the hub.
    pub(crate) fn new(number: u8) -> Option<Self> {
        (number > 0).then_some(Self { number })
    }

    pub(crate) fn number(self) -> u8 {
        self.number
    }

    pub(crate) fn cidr(self) -> String {
        format!("10.{}.0.0/16", self.number)
    }

    pub(crate) fn api_server(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number, 255, 1)
    }

    pub(crate) fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number, 255, 2)
    }

    pub(crate) fn service_cidr(self) -> String {
        format!("10.{}.128.0/18", self.number)
    }

    /// The range from which pods get their addresses.
    pub(crate) fn pod_cidr(self) -> String {
        format!("10.{}.0.0/17", self.number)
    }

    pub(crate) fn load_balancer_cidr(self) -> String {
        format!("10.{}.192.0/19", self.number)
    }

    /// The first address of the Service range: the API server gives it to the `kubernetes` Service.
    pub(crate) fn kubernetes_service(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number, 128, 1)
    }

    /// 10.N.0.2 to 10.N.127.254: [`Self::pod_cidr`] without its ends.
    pub(crate) fn pods(self) -> AddressPool {
        AddressPool::new(Ipv4Addr::new(10, self.number, 0, 2), (1 << 15) - 3)
    }

    /// 10.N.192.1 to 10.N.223.254: a /19 without its ends.
    pub(crate) fn load_balancers(self) -> AddressPool {
        AddressPool::new(Ipv4Addr::new(10, self.number, 192, 1), (1 << 13) - 2)
    }
}

// === impl AddressPool ===

impl AddressPool {
    pub(crate) fn new(first: Ipv4Addr, count: u32) -> Self {
        Self {
            first: first.to_bits(),
            count,
            next: 0,
            used: BTreeSet::new(),
        }
    }

    /// None when every address is in use.
    pub(crate) fn allocate(&mut self) -> Option<Ipv4Addr> {
        for step in 0..self.count {
            let offset = (self.next + step) % self.count;
            if self.used.insert(offset) {
                self.next = (offset + 1) % self.count;
                return Some(Ipv4Addr::from_bits(self.first + offset));
            }
        }
        None
    }

    /// Gives an address back; one that is not of this pool is ignored.
    pub(crate) fn release(&mut self, address: IpAddr) {
        if let Some(offset) = self.offset(address) {
            self.used.remove(&offset);
        }
    }

    fn offset(&self, address: IpAddr) -> Option<u32> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let offset = address.to_bits().checked_sub(self.first)?;
        (offset < self.count).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_cluster_do_not_overlap() {
        let east = ClusterAddresses::new(1).unwrap();
        assert_eq!(east.pods().allocate(), Some(Ipv4Addr::new(10, 1, 0, 2)));
        assert_eq!(
            east.load_balancers().allocate(),
            Some(Ipv4Addr::new(10, 1, 192, 1))
        );
        let pods = east.pods();
        assert_eq!(
            Ipv4Addr::from_bits(pods.first + pods.count - 1),
            Ipv4Addr::new(10, 1, 127, 254)
        );
        let balancers = east.load_balancers();
        assert_eq!(
            Ipv4Addr::from_bits(balancers.first + balancers.count - 1),
            Ipv4Addr::new(10, 1, 223, 254)
        );
    }

    #[test]
    fn a_released_address_is_handed_out_only_after_the_others() {
        let mut pool = AddressPool::new(Ipv4Addr::new(10, 1, 0, 2), 3);
        let first = pool.allocate().unwrap();
        pool.release(first.into());
        assert_ne!(pool.allocate(), Some(first));
        assert_ne!(pool.allocate(), Some(first));
        assert_eq!(pool.allocate(), Some(first));
    }

    #[test]
    fn an_empty_pool_gives_none_and_foreign_addresses_are_ignored() {
        let mut pool = AddressPool::new(Ipv4Addr::new(10, 1, 0, 2), 1);
        assert_eq!(pool.allocate(), Some(Ipv4Addr::new(10, 1, 0, 2)));
        pool.release(Ipv4Addr::new(10, 1, 0, 3).into());
        assert_eq!(pool.allocate(), None);
    }
}
