//! The connected Envoys: what each has, which edges those serve that are ready, and what Envoys refuse. What other replicas of the
//! gateway know of theirs is kept beside it.
//!
//! A refusal is of the stream that sent it, and no other Envoy is spared the resource: each judges for itself. What is kept here
//! is what status says. A refusal ends with the content that was refused, and when it was of Envoys that are gone and another
//! one has accepted the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use moment::Moment;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::world::Key;
use crate::xds::{Kind, Snapshot};

use super::Refusal;
use super::view::Report;

mod known;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use known::{Known, KnownByGateway};

/// Envoys that are gone whose refusal of a resource is kept: until others judge it, they are all that is known.
const KEPT: usize = 8;

/// Resources of one Gateway whose refusals are kept. Status has room for few of them.
const MOST_REFUSED: usize = 1_000;

/// Resources of all Gateways whose refusals are kept, each with the first reason of at most a KiB and [`KEPT`] names of nodes of half a
/// KiB: 24 MiB at most. A number for each stream that refuses it is counted with the names of that stream. A Gateway has at most
/// twice as many as are left for all others.
const MOST_REFUSED_OF_ALL: usize = 4_000;

/// Between two notes of denied streams: each one wakes the streams of the Gateway.
const DENIED_PAUSE: Duration = Duration::from_secs(1);

/// A resource in one version.
pub(crate) type ResourceId = (Kind, String, u64);

/// The connected Envoys and what they refused.
#[derive(Clone, Default)]
pub(crate) struct Proxies {
    state: Arc<Mutex<ProxiesState>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct ProxiesState {
    next: u64,
    connected: BTreeMap<u64, Proxy>,
    gateways: BTreeMap<Key, OfGateway>,
    /// What each other replica knows.
    elsewhere: BTreeMap<Key, Vec<Known>>,
}

/// What is known of the Envoys of one Gateway.
struct OfGateway {
    /// How many are connected.
    streams: usize,
    others: watch::Sender<Others>,
    refused: BTreeMap<ResourceId, Refused>,
}

/// Streams with their Envoys.
type Streams<'a> = Vec<(&'a u64, &'a Proxy)>;

/// What the streams of a Gateway learn of its other Envoys.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    /// The edges that those serve that are ready, of whichever replica.
    pub(super) served: Arc<BTreeSet<String>>,
    /// When a stream of one was last denied whose certificate is a former one of the Gateway: it may serve edges, and comes back with
    /// a certificate of now.
    pub(super) denied: Option<Moment>,
}

/// Who refuses a resource.
struct Refused {
    /// The first reason.
    message: String,
    /// Streams.
    by: BTreeSet<u64>,
    /// Nodes whose streams have ended, the latest last.
    gone: VecDeque<String>,
}

/// What status says of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) message: String,
    /// Connected Envoys that refuse it; none: those that did are gone.
    pub(crate) by: usize,
    /// Connected Envoys.
    pub(crate) of: usize,
    /// Connected Envoys that are ready do not refuse it.
    pub(crate) others_serve: bool,
}

/// One connected Envoy, for `/debug/xds` and metrics.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// By its certificate, where there is one.
    pub(crate) gateway: Key,
    pub(crate) node: String,
    pub(crate) version: String,
    /// Its certificate says whose it is, so it may be sent private keys.
    pub(crate) authenticated: bool,
    /// It has all it can have of the newest snapshot.
    pub(crate) current: bool,
    /// Acknowledged versions by type and name.
    pub(crate) acknowledged: BTreeMap<&'static str, Arc<BTreeMap<String, u64>>>,
    /// The edges that it serves; none before it is ready.
    pub(crate) served: BTreeSet<String>,
}

/// A stream that has begun.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) id: u64,
    /// Now and later.
    pub(super) others: watch::Receiver<Others>,
}

/// More streams of one Gateway than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

// === impl Proxies ===

