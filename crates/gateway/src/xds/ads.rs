//! One Envoy's delta ADS stream as a state machine (pure): what it has, what it shall have, what to
//! send next.
//!
//! Nothing is queued: each step compares what Envoy acknowledged with the [`goal`]. One
//! response per type is in flight. Adds make before break, in the order of [`stage`]; removals break after:
//!
//! ```text
//! clusters ─► assignments ─► secrets ─► listeners ─► tables of hops ─► assignments of hops ─► tables of edges
//!                                 then: listeners removed ─► clusters removed, after a delay
//! ```
//!
//! Envoy asks for secrets by name, once it has a listener that names them; those it knows are replaced at any time.
//!
//! Envoy holds back its ACK of clusters until they have endpoints, so endpoints never wait for it.
//!
//! What Envoy refuses it may serve on in an older version: until it has a newer one of every route
//! table and import, no cluster and no hop is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use foreign_text::{MAX_MESSAGE, clipped};
use moment::Moment;

#[cfg(test)]
use super::Snapshot;
use super::{Kind, Resource};

mod answers;
pub(crate) mod budget;
pub(crate) mod connections;
mod goal;
mod hosts;
mod messages;
mod owned;
pub(crate) mod proxies;
pub(crate) mod ready;
pub(crate) mod server;
mod stage;
mod state;
mod view;

#[cfg(test)]
mod tests;

pub(crate) use messages::{Effect, Input, Refusal, Request, Response};

use goal::Goal;
use hosts::Awaited;
use stage::{Due, Gate, Stage, is_edge, leads_to_hops};
use state::{InFlight, Retries, TypeState, applies_the_rest, is_passing};

/// A step waits this long for the ACK of the one before: a slow Envoy delays itself, not for ever.
const ACK_LIMIT: Duration = Duration::from_secs(2);

/// An Envoy that lacks an edge waits this long to be ready where nobody else serves that edge: after a start of the gateway, others
/// may not have connected yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// An Envoy whose stream was denied begins another one after 30 s at most. For so long after a denial it may still serve edges.
const RETURN: Duration = Duration::from_secs(45);

/// Denials make no Envoy wait for longer than this to be ready. The kubelet brings a new certificate into a pod within two minutes;
/// who shows a former one all the time holds nobody back for ever.
const LONGEST_PATIENCE: Duration = Duration::from_mins(5);

/// Resources per response, so that one response stays small against the others on the connection.
const BATCH: usize = 500;

/// The stream of one Envoy.
#[derive(Clone, Debug)]
pub(crate) struct Ads {
    /// How long clusters outlive their last route.
    removal_delay: Duration,
    goal: Option<Goal>,
    types: [TypeState; 5],
    nonce: u64,
    /// Assignments to send again, because their cluster was sent: Envoy waits 15 s otherwise.
    repush: BTreeSet<String>,
    /// Clusters sent whose endpoints are not acknowledged yet.
    awaited: BTreeMap<String, Awaited>,
    /// Clusters that Envoy has and no snapshot has, since when.
    doomed: BTreeMap<String, Moment>,
    quarantine: BTreeSet<(Kind, String, u64)>,
    /// Listeners refused for a reason that may pass.
    retries: Retries,
    /// Edges of others that are ready.
    served: Arc<BTreeSet<String>>,
    /// Since when later stages wait.
    closed: [Option<Moment>; 3],
    /// When the stream began.
    began: Option<Moment>,
    /// The last such denial.
    denied: Option<Moment>,
    /// The stream is older than [`PATIENCE`], and no Envoy that was denied may come back.
    is_patient: bool,
    /// Revisions of the types when they were reported.
    reported: [Option<u64>; 5],
    /// Bytes of names of the types, at these revisions.
    counted: [(Option<u64>, usize); 5],
}

// === impl Ads ===

