//! What each event does to the clusters, and what the controller hears of it.

use std::{collections::BTreeSet, time::Duration};

use super::{
    MEMBERS, Op, POOLS,
    bench::{Bench, name},
    clusters::CrdState,
};
use crate::{
    fixtures::*,
    index::{
        member::{Fault, Link, Refusal},
        update::{Change, Kind, Update},
    },
    name::Key,
};

impl Bench {
    pub(super) fn step(&mut self, op: &Op) {
        match *op {
            Op::Export(m, p, drain) => self.annotate(m, p, Some("ClusterSet"), drain),
            Op::Unexport(m, p) => self.annotate(m, p, None, None),
            Op::Invalidate(m, p) => self.annotate(m, p, Some("clusterset"), None),
            Op::Delete(m, p) => {
                if self.clusters[m].delete_pool(POOLS[p]) && self.hears(m) {
                    self.tell_deleted(m, p);
                }
            }
            Op::Namespace(m, state) => self.set_namespace(m, state),
            Op::PoolsCrd(m, state) => {
                let mut gone = self.clusters[m].set_crd(state);
                if state == CrdState::GoneUnseen {
                    gone.clear();
                }
                if self.hears(m) {
                    self.tell_pools_crd(m, &gone);
                }
            }
            Op::ImportCrd(m, flavour) => {
                self.clusters[m].set_flavour(flavour);
                self.tell_import_crd(m);
            }
            Op::ReinstallImportCrd(m) => {
                self.clusters[m].reinstall_import_crd();
                self.tell_import_crd(m);
            }
            Op::Lose(m, denied) => self.lose(m, denied),
            Op::Refuse(m) => {
                if std::mem::replace(&mut self.clusters[m].up, false) && self.knows(m) {
                    self.tell(m, Update::Refused(Refusal::IdentityChanged));
                }
            }
            Op::Return(m) => {
                if !std::mem::replace(&mut self.clusters[m].up, true) && self.knows(m) {
                    self.connect(m);
                }
            }
            Op::Remove(m) => {
                if std::mem::replace(&mut self.clusters[m].listed, false) {
                    let changes = self.world.remove_member(&name(m), self.now);
                    self.take(changes);
                    self.oracle.left(m, self.now);
                }
            }
            Op::Readd(m) => {
                if !std::mem::replace(&mut self.clusters[m].listed, true) {
                    self.readd(m);
                }
            }
            Op::Forge(t, m, p) => {
                if let Some(change) = self.clusters[t].forge(&mk_key(POOLS[p]), MEMBERS[m])
                    && self.hears(t)
                {
                    self.tell(t, Update::Imports(change));
                }
            }
            Op::Restart => {
                let members = self.world.members.iter();
                let known = members.filter(|(_, member)| member.contact.link != Link::Removing);
                let recorded = known.map(|(name, _)| name.clone()).collect();
                self.start(recorded);
            }
            Op::Wait(seconds) => {
                for _ in 0..3 {
                    self.now = self.now + Duration::from_millis(seconds * 250);
                    self.tick();
                }
                self.now = self.now + Duration::from_millis(seconds * 250);
            }
        }
        self.tick();
    }

    fn knows(&self, m: usize) -> bool {
        self.world.members.contains_key(&name(m))
    }

    fn hears(&self, m: usize) -> bool {
        self.clusters[m].up && self.knows(m)
    }

    fn annotate(&mut self, m: usize, p: usize, value: Option<&str>, drain: Option<u32>) {
        if self.clusters[m].export(POOLS[p], value, drain)
            && self.hears(m)
            && let Some(facts) = self.clusters[m].pool(POOLS[p])
        {
            self.tell(m, Update::PoolApplied(facts));
            self.oracle.showed(m, p, &self.clusters[m]);
        }
    }

    fn set_namespace(&mut self, m: usize, state: Option<bool>) {
        self.clusters[m].namespace = state;
        let gone_pools = match state {
            None => self.clusters[m].empty_namespace(),
            Some(_) => Vec::new(),
        };
        if !self.hears(m) {
            return;
        }
        if state.is_none() {
            for pool in POOLS {
                self.tell(m, Update::Imports(Change::Deleted(mk_key(pool))));
            }
        }
        for p in gone_pools {
            self.tell_deleted(m, p);
        }
        let change = match state {
            Some(terminating) => Change::Applied(mk_namespace(terminating)),
            None => Change::Deleted(Key::new("", NS)),
        };
        self.tell(m, Update::Namespaces(change));
    }

    fn tell_pools_crd(&mut self, m: usize, gone: &[usize]) {
        for p in gone {
            self.tell_deleted(m, *p);
        }
        if self.clusters[m].serves_pools() {
            self.list_pools(m);
        } else {
            self.tell(m, Update::NotServed(Kind::Pools));
            self.oracle.crd_gone(m);
        }
    }

    fn lose(&mut self, m: usize, denied: bool) {
        if std::mem::replace(&mut self.clusters[m].up, false) && self.knows(m) {
            let fault = if denied {
                Fault::AuthFailed
            } else {
                Fault::ConnectionLost
            };
            self.tell(m, Update::Lost(fault));
            self.oracle.lost(m, self.now);
        }
    }

    fn readd(&mut self, m: usize) {
        self.oracle.back_in_inventory(m);
        let known = self.world.members.get(&name(m));
        let met = known.is_some_and(|one| one.contact.link != Link::Removing && one.uid.is_some());
        let changes = self.world.add_member(&name(m), self.now);
        self.take(changes);
        self.leaving.remove(&name(m));
        if !met {
            self.oracle.unheard(m);
            if self.clusters[m].up {
                self.connect(m);
            }
        }
    }

    fn tell_deleted(&mut self, m: usize, p: usize) {
        let crd = self.clusters[m].crd_check();
        let key = mk_key(POOLS[p]);
        self.tell(m, Update::PoolDeleted { key, crd });
        self.oracle.deleted(m, p, &self.clusters[m]);
    }

    fn list_pools(&mut self, m: usize) {
        let listed = Update::PoolsListed {
            pools: self.clusters[m].pools(),
            odd: BTreeSet::new(),
            crd: self.clusters[m].crd_check(),
        };
        self.tell(m, listed);
        self.oracle.listed(m, &self.clusters[m], self.now);
    }

    fn tell_import_crd(&mut self, m: usize) {
        if !self.hears(m) {
            return;
        }
        let crd = self.clusters[m].import_crd();
        self.tell(m, Update::ImportCrd(crd));
        self.late = Some(m);
    }
}
