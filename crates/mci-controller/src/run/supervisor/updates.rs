//! Applies the updates of members to the planner, and sends the results back to them.

use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::Supervisor;
use crate::{
    index::{
        member::{Fault, Refusal},
        update::Update,
    },
    member::{Control, Timed},
    name::ClusterName,
};

/// An update of a member, with the epoch of the task tree that sent it: updates of earlier trees are dropped.
pub(super) struct MemberUpdate {
    pub(super) name: ClusterName,
    pub(super) epoch: u64,
    pub(super) timed: Timed,
}

/// Most updates that are applied before a plan is made.
const BURST: usize = 1024;

// === impl Supervisor ===

impl Supervisor {
    /// Applies all updates that have arrived, so that a burst is planned once.
    pub(super) fn apply_updates(&mut self, update: MemberUpdate) {
        self.apply_update(update);
        for _ in 0..BURST {
            match self.updates.next().now_or_never().flatten() {
                Some(update) => self.apply_update(update),
                None => break,
            }
        }
        for name in std::mem::take(&mut self.pools_changed) {
            self.send_interest(&name);
        }
    }

    pub(super) fn apply_update(&mut self, update: MemberUpdate) {
        let MemberUpdate {
            name,
            epoch,
            timed: (update, arrived),
        } = update;
        let current = self.members.get(&name).map(|handle| handle.epoch);
        if current != Some(epoch) {
            return;
        }
        let connected = match &update {
            Update::Connected { uid, .. } => Some(uid.clone()),
            _ => None,
        };
        if update.concerns_pools() {
            self.pools_changed.insert(name.clone());
        }
        if let (Update::Lost(Fault::AuthFailed), Some(reissue)) = (&update, &self.reissue) {
            reissue.ask(&name);
        }
        let refusals = self.planner.update(&name, update, arrived);
        if let Some(uid) = connected
            && !refusals.iter().any(|(refused, _)| *refused == name)
        {
            self.send_accepted(&name, uid);
        }
        for (refused, refusal) in refusals {
            self.send_refusal(&refused, refusal);
        }
        self.send_partial_kinds(&name);
    }

    /// The index has accepted the cluster as this member: the member's tasks may write to it.
    fn send_accepted(&self, name: &ClusterName, uid: String) {
        if let Some(control) = self.control(name) {
            control.send_modify(|control| {
                control.refused = None;
                control.accepted = Some(uid);
            });
        }
    }

    fn send_refusal(&self, name: &ClusterName, refusal: Refusal) {
        if let Some(control) = self.control(name) {
            control.send_modify(|control| {
                control.refused = Some(refusal);
                control.accepted = None;
            });
        }
    }

    fn send_interest(&self, name: &ClusterName) {
        let interest = self.planner.interest(name);
        if let Some(control) = self.control(name) {
            control.send_if_modified(|control| {
                let is_changed = control.interest != interest;
                control.interest = interest;
                is_changed
            });
        }
    }

    fn send_partial_kinds(&self, name: &ClusterName) {
        let partial = self.planner.partial_kinds(name);
        if let Some(control) = self.control(name) {
            control.send_if_modified(|control| {
                let is_changed = control.partial != partial;
                control.partial = partial;
                is_changed
            });
        }
    }

    fn control(&self, name: &ClusterName) -> Option<&watch::Sender<Control>> {
        self.members.get(name)?.control.as_ref()
    }
}