impl Ads {
    pub(crate) fn new(removal_delay: Duration) -> Self {
        Self {
            removal_delay,
            goal: None,
            types: Default::default(),
            nonce: 0,
            repush: BTreeSet::new(),
            awaited: BTreeMap::new(),
            doomed: BTreeMap::new(),
            quarantine: BTreeSet::new(),
            retries: Retries::default(),
            served: Arc::default(),
            closed: [None; 3],
            began: None,
            denied: None,
            is_patient: false,
            reported: Default::default(),
            counted: Default::default(),
        }
    }

    pub(crate) fn on(&mut self, input: Input, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        let began = *self.began.get_or_insert(now);
        match input {
            Input::Served(edges) => self.served = edges,
            Input::Denied(at) => self.denied = Some(at),
            Input::Request(request) => self.request(request, now, &mut effects),
            Input::Snapshot(snapshot) => {
                self.delay_removals();
                match &mut self.goal {
                    Some(goal) => goal.set_newest(snapshot),
                    None => self.goal = Some(Goal::new(snapshot)),
                }
            }
            Input::Tick => {}
        }
        let is_alone = self.denied.is_none_or(|at| at.plus(RETURN) <= now);
        self.is_patient =
            began.plus(LONGEST_PATIENCE) <= now || is_alone && began.plus(PATIENCE) <= now;
        self.retries.pass(now);
        self.pin_newest(now);
        self.advance(now, &mut effects);
        if self.pin_newest(now) {
            self.advance(now, &mut effects);
        }
        effects
    }

    /// Goes on to the newest snapshot, if there is another one and all of the pinned one is done. Whether it is so.
    fn pin_newest(&mut self, now: Moment) -> bool {
        let has_newer = self.goal.as_ref().is_some_and(|goal| !goal.is_newest());
        if !has_newer || !self.is_pinned_done(now) {
            return false;
        }
        self.delay_removals();
        let Some(goal) = &mut self.goal else {
            return false;
        };
        goal.pin_newest();
        self.quarantine
            .retain(|(kind, name, version)| goal.has(*kind, name, *version));
        self.retries.keep(&goal.newest().listeners);
        true
    }

    /// The delay of removals begins when nothing leads to what is removed.
    fn delay_removals(&mut self) {
        if self.serves_on_what_is_not_here() {
            self.doomed.clear();
        }
    }

    /// When something can be sent that cannot be sent now, if nothing else happens.
    pub(crate) fn wake_at(&self, now: Moment) -> Option<Moment> {
        let acks = self
            .types
            .iter()
            .filter_map(|state| state.in_flight.as_ref());
        let acks = acks.map(|sent| sent.at.plus(ACK_LIMIT));
        let awaited = self.awaited.values();
        let awaited = awaited.map(|awaited| awaited.since.plus(ACK_LIMIT));
        let doomed = self
            .doomed
            .values()
            .map(|since| since.plus(self.removal_delay));
        let began = self.began.filter(|_| self.waits_to_be_ready());
        let patience = began.into_iter().flat_map(|began| {
            let denied = self.denied.map(|at| at.plus(RETURN));
            let limits = [PATIENCE, LONGEST_PATIENCE].map(|limit| began.plus(limit));
            limits.into_iter().chain(denied)
        });
        let closed = self.closed.iter().flatten();
        let closed = closed.map(|since| since.plus(ACK_LIMIT));
        acks.chain(awaited)
            .chain(closed)
            .chain(doomed)
            .chain(patience)
            .chain(self.retries.due())
            .filter(|at| *at > now)
            .min()
    }

    /// Versions Envoy acknowledged, for `/debug/xds`.
    pub(crate) fn acknowledged(&self, kind: Kind) -> BTreeMap<String, u64> {
        let known = &self.types[kind as usize].known;
        let held = known
            .iter()
            .filter_map(|(name, version)| Some((name.clone(), (*version)?)));
        held.collect()
    }

