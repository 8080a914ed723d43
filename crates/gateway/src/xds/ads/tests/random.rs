//! A random Envoy, which must end at the snapshot whatever it does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{answer, mk_resource, mk_snapshot, ms, subscribe};
use crate::xds::ads::ready::READY;
use crate::xds::ads::{Ads, Effect, Input, Request, Response};
use crate::xds::{Kind, Snapshot};
use moment::Moment;

/// A cluster whose hosts are hops.
const IMPORT: &str = "import/ns/x";

/// An Envoy with its own mind: it answers late, refuses some content, reconnects.
struct Wilful {
    clusters: BTreeMap<String, (u64, String)>,
    /// Clusters with endpoints that came after them.
    warm: BTreeSet<String>,
    /// Clusters that had endpoints in some version: that one serves until a later version has its own.
    active: BTreeSet<String>,
    endpoints: BTreeMap<String, u64>,
    secrets: BTreeMap<String, u64>,
    listeners: BTreeMap<String, u64>,
    routes: BTreeMap<String, u64>,
    /// Clusters of each route table it serves.
    tables: BTreeMap<String, Vec<String>>,
    asked: BTreeMap<Kind, BTreeSet<String>>,
    unanswered: Vec<(Response, Option<String>)>,
    /// The edges of the newest snapshot, and those that other Envoys serve.
    edges: BTreeSet<String>,
    others: BTreeSet<String>,
}

impl Wilful {
    fn new() -> Self {
        Self {
            clusters: BTreeMap::new(),
            warm: BTreeSet::new(),
            active: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            secrets: BTreeMap::new(),
            listeners: BTreeMap::new(),
            routes: BTreeMap::new(),
            tables: BTreeMap::new(),
            asked: BTreeMap::new(),
            unanswered: Vec::new(),
            edges: BTreeSet::new(),
            others: BTreeSet::new(),
        }
    }

    /// The edges that it has with a table.
    fn serves(&self) -> BTreeSet<String> {
        let edges = self.listeners.keys();
        edges
            .filter(|edge| edge.starts_with("edge/") && self.routes.contains_key(*edge))
            .cloned()
            .collect()
    }

    fn hello(&self) -> Vec<Input> {
        let versions = |kind: Kind| match kind {
            Kind::Cluster => self
                .clusters
                .iter()
                .map(|(n, (v, _))| (n.clone(), *v))
                .collect(),
            Kind::Endpoints => self.endpoints.clone(),
            Kind::Secret => self.secrets.clone(),
            Kind::Listener => self.listeners.clone(),
            Kind::Routes => self.routes.clone(),
        };
        let kinds = Kind::ALL.into_iter().filter(|kind| {
            // the table that makes it ready it always asks for
            let named = matches!(kind, Kind::Endpoints | Kind::Secret);
            !named || self.asked.get(kind).is_some_and(|names| !names.is_empty())
        });
        let hello = kinds.map(|kind| {
            let mut names = self.asked.get(&kind).cloned().unwrap_or_default();
            if kind == Kind::Routes {
                names.insert(READY.to_owned());
            }
            Input::Request(Request {
                kind: Some(kind),
                subscribe: names.into_iter().collect(),
                initial: versions(kind),
                ..Request::default()
            })
        });
        hello.collect()
    }