impl Proxies {
    /// Comes back when what Envoys refuse has changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn connected(&self) -> Vec<Proxy> {
        self.state.lock().connected.values().cloned().collect()
    }

    /// What Envoys of all replicas refuse of these snapshots; older refusals are forgotten.
    pub(crate) fn refused(
        &self,
        snapshots: &BTreeMap<Key, Arc<Snapshot>>,
    ) -> BTreeMap<Key, BTreeMap<ResourceId, Verdict>> {
        let mut state = self.state.lock();
        state.forget_older(snapshots);
        let own = state.gateways.iter();
        let own = own.filter(|(_, known)| !known.refused.is_empty());
        let elsewhere = state.elsewhere.iter();
        let elsewhere = elsewhere.filter(|(_, all)| all.iter().any(|one| !one.refused.is_empty()));
        let refusing = own.map(|(gateway, _)| gateway);
        let refusing: BTreeSet<&Key> = refusing
            .chain(elsewhere.map(|(gateway, _)| gateway))
            .collect();
        let mut verdicts = BTreeMap::new();
        for gateway in refusing {
            let Some(snapshot) = snapshots.get(gateway) else {
                continue;
            };
            let same = state.connected.iter();
            let same = same.filter(|(_, one)| one.gateway == *gateway).collect();
            let own = state.gateways.get(gateway);
            let own = own.map(|known| known.known(&same));
            let elsewhere = state.elsewhere.get(gateway).into_iter().flatten();
            let refused = known::merged(own.iter().chain(elsewhere), snapshot);
            if !refused.is_empty() {
                verdicts.insert(gateway.clone(), refused);
            }
        }
        verdicts
    }

    /// What this replica knows, for the others.
    pub(crate) fn known(&self) -> KnownByGateway {
        let state = self.state.lock();
        let mut streams: BTreeMap<&Key, Streams<'_>> = BTreeMap::new();
        for (id, proxy) in &state.connected {
            let of = streams.entry(&proxy.gateway).or_default();
            of.push((id, proxy));
        }
        let of_use = state.gateways.iter();
        let of_use = of_use.filter(|(_, known)| known.streams > 0 || !known.refused.is_empty());
        let known = of_use.map(|(gateway, known)| {
            let same = streams.remove(gateway).unwrap_or_default();
            (gateway.clone(), known.known(&same))
        });
        known.collect()
    }

    /// What each of the other replicas knows from now on.
    pub(crate) fn set_elsewhere(&self, elsewhere: BTreeMap<Key, Vec<Known>>) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.elsewhere, elsewhere);
        let now = &state.elsewhere;
        let refuses = |all: Option<&Vec<Known>>| {
            let mut all = all.into_iter().flatten();
            all.any(|one| !one.refused.is_empty())
        };
        let mut is_told = false;
        for gateway in before.keys().chain(now.keys()) {
            if before.get(gateway) == now.get(gateway) {
                continue;
            }
            state.tell_served(gateway);
            let own = state.gateways.get(gateway);
            is_told |= own.is_some_and(|known| !known.refused.is_empty());
            is_told |= refuses(before.get(gateway)) || refuses(now.get(gateway));
        }
        drop(state);
        if is_told {
            self.changed.notify_one();
        }
    }

    /// A stream of the Envoy begins.
    pub(super) fn connect(&self, proxy: Proxy, limit: usize) -> Result<Joined, TooMany> {
        let mut state = self.state.lock();
        let known = state.gateways.entry(proxy.gateway.clone()).or_default();
        if known.streams >= limit {
            return Err(TooMany);
        }
        known.streams += 1;
        let (others, is_told) = (known.others.subscribe(), !known.refused.is_empty());
        if state.elsewhere.contains_key(&proxy.gateway) {
            state.tell_served(&proxy.gateway);
        }
        state.next += 1;
        let id = state.next;
        state.connected.insert(id, proxy);
        drop(state);
        if is_told {
            self.changed.notify_one(); // of how many
        }
        Ok(Joined { id, others })
    }

    /// A stream was denied whose certificate is a former one of this Gateway. The caller knows that there is such a Gateway.
    pub(super) fn note_denied(&self, gateway: &Key, now: Moment) {
        let mut state = self.state.lock();
        let known = state.gateways.entry(gateway.clone()).or_default();
        known.others.send_if_modified(|others| {
            let is_due = others.denied.is_none_or(|at| at.plus(DENIED_PAUSE) <= now);
            if is_due {
                others.denied = Some(now);
            }
            is_due
        });
    }

    #[cfg(test)]
    pub(super) fn has_denied(&self, gateway: &Key) -> bool {
        let state = self.state.lock();
        let known = state.gateways.get(gateway);
        known.is_some_and(|known| known.others.borrow().denied.is_some())
    }

    pub(super) fn refuse(&self, id: u64, refusal: Refusal) {
        let Refusal {
            kind,
            name,
            version,
            message,
            passing: _,
        } = refusal;
        let mut state = self.state.lock();
        let kept: usize = state.gateways.values().map(|one| one.refused.len()).sum();
        let Some((proxy, known)) = state.of_stream(id) else {
            return;
        };
        let resource = (kind, name, version);
        let left = MOST_REFUSED_OF_ALL.saturating_sub(kept);
        let is_full = known.refused.len() >= MOST_REFUSED.min(2 * left);
        if is_full && !known.refused.contains_key(&resource) {
            return;
        }
        let refused = known.refused.entry(resource).or_insert_with(|| Refused {
            message,
            by: BTreeSet::new(),
            gone: VecDeque::new(),
        });
        refused.by.insert(id);
        // the same Envoy on an earlier stream
        refused.gone.retain(|node| *node != proxy.node);
        drop(state);
        self.changed.notify_one();
    }

    /// The stream accepted what it had refused for a passing reason.
    pub(super) fn recover(&self, id: u64, resource: &ResourceId) {
        let mut state = self.state.lock();
        let Some((_, known)) = state.of_stream(id) else {
            return;
        };
        let refused = known.refused.get_mut(resource);
        let recovered = refused.is_some_and(|refused| refused.by.remove(&id));
        known.refused.retain(|_, refused| !refused.is_empty());
        drop(state);
        if recovered {
            self.changed.notify_one();
        }
    }

    pub(super) fn update(&self, id: u64, report: Report) {
        let Report {
            current,
            acknowledged,
            served,
        } = report;
        let mut state = self.state.lock();
        let Some(proxy) = state.connected.get_mut(&id) else {
            return;
        };
        proxy.current = current;
        let has_changed = !acknowledged.is_empty();
        let acknowledged = acknowledged.into_iter();
        proxy
            .acknowledged
            .extend(acknowledged.map(|(kind, held)| (kind.as_str(), held)));
        let serves_others = proxy.served != served;
        proxy.served = served;
        let gateway = proxy.gateway.clone();
        let mut is_told = false;
        if serves_others {
            state.tell_served(&gateway);
            let known = state.gateways.get(&gateway);
            is_told = known.is_some_and(|known| !known.refused.is_empty());
        }
        let ended = has_changed && state.end_refusals(&gateway);
        drop(state);
        if ended || is_told {
            self.changed.notify_one();
        }
    }

    pub(super) fn disconnect(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(proxy) = state.connected.remove(&id) else {
            return;
        };
        let Some(known) = state.gateways.get_mut(&proxy.gateway) else {
            return;
        };
        known.streams -= 1;
        let is_told = !known.refused.is_empty();
        for refused in known.refused.values_mut() {
            if refused.by.remove(&id) {
                refused.gone.retain(|node| *node != proxy.node);
                refused.gone.push_back(proxy.node.clone());
                if refused.gone.len() > KEPT {
                    refused.gone.pop_front();
                }
            }
        }
        if !known.is_of_use() {
            state.gateways.remove(&proxy.gateway);
        }
        state.tell_served(&proxy.gateway);
        state.end_refusals(&proxy.gateway);
        drop(state);
        if is_told {
            self.changed.notify_one();
        }
    }
}

