//! The members, as the inventory has them: begins, changes and ends their task trees.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{Supervisor, hearing::Told};
use crate::{
    index::{member::Fault, update::Update},
    member::{Control, MemberContext, Ours, run_member},
    name::ClusterName,
    write::{Queue, WriterSettings},
};
use mci_inventory::{Access, Credentials, InventoryEvent, Listing, Refused};
use moment::Moment;

/// A member's tasks, as seen from here.
pub(super) struct Handle {
    pub(super) epoch: u64,
    pub(super) control: Option<watch::Sender<Control>>,
    pub(super) queue: Arc<Queue>,
    pub(super) stop: CancellationToken,
    pub(super) task: Option<Id>,
    /// Removed from the inventory: until when its imports may take to go.
    pub(super) leaving: Option<Moment>,
    /// What is wrong with its inventory object.
    pub(super) refused: Option<Refused>,
}

/// Updates of one member that wait for the planner: its watches block beyond, and nobody else's.
const UPDATES: usize = 64;
/// A removed member's imports are taken away for at most this long.
pub(super) const LEAVING: Duration = Duration::from_secs(30);

// === impl Supervisor ===

impl Supervisor {
    pub(super) fn inventory(&mut self, event: InventoryEvent) {
        match event {
            InventoryEvent::Recorded(recorded) => self.planner.recall(recorded),
            InventoryEvent::Upsert(name, listing) => self.upsert(&name, &listing),
            InventoryEvent::Gone(name) => self.remove(&name),
            InventoryEvent::Unused(unused) => self.unused = unused,
            InventoryEvent::Listed => self.planner.inventory_listed(self.clock.now()),
        }
    }

    pub(super) fn upsert(&mut self, name: &ClusterName, listing: &Listing) {
        let accepted = listing.origin.accepted_identity.as_ref();
        match &listing.access {
            Access::Ready(credentials) => self.admit(name, credentials, accepted),
            Access::Kept(credentials, refused) => {
                self.admit(name, credentials, accepted);
                self.refuse(name, refused);
            }
            Access::Pending => self.expect(name),
            Access::Refused(refused) => self.refuse(name, refused),
        }
        self.planner
            .describe(name, &listing.origin, self.clock.now());
    }

    /// A member that can be reached, or has new credentials, or may be another cluster now.
    pub(super) fn admit(
        &mut self,
        name: &ClusterName,
        credentials: &Credentials,
        accepted: Option<&String>,
    ) {
        let now = self.clock.now();
        self.planner.keep_member(name);
        let staying = self
            .members
            .get_mut(name)
            .filter(|handle| handle.leaving.is_none());
        if let Some(handle) = staying {
            if handle.refused.take().is_some() {
                // as they were, or about to be tried
                let usable = Update::NewCredentials(None);
                self.planner.update(name, usable, now);
            }
            if let Some(control) = &mut handle.control {
                control.send_if_modified(|control| {
                    let same = control.credentials == *credentials
                        && control.accepted_identity.as_ref() == accepted;
                    if !same {
                        tracing::info!(member = %name, server = credentials.server(), "new credentials");
                        control.credentials = credentials.clone();
                        control.accepted_identity = accepted.cloned();
                        control.version += 1;
                        control.refused = None;
                    }
                    !same
                });
                return;
            }
        }
        tracing::info!(member = %name, server = credentials.server(), "member added");
        if let Some(old) = self.members.remove(name) {
            old.stop.cancel();
        }
        let queue = Arc::new(Queue::default());
        // first, so that its tasks know what is worth watching in the new one
        self.planner.add_member(name, queue.clone(), now);
        self.begin(name, credentials.clone(), accepted.cloned(), queue, None);
    }

    /// A member that cannot be reached yet, or any more: what it exports is kept.
    pub(super) fn expect(&mut self, name: &ClusterName) {
        self.planner.keep_member(name);
        let known = self.members.get(name);
        if known.is_some_and(|handle| handle.leaving.is_none()) {
            return;
        }
        if let Some(old) = self.members.remove(name) {
            old.stop.cancel();
        }
        let queue = Arc::new(Queue::default());
        let handle = Handle {
            epoch: 0,
            control: None,
            queue: queue.clone(),
            stop: CancellationToken::new(),
            task: None,
            leaving: None,
            refused: None,
        };
        self.members.insert(name.clone(), handle);
        self.planner.add_member(name, queue, self.clock.now());
    }

