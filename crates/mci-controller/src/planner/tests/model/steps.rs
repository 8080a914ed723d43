//! What each event does to the clusters, and what the controller hears of it besides what its watches say.

use std::time::Duration;

use super::{
    Op, POOLS,
    cluster::CrdState,
    rig::{Rig, name},
};
use crate::index::{
    member::{Fault, Link, Refusal},
    update::Update,
};

impl Rig {
    pub(super) fn step(&mut self, op: &Op) {
        if let Op::Namespace(m, _) | Op::ImportCrd(m, _) | Op::ReinstallImportCrd(m) = *op {
            // its imports may go with it
            let now = self.now;
            self.undone.extend((0..POOLS.len()).map(|p| (m, p, now)));
        }
        match *op {
            Op::Export(m, p, drain) => {
                self.clusters[m].annotate(POOLS[p], Some("ClusterSet"), drain);
            }
            Op::Unexport(m, p) => self.clusters[m].annotate(POOLS[p], None, None),
            Op::Invalidate(m, p) => self.clusters[m].annotate(POOLS[p], Some("clusterset"), None),
            Op::Delete(m, p) => {
                self.clusters[m].server().delete(
                    &apiserver_sim::POOLS,
                    crate::fixtures::NS,
                    POOLS[p],
                );
            }
            Op::Port(m, p, port) => self.clusters[m].set_port(POOLS[p], port),
            Op::Epp(m, epp) => self.clusters[m].set_epp(epp),
            Op::Namespace(m, state) => self.clusters[m].set_namespace(state),
            Op::PoolsCrd(m, state) => self.set_pools_crd(m, state),
            Op::ImportCrd(m, flavour) => {
                self.clusters[m].set_flavour(flavour);
                self.tell_import_crd(m);
            }
            Op::ReinstallImportCrd(m) => {
                self.clusters[m].reinstall_import_crd();
                self.tell_import_crd(m);
            }
            Op::Edit(t, p, edit) => {
                if self.clusters[t].edit(POOLS[p], edit) {
                    self.undone.push((t, p, self.now));
                }
            }
            Op::Break(m, fault) => self.clusters[m].wire.break_next(fault),
            Op::Lose(m, denied) => {
                let fault = if denied {
                    Fault::AuthFailed
                } else {
                    Fault::ConnectionLost
                };
                if self.fall_silent(m, Update::Lost(fault)) {
                    self.oracle.lost(m, fault.reason(), self.now);
                }
            }
            Op::Refuse(m) => {
                let refused = Update::Refused(Refusal::IdentityChanged);
                if self.fall_silent(m, refused) {
                    self.oracle.refused(m, self.now);
                }
            }
            Op::Return(m) => {
                if !std::mem::replace(&mut self.clusters[m].up, true) && self.knows(m) {
                    self.connect(m);
                }
            }
            Op::Remove(m) => {
                if std::mem::replace(&mut self.clusters[m].listed, false) {
                    self.planner.remove_member(&name(m), self.now);
                    self.oracle.left(m, self.now);
                }
            }
            Op::Readd(m) => {
                if !std::mem::replace(&mut self.clusters[m].listed, true) {
                    self.readd(m);
                }
            }
            Op::Restart => {
                let members = self.planner.world().members.iter();
                let known = members.filter(|(_, member)| member.contact.link != Link::Removing);
                let recorded = known.map(|(name, _)| name.clone()).collect();
                self.start(recorded);
            }
            Op::Wait(seconds) => {
                for _ in 0..4 {
                    self.now = self.now + Duration::from_millis(seconds * 250);
                    self.tick();
                }
            }
        }
    }

    /// Whether the controller notices.
    fn fall_silent(&mut self, m: usize, update: Update) -> bool {
        let noticed = std::mem::replace(&mut self.clusters[m].up, false) && self.knows(m);
        if noticed {
            self.planner.update(&name(m), update, self.now);
        }
        noticed
    }

    fn set_pools_crd(&mut self, m: usize, state: CrdState) {
        self.clusters[m].set_pools_crd(state);
        if self.hears(m) {
            // what the old watch says, and then the list of the next
            for update in self.clusters[m].events() {
                self.tell(m, update);
            }
            let pools = self.clusters[m].pools();
            self.tell(m, pools);
        }
    }

    fn readd(&mut self, m: usize) {
        self.oracle.back_in_inventory(m);
        let known = self.planner.world().members.get(&name(m));
        let met = known.is_some_and(|one| one.contact.link != Link::Removing && one.uid.is_some());
        self.add(m);
        if !met {
            self.oracle.unheard(m);
            if self.clusters[m].up {
                self.connect(m);
            }
        }
    }

    fn tell_import_crd(&mut self, m: usize) {
        if self.hears(m) {
            // of the imports nothing is heard before they are listed through the new shape
            self.clusters[m].events();
            let crd = self.clusters[m].import_crd();
            self.tell(m, Update::ImportCrd(crd));
            self.relist = Some(m);
        }
    }

    /// The list that follows another shape of the import CRD.
    pub(super) fn relist_imports(&mut self) {
        if let Some(m) = self.relist.take() {
            let imports = self.clusters[m].imports();
            self.tell(m, imports);
        }
    }
}
