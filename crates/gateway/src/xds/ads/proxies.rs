//! The connected Envoys, and what they refused.
//!
//! A refusal is of the stream that sent it. A new stream is spared a resource only if two Envoys of its Gateway refused it,
//! with different node ids, on connections of their own, and of the new one's Envoy version: one Envoy that is broken, or
//! forged, decides for no other. A refusal ends with the content that was refused, and when it was of Envoys that are gone
//! and another one has accepted the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::world::Key;
use crate::xds::{Kind, Snapshot};

use super::{Ads, Refusal};

/// So many Envoys have to refuse a resource until others are spared it.
const AGREED: usize = 2;

/// Refusals of Envoys that are gone, kept of one resource: until others judge it, they are all that is known.
const KEPT: usize = 8;

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
    refused: BTreeMap<Key, BTreeMap<ResourceId, BTreeMap<u64, Refused>>>,
}

/// That one stream refuses a resource, or is spared it.
#[derive(Clone, Debug)]
struct Refused {
    node: String,
    connection: u64,
    version: String,
    message: String,
    /// It is tried again, so not kept from other Envoys.
    passing: bool,
    /// Its stream has ended.
    gone: bool,
}

/// One connected Envoy, for `/debug/xds` and metrics.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// By its certificate, where there is one.
    pub(crate) gateway: Key,
    pub(crate) node: String,
    pub(crate) version: String,
    pub(crate) connection: u64,
    /// Its certificate says whose it is, so it may be sent private keys.
    pub(crate) authenticated: bool,
    /// It has all it can have of the newest snapshot.
    pub(crate) current: bool,
    /// Acknowledged versions by type and name.
    pub(crate) acknowledged: BTreeMap<&'static str, BTreeMap<String, u64>>,
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
    ) -> BTreeMap<Key, BTreeMap<ResourceId, String>> {
        let mut state = self.state.lock();
        state.refused.retain(|gateway, refused| {
            let snapshot = snapshots.get(gateway);
            refused.retain(|(kind, name, version), _| {
                let now = snapshot.and_then(|snapshot| snapshot.of(*kind).get(name));
                now.is_some_and(|resource| resource.version == *version)
            });
            !refused.is_empty()
        });
        let messages = state.refused.iter().map(|(gateway, refused)| {
            let refused = refused.iter().filter_map(|(id, by)| {
                let (_, first) = by.first_key_value()?;
                Some((id.clone(), first.message.clone()))
            });
            (gateway.clone(), refused.collect())
        });
        messages.collect()
    }

    /// A stream of the Envoy begins: its number, and what it is spared because others agree on refusing it.
    pub(super) fn connect(
        &self,
        proxy: Proxy,
        limit: usize,
    ) -> Result<(u64, BTreeSet<ResourceId>), TooMany> {
        let mut state = self.state.lock();
        let streams = state.connected.values();
        if streams.filter(|one| one.gateway == proxy.gateway).count() >= limit {
            return Err(TooMany);
        }
        state.next += 1;
        let id = state.next;
        let mut spared = BTreeSet::new();
        let refused = state.refused.get_mut(&proxy.gateway).into_iter().flatten();
        for (resource, by) in refused {
            if let Some(message) = agreed(by.values(), &proxy.version) {
                let refused = Refused::of(&proxy, message.to_owned(), false);
                insert(by, id, refused);
                spared.insert(resource.clone());
            }
        }
        state.connected.insert(id, proxy);
        Ok((id, spared))
    }

    pub(super) fn refuse(&self, id: u64, refusal: Refusal) {
        let Refusal {
            kind,
            name,
            version,
            message,
            passing,
        } = refusal;
        let mut state = self.state.lock();
        let Some(proxy) = state.connected.get(&id).cloned() else {
            return;
        };
        let refused = state.refused.entry(proxy.gateway.clone()).or_default();
        let by = refused.entry((kind, name, version)).or_default();
        insert(by, id, Refused::of(&proxy, message, passing));
        drop(state);
        self.changed.notify_one();
    }

    /// The stream accepted what it had refused for a passing reason.
    pub(super) fn recover(&self, id: u64, resource: &ResourceId) {
        let mut state = self.state.lock();
        let mut recovered = false;
        for refused in state.refused.values_mut() {
            if let Some(by) = refused.get_mut(resource) {
                recovered |= by.remove(&id).is_some();
                if by.is_empty() {
                    refused.remove(resource);
                }
            }
        }
        drop(state);
        if recovered {
            self.changed.notify_one();
        }
    }

    pub(super) fn update(&self, id: u64, ads: &Ads) {
        let acknowledged = Kind::ALL
            .iter()
            .map(|kind| (kind.as_str(), ads.acknowledged(*kind)));
        let mut state = self.state.lock();
        let Some(proxy) = state.connected.get_mut(&id) else {
            return;
        };
        proxy.current = ads.is_current();
        proxy.acknowledged = acknowledged.collect();
        let gateway = proxy.gateway.clone();
        let ended = state.end_refusals(&gateway);
        drop(state);
        if ended {
            self.changed.notify_one();
        }
    }

    pub(super) fn disconnect(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(proxy) = state.connected.remove(&id) else {
            return;
        };
        let refused = state.refused.get_mut(&proxy.gateway).into_iter().flatten();
        for (_, by) in refused {
            if let Some(refused) = by.get_mut(&id) {
                refused.gone = true;
            }
        }
        let ended = state.end_refusals(&proxy.gateway);
        drop(state);
        if ended {
            self.changed.notify_one();
        }
    }
}