    /// Begins a member's task tree.
    fn begin(
        &mut self,
        name: &ClusterName,
        credentials: Credentials,
        accepted_identity: Option<String>,
        queue: Arc<Queue>,
        leaving: Option<Moment>,
    ) {
        let (control, receiver) = watch::channel(Control {
            credentials,
            version: 0,
            refused: None,
            accepted: None,
            accepted_identity,
            interest: self.planner.interest(name),
            partial: self.planner.partial_kinds(name),
        });
        // before its tasks begin to count
        self.metrics.add(name);
        let (sender, updates) = mpsc::channel(UPDATES);
        let stop = CancellationToken::new();
        let context = MemberContext {
            name: name.clone(),
            control: receiver,
            proven: None,
            rebuild: None,
            updates: sender,
            queue: queue.clone(),
            events: self.planner.event_queue(name),
            writer: WriterSettings {
                controller_name: self.settings.policy.controller_name.clone(),
                write_timeout: self.settings.write_timeout,
                clock: self.clock,
                metrics: self.metrics.clone(),
                claim: self.claim.clone(),
                drain: self.drain.clone(),
                dry_run: self.settings.dry_run,
            },
            ours: Ours {
                clusterset: self.settings.policy.clusterset.clone(),
                instance: self.settings.policy.instance.clone(),
                controller_name: self.settings.policy.controller_name.clone(),
            },
            interner: self.interner.clone(),
            turns: self.turns.member(),
            metrics: self.metrics.clone(),
            stop: stop.clone(),
        };
        let member = name.clone();
        let task = self.tasks.spawn(async move {
            run_member(context).await;
            member
        });
        let member = name.clone();
        self.epochs += 1;
        let epoch = self.epochs;
        self.updates.push(
            ReceiverStream::new(updates)
                .map(move |timed| Told {
                    name: member.clone(),
                    epoch,
                    timed,
                })
                .boxed(),
        );
        let handle = Handle {
            epoch,
            control: Some(control),
            queue,
            stop,
            task: Some(task.id()),
            leaving,
            refused: None,
        };
        self.members.insert(name.clone(), handle);
    }

    /// Bad credentials: a member that works keeps the ones that it has.
    fn refuse(&mut self, name: &ClusterName, refused: &Refused) {
        let Refused { refusal, detail } = refused;
        self.expect(name);
        let Some(handle) = self.members.get_mut(name) else {
            return;
        };
        handle.refused = Some(refused.clone());
        if handle.control.is_some() {
            tracing::warn!(member = %name, reason = refusal.reason(), detail, "keeping the old credentials");
            let unusable = Update::NewCredentials(Some(detail.clone()));
            self.planner.update(name, unusable, self.clock.now());
            return;
        }
        tracing::warn!(member = %name, reason = refusal.reason(), detail, "not using this member");
        let now = self.clock.now();
        self.planner.update(name, Update::Refused(*refusal), now);
    }

    pub(super) fn remove(&mut self, name: &ClusterName) {
        let now = self.clock.now();
        if self.members.contains_key(name) {
            self.planner.remove_member(name, now);
            self.begin_leaving(now);
        }
    }

    /// Gives members that count as removed the time to be cleaned.
    pub(super) fn begin_leaving(&mut self, now: Moment) {
        let mut strangers = Vec::new();
        for name in self.planner.removing() {
            match self.members.get_mut(name) {
                Some(handle) if handle.leaving.is_none() => {
                    tracing::info!(member = %name, "member removed: taking away what it exported and imported");
                    handle.leaving = Some(now + LEAVING);
                }
                Some(_) => {}
                // known from an earlier controller's record alone
                None => strangers.push(name.clone()),
            }
        }
        for name in strangers {
            self.planner.forget_member(&name, now);
        }
    }

    /// Lets go of members that are clean, or that had their time.
    pub(super) fn forget_gone(&mut self, now: Moment) {
        let gone: Vec<ClusterName> = self
            .members
            .iter()
            .filter(|(name, handle)| {
                handle.leaving.is_some_and(|until| {
                    // without credentials there is nothing that could be taken away
                    let clean = handle.control.is_none() || self.planner.is_clean(name);
                    // it goes on under another name, which adopts what is there
                    let renamed = !self.planner.successors(name).is_empty();
                    until <= now || renamed || (self.planner.is_open() && clean)
                })
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            let clean = self.planner.is_clean(&name);
            let successors = self.planner.successors(&name);
            tracing::info!(member = %name, clean, "member forgotten");
            if let Some(handle) = self.members.remove(&name) {
                handle.stop.cancel();
            }
            self.planner.forget_member(&name, now);
            for successor in successors {
                self.try_anew(&successor);
            }
        }
    }

    /// A member that was refused is asked again now.
    fn try_anew(&self, name: &ClusterName) {
        let handle = self.members.get(name);
        if let Some(control) = handle.and_then(|handle| handle.control.as_ref()) {
            control.send_modify(|control| {
                control.refused = None;
                control.version += 1;
            });
        }
    }

    /// A member's task tree ended: expected where it was stopped, else it is begun anew.
    pub(super) fn ended(&mut self, ended: Result<(Id, ClusterName), JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let found = self
            .members
            .iter()
            .find(|(_, handle)| handle.task == Some(id))
            .map(|(name, _)| name.clone());
        let Some(name) = found else {
            return;
        };
        let error = ended.err().map(|error| error.to_string());
        tracing::error!(member = %name, error, "the member's tasks ended: beginning anew");
        let Some(old) = self.members.remove(&name) else {
            return;
        };
        if let Some(control) = old.control {
            let (credentials, accepted) = {
                let control = control.borrow();
                (
                    control.credentials.clone(),
                    control.accepted_identity.clone(),
                )
            };
            let lost = Update::Lost(Fault::ConnectionLost);
            self.planner.update(&name, lost, self.clock.now());
            // one that leaves goes on leaving
            self.begin(&name, credentials, accepted, old.queue, old.leaving);
        }
    }
}