    /// Applies a response at once; what it says to it comes later. Returns new subscriptions.
    fn take(&mut self, response: Response) -> Result<Vec<Input>, TestCaseError> {
        let mut refused = None;
        let mut new = Vec::new();
        for (name, resource) in &response.resources {
            let content = String::from_utf8_lossy(&resource.bytes).into_owned();
            if content.contains("bad") {
                refused = Some(format!("Error adding/updating {name}: bad"));
                continue;
            }
            let name = name.clone();
            match response.kind {
                Kind::Cluster => {
                    self.clusters
                        .insert(name.clone(), (resource.version, content));
                    self.warm.remove(&name);
                    new.push((Kind::Endpoints, name));
                }
                Kind::Endpoints => {
                    let mut hops = content.split(' ').filter(|host| host.starts_with("hop/"));
                    let absent = hops.find(|hop| {
                        !self.listeners.contains_key(*hop) || !self.routes.contains_key(*hop)
                    });
                    // the first hosts come before, as nothing leads to the cluster yet
                    let is_first = !self.endpoints.contains_key(&name);
                    prop_assert!(is_first || absent.is_none(), "{name} leads to {absent:?}");
                    self.endpoints.insert(name.clone(), resource.version);
                    self.active.insert(name.clone());
                    self.warm.insert(name);
                }
                Kind::Secret => {
                    self.secrets.insert(name, resource.version);
                }
                Kind::Listener => {
                    self.listeners.insert(name.clone(), resource.version);
                    new.push((Kind::Secret, "cert/a".to_owned()));
                    new.push((Kind::Routes, name));
                }
                Kind::Routes if name == READY => {
                    let serves = self.serves();
                    let edges = &self.edges;
                    prop_assert!(edges.is_empty() || !serves.is_empty(), "it serves nothing");
                    let lacks = edges
                        .difference(&serves)
                        .find(|edge| self.others.contains(*edge));
                    prop_assert_eq!(lacks, None, "others serve it");
                    self.routes.insert(name, resource.version);
                }
                Kind::Routes => {
                    for cluster in content.split(',').filter(|name| !name.is_empty()) {
                        // What it refused itself is not there; all else must be.
                        let there =
                            self.clusters.contains_key(cluster) && self.active.contains(cluster);
                        prop_assert!(
                            there || cluster.starts_with("odd"),
                            "route to {cluster} in {content}"
                        );
                    }
                    let clusters = content.split(',').filter(|name| !name.is_empty());
                    let clusters = clusters.map(ToOwned::to_owned).collect();
                    self.tables.insert(name.clone(), clusters);
                    self.routes.insert(name, resource.version);
                }
            }
        }
        for name in &response.removed {
            match response.kind {
                Kind::Cluster => {
                    let used = self.tables.values().flatten().find(|used| *used == name);
                    prop_assert_eq!(used, None, "removed, and routed to");
                    self.clusters.remove(name);
                    self.endpoints.remove(name);
                    self.warm.remove(name);
                    self.active.remove(name);
                    self.asked.entry(Kind::Endpoints).or_default().remove(name);
                }
                Kind::Listener => {
                    self.listeners.remove(name);
                    self.routes.remove(name);
                    self.tables.remove(name);
                    self.asked.entry(Kind::Routes).or_default().remove(name);
                }
                Kind::Endpoints | Kind::Secret | Kind::Routes => {}
            }
        }
        self.unanswered.push((response, refused));
        let asked = &mut self.asked;
        let fresh = new
            .into_iter()
            .filter(|(kind, name)| asked.entry(*kind).or_default().insert(name.clone()))
            .map(|(kind, name)| subscribe(kind, &[&name]));
        Ok(fresh.collect())
    }

