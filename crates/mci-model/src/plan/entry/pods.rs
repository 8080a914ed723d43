//! The endpoints behind the port of an EPP's Service. All EndpointSlices of the Service are judged together.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    index::{
        facts::{PortFacts, SliceFacts},
        member::Member,
    },
    name::Key,
};

/// Pods that requests may be sent to.
pub(super) struct Pods<'a> {
    /// Their addresses.
    pub(super) addresses: BTreeSet<&'a IpAddr>,
    /// Other pods that could serve, but listen on other ports.
    pub(super) left_out: usize,
    /// A slice with the ports that all of them have; none if there are no pods.
    slice: Option<&'a SliceFacts>,
}

// === impl Pods ===

impl<'a> Pods<'a> {
    /// The pods behind a Service with a cluster IP, which forwards to each pod at the pod's own port.
    pub(super) fn behind(member: &'a Member, service: &'a Key, port: &PortFacts) -> Self {
        let used = used(member, service, port);
        Self {
            addresses: used.iter().map(|(_, ip)| *ip).collect(),
            left_out: 0,
            slice: None,
        }
    }

    /// The pods of a headless Service that have `port`, all with the same numbers of `port` and `others`: an entry has
    /// one number for all its addresses. Where pods differ, as during a rollout that changes a port, the largest group
    /// of pods with the same numbers is used; among groups of the same size, the one with the lowest numbers.
    pub(super) fn alike(
        member: &'a Member,
        service: &'a Key,
        port: &PortFacts,
        others: &[&PortFacts],
    ) -> Self {
        let mut groups: BTreeMap<Vec<u16>, Self> = BTreeMap::new();
        let mut all = BTreeSet::new();
        for (slice, ip) in used(member, service, port) {
            let numbers = std::iter::once(&port).chain(others);
            let numbers = numbers.map(|port| number_in(slice, port).unwrap_or(port.number));
            let group = groups.entry(numbers.collect()).or_insert_with(Self::none);
            group.slice.get_or_insert(slice);
            group.addresses.insert(ip);
            all.insert(ip);
        }
        let most = groups
            .into_iter()
            .max_by_key(|(numbers, group)| (group.addresses.len(), Reverse(numbers.clone())));
        let Some((_, most)) = most else {
            return Self::none();
        };
        Self {
            left_out: all.len() - most.addresses.len(),
            ..most
        }
    }

    fn none() -> Self {
        Self {
            addresses: BTreeSet::new(),
            left_out: 0,
            slice: None,
        }
    }

    /// The number that a port of the Service has in these pods; where that is not known, it is the Service's.
    pub(super) fn number_of(&self, port: &PortFacts) -> u16 {
        let number = self.slice.and_then(|slice| number_in(slice, port));
        number.unwrap_or(port.number)
    }
}

/// The endpoints that kube-proxy would use: the ready ones that have the port, or, while the whole Service has none,
/// the terminating ones that still serve.
fn used<'a>(
    member: &'a Member,
    service: &'a Key,
    port: &PortFacts,
) -> Vec<(&'a SliceFacts, &'a IpAddr)> {
    let that_are = |state: fn(&SliceFacts) -> &[IpAddr]| -> Vec<(&'a SliceFacts, &'a IpAddr)> {
        let slices = member.slices_of(service);
        slices
            .filter(|slice| number_in(slice, port).is_some())
            .flat_map(|slice| state(slice).iter().map(move |ip| (slice, ip)))
            .collect()
    };
    let ready = that_are(|slice| &slice.ready);
    if ready.is_empty() {
        return that_are(|slice| &slice.terminating);
    }
    ready
}

fn number_in(slice: &SliceFacts, port: &PortFacts) -> Option<u16> {
    let known = slice.ports.iter().find(|known| known.name == port.name);
    known.map(|known| known.number)
}