    /// Whether Envoy has all of the snapshot it can have.
    pub(crate) fn is_current(&self) -> bool {
        let idle = self.types.iter().all(|state| state.in_flight.is_none());
        let is_newest = self.goal.as_ref().is_none_or(Goal::is_newest);
        idle && is_newest
            && self.awaited.is_empty()
            && Kind::ALL.iter().all(|kind| self.due(*kind).is_empty())
    }

    fn request(&mut self, request: Request, now: Moment, effects: &mut Vec<Effect>) {
        let Some(kind) = request.kind else { return };
        if let Some(nonce) = request.nonce {
            self.answered(kind, nonce, request.error, now, effects);
        }
        if kind == Kind::Cluster {
            // Whether a cluster of an earlier stream still waits for endpoints, Envoy does not say.
            for name in request.initial.keys() {
                self.repush.insert(name.clone());
                self.await_hosts(name, true, now);
            }
        }
        self.types[kind as usize].subscribe(
            kind,
            request.subscribe,
            request.unsubscribe,
            request.initial,
        );
    }

    fn answered(
        &mut self,
        kind: Kind,
        nonce: u64,
        error: Option<String>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let state = &mut self.types[kind as usize];
        let Some(sent) = state.in_flight.take_if(|sent| sent.nonce == nonce) else {
            return; // stale
        };
        let refused = match &error {
            None => BTreeSet::new(),
            Some(message) => TypeState::refused(&sent, message),
        };
        // What is not refused by name, Envoy took only if it says so or always goes on.
        let rest_applied = match &error {
            None => true,
            Some(message) => !refused.is_empty() && applies_the_rest(kind, message),
        };
        let only_removed = sent.resources.is_empty();
        for (name, version) in sent.resources {
            if refused.contains(&name) {
                let message = error.clone().unwrap_or_default();
                self.refused(kind, name, version, message, now, effects);
            } else if rest_applied {
                if kind == Kind::Endpoints {
                    self.has_hosts(&name);
                }
                let state = &mut self.types[kind as usize];
                state.one_by_one.remove(&name);
                if kind == Kind::Listener && self.retries.recovered(&name) {
                    effects.push(Effect::Recovered(kind, name.clone(), version));
                }
                state.acknowledge(name, version);
            } else {
                if kind == Kind::Endpoints {
                    self.repush.insert(name.clone()); // may be a version it has already
                }
                self.types[kind as usize].one_by_one.insert(name);
            }
        }
        if rest_applied || only_removed {
            for name in sent.removed {
                self.types[kind as usize].forget(name);
            }
        }
    }

    fn refused(
        &mut self,
        kind: Kind,
        name: String,
        version: u64,
        message: String,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        self.types[kind as usize].one_by_one.remove(&name);
        let passing = is_passing(kind, &message);
        if passing {
            self.retries.failed(name.clone(), version, now);
        } else {
            self.quarantine.insert((kind, name.clone(), version));
        }
        if matches!(kind, Kind::Cluster | Kind::Endpoints) {
            self.awaited.remove(&name);
            self.repush.remove(&name);
        }
        effects.push(Effect::Refused(Refusal {
            kind,
            name,
            version,
            message: clipped(message, MAX_MESSAGE),
            passing,
        }));
    }

    fn advance(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if self.goal.is_none() {
            return;
        }
        self.note_doomed(now);
        let mut due: Due = Kind::ALL
            .into_iter()
            .flat_map(|kind| self.due(kind))
            .collect();
        // before what comes again and again
        self.remove_edges(&due, now, effects);
        self.remove_others(&due, now, effects);
        if self.send_due(Stage::Cluster, &due, now, effects) {
            // what is sent of clusters decides what is due of assignments
            due.retain(|stage, _| stage.kind() != Kind::Endpoints);
            due.extend(self.due(Kind::Endpoints));
        }
        for stage in Stage::ALL {
            let is_open = |stage: Stage| {
                let mut gates = stage.waits_for().iter();
                gates.all(|gate| self.is_open(*gate, &due, now))
            };
            // Hosts that are no hops may change before each answer. Those that are hops go with them, or would never be sent.
            let last = match stage {
                Stage::Assignment if is_open(Stage::HopAssignment) => Stage::HopAssignment,
                _ => stage,
            };
            let is_sent = is_open(stage) && self.send_due(last, &due, now, effects);
            if is_sent && stage == Stage::EdgeTable {
                self.closed = [None; 3]; // what comes after routes that were waited for waits anew
            }
        }
        for gate in Gate::ALL {
            let since = self.closed[gate as usize].unwrap_or(now);
            self.closed[gate as usize] = (!self.is_done(gate, &due, now)).then_some(since);
        }
    }

