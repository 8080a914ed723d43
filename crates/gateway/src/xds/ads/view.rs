//! What the state of a stream says: nothing here changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::xds::{Kind, Resource, names};
use moment::Moment;

use super::stage::{Due, Stage, is_edge, leads_to_hops};
use super::{ACK_LIMIT, Ads, Request, TypeState, ready};

/// Names that one Envoy may have asked for, of all types: those of 10,000 clusters with their assignments, listeners and route
/// tables.
pub(crate) const MAX_NAMES: usize = 40_000;

/// Their bytes: 200 for each.
pub(crate) const MAX_NAME_BYTES: usize = 8_000_000;

/// What a kept name costs beside its bytes.
const NAME: usize = 64;

/// What the stream tells of its Envoy.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// It has all it can have of the newest snapshot.
    pub(crate) current: bool,
    /// Acknowledged versions by name, of each type for which something may have changed.
    pub(crate) acknowledged: Vec<(Kind, Arc<BTreeMap<String, u64>>)>,
    /// The edges that it serves, if it is ready.
    pub(crate) served: BTreeSet<String>,
}

impl Ads {
    /// Whether the request names more than one Envoy has a use for.
    pub(crate) fn is_too_much(&self, request: &Request) -> bool {
        if request.subscribe.is_empty() && request.initial.is_empty() {
            return false;
        }
        let held = self.types.iter().map(TypeState::names);
        let more = larger(size(request.subscribe.iter()), size(request.initial.keys()));
        let add = |(count, bytes), (more, length)| (count + more, bytes + length);
        let (count, bytes): (usize, usize) = held.chain([more]).fold((0, 0), add);
        count > MAX_NAMES || bytes > MAX_NAME_BYTES
    }

    /// Bytes of the names that a request adds at most to those that are kept, of which [`Ads::bytes_of_names`] counts all.
    pub(super) fn bytes_of(request: &Request) -> usize {
        cost(size(request.subscribe.iter())) + 2 * cost(size(request.initial.keys()))
    }

    /// Bytes of the names that are kept for this stream.
    pub(super) fn bytes_of_names(&mut self) -> usize {
        for (state, (revision, bytes)) in self.types.iter().zip(&mut self.counted) {
            if *revision != Some(state.revision) {
                *revision = Some(state.revision);
                // what Envoy has is kept for the pages as well
                let held = 2 * cost(size(state.known.keys()));
                *bytes = cost(size(state.subscribed.iter())) + held;
            }
        }
        let of_types: usize = self.counted.iter().map(|(_, bytes)| bytes).sum();
        let of_others = [
            // what is kept of the refusal for status costs as much
            size(self.quarantine.iter().map(|(_, name, _)| name)),
            size(self.quarantine.iter().map(|(_, name, _)| name)),
            size(self.repush.iter()),
            size(self.awaited.keys()),
            size(self.doomed.keys()),
        ];
        of_types + of_others.map(cost).iter().sum::<usize>()
    }

    /// What has changed since the last report, or may have.
    pub(super) fn report(&mut self) -> Report {
        let revisions = self.types.each_ref().map(|state| Some(state.revision));
        let changed = Kind::ALL
            .into_iter()
            .filter(|kind| self.reported[*kind as usize] != revisions[*kind as usize]);
        let acknowledged = changed.map(|kind| (kind, Arc::new(self.acknowledged(kind))));
        let report = Report {
            current: self.is_current(),
            acknowledged: acknowledged.collect(),
            served: if self.is_ready() {
                self.edges().0
            } else {
                BTreeSet::new()
            },
        };
        self.reported = revisions;
        report
    }

    /// Envoy has the table that makes it ready.
    pub(super) fn is_ready(&self) -> bool {
        let routes = &self.types[Kind::Routes as usize].known;
        routes.get(ready::READY).is_some_and(Option::is_some)
    }

    /// Envoy serves an edge, but not all, so that time alone may make it ready.
    pub(super) fn waits_to_be_ready(&self) -> bool {
        let asks = &self.types[Kind::Routes as usize].subscribed;
        asks.contains(ready::READY) && !self.is_ready() && !self.edges().0.is_empty()
    }

