//! Starts, changes and ends the task trees of the members that the inventory lists.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{Supervisor, updates::MemberUpdate};
use crate::{
    index::{member::Fault, update::Update},
    member::{Control, MemberContext, Ours, run_member},
    name::ClusterName,
    write::{Queue, WriterSettings},
};
use mci_inventory::{Access, Credentials, InventoryEvent, Listing, Refused};
use moment::Moment;

/// The supervisor's handle on the tasks of one member.
pub(super) struct Handle {
    pub(super) epoch: u64,
    pub(super) control: Option<watch::Sender<Control>>,
    pub(super) queue: Arc<Queue>,
    pub(super) stop: CancellationToken,
    pub(super) task: Option<Id>,
    /// Set when it was removed from the inventory: the deadline for deleting its imports.
    pub(super) leaving: Option<Moment>,
    /// What is wrong with its inventory object.
    pub(super) refused: Option<Refused>,
}

/// Updates of one member that may wait for the planner. Beyond this, the watches of this member block.
const UPDATES: usize = 64;
/// How long the imports of a removed member may take to be deleted.
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

    /// Starts a member, or gives it new credentials or another accepted identity.
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
                // unchanged, or tried below
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
        // before its tasks start: they need its interest
        self.planner.add_member(name, queue.clone(), now);
        self.begin(name, credentials.clone(), accepted.cloned(), queue, None);
    }

    /// Adds a member without usable credentials, or keeps it as it is: its exports stay.
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

    /// Starts a member's task tree.
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
        // before its tasks start to count
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
                .map(move |timed| MemberUpdate {
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

    /// Bad credentials: a connected member keeps its present ones.
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

    /// Sets the deadline of members that were removed.
    pub(super) fn begin_leaving(&mut self, now: Moment) {
        let mut recorded_only = Vec::new();
        for name in self.planner.removing() {
            match self.members.get_mut(name) {
                Some(handle) if handle.leaving.is_none() => {
                    tracing::info!(member = %name, "member removed: taking away what it exported and imported");
                    handle.leaving = Some(now + LEAVING);
                }
                Some(_) => {}
                // known only from the record of an earlier controller
                None => recorded_only.push(name.clone()),
            }
        }
        for name in recorded_only {
            self.planner.forget_member(&name, now);
        }
    }

    /// Forgets removed members that are clean or past their deadline.
    pub(super) fn forget_gone(&mut self, now: Moment) {
        let gone: Vec<ClusterName> = self
            .members
            .iter()
            .filter(|(name, handle)| {
                handle.leaving.is_some_and(|until| {
                    // without credentials nothing can be deleted
                    let clean = handle.control.is_none() || self.planner.is_clean(name);
                    // its successor adopts the imports
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
                self.retry_refused(&successor);
            }
        }
    }

    /// Tries to connect to a refused member again, now.
    fn retry_refused(&self, name: &ClusterName) {
        let handle = self.members.get(name);
        if let Some(control) = handle.and_then(|handle| handle.control.as_ref()) {
            control.send_modify(|control| {
                control.refused = None;
                control.version += 1;
            });
        }
    }

    /// A member's task tree ended: it is restarted unless it was stopped.
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
        tracing::error!(member = %name, error, "the member's tasks ended: restarting them");
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
            // the deadline of a removed member stays
            self.begin(&name, credentials, accepted, old.queue, old.leaving);
        }
    }
}