    /// Whether what the gate stands for is done, or was waited for long enough and is sent at least.
    fn is_open(&self, gate: Gate, due: &Due, now: Moment) -> bool {
        let sent = |stage: Stage| self.is_sent(stage, due);
        let is_sent = match gate {
            Gate::Backends => return self.is_done(gate, due, now),
            Gate::Hops => sent(Stage::HopListener) && sent(Stage::Table),
            Gate::HopAssignments => true,
        };
        let waited = self.closed[gate as usize].is_some_and(|since| since.plus(ACK_LIMIT) <= now);
        is_sent && (waited || self.is_done(gate, due, now))
    }

    fn is_done(&self, gate: Gate, due: &Due, now: Moment) -> bool {
        let done = |stage: Stage| self.is_sent(stage, due) && self.is_settled(stage, now);
        match gate {
            Gate::Backends => self.has_backends(due, now),
            Gate::Hops => done(Stage::HopListener) && done(Stage::Table),
            Gate::HopAssignments => done(Stage::HopAssignment),
        }
    }

    /// Takes away the edges that the snapshot has no more: nothing leads there. Those that take over come first.
    fn remove_edges(&mut self, due: &Due, now: Moment, effects: &mut Vec<Effect>) {
        let listeners = [Stage::HopListener, Stage::EdgeListener];
        if listeners.iter().all(|stage| !due.contains_key(stage)) {
            let mut gone = self.gone(Kind::Listener);
            gone.retain(|name| is_edge(name));
            self.remove(Kind::Listener, gone, now, effects);
        }
    }

    /// Takes away hops and clusters that the snapshot has no more, once nothing leads there.
    fn remove_others(&mut self, due: &Due, now: Moment, effects: &mut Vec<Effect>) {
        let clusters = &self.types[Kind::Cluster as usize];
        let mut due_clusters = due.get(&Stage::Cluster).into_iter().flatten();
        // another version of a cluster leads nowhere else
        let has_clusters = due_clusters.all(|(name, _)| clusters.holds(name));
        let leads_nowhere =
            |stage: &Stage| matches!(stage, Stage::Cluster | Stage::Assignment | Stage::Secret);
        let is_all_held = has_clusters
            && due.keys().all(leads_nowhere)
            && Gate::ALL
                .into_iter()
                .all(|gate| self.is_done(gate, due, now));
        if !is_all_held || !self.types[Kind::Routes as usize].opened {
            return; // which tables Envoy has of an earlier stream, it says last
        }
        if self.serves_on_what_is_not_here() {
            return;
        }
        let gone = self.gone(Kind::Listener);
        self.remove(Kind::Listener, gone, now, effects);
        if !self.settled(Kind::Listener, now) {
            return;
        }
        let due: Vec<String> = self
            .doomed
            .iter()
            .filter(|(_, since)| since.plus(self.removal_delay) <= now)
            .map(|(name, _)| name.clone())
            .collect();
        self.remove(Kind::Cluster, due, now, effects);
    }