    /// Whether Envoy may take requests: it serves all edges of its Gateway; or some, and no other Envoy that takes requests
    /// serves more.
    pub(super) fn may_be_ready(&self) -> bool {
        if self.goal.is_none() {
            return false;
        }
        let (served, lacking) = self.edges();
        lacking.is_empty()
            || self.is_patient && !served.is_empty() && self.served.is_disjoint(&lacking)
    }

    /// The edges of the newest snapshot that Envoy serves, in whichever version, and those that it does not.
    fn edges(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let held = |kind: Kind| {
            let state = &self.types[kind as usize];
            let known = state.known.iter();
            known
                .filter(|(name, version)| version.is_some() && !state.is_leaving(name))
                .map(|(name, _)| name)
        };
        let serves = |edge: &String| {
            held(Kind::Listener).any(|name| name == edge)
                && held(Kind::Routes).any(|table| names::is_table_of(table, edge))
        };
        let goal = self.goal.iter();
        let edges = goal.flat_map(|goal| goal.newest().listeners.keys());
        edges
            .filter(|name| is_edge(name))
            .cloned()
            .partition(serves)
    }

    /// What Envoy has, and no snapshot that it is sent.
    pub(super) fn gone(&self, kind: Kind) -> Vec<String> {
        let Some(goal) = &self.goal else {
            return Vec::new();
        };
        let known = self.types[kind as usize].known.iter();
        let gone = known.filter(|(name, held)| held.is_some() && !goal.knows(kind, name));
        gone.map(|(name, _)| name.clone()).collect()
    }

    /// Envoy refused the newest of a route table or import, and may serve an older one, which leads
    /// where the snapshot does not.
    pub(super) fn serves_on_what_is_not_here(&self) -> bool {
        let Some(goal) = &self.goal else {
            return false;
        };
        let routes = &self.types[Kind::Routes as usize].subscribed;
        let mut refused = self.quarantine.iter().filter(|(kind, name, version)| {
            // A refusal may come when there is something newer already.
            let wanted = goal.of(*kind, name);
            wanted.is_some_and(|wanted| wanted.version == *version)
        });
        refused.any(|(kind, name, _)| match kind {
            Kind::Routes => routes.contains(name),
            Kind::Endpoints => leads_to_hops(name),
            Kind::Cluster | Kind::Secret | Kind::Listener => false,
        })
    }

    /// The stage of a resource as it would be sent now.
    fn stage(&self, kind: Kind, name: &str) -> Stage {
        let is_held = self.types[kind as usize].known.contains_key(name);
        let again = kind == Kind::Endpoints && self.repush.contains(name);
        Stage::of(kind, name, is_held && !again)
    }

    /// Each resource of the stage is acknowledged or at least on its way.
    pub(super) fn is_sent(&self, stage: Stage, due: &Due) -> bool {
        let sent = self.types[stage.kind() as usize].in_flight.as_ref();
        let is_sent = |name: &String, resource: &Option<Arc<Resource>>| {
            let version = resource.as_ref().map(|resource| resource.version);
            sent.is_some_and(|sent| sent.resources.get(name).copied() == version)
        };
        let mut due = due.get(&stage).into_iter().flatten();
        due.all(|(name, resource)| is_sent(name, resource))
    }

    /// Nothing of the stage is on its way, or for longer than we wait.
    pub(super) fn is_settled(&self, stage: Stage, now: Moment) -> bool {
        let kind = stage.kind();
        let sent = self.types[kind as usize].in_flight.as_ref();
        sent.is_none_or(|sent| {
            let mut names = sent.resources.keys();
            sent.at.plus(ACK_LIMIT) <= now || !names.any(|name| self.stage(kind, name) == stage)
        })
    }