// === impl ProxiesState ===

impl ProxiesState {
    fn of_stream(&mut self, id: u64) -> Option<(&Proxy, &mut OfGateway)> {
        let proxy = self.connected.get(&id)?;
        let known = self.gateways.get_mut(&proxy.gateway)?;
        Some((proxy, known))
    }

    /// Forgets refusals of what is not in these snapshots, and Gateways of which there is nothing left.
    fn forget_older(&mut self, snapshots: &BTreeMap<Key, Arc<Snapshot>>) {
        self.gateways.retain(|gateway, known| {
            let snapshot = snapshots.get(gateway);
            if snapshot.is_none() {
                known
                    .others
                    .send_if_modified(|others| others.denied.take().is_some());
            }
            known.refused.retain(|(kind, name, version), _| {
                let now = snapshot.and_then(|snapshot| snapshot.of(*kind).get(name));
                now.is_some_and(|resource| resource.version == *version)
            });
            known.is_of_use()
        });
    }

    /// Tells the streams of the Gateway which edges are served, by Envoys of whichever replica.
    fn tell_served(&self, gateway: &Key) {
        let Some(known) = self.gateways.get(gateway) else {
            return;
        };
        let same = self
            .connected
            .values()
            .filter(|one| one.gateway == *gateway);
        let elsewhere = self.elsewhere.get(gateway).into_iter().flatten();
        let elsewhere = elsewhere.map(|one| &one.served);
        let served = same.map(|one| &one.served).chain(elsewhere);
        let served: BTreeSet<String> = served.flatten().cloned().collect();
        known.others.send_if_modified(|others| {
            let differs = *others.served != served;
            if differs {
                others.served = Arc::new(served);
            }
            differs
        });
    }