// === impl ProxiesState ===

impl ProxiesState {
    /// Forgets refusals of Envoys that are gone where a connected one has accepted the same. Whether there were any.
    fn end_refusals(&mut self, gateway: &Key) -> bool {
        let Some(refused) = self.refused.get_mut(gateway) else {
            return false;
        };
        let mut ended = false;
        refused.retain(|(kind, name, version), by| {
            if by.values().any(|refused| refused.gone) {
                let mut others = self
                    .connected
                    .values()
                    .filter(|one| one.gateway == *gateway);
                let is_accepted = others.any(|one| {
                    let held = one.acknowledged.get(kind.as_str());
                    held.and_then(|held| held.get(name)) == Some(version)
                });
                let before = by.len();
                by.retain(|_, refused| !(refused.gone && is_accepted));
                ended |= by.len() != before;
            }
            !by.is_empty()
        });
        if refused.is_empty() {
            self.refused.remove(gateway);
        }
        ended
    }
}

// === impl Refused ===

impl Refused {
    fn of(proxy: &Proxy, message: String, passing: bool) -> Self {
        Self {
            node: proxy.node.clone(),
            connection: proxy.connection,
            version: proxy.version.clone(),
            message,
            passing,
            gone: false,
        }
    }
}

/// The reason of enough refusals by Envoys of that version: different nodes on different connections.
fn agreed<'a>(by: impl Iterator<Item = &'a Refused>, version: &str) -> Option<&'a str> {
    let same: Vec<&Refused> = by
        .filter(|refused| !refused.passing && refused.version == version)
        .collect();
    let nodes: BTreeSet<&str> = same.iter().map(|refused| &*refused.node).collect();
    let connections: BTreeSet<u64> = same.iter().map(|refused| refused.connection).collect();
    let first = same.first()?;
    (nodes.len() >= AGREED && connections.len() >= AGREED).then_some(&*first.message)
}