    fn holds(&self, kind: Kind) -> BTreeMap<String, u64> {
        match kind {
            Kind::Cluster => self
                .clusters
                .iter()
                .map(|(n, (v, _))| (n.clone(), *v))
                .collect(),
            Kind::Endpoints => self.endpoints.clone(),
            Kind::Secret => self.secrets.clone(),
            Kind::Listener => self.listeners.clone(),
            Kind::Routes => self.routes.clone(),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Clusters by content, hosts, whether the route table is one Envoy refuses: the next snapshot.
    Change(BTreeMap<&'static str, u8>, u8, bool),
    /// Answer the oldest response.
    Answer,
    Wait(u64),
    /// What others serve from now on.
    Others(BTreeSet<&'static str>),
    Reconnect,
}

fn any_step() -> impl Strategy<Value = Step> {
    let names = prop::sample::select(vec!["a", "b", "c", "odd1", "odd2"]);
    let clusters = prop::collection::btree_map(names, 0_u8..3, 0..5);
    prop_oneof![
        3 => (clusters, 0_u8..3, prop::bool::weighted(0.3))
            .prop_map(|(clusters, hosts, bad)| Step::Change(clusters, hosts, bad)),
        6 => Just(Step::Answer),
        2 => (1_u64..1500).prop_map(Step::Wait),
        1 => prop::collection::btree_set(prop::sample::select(vec!["edge/80", "edge/443"]), 0..3)
            .prop_map(Step::Others),
        1 => Just(Step::Reconnect),
    ]
}

/// `odd…` of content 2 is refused.
fn snapshot_of(clusters: &BTreeMap<&'static str, u8>, hosts: u8, bad_table: bool) -> Arc<Snapshot> {
    let texts: Vec<(&str, String)> = clusters
        .iter()
        .map(|(name, content)| {
            let bad = name.starts_with("odd") && *content == 2;
            (
                *name,
                if bad {
                    "bad".to_owned()
                } else {
                    content.to_string()
                },
            )
        })
        .collect();
    let pairs: Vec<(&str, &str)> = texts.iter().map(|(n, c)| (*n, c.as_str())).collect();
    let mut snapshot = (*mk_snapshot(&pairs, &hosts.to_string())).clone();
    // it changes with the hosts, and one is refused
    let certificate = if hosts == 2 {
        "bad".to_owned()
    } else {
        hosts.to_string()
    };
    snapshot
        .secrets
        .insert("cert/a".into(), mk_resource(&certificate, false));
    // an edge without clusters, of which one listener is refused
    let second = match hosts {
        0 => None,
        1 => Some("second"),
        _ => Some("bad second"),
    };
    if let Some(content) = second {
        let listener = mk_resource(content, false);
        snapshot.listeners.insert("edge/443".into(), listener);
        snapshot
            .routes
            .insert("edge/443".into(), mk_resource("", false));
    }
    if bad_table {
        let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
        let bad = mk_resource(&format!("bad,{}", names.join(",")), false);
        snapshot.routes.insert("edge/80".into(), bad);
    }
    Arc::new(snapshot)
}

/// Feeds inputs and everything Envoy asks for because of them.
fn feed(
    ads: &mut Ads,
    envoy: &mut Wilful,
    refused: &mut BTreeSet<(Kind, String, u64)>,
    inputs: Vec<Input>,
    now: Moment,
) -> Result<(), TestCaseError> {
    let mut waiting = inputs;
    while !waiting.is_empty() {
        for effect in ads.on(waiting.remove(0), now) {
            match effect {
                Effect::Send(response) => waiting.extend(envoy.take(response)?),
                Effect::Refused(one) => {
                    refused.insert((one.kind, one.name, one.version));
                }
                Effect::Recovered(..) => {}
            }
        }
    }
    Ok(())
}

/// A cluster of another content each time, one that stays or new ones each time, an import whose hops are as many, and an edge that
/// leads to all of them. The edge and its table change as well.
fn changing(round: u64, new_names: bool) -> Arc<Snapshot> {
    let text = round.to_string();
    let names: Vec<String> = if new_names {
        (round.saturating_sub(2)..=round)
            .map(|at| format!("n{at}"))
            .collect()
    } else {
        vec!["n".to_owned()]
    };
    let new = names.iter().map(|name| (name.as_str(), "1"));
    let clusters: Vec<(&str, &str)> = [("a", text.as_str()), (IMPORT, "1")]
        .into_iter()
        .chain(new)
        .collect();
    let mut snapshot = (*mk_snapshot(&clusters, &text)).clone();
    let hops: Vec<String> = names
        .iter()
        .map(|name| format!("hop/ns/x/{name}"))
        .collect();
    for kind in [&mut snapshot.listeners, &mut snapshot.routes] {
        let hops = hops.iter();
        kind.extend(hops.map(|hop| (hop.clone(), mk_resource("", false))));
    }
    let hosts = mk_resource(&hops.join(" "), false);
    snapshot.endpoints.insert(IMPORT.into(), hosts);
    let edge = mk_resource(&format!("edge {round}"), false);
    snapshot.listeners.insert("edge/80".into(), edge);
    // a name that no Envoy has tells the tables apart
    let table = format!("a,{IMPORT},{},odd{round}", names.join(","));
    snapshot
        .routes
        .insert("edge/80".into(), mk_resource(&table, false));
    Arc::new(snapshot)
}

proptest! {
    #[test]
    fn any_envoy_ends_at_the_snapshot_and_never_routes_to_an_absent_cluster(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let mut now = 0;
        let mut refused = BTreeSet::new();
        let mut ads = Ads::new(Duration::from_secs(3));
        let mut envoy = Wilful::new();
        let mut snapshot = snapshot_of(&BTreeMap::new(), 0, false);
        envoy.edges = snapshot.listeners.keys().cloned().collect();
        let mut first = vec![Input::Snapshot(Arc::clone(&snapshot))];
        first.extend(envoy.hello());
        feed(&mut ads, &mut envoy, &mut refused, first, ms(now))?;
        // In the end it answers everything and time goes by.
        let end = (0..120).flat_map(|_| [Step::Answer, Step::Wait(500)]);
        // nobody else is left, so that it may take requests with what it has
        let end = std::iter::once(Step::Others(BTreeSet::new())).chain(end);
        for step in steps.into_iter().chain(end) {
            let inputs = match step {
                Step::Change(clusters, hosts, bad) => {
                    snapshot = snapshot_of(&clusters, hosts, bad);
                    envoy.edges = snapshot.listeners.keys().cloned().collect();
                    vec![Input::Snapshot(Arc::clone(&snapshot))]
                }
                Step::Answer if envoy.unanswered.is_empty() => Vec::new(),
                Step::Answer => {
                    let (response, error) = envoy.unanswered.remove(0);
                    vec![answer(&response, error.as_deref())]
                }
                // An Envoy answers well within the limit, or the order of steps is lost.
                Step::Wait(_) if !envoy.unanswered.is_empty() => Vec::new(),
                Step::Wait(millis) => {
                    now += millis;
                    vec![Input::Tick]
                }
                Step::Others(edges) => {
                    envoy.others = edges.iter().map(ToString::to_string).collect();
                    vec![Input::Served(Arc::new(envoy.others.clone()))]
                }
                Step::Reconnect => {
                    envoy.unanswered.clear();
                    ads = Ads::new(Duration::from_secs(3));
                    let served = Input::Served(Arc::new(envoy.others.clone()));
                    let mut hello = vec![served, Input::Snapshot(Arc::clone(&snapshot))];
                    hello.extend(envoy.hello());
                    hello
                }
            };
            feed(&mut ads, &mut envoy, &mut refused, inputs, ms(now))?;
        }
        for kind in Kind::ALL {
            let held = envoy.holds(kind);
            for (name, resource) in snapshot.of(kind) {
                let id = (kind, name.clone(), resource.version);
                let odd = name.starts_with("odd");
                // for the table of a listener that it refuses it does not ask
                let is_unasked = kind == Kind::Routes && !envoy.listeners.contains_key(name);
                let right = is_unasked || held.get(name) == Some(&resource.version);
                prop_assert!(right || refused.contains(&id) || odd, "{kind:?} {name}");
            }
            let table = &snapshot.routes["edge/80"];
            let table = (Kind::Routes, "edge/80".to_owned(), table.version);
            // Under a table it refused it may serve an older one, which keeps its clusters.
            if kind == Kind::Cluster && !refused.contains(&table) {
                let more = held.keys().find(|name| !snapshot.clusters.contains_key(*name));
                prop_assert_eq!(more, None);
            }
        }
        let is_ready = envoy.routes.contains_key(READY);
        prop_assert!(is_ready || envoy.serves().is_disjoint(&envoy.edges), "it waits for ever");
        let mut wanted = envoy.clusters.keys().filter(|name| snapshot.clusters.contains_key(*name));
        let warm = wanted.all(|name| envoy.warm.contains(name));
        prop_assert!(warm, "a cluster waits for endpoints");
    }
}

proptest! {
    // each case is a simulation of 8 s
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Backends that change faster than an Envoy takes them, such as a pool whose health flips, of one tenant of a Gateway.
    #[test]
    fn listeners_and_routes_are_sent_in_time_however_fast_clusters_change(
        latency in 0_u64..400,
        period in 20_u64..600,
        new_names in any::<bool>(),
    ) {
        const STEP: u64 = 20;
        let mut ads = Ads::new(Duration::from_secs(3));
        let mut envoy = Wilful::new();
        // when each edge, table and assignment of hops was replaced by the next
        let mut replaced: BTreeMap<Kind, BTreeMap<u64, u64>> = BTreeMap::new();
        let mut snapshot = changing(0, new_names);
        let watched = [
            (Kind::Listener, "edge/80"),
            (Kind::Routes, "edge/80"),
            (Kind::Endpoints, IMPORT),
        ];
        let mut answers: Vec<u64> = Vec::new();
        let mut refused = BTreeSet::new();
        let mut inputs = vec![Input::Snapshot(Arc::clone(&snapshot))];
        inputs.extend(envoy.hello());
        let mut published = 0;
        for step in 0..400 {
            let now = step * STEP;
            if now / period > published {
                published = now / period;
                let next = changing(published, new_names);
                for (kind, name) in watched {
                    let version = snapshot.of(kind)[name].version;
                    if next.of(kind)[name].version != version {
                        replaced.entry(kind).or_default().insert(version, now);
                    }
                }
                snapshot = next;
                envoy.edges = snapshot.listeners.keys().cloned().collect();
                inputs.push(Input::Snapshot(Arc::clone(&snapshot)));
            }
            let due = answers.iter().take_while(|at| **at <= now).count();
            answers.drain(..due);
            for (response, error) in envoy.unanswered.drain(..due) {
                inputs.push(answer(&response, error.as_deref()));
            }
            inputs.push(Input::Tick);
            feed(&mut ads, &mut envoy, &mut refused, std::mem::take(&mut inputs), ms(now))?;
            answers.resize(envoy.unanswered.len(), now + latency);
            // clusters, hosts, hops, listeners and tables wait for one another, and an earlier set of them may be under way
            let limit = 16 * (latency + STEP);
            for (kind, name) in watched {
                let held = envoy.holds(kind).get(name).copied();
                let since = match held {
                    Some(version) => replaced.get(&kind).and_then(|of| of.get(&version)).copied(),
                    None => Some(0),
                };
                let is_in_time = since.is_none_or(|since| now <= since + limit);
                prop_assert!(is_in_time, "at {now} it has a {kind:?} that was replaced at {since:?}");
            }
        }
    }
}
