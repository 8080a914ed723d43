//! What the state of a stream says: nothing here changes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::xds::{Kind, Resource, names};
use moment::Moment;

use super::{ACK_LIMIT, Ads, Request, TypeState, is_edge, ready};

/// Names that one Envoy may have asked for, of all types: those of 10,000 clusters with their assignments, listeners and route
/// tables.
pub(crate) const MAX_NAMES: usize = 40_000;

/// Their bytes: 200 for each.
pub(crate) const MAX_NAME_BYTES: usize = 8_000_000;

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

    /// Whether Envoy can serve an edge of its Gateway, or there is none to serve.
    pub(super) fn serves(&self) -> bool {
        let Some(snapshot) = &self.snapshot else {
            return false;
        };
        let accepted = |kind: Kind| {
            let known = self.types[kind as usize].known.iter();
            known.filter(|(_, version)| version.is_some())
        };
        let has = |edge: &str| accepted(Kind::Listener).any(|(name, _)| name == edge);
        let routes =
            |edge: &str| accepted(Kind::Routes).any(|(name, _)| names::is_table_of(name, edge));
        let mut edges = snapshot
            .listeners
            .keys()
            .filter(|name| is_edge(name))
            .peekable();
        edges.peek().is_none() || edges.any(|name| has(name) && routes(name))
    }

    /// What Envoy has and the snapshot has not.
    pub(super) fn gone(&self, kind: Kind) -> Vec<String> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let known = self.types[kind as usize].known.iter();
        let gone = known.filter(|(name, held)| {
            held.is_some() && !snapshot.of(kind).contains_key(name.as_str())
        });
        gone.map(|(name, _)| name.clone()).collect()
    }

    /// Envoy refused the newest of a route table or import, and may serve an older one, which leads
    /// where the snapshot does not.
    pub(super) fn serves_on_what_is_not_here(&self) -> bool {
        let Some(snapshot) = &self.snapshot else {
            return false;
        };
        let routes = &self.types[Kind::Routes as usize].subscribed;
        let mut refused = self.quarantine.iter().filter(|(kind, name, version)| {
            // A refusal may come when there is something newer already.
            let newest = snapshot.of(*kind).get(name);
            newest.is_some_and(|newest| newest.version == *version)
        });
        refused.any(|(kind, name, _)| match kind {
            Kind::Routes => routes.contains(name),
            Kind::Endpoints => name.starts_with("import/") || name.starts_with("hopped/"),
            Kind::Cluster | Kind::Secret | Kind::Listener => false,
        })
    }

    /// Each resource of the type is acknowledged or at least on its way.
    pub(super) fn all_sent(&self, kind: Kind) -> bool {
        let sent = self.types[kind as usize].in_flight.as_ref();
        let is_sent = |name: &String, resource: &Option<Arc<Resource>>| {
            let version = resource.as_ref().map(|resource| resource.version);
            sent.is_some_and(|sent| sent.resources.get(name).copied() == version)
        };
        let pending = self.pending(kind, |_| true);
        pending
            .iter()
            .all(|(name, resource)| is_sent(name, resource))
    }

    /// Nothing of the type is on its way, or for longer than we wait.
    pub(super) fn settled(&self, kind: Kind, now: Moment) -> bool {
        let sent = self.types[kind as usize].in_flight.as_ref();
        sent.is_none_or(|sent| sent.at.plus(ACK_LIMIT) <= now)
    }

    /// Resources to send, quarantined ones left out; `None`: Envoy asked for one there is not.
    pub(super) fn pending(
        &self,
        kind: Kind,
        wanted: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, Option<Arc<Resource>>> {
        let Some(snapshot) = &self.snapshot else {
            return BTreeMap::new();
        };
        let (state, all) = (&self.types[kind as usize], snapshot.of(kind));
        let mut pending = BTreeMap::new();
        let candidates: Vec<&String> = if state.wildcard {
            all.keys().collect()
        } else {
            state.subscribed.iter().collect()
        };
        for name in candidates.into_iter().filter(|name| wanted(name)) {
            let known = state.known.get(name);
            let is_ready = kind == Kind::Routes && name == ready::READY;
            if is_ready && !self.serves() {
                continue; // it is sent later, and is not absent
            }
            let found = if is_ready {
                Some(ready::table())
            } else {
                all.get(name)
            };
            match found {
                Some(resource) => {
                    let again = kind == Kind::Endpoints && self.repush.contains(name);
                    let has = known == Some(&Some(resource.version));
                    let id = (kind, name.clone(), resource.version);
                    let later = kind == Kind::Listener && self.retries.holds(name);
                    if (again || !has) && !later && !self.quarantine.contains(&id) {
                        pending.insert(name.clone(), Some(Arc::clone(resource)));
                    }
                }
                None if known.is_none() => {
                    pending.insert(name.clone(), None);
                }
                None => {}
            }
        }
        pending
    }
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