/// Adds a refusal, which replaces those of the same Envoy's earlier streams.
fn insert(by: &mut BTreeMap<u64, Refused>, id: u64, refused: Refused) {
    by.retain(|_, other| !(other.gone && other.node == refused.node));
    by.insert(id, refused);
    let gone: Vec<u64> = by
        .iter()
        .filter(|(_, one)| one.gone)
        .map(|(id, _)| *id)
        .collect();
    for id in gone.iter().rev().skip(KEPT) {
        by.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;
    use crate::xds::Resource;

    const VERSION: u64 = 7;

    fn mk_proxy(node: &str, version: &str, connection: u64) -> Proxy {
        Proxy {
            gateway: Key::new("ns", "gw"),
            node: node.to_owned(),
            version: version.to_owned(),
            connection,
            authenticated: true,
            current: false,
            acknowledged: BTreeMap::new(),
        }
    }

    fn mk_refusal(passing: bool) -> Refusal {
        Refusal {
            kind: Kind::Listener,
            name: "edge/80".to_owned(),
            version: VERSION,
            message: "bad".to_owned(),
            passing,
        }
    }

    fn connect(proxies: &Proxies, proxy: Proxy) -> (u64, bool) {
        let (id, spared) = proxies.connect(proxy, 100).unwrap();
        (id, !spared.is_empty())
    }

    /// Whether the status of the Gateway reports a refusal of the resource in this version.
    fn is_reported(proxies: &Proxies, version: u64) -> bool {
        let resource = Arc::new(Resource {
            version,
            bytes: Bytes::new(),
            needs_endpoints: false,
        });
        let mut snapshot = Snapshot::default();
        snapshot.listeners.insert("edge/80".to_owned(), resource);
        let snapshots = BTreeMap::from([(Key::new("ns", "gw"), Arc::new(snapshot))]);
        !proxies.refused(&snapshots).is_empty()
    }

    fn accept(proxies: &Proxies, id: u64) {
        let mut state = proxies.state.lock();
        let held = BTreeMap::from([("edge/80".to_owned(), VERSION)]);
        let proxy = state.connected.get_mut(&id).unwrap();
        proxy.acknowledged.insert(Kind::Listener.as_str(), held);
        state.end_refusals(&Key::new("ns", "gw"));
    }

    /// Node, version and connection of who refuses; whether an Envoy `c` of 1.40.0 is spared the resource.
    #[rstest]
    #[case::one(&[("a", "1.40.0", 1)], false)]
    #[case::two(&[("a", "1.40.0", 1), ("b", "1.40.0", 2)], true)]
    #[case::one_twice(&[("a", "1.40.0", 1), ("a", "1.40.0", 2)], false)]
    #[case::two_on_one_connection(&[("a", "1.40.0", 1), ("b", "1.40.0", 1)], false)]
    #[case::of_another_version(&[("a", "1.38.2", 1), ("b", "1.38.2", 2)], false)]
    #[case::one_of_each_version(&[("a", "1.38.2", 1), ("b", "1.40.0", 2)], false)]
    fn two_envoys_have_to_agree(#[case] refusing: &[(&str, &str, u64)], #[case] is_spared: bool) {
        let proxies = Proxies::default();
        for (node, version, connection) in refusing {
            let (id, _) = connect(&proxies, mk_proxy(node, version, *connection));
            proxies.refuse(id, mk_refusal(false));
        }
        assert!(is_reported(&proxies, VERSION));
        assert_eq!(connect(&proxies, mk_proxy("c", "1.40.0", 3)).1, is_spared);
        // nobody is spared what is tried again
        let passing = Proxies::default();
        for (node, version, connection) in refusing {
            let (id, _) = connect(&passing, mk_proxy(node, version, *connection));
            passing.refuse(id, mk_refusal(true));
        }
        assert!(!connect(&passing, mk_proxy("c", "1.40.0", 3)).1);
    }

    #[test]
    fn the_refusals_of_another_gateway_are_none() {
        let proxies = Proxies::default();
        for (node, connection) in [("a", 1), ("b", 2)] {
            let (id, _) = connect(&proxies, mk_proxy(node, "1.40.0", connection));
            proxies.refuse(id, mk_refusal(false));
        }
        let mut other = mk_proxy("c", "1.40.0", 3);
        other.gateway = Key::new("ns", "other");
        assert!(!connect(&proxies, other).1);
    }

    /// While all Envoys have the version that refused, a rolling update leaves the agreement; a newer version ends it.
    #[test]
    fn an_agreement_ends_with_its_content_or_its_version() {
        let proxies = Proxies::default();
        let refusing = ["a", "b"].map(|node| {
            let connection = u64::from(node.as_bytes()[0]);
            let (id, _) = connect(&proxies, mk_proxy(node, "1.38.2", connection));
            proxies.refuse(id, mk_refusal(false));
            id
        });
        let (heir, is_spared) = connect(&proxies, mk_proxy("c", "1.38.2", 3));
        assert!(is_spared);
        for id in refusing {
            proxies.disconnect(id);
        }
        assert!(
            is_reported(&proxies, VERSION),
            "the one that is left does not serve it"
        );
        assert!(connect(&proxies, mk_proxy("d", "1.38.2", 4)).1);
        let (newer, is_spared) = connect(&proxies, mk_proxy("e", "1.40.0", 5));
        assert!(!is_spared);
        accept(&proxies, newer);
        assert!(
            is_reported(&proxies, VERSION),
            "one of the older version is left"
        );
        proxies.disconnect(heir);
        let left = proxies
            .connected()
            .iter()
            .filter(|one| one.node == "d")
            .count();
        assert_eq!(left, 1);
        proxies.disconnect(4); // the stream of `d`
        assert!(!is_reported(&proxies, VERSION));
        assert!(!connect(&proxies, mk_proxy("f", "1.38.2", 6)).1);
    }

    #[test]
    fn an_agreement_ends_with_the_content() {
        let proxies = Proxies::default();
        for (node, connection) in [("a", 1), ("b", 2)] {
            let (id, _) = connect(&proxies, mk_proxy(node, "1.40.0", connection));
            proxies.refuse(id, mk_refusal(false));
        }
        assert!(!is_reported(&proxies, VERSION + 1));
        assert!(!connect(&proxies, mk_proxy("c", "1.40.0", 3)).1);
    }

    /// Status does not change back and forth while the only Envoy connects again.
    #[test]
    fn a_refusal_outlives_the_stream_until_the_envoy_accepts() {
        let proxies = Proxies::default();
        let (first, _) = connect(&proxies, mk_proxy("a", "1.40.0", 1));
        proxies.refuse(first, mk_refusal(false));
        proxies.disconnect(first);
        assert!(is_reported(&proxies, VERSION));
        let (second, is_spared) = connect(&proxies, mk_proxy("a", "1.40.0", 2));
        assert!(!is_spared);
        assert!(is_reported(&proxies, VERSION));
        accept(&proxies, second);
        assert!(!is_reported(&proxies, VERSION));
    }

    #[test]
    fn streams_of_a_gateway_are_bounded() {
        let proxies = Proxies::default();
        for connection in 0..2 {
            proxies
                .connect(mk_proxy("a", "1.40.0", connection), 2)
                .unwrap();
        }
        let one_more = || mk_proxy("a", "1.40.0", 9);
        assert_eq!(proxies.connect(one_more(), 2), Err(TooMany));
        let mut other = one_more();
        other.gateway = Key::new("ns", "other");
        assert!(proxies.connect(other, 2).is_ok());
        proxies.disconnect(1);
        assert!(proxies.connect(one_more(), 2).is_ok());
    }

    /// Pods that are replaced again and again, each with a name of its own.
    #[test]
    fn refusals_of_envoys_that_are_gone_are_bounded() {
        let proxies = Proxies::default();
        for round in 0..100_u64 {
            let (id, _) = connect(&proxies, mk_proxy(&format!("pod-{round}"), "1.40.0", round));
            proxies.refuse(id, mk_refusal(false));
            proxies.disconnect(id);
        }
        let state = proxies.state.lock();
        let kept: usize = state
            .refused
            .values()
            .flatten()
            .map(|(_, by)| by.len())
            .sum();
        assert!(kept <= KEPT + 1, "{kept}");
    }
}
