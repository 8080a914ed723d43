//! One consistent world: the members of the pool.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    endpoint::{Endpoint, Labels},
    load::Freshness,
    profile::Profile,
    request::{Allowed, Request, Subset},
    slot::Slot,
    table::{Averages, Table},
};
use moment::Moment;

/// The members of the pool at one time, ordered by id. Immutable: a change makes the next one.
#[derive(Debug, Default)]
pub struct Snapshot {
    members: Vec<Entry>,
    roster: Arc<Roster>,
}

/// A member: its endpoint, and what may change without the endpoint becoming another.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// What it runs, as its pod says; empty: it does not say. Only the names of its metrics hang on it.
    pub engine: Arc<str>,
    /// Labels of its pod.
    pub labels: Arc<Labels>,
}

/// What is fixed of the members of one snapshot, in columns of plain values in their order.
#[derive(Debug, Default)]
pub struct Roster {
    /// Grows with each change of the members.
    pub version: u64,
    /// Their places in tables.
    pub slots: Vec<Slot>,
    /// Where they listen.
    pub addresses: Vec<SocketAddr>,
    /// Namespaces and names of their pods.
    pub pods: Vec<(Arc<str>, Arc<str>)>,
    /// Labels of their pods.
    pub labels: Vec<Arc<Labels>>,
    by_address: HashMap<SocketAddr, u32>,
    /// Ranks of one pod share its address.
    by_ip: HashMap<IpAddr, SmallVec<[u32; 1]>>,
}

// === impl Snapshot ===

impl Snapshot {
    pub(crate) fn new(version: u64, members: Vec<Entry>) -> Self {
        let mut roster = Roster {
            version,
            ..Roster::default()
        };
        for member in &members {
            roster.push(member);
        }
        Self {
            members,
            roster: Arc::new(roster),
        }
    }

    /// Grows with each change of the members.
    pub fn version(&self) -> u64 {
        self.roster.version
    }

    /// All members, ordered by id.
    pub fn members(&self) -> &[Entry] {
        &self.members
    }

    /// The endpoints of all members, in their order.
    pub fn endpoints(&self) -> impl ExactSizeIterator<Item = &Arc<Endpoint>> {
        self.members.iter().map(|member| &member.endpoint)
    }

    /// The member that listens at `address`.
    pub fn at(&self, address: SocketAddr) -> Option<&Arc<Endpoint>> {
        let index = *self.roster.by_address.get(&address)?;
        let member = self.members.get(usize::try_from(index).ok()?)?;
        Some(&member.endpoint)
    }

    /// Whether any member is in the subset of the request, and has its labels and the roles of the profile.
    pub fn has_any_for(&self, request: &Request, profile: &Profile) -> bool {
        let admits = |labels: &Labels| request.admits(labels) && profile.admits_role(labels);
        match &request.subset {
            None => self.roster.labels.iter().any(|it| admits(it)),
            Some(subset) => {
                let allowed = self.roster.allowed(subset).into_iter();
                let labels = allowed.map(|member| self.roster.labels.get(member as usize));
                labels.flatten().any(|it| admits(it))
            }
        }
    }

    /// What is known of all members now, in a table that is made anew or used again. `adapters`: with the LoRA adapters,
    /// which few profiles need.
    pub fn read_into(&self, table: &mut Table, now: Moment, freshness: Freshness, adapters: bool) {
        table.reset(&self.roster);
        for member in &self.members {
            table.push(member.endpoint.load(), now, freshness, adapters);
        }
        table.fill();
    }

    /// As [`Self::read_into`], in a table of its own.
    pub fn read(&self, now: Moment, freshness: Freshness) -> Table {
        let mut table = Table::default();
        self.read_into(&mut table, now, freshness, true);
        table
    }

    /// Means over all members.
    pub fn averages(&self, now: Moment, freshness: Freshness) -> Averages {
        Averages::of(&self.read(now, freshness))
    }
}

// === impl Roster ===

impl Roster {
    /// The members that the subset allows, as indexes, ordered, each once.
    pub fn allowed(&self, subset: &Subset) -> Vec<u32> {
        let mut allowed = Vec::new();
        for entry in subset.entries() {
            match entry {
                Allowed::Ip(ip) => allowed.extend(self.by_ip.get(ip).into_iter().flatten()),
                Allowed::Address(address) => allowed.extend(self.by_address.get(address)),
            }
        }
        allowed.sort_unstable();
        allowed.dedup();
        allowed
    }

    fn push(&mut self, member: &Entry) {
        let Entry {
            endpoint, labels, ..
        } = member;
        let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let (id, address) = (endpoint.id(), endpoint.address());
        self.slots.push(endpoint.slot());
        self.addresses.push(address);
        self.pods
            .push((Arc::clone(&id.namespace), Arc::clone(&id.pod)));
        self.labels.push(Arc::clone(labels));
        self.by_address.insert(address, index);
        self.by_ip.entry(address.ip()).or_default().push(index);
    }
}
