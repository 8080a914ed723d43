//! The connected Envoys: what each has, which edges those serve that are ready, and what Envoys refuse.
//!
//! A refusal is of the stream that sent it, and no other Envoy is spared the resource: each judges for itself. What is kept here
//! is what status says. A refusal ends with the content that was refused, and when it was of Envoys that are gone and another
//! one has accepted the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::world::Key;
use crate::xds::{Kind, Snapshot};

use super::Refusal;
use super::view::Report;

/// Envoys that are gone whose refusal of a resource is kept: until others judge it, they are all that is known.
const KEPT: usize = 8;

/// Resources of one Gateway whose refusals are kept, each with the first reason of at most a KiB and a number for each stream:
/// 32 MiB at most. Status has room for few of them.
const MOST_REFUSED: usize = 1_000;

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
}

/// What is known of the Envoys of one Gateway.
struct OfGateway {
    /// How many are connected.
    streams: usize,
    /// The edges that those serve that are ready.
    served: watch::Sender<Arc<BTreeSet<String>>>,
    refused: BTreeMap<ResourceId, Refused>,
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
    /// The edges that ready Envoys of its Gateway serve, now and later.
    pub(super) served: watch::Receiver<Arc<BTreeSet<String>>>,
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

    /// What Envoys refuse of these snapshots; older refusals are forgotten.
    pub(crate) fn refused(
        &self,
        snapshots: &BTreeMap<Key, Arc<Snapshot>>,
    ) -> BTreeMap<Key, BTreeMap<ResourceId, Verdict>> {
        let mut state = self.state.lock();
        let ProxiesState {
            connected,
            gateways,
            ..
        } = &mut *state;
        let mut verdicts = BTreeMap::new();
        gateways.retain(|gateway, known| {
            let snapshot = snapshots.get(gateway);
            known.refused.retain(|(kind, name, version), _| {
                let now = snapshot.and_then(|snapshot| snapshot.of(*kind).get(name));
                now.is_some_and(|resource| resource.version == *version)
            });
            let of = known.streams;
            let ready = || {
                let same = connected.iter().filter(|(_, one)| one.gateway == *gateway);
                same.filter(|(_, one)| !one.served.is_empty())
            };
            let refused = known.refused.iter();
            let refused: BTreeMap<_, _> = refused
                .map(|(id, refused)| {
                    // one that refused it on an earlier stream has not judged it anew
                    let others_serve = ready().any(|(stream, one)| {
                        !refused.by.contains(stream) && !refused.gone.contains(&one.node)
                    });
                    (id.clone(), refused.verdict(of, others_serve))
                })
                .collect();
            if !refused.is_empty() {
                verdicts.insert(gateway.clone(), refused);
            }
            known.is_of_use()
        });
        verdicts
    }

