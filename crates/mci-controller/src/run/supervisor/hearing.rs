//! What members tell: takes it into the world, and tells them what follows for them.

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

/// What a task tree tells: of which member, and of which of its trees; an older tree's words no longer count.
pub(super) struct Told {
    pub(super) name: ClusterName,
    pub(super) epoch: u64,
    pub(super) timed: Timed,
}

/// Taken in before a plan is made: a burst is planned once.
const BURST: usize = 1024;

// === impl Supervisor ===

impl Supervisor {
    /// Takes in what has arrived, so that a burst is planned once.
    pub(super) fn burst(&mut self, told: Told) {
        self.hear(told);
        for _ in 0..BURST {
            match self.updates.next().now_or_never().flatten() {
                Some(told) => self.hear(told),
                None => break,
            }
        }
        for name in std::mem::take(&mut self.curious) {
            self.tell_interest(&name);
        }
    }

    pub(super) fn hear(&mut self, told: Told) {
        let Told {
            name,
            epoch,
            timed: (update, arrived),
        } = told;
        let current = self.members.get(&name).map(|handle| handle.epoch);
        if current != Some(epoch) {
            return;
        }
        let connected = match &update {
            Update::Connected { uid, .. } => Some(uid.clone()),
            _ => None,
        };
        if update.concerns_pools() {
            self.curious.insert(name.clone());
        }
        if let (Update::Lost(Fault::AuthFailed), Some(reissue)) = (&update, &self.reissue) {
            reissue.ask(&name);
        }
        let refusals = self.planner.update(&name, update, arrived);
        if let Some(uid) = connected
            && !refusals.iter().any(|(refused, _)| *refused == name)
        {
            self.tell_accepted(&name, uid);
        }
        for (refused, refusal) in refusals {
            self.tell_refused(&refused, refusal);
        }
        self.send_partial_kinds(&name);
    }

    /// The index knows the cluster as this member: it may be written into.
    fn tell_accepted(&self, name: &ClusterName, uid: String) {
        if let Some(control) = self.control(name) {
            control.send_modify(|control| {
                control.refused = None;
                control.accepted = Some(uid);
            });
        }
    }

    fn tell_refused(&self, name: &ClusterName, refusal: Refusal) {
        if let Some(control) = self.control(name) {
            control.send_modify(|control| {
                control.refused = Some(refusal);
                control.accepted = None;
            });
        }
    }

    fn tell_interest(&self, name: &ClusterName) {
        let interest = self.planner.interest(name);
        if let Some(control) = self.control(name) {
            control.send_if_modified(|control| {
                let news = control.interest != interest;
                control.interest = interest;
                news
            });
        }
    }

    fn send_partial_kinds(&self, name: &ClusterName) {
        let partial = self.planner.partial_kinds(name);
        if let Some(control) = self.control(name) {
            control.send_if_modified(|control| {
                let news = control.partial != partial;
                control.partial = partial;
                news
            });
        }
    }

    fn control(&self, name: &ClusterName) -> Option<&watch::Sender<Control>> {
        self.members.get(name)?.control.as_ref()
    }
}