    fn note_doomed(&mut self, now: Moment) {
        let gone: BTreeSet<String> = self.gone(Kind::Cluster).into_iter().collect();
        self.doomed.retain(|name, _| gone.contains(name));
        for name in gone {
            self.doomed.entry(name).or_insert(now);
        }
        let Some(goal) = &self.goal else {
            return;
        };
        let waits = |name: &str| {
            let wanted = goal.of(Kind::Cluster, name);
            wanted.is_some_and(|cluster| cluster.needs_endpoints)
        };
        let held = &self.types[Kind::Cluster as usize];
        // One that Envoy has may come back as it is, and still wait.
        self.repush.retain(|name| waits(name) || held.has(name));
        self.awaited.retain(|name, _| waits(name));
        let again = self.repush.iter();
        let again =
            again.filter(|name| waits(name) && held.has(name) && !self.awaited.contains_key(*name));
        let again: Vec<String> = again.cloned().collect();
        for name in again {
            self.await_hosts(&name, true, now);
        }
    }

    /// Sends what is due of the stage, with what is of its type and of a stage before it. Whether there was any.
    fn send_due(
        &mut self,
        stage: Stage,
        due: &Due,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let kind = stage.kind();
        if self.types[kind as usize].in_flight.is_some() {
            return false;
        }
        let of_kind = due.range(..=stage).filter(|(one, _)| one.kind() == kind);
        let mut pending: BTreeMap<&String, &Option<Arc<Resource>>> =
            of_kind.flat_map(|(_, resources)| resources).collect();
        let suspects = &self.types[kind as usize].one_by_one;
        let suspect = pending.keys().find(|name| suspects.contains(**name));
        if let Some(suspect) = suspect.copied() {
            pending.retain(|name, _| *name == suspect);
        }
        if pending.len() > BATCH {
            // what others wait for comes before other versions of what Envoy has
            let known = &self.types[kind as usize].known;
            let is_first = |name: &String| {
                !known.contains_key(name) || kind == Kind::Endpoints && self.repush.contains(name)
            };
            let mut all: Vec<_> = pending.into_iter().collect();
            all.sort_by_key(|(name, _)| (!is_first(name), !leads_to_hops(name)));
            pending = all.into_iter().take(BATCH).collect();
        }
        let (mut resources, mut removed) = (Vec::new(), Vec::new());
        for (name, resource) in pending {
            match resource {
                Some(resource) => resources.push((name.clone(), Arc::clone(resource))),
                None => removed.push(name.clone()),
            }
        }
        let is_empty = resources.is_empty() && removed.is_empty();
        if is_empty && !stage.is_last() {
            return false; // an empty answer says that there is nothing at all
        }
        for (name, resource) in &resources {
            match kind {
                Kind::Cluster if resource.needs_endpoints => {
                    let is_new = !self.types[kind as usize].holds(name);
                    self.repush.insert(name.clone());
                    self.await_hosts(name, is_new, now);
                }
                Kind::Endpoints => {
                    self.repush.remove(name);
                    if let Some(awaited) = self.awaited.get_mut(name) {
                        awaited.has_hosts = true;
                    }
                }
                _ => {}
            }
        }
        self.send(kind, resources, removed, now, effects);
        !is_empty
    }

    fn remove(&mut self, kind: Kind, names: Vec<String>, now: Moment, effects: &mut Vec<Effect>) {
        if !names.is_empty() && self.types[kind as usize].in_flight.is_none() {
            self.send(kind, Vec::new(), names, now, effects);
        }
    }

    fn send(
        &mut self,
        kind: Kind,
        resources: Vec<(String, Arc<Resource>)>,
        removed: Vec<String>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let state = &mut self.types[kind as usize];
        if resources.is_empty() && removed.is_empty() && !state.unanswered {
            return;
        }
        state.unanswered = false;
        self.nonce += 1;
        let versions = resources.iter().map(|(name, r)| (name.clone(), r.version));
        self.types[kind as usize].in_flight = Some(InFlight {
            nonce: self.nonce,
            resources: versions.collect(),
            removed: removed.iter().cloned().collect(),
            at: now,
        });
        effects.push(Effect::Send(Response {
            kind,
            nonce: self.nonce,
            resources,
            removed,
        }));
    }
}