    /// A stream of the Envoy begins.
    pub(super) fn connect(&self, proxy: Proxy, limit: usize) -> Result<Joined, TooMany> {
        let mut state = self.state.lock();
        let known = state.gateways.entry(proxy.gateway.clone()).or_default();
        if known.streams >= limit {
            return Err(TooMany);
        }
        known.streams += 1;
        let (served, is_told) = (known.served.subscribe(), !known.refused.is_empty());
        state.next += 1;
        let id = state.next;
        state.connected.insert(id, proxy);
        drop(state);
        if is_told {
            self.changed.notify_one(); // of how many
        }
        Ok(Joined { id, served })
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
        let Some((proxy, known)) = state.of_stream(id) else {
            return;
        };
        let resource = (kind, name, version);
        if known.refused.len() >= MOST_REFUSED && !known.refused.contains_key(&resource) {
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

    /// Tells the streams of the Gateway which edges are served.
    fn tell_served(&self, gateway: &Key) {
        let Some(known) = self.gateways.get(gateway) else {
            return;
        };
        let same = self
            .connected
            .values()
            .filter(|one| one.gateway == *gateway);
        let served: BTreeSet<String> = same.flat_map(|one| one.served.iter().cloned()).collect();
        known.served.send_if_modified(|before| {
            let differs = **before != served;
            if differs {
                *before = Arc::new(served);
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
        self.streams > 0 || !self.refused.is_empty()
    }
}

impl Default for OfGateway {
    fn default() -> Self {
        Self {
            streams: 0,
            served: watch::Sender::new(Arc::default()),
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::xds::Resource;

    const VERSION: u64 = 7;

    fn mk_proxy(node: &str) -> Proxy {
        Proxy {
            gateway: Key::new("ns", "gw"),
            node: node.to_owned(),
            version: "1.40.0".to_owned(),
            authenticated: true,
            current: false,
            acknowledged: BTreeMap::new(),
            served: BTreeSet::new(),
        }
    }

    fn mk_refusal(name: &str) -> Refusal {
        Refusal {
            kind: Kind::Listener,
            name: name.to_owned(),
            version: VERSION,
            message: "bad".to_owned(),
            passing: false,
        }
    }

    fn connect(proxies: &Proxies, node: &str) -> u64 {
        proxies.connect(mk_proxy(node), 100).unwrap().id
    }

    /// What the status of the Gateway reports of the resource in this version: how many refuse it, of how many.
    fn reported(proxies: &Proxies, version: u64) -> Option<(usize, usize)> {
        let verdict = verdict(proxies, version)?;
        Some((verdict.by, verdict.of))
    }

    fn verdict(proxies: &Proxies, version: u64) -> Option<Verdict> {
        let resource = Arc::new(Resource {
            version,
            bytes: Bytes::new(),
            needs_endpoints: false,
        });
        let mut snapshot = Snapshot::default();
        snapshot.listeners.insert("edge/80".to_owned(), resource);
        let gateway = Key::new("ns", "gw");
        let snapshots = BTreeMap::from([(gateway.clone(), Arc::new(snapshot))]);
        let refused = proxies.refused(&snapshots);
        refused.get(&gateway)?.values().next().cloned()
    }

    fn mk_report(served: &[&str]) -> Report {
        let held = BTreeMap::from([("edge/80".to_owned(), VERSION)]);
        Report {
            current: true,
            acknowledged: vec![(Kind::Listener, Arc::new(held))],
            served: served.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_refusal_says_how_many_refuse_and_ends_with_the_content() {
        let proxies = Proxies::default();
        let [a, b, _] = ["a", "b", "c"].map(|node| connect(&proxies, node));
        assert_eq!(reported(&proxies, VERSION), None);
        proxies.refuse(a, mk_refusal("edge/80"));
        assert_eq!(reported(&proxies, VERSION), Some((1, 3)));
        proxies.refuse(b, mk_refusal("edge/80"));
        assert_eq!(reported(&proxies, VERSION), Some((2, 3)));
        let mut other = mk_proxy("d");
        other.gateway = Key::new("ns", "other");
        proxies.connect(other, 100).unwrap();
        assert_eq!(reported(&proxies, VERSION), Some((2, 3)));
        assert_eq!(reported(&proxies, VERSION + 1), None);
        assert_eq!(reported(&proxies, VERSION), None);
    }

    /// Status does not change back and forth while the only Envoy connects again.
    #[test]
    fn a_refusal_outlives_the_stream_until_an_envoy_accepts() {
        let proxies = Proxies::default();
        let first = connect(&proxies, "a");
        proxies.refuse(first, mk_refusal("edge/80"));
        proxies.disconnect(first);
        assert_eq!(reported(&proxies, VERSION), Some((0, 0)));
        let second = connect(&proxies, "a");
        assert_eq!(reported(&proxies, VERSION), Some((0, 1)));
        proxies.refuse(second, mk_refusal("edge/80"));
        let third = connect(&proxies, "b");
        proxies.update(third, mk_report(&[]));
        // one that is there refuses it still
        assert_eq!(reported(&proxies, VERSION), Some((1, 2)));
        proxies.disconnect(second);
        assert_eq!(reported(&proxies, VERSION), None);
    }

    /// One of many that refuses something is one less that serves.
    #[test]
    fn a_refusal_says_whether_ready_envoys_do_without_it() {
        let proxies = Proxies::default();
        let [a, b] = ["a", "b"].map(|node| connect(&proxies, node));
        proxies.refuse(a, mk_refusal("edge/80"));
        let others_serve = || verdict(&proxies, VERSION).map(|verdict| verdict.others_serve);
        assert_eq!(others_serve(), Some(false), "the other is not ready");
        let ready = Report {
            acknowledged: Vec::new(),
            ..mk_report(&["edge/80"])
        };
        proxies.update(b, ready.clone());
        proxies.update(a, ready.clone());
        assert_eq!(others_serve(), Some(true));
        proxies.refuse(b, mk_refusal("edge/80"));
        assert_eq!(others_serve(), Some(false));
        proxies.recover(b, &(Kind::Listener, "edge/80".to_owned(), VERSION));
        assert_eq!(others_serve(), Some(true));
        proxies.disconnect(b);
        assert_eq!(others_serve(), Some(false));
        proxies.disconnect(a);
        let again = connect(&proxies, "a");
        proxies.update(again, ready);
        assert_eq!(others_serve(), Some(false), "it refused it before");
    }

    #[test]
    fn what_was_refused_for_a_passing_reason_is_accepted_later() {
        let proxies = Proxies::default();
        let id = connect(&proxies, "a");
        proxies.refuse(id, mk_refusal("edge/80"));
        proxies.recover(id, &(Kind::Listener, "edge/80".to_owned(), VERSION));
        assert_eq!(reported(&proxies, VERSION), None);
    }

    /// An Envoy that is not ready serves nobody.
    #[test]
    fn streams_learn_what_ready_envoys_of_their_gateway_serve() {
        let proxies = Proxies::default();
        let Joined { id: a, mut served } = proxies.connect(mk_proxy("a"), 100).unwrap();
        let mut is = |edges: &[&str]| {
            let changed = served.has_changed().unwrap();
            let now = served.borrow_and_update().clone();
            assert!(
                now.iter().map(String::as_str).eq(edges.iter().copied()),
                "{now:?}"
            );
            changed
        };
        assert!(!is(&[]));
        let b = connect(&proxies, "b");
        proxies.update(b, mk_report(&["edge/443", "edge/80"]));
        assert!(is(&["edge/443", "edge/80"]));
        proxies.update(a, mk_report(&["edge/80"]));
        assert!(!is(&["edge/443", "edge/80"]));
        let mut other = mk_proxy("c");
        other.gateway = Key::new("ns", "other");
        let other = proxies.connect(other, 100).unwrap();
        proxies.update(other.id, mk_report(&["edge/8080"]));
        assert!(!is(&["edge/443", "edge/80"]));
        proxies.disconnect(b);
        assert!(is(&["edge/80"]));
    }

    #[test]
    fn streams_of_a_gateway_are_bounded() {
        let proxies = Proxies::default();
        let [first, _] = [(); 2].map(|()| proxies.connect(mk_proxy("a"), 2).unwrap().id);
        let one_more = || mk_proxy("a");
        assert_eq!(proxies.connect(one_more(), 2).err(), Some(TooMany));
        let mut other = one_more();
        other.gateway = Key::new("ns", "other");
        assert!(proxies.connect(other, 2).is_ok());
        proxies.disconnect(first);
        assert!(proxies.connect(one_more(), 2).is_ok());
    }

    /// Pods that are replaced again and again, each with a name of its own, and one that refuses whatever there may be.
    #[test]
    fn refusals_are_bounded() {
        let proxies = Proxies::default();
        for round in 0..100 {
            let id = connect(&proxies, &format!("pod-{round}"));
            proxies.refuse(id, mk_refusal("edge/80"));
            proxies.disconnect(id);
        }
        let id = connect(&proxies, "a");
        for at in 0..2 * MOST_REFUSED {
            proxies.refuse(id, mk_refusal(&format!("edge/{at}")));
        }
        let state = proxies.state.lock();
        let refused = &state.gateways[&Key::new("ns", "gw")].refused;
        assert_eq!(refused.len(), MOST_REFUSED);
        let gone: usize = refused.values().map(|refused| refused.gone.len()).sum();
        assert_eq!(gone, KEPT);
        drop(state);
        proxies.disconnect(id);
        assert!(proxies.refused(&BTreeMap::new()).is_empty());
        assert!(proxies.state.lock().gateways.is_empty(), "all is forgotten");
    }
}
