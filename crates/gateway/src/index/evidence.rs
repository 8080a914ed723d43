//! What an update says of its watch and of its kind, before its objects are read.

use std::collections::BTreeSet;

use kube::Resource;
use moment::Moment;
use tracing::warn;
use watch::Update;

use crate::world::{Key, project};

use super::keep::{is_listed, note_odd};
use super::secrets::DENIALS;
use super::{Event, IMPORT, Index, NODE, OWN_NETWORKS, POLICY, SERVICE_CIDR, Source, TLS_POLICY};

/// What an update means before its objects are read.
#[derive(Default)]
pub(super) struct Noted {
    /// Objects that a complete list does not have and that stay nonetheless.
    pub(super) stay: BTreeSet<Key>,
    /// A deletion that proves nothing.
    pub(super) ignored: bool,
}

impl Index {
    /// What the update says of its watch and of the kind.
    pub(super) fn note(&mut self, event: &Event, now: Moment) -> Noted {
        fn always<K>(_: &K) -> bool {
            true
        }
        let kind = Source::Kind;
        match event {
            Event::Classes(u) => self.note_update(kind("GatewayClass"), u, always, now),
            Event::Gateways(u) => self.note_update(kind("Gateway"), u, always, now),
            Event::Routes(u) => self.note_update(kind("HTTPRoute"), u, always, now),
            Event::Pools(u) => self.note_update(kind("InferencePool"), u, always, now),
            Event::Imports(u) => {
                self.note_update(kind(IMPORT), u, |import| !import.clusters().is_empty(), now)
            }
            Event::Grants(u) => self.note_update(kind("ReferenceGrant"), u, always, now),
            Event::Policies(u) => self.note_update(kind(POLICY), u, always, now),
            Event::TlsPolicies(u) => self.note_update(kind(TLS_POLICY), u, always, now),
            Event::Services(u) => self.note_update(kind("Service"), u, always, now),
            Event::Slices(u) => self.note_update(kind("EndpointSlice"), u, always, now),
            Event::Namespaces(u) => self.note_update(kind("Namespace"), u, always, now),
            Event::Deployments(u) => self.note_update(kind("Deployment"), u, always, now),
            Event::ServiceAccounts(u) => self.note_update(kind("ServiceAccount"), u, always, now),
            Event::DisruptionBudgets(u) => {
                self.note_update(kind("PodDisruptionBudget"), u, always, now)
            }
            Event::ServiceCidrs(u) => self.note_update(kind(SERVICE_CIDR), u, always, now),
            Event::Nodes(u) => self.note_update(kind(NODE), u, always, now),
            Event::Pods(key, u) => self.note_update(Source::Pods(key.clone()), u, always, now),
            Event::ConfigMap(key, u) => {
                self.note_update(Source::ConfigMap(key.clone()), u, always, now)
            }
            Event::Secret(key, u) => self.note_update(Source::Secret(key.clone()), u, always, now),
            Event::Credential(key, u) => {
                self.note_update(Source::Credential(key.clone()), u, always, now)
            }
            Event::Confirmed(kind, confirmed) => {
                self.vanished.set_confirmed(kind, *confirmed);
                Noted::default()
            }
        }
    }

    /// `is_whole` says whether an object that returned with its CRD can take the place of the one that went with it.
    fn note_update<K: Resource>(
        &mut self,
        source: Source,
        update: &Update<K>,
        is_whole: impl Fn(&K) -> bool,
        now: Moment,
    ) -> Noted {
        let mut noted = Noted {
            stay: note_odd(self.odd.entry(source.clone()).or_default(), update),
            ignored: false,
        };
        if let Source::Kind(kind) = &source {
            match update {
                Update::Reset(list) => {
                    let mut there = noted.stay.clone();
                    for object in list {
                        let key = project::key(object.meta());
                        if is_whole(object) {
                            self.vanished.show(kind, &key);
                            there.insert(key);
                        }
                    }
                    for key in &noted.stay {
                        self.vanished.show(kind, key);
                    }
                    let known = self.keys(kind).into_iter();
                    let missing = known.filter(|key| !there.contains(key));
                    noted.stay.extend(self.vanished.list(kind, missing, now));
                }
                Update::Apply(object) if is_whole(object) => {
                    self.vanished.show(kind, &project::key(object.meta()));
                }
                Update::Delete(object) => {
                    let key = project::key(object.meta());
                    noted.ignored = !self.vanished.delete(kind, key, now);
                }
                Update::OddDelete(object) => {
                    let key = Key::new(&object.namespace, &object.name);
                    noted.ignored = !self.vanished.delete(kind, key, now);
                }
                Update::Failed(failure) if failure.is_kind_missing() => {
                    let known = self.keys(kind).into_iter();
                    self.vanished.lose_kind(kind, known, now);
                }
                Update::Odd(object) => {
                    let key = Key::new(&object.namespace, &object.name);
                    self.vanished.show(kind, &key);
                }
                Update::Apply(_) | Update::Failed(_) => {}
            }
        }
        // a user has a part in what is asked for of these: it may be what no server can answer
        let refused = !matches!(source, Source::Kind(_))
            && matches!(update, Update::Failed(failure) if failure.is_bad_request());
        let denied = matches!(update, Update::Failed(failure) if failure.is_denied());
        let without = match &source {
            Source::Kind(kind) if OWN_NETWORKS.contains(kind) => Some(
                "may not be listed: other clusters are denied only what --deny-cidr names of these networks",
            ),
            Source::Kind(POLICY) => {
                Some("may not be listed: imports are used as without a ClusterSelectionPolicy")
            }
            Source::Kind(TLS_POLICY) => {
                Some("may not be listed: backends are connected to as without a BackendTLSPolicy")
            }
            _ => None,
        };
        let without = without.filter(|_| denied && self.is_denied_for_good(&source));
        let hidden = without.is_some();
        if let Some(without) = without
            && !self.listed.contains(&source)
        {
            warn!(?source, "{without}");
        }
        if is_listed(update) || refused || hidden {
            self.listed.insert(source);
        }
        noted
    }

    /// Without policies for TLS backends are connected to without it: that they may not be listed is believed as late as it is of
    /// a Secret.
    fn is_denied_for_good(&mut self, source: &Source) -> bool {
        if *source != Source::Kind(TLS_POLICY) {
            return true;
        }
        self.policy_denials = self.policy_denials.saturating_add(1);
        self.policy_denials >= DENIALS
    }

    /// The objects of a kind that a CRD defines.
    pub(super) fn keys(&self, kind: &str) -> Vec<Key> {
        let world = &self.world;
        match kind {
            "GatewayClass" => world
                .classes
                .keys()
                .map(|name| Key::new("", name))
                .collect(),
            "Gateway" => world.gateways.keys().cloned().collect(),
            "HTTPRoute" => world.routes.keys().cloned().collect(),
            "InferencePool" => world.pools.keys().cloned().collect(),
            IMPORT => world.imports.keys().cloned().collect(),
            "ReferenceGrant" => world.grants.keys().cloned().collect(),
            POLICY => world.policies.keys().cloned().collect(),
            TLS_POLICY => world.tls_policies.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }
}