    /// Forgets refusals of Envoys that are gone where a connected one has accepted the same. Whether there were any.
    fn end_refusals(&mut self, gateway: &Key) -> bool {
        let Some(known) = self.gateways.get_mut(gateway) else {
            return false;
        };
        let mut ended = false;
        for ((kind, name, version), refused) in &mut known.refused {
            let mut others = self
                .connected
                .values()
                .filter(|one| one.gateway == *gateway);
            let accepts = |one: &Proxy| {
                let held = one.acknowledged.get(kind.as_str());
                held.and_then(|held| held.get(name)) == Some(version)
            };
            if !refused.gone.is_empty() && others.any(accepts) {
                refused.gone.clear();
                ended = true;
            }
        }
        known.refused.retain(|_, refused| !refused.is_empty());
        ended
    }
}

// === impl OfGateway ===

impl OfGateway {
    fn is_of_use(&self) -> bool {
        self.streams > 0 || !self.refused.is_empty() || self.others.borrow().denied.is_some()
    }

    /// For status and other replicas, with the streams of this Gateway.
    fn known(&self, streams: &Streams<'_>) -> Known {
        let ready = streams.iter().filter(|(_, one)| !one.served.is_empty());
        let refused = self.refused.iter().map(|(id, refused)| {
            // one that refused it on an earlier stream has not judged it again
            let others_serve = ready.clone().any(|(stream, one)| {
                !refused.by.contains(stream) && !refused.gone.contains(&one.node)
            });
            (id.clone(), refused.verdict(self.streams, others_serve))
        });
        Known {
            connected: self.streams,
            served: ready
                .clone()
                .flat_map(|(_, one)| one.served.iter().cloned())
                .collect(),
            refused: refused.collect(),
            is_partial: false,
        }
    }
}

impl Default for OfGateway {
    fn default() -> Self {
        Self {
            streams: 0,
            others: watch::Sender::new(Others::default()),
            refused: BTreeMap::new(),
        }
    }
}

// === impl Verdict ===

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.by, self.of) {
            (0, _) => f.write_str("refused by an Envoy that is gone")?,
            (by, of) => write!(f, "{by} of {of} Envoys refuse it")?,
        }
        write!(f, ": {}", self.message)
    }
}

// === impl Refused ===

impl Refused {
    fn is_empty(&self) -> bool {
        self.by.is_empty() && self.gone.is_empty()
    }

    fn verdict(&self, of: usize, others_serve: bool) -> Verdict {
        Verdict {
            message: self.message.clone(),
            by: self.by.len(),
            of,
            others_serve,
        }
    }
}