    /// The new clusters that tables may lead to are there with their first hosts, or have been sent for longer than we wait.
    pub(super) fn has_backends(&self, due: &Due, now: Moment) -> bool {
        let Some(goal) = &self.goal else {
            return true;
        };
        let is_late = |since: Moment| since.plus(ACK_LIMIT) <= now;
        let state = &self.types[Kind::Cluster as usize];
        let sent_long_ago = |name: &String| {
            let sent = state.in_flight.as_ref();
            sent.is_some_and(|sent| sent.resources.contains_key(name) && is_late(sent.at))
        };
        let lacking = due.get(&Stage::Cluster).into_iter().flatten();
        let mut lacking = lacking
            .map(|(name, _)| name)
            .filter(|name| goal.is_cluster_of_pinned(name) && !state.holds(name));
        let awaited = self.awaited.iter();
        let mut awaited =
            awaited.filter(|(name, one)| one.is_new && goal.is_cluster_of_pinned(name));
        lacking.all(sent_long_ago) && awaited.all(|(_, one)| is_late(one.since))
    }

    /// Listeners and tables of the pinned snapshot, and what leads to its hops, are sent, and acknowledged or waited for long enough.
    pub(super) fn is_pinned_done(&self, now: Moment) -> bool {
        let Some(goal) = &self.goal else {
            return false;
        };
        let kinds = [Kind::Listener, Kind::Routes];
        let are_sent = kinds.into_iter().all(|kind| {
            let due = self.due(kind);
            self.settled(kind, now) && due.keys().all(|stage| self.is_sent(*stage, &due))
        });
        let mut assignments = self.due(Kind::Endpoints);
        if let Some(of_hops) = assignments.get_mut(&Stage::HopAssignment) {
            of_hops.retain(|name, _| goal.is_of_pinned(name));
        }
        are_sent && self.is_sent(Stage::HopAssignment, &assignments)
    }

    /// Nothing of the type is on its way, or for longer than we wait.
    pub(super) fn settled(&self, kind: Kind, now: Moment) -> bool {
        let sent = self.types[kind as usize].in_flight.as_ref();
        sent.is_none_or(|sent| sent.at.plus(ACK_LIMIT) <= now)
    }

    /// Resources that Envoy lacks, quarantined ones left out, also those on their way; `None`: it asked for one there is not.
    pub(super) fn due(&self, kind: Kind) -> Due {
        let mut due = Due::new();
        let Some(goal) = &self.goal else {
            return due;
        };
        let state = &self.types[kind as usize];
        let candidates: Vec<&String> = if state.wildcard {
            goal.names(kind).collect()
        } else {
            state.subscribed.iter().collect()
        };
        for name in candidates {
            let known = state.known.get(name);
            let is_ready = kind == Kind::Routes && name == ready::READY;
            if is_ready && !self.may_be_ready() {
                continue; // it is sent later, and is not absent
            }
            let found = if is_ready {
                Some(ready::table())
            } else {
                goal.of(kind, name)
            };
            let lacks = match found {
                Some(resource) => {
                    let again = kind == Kind::Endpoints && self.repush.contains(name);
                    let later = kind == Kind::Listener && self.retries.holds(name);
                    // what is leaving Envoy may need again
                    (again || state.is_leaving(name) || known != Some(&Some(resource.version)))
                        && !later
                        && !self
                            .quarantine
                            .contains(&(kind, name.clone(), resource.version))
                }
                // one that is only in the newest snapshot is sent later, and is not absent
                None => known.is_none() && !goal.knows(kind, name),
            };
            if lacks {
                let of_stage = due.entry(self.stage(kind, name)).or_default();
                of_stage.insert(name.clone(), found.cloned());
            }
        }
        due
    }
}

/// The cost of so many names, with their bytes.
fn cost((count, bytes): (usize, usize)) -> usize {
    count * NAME + bytes
}

pub(super) fn larger(a: (usize, usize), b: (usize, usize)) -> (usize, usize) {
    (a.0.max(b.0), a.1.max(b.1))
}

/// How many names, and their bytes.
pub(super) fn size<'a>(names: impl Iterator<Item = &'a String>) -> (usize, usize) {
    names.fold((0, 0), |(count, bytes), name| {
        (count + 1, bytes + name.len())
    })
}
