//! What is known of the cluster, kept from watch updates. Synchronous: no client, no await.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crd::networks::{Cidr, merged};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use moment::Moment;
use serde_json::Value;
use tracing::warn;
use watch::{OddObject, Update};

use crate::feedback::Feedback;
use crate::infra::Part;
use crate::parameters;
use crate::status::Target;
use crate::world::{
    BadBundle, Bundle, Endpoints, Key, ListedCredential, ListedSecret, RawTlsPolicy, Touched,
    World, backend_tls_policy, project, selection_policy,
};

mod changes;
mod endpoints;
mod evidence;
mod imports;
mod keep;
mod parts;
mod secrets;
mod vanished;

#[cfg(test)]
mod tests;

pub(crate) use changes::{Changes, Live};
pub(crate) use vanished::CRDS;

use keep::keep;
use vanished::Vanished;

/// One update of one watch.
#[derive(Debug)]
pub(crate) enum Event {
    Classes(Update<crd::gateway_class::GatewayClass>),
    Gateways(Update<crd::gateway::Gateway>),
    Routes(Update<project::RawRoute>),
    Pools(Update<crd::inference_pool::InferencePool>),
    Imports(Update<crd::InferencePoolImport>),
    Grants(Update<crd::reference_grant::ReferenceGrant>),
    Policies(Update<crd::selection_policy::ClusterSelectionPolicy>),
    TlsPolicies(Update<RawTlsPolicy>),
    Services(Update<Service>),
    Slices(Update<EndpointSlice>),
    Namespaces(Update<PartialObjectMeta<Namespace>>),
    Deployments(Update<Deployment>),
    ServiceAccounts(Update<ServiceAccount>),
    DisruptionBudgets(Update<PodDisruptionBudget>),
    ServiceCidrs(Update<ServiceCIDR>),
    Nodes(Update<Node>),
    /// Of the pool with this key.
    Pods(Key, Update<Pod>),
    /// The one with this key.
    ConfigMap(Key, Update<ConfigMap>),
    /// The one with this key.
    Secret(Key, Update<ListedSecret>),
    /// The one with this key, read for what an import names it for.
    Credential(Key, Update<ListedCredential>),
    /// Whether the CRD of a kind confirms that what vanishes by the next event of that kind was deleted by somebody.
    Confirmed(&'static str, bool),
}

/// A watch whose first list must be known, or refused for good, before anything is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Kind(&'static str),
    Pods(Key),
    ConfigMap(Key),
    Secret(Key),
    /// A Secret that an import names.
    Credential(Key),
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) world: World,
    /// What the world says of what this gateway made; what Envoys and writers met is set by the control loop.
    pub(crate) feedback: Feedback,
    pub(crate) endpoints: Endpoints,
    /// Live `status` of the objects we write to.
    pub(crate) live: BTreeMap<Target, Value>,
    /// What of our infrastructure there is.
    pub(crate) parts: BTreeMap<(Part, Key), Value>,
    listed: BTreeSet<Source>,
    /// How often in a row a Secret that is not known was denied.
    denials: BTreeMap<Key, u32>,
    /// How often in a row policies for TLS were denied, before they are known.
    policy_denials: u32,
    /// Objects that are there and do not decode, since the last complete list or failure: what is
    /// known of them stays.
    odd: BTreeMap<Source, BTreeSet<Key>>,
    vanished: Vanished,
    /// Networks of this cluster that entries of other clusters may not name, by the object that defines them. With them are
    /// the addresses of its load balancers and API servers.
    service_cidrs: BTreeMap<Key, Vec<Cidr>>,
    nodes: BTreeMap<Key, Vec<Cidr>>,
    api_servers: BTreeSet<IpAddr>,
    /// Imports that are back with their CRD and have no entries yet, while those of before are in use.
    unwritten: BTreeMap<Key, crd::InferencePoolImport>,
}

/// Every kind with one watch for the whole cluster that serving waits for.
pub(crate) const KINDS: [&str; 15] = [
    "GatewayClass",
    "Gateway",
    "HTTPRoute",
    "InferencePool",
    "InferencePoolImport",
    "ReferenceGrant",
    POLICY,
    TLS_POLICY,
    "Service",
    "EndpointSlice",
    "Namespace",
    "Deployment",
    "ServiceAccount",
    SERVICE_CIDR,
    NODE,
];

/// Kinds that an older role does not allow to list, or that an older cluster does not have: the gateway serves without
/// them then, and `--deny-cidr` has to name their networks.
const OWN_NETWORKS: [&str; 2] = [SERVICE_CIDR, NODE];
const SERVICE_CIDR: &str = "ServiceCIDR";
const NODE: &str = "Node";

/// An older role does not allow to list it, and imports are used without.
const POLICY: &str = crd::selection_policy::KIND;

/// An older role does not allow to list it, and backends are connected to as without a policy.
const TLS_POLICY: &str = "BackendTLSPolicy";

/// A Gateway works without one, and a role of before does not let us list them.
const BUDGETS: Source = Source::Kind("PodDisruptionBudget");

const IMPORT: &str = "InferencePoolImport";

// === impl Index ===

impl Index {
    /// Whether the first list of all kinds that there are, and of these, is in. A Secret is the concern of the Gateways and
    /// imports that name it, and no other waits for it.
    pub(crate) fn has_listed(&self, more: &BTreeSet<Source>) -> bool {
        let kinds = KINDS.iter().map(|kind| Source::Kind(kind));
        let more = more
            .iter()
            .filter(|source| !matches!(source, Source::Secret(_) | Source::Credential(_)));
        kinds
            .chain(more.cloned())
            .all(|source| self.listed.contains(&source))
    }

    /// Whether the `PodDisruptionBudget`s that there are are known.
    pub(crate) fn has_listed_budgets(&self) -> bool {
        self.listed.contains(&BUDGETS)
    }

    pub(crate) fn on(&mut self, event: Event, now: Moment) -> Changes {
        let noted = self.note(&event, now);
        let mut changes = Changes::default();
        if !noted.ignored {
            changes = self.apply(event, &noted.stay, now);
        }
        changes.add(self.show_kept());
        changes
    }

    /// Forgets objects that have outlived their CRD for long enough, and former modes whose time is over.
    pub(crate) fn expire(&mut self, now: Moment) -> Changes {
        let mut changes = Changes::touched(Touched {
            imports: self.world.formers.expire(now),
            ..Touched::default()
        });
        for (kind, key) in self.vanished.take_expired(now) {
            warn!(kind, %key, "its CRD did not come back in time: it is gone");
            let back = self.unwritten.remove(&key).filter(|_| kind == IMPORT);
            let event = match back {
                Some(import) => Some(Event::Imports(Update::Apply(import))),
                None => deletion(kind, key),
            };
            if let Some(event) = event {
                changes.add(self.apply(event, &BTreeSet::new(), now));
            }
        }
        changes.add(self.show_kept());
        changes
    }

    fn show_kept(&mut self) -> Changes {
        if !self.vanished.take_changed() {
            return Changes::default();
        }
        let kept = self.vanished.kept();
        let changed = self.world.kept != kept;
        self.world.kept = kept;
        Changes::world(changed)
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each event")]
    fn apply(&mut self, event: Event, odd: &BTreeSet<Key>, now: Moment) -> Changes {
        match event {
            Event::Classes(update) => self.classes(update, odd),
            Event::Gateways(update) => {
                let live = self.status(
                    Target::Gateway,
                    &update,
                    odd,
                    |o| &o.metadata,
                    |o| &o.status,
                );
                let kept = &mut self.world.gateways;
                let changed = keep(kept, update, odd, |o| &o.metadata, project::gateway);
                Changes {
                    live,
                    parts: !changed.is_empty(),
                    ..Changes::world(!changed.is_empty())
                }
            }
            Event::Routes(update) => {
                let live = self.status(Target::Route, &update, odd, |o| &o.metadata, |o| &o.status);
                let refused = match &update {
                    Update::Odd(odd) => self.refuse_rules(odd),
                    _ => None,
                };
                let kept = &mut self.world.routes;
                let mut routes = keep(kept, update, odd, |o| &o.metadata, project::http_route);
                routes.extend(refused);
                Changes {
                    live,
                    ..Changes::touched(Touched {
                        routes,
                        ..Touched::default()
                    })
                }
            }
            Event::Pools(update) => {
                let live = self.status(Target::Pool, &update, odd, |o| &o.metadata, |o| &o.status);
                let kept = &mut self.world.pools;
                let pools = keep(kept, update, odd, |o| &o.metadata, project::inference_pool);
                Changes {
                    live,
                    ..Changes::touched(Touched {
                        pools,
                        ..Touched::default()
                    })
                }
            }
            Event::Imports(update) => {
                let live =
                    self.status(Target::Import, &update, odd, |o| &o.metadata, |o| &o.status);
                let Some(update) = self.without_unwritten(update) else {
                    return Changes::live(live);
                };
                let imports = self.imports(update, odd, now);
                Changes {
                    live,
                    ..Changes::touched(Touched {
                        imports,
                        ..Touched::default()
                    })
                }
            }
            Event::Grants(update) => {
                let kept = &mut self.world.grants;
                let changed = keep(kept, update, odd, |o| &o.metadata, project::reference_grant);
                Changes::world(!changed.is_empty())
            }
            Event::Policies(update) => {
                let live =
                    self.status(Target::Policy, &update, odd, |o| &o.metadata, |o| &o.status);
                let kept = &mut self.world.policies;
                let changed = keep(kept, update, odd, |o| &o.metadata, selection_policy);
                Changes {
                    live,
                    ..Changes::world(!changed.is_empty())
                }
            }
            Event::TlsPolicies(update) => {
                let target = Target::TlsPolicy;
                let live = self.status(target, &update, odd, |o| &o.metadata, |o| &o.status);
                self.note_validation(&update);
                let kept = &mut self.world.tls_policies;
                let changed = keep(kept, update, odd, |o| &o.metadata, backend_tls_policy);
                self.forget_validations();
                Changes {
                    live,
                    ..Changes::world(!changed.is_empty())
                }
            }
            Event::Services(update) => self.services(update, odd),
            Event::Slices(update) => self.slices(update, odd),
            Event::Namespaces(update) => self.namespaces(update, odd),
            Event::Deployments(update) => self.deployments(update, odd),
            Event::ServiceAccounts(update) => {
                self.part(Part::ServiceAccount, &update, odd, |o| &o.metadata)
            }
            Event::DisruptionBudgets(update) => {
                self.part(Part::DisruptionBudget, &update, odd, |o| &o.metadata)
            }
            Event::ServiceCidrs(update) => {
                let kept = &mut self.service_cidrs;
                let changed = keep(kept, update, odd, |o| &o.metadata, project::service_cidr);
                self.own_networks(!changed.is_empty())
            }
            Event::Nodes(update) => {
                let kept = &mut self.nodes;
                let changed = keep(kept, update, odd, |o| &o.metadata, project::node);
                self.own_networks(!changed.is_empty())
            }
            Event::Pods(pool, update) => self.pods(&pool, update, odd),
            Event::ConfigMap(key, update) => self.config_map(&key, update, odd),
            Event::Secret(key, update) => self.secret(&key, update, odd),
            Event::Credential(key, update) => self.credential(&key, update, odd),
            Event::Confirmed(..) => Changes::default(),
        }
    }

    fn own_networks(&mut self, changed: bool) -> Changes {
        if !changed {
            return Changes::default();
        }
        let of_nodes = self.nodes.values().flatten().copied();
        let (machines, pods): (Vec<_>, Vec<_>) =
            of_nodes.partition(|one| *one == Cidr::host(one.address()));
        let balanced = self.world.services.values();
        let balanced = balanced.flat_map(|service| &service.balanced);
        let services = self.service_cidrs.values().flatten().chain(balanced);
        let api_servers = self.api_servers.iter().copied().map(Cidr::host);
        let but_pods = merged(services.copied().chain(machines).chain(api_servers));
        let pods = merged(pods);
        let networks = merged(but_pods.iter().chain(&pods).copied());
        let world = &mut self.world;
        let now = (networks, but_pods, pods);
        let known = (&world.own_networks, &world.own_but_pods, &world.own_pods);
        let changed = known != (&now.0, &now.1, &now.2);
        (world.own_networks, world.own_but_pods, world.own_pods) = now;
        Changes::world(changed)
    }

    /// Another watch takes over: what is known stays until its first list.
    pub(crate) fn replaced(&mut self, source: &Source) {
        self.odd.remove(source);
    }

    /// The pool is gone, or nobody names the ConfigMap or Secret any more.
    pub(crate) fn forget(&mut self, source: &Source) {
        self.listed.remove(source);
        self.odd.remove(source);
        match source {
            Source::Pods(pool) => {
                self.endpoints.pods.remove(pool);
                self.world.bad_selectors.remove(pool);
            }
            Source::ConfigMap(key) => {
                self.world.parameters.remove(key);
                self.world.authorities.remove(key);
            }
            Source::Secret(key) => {
                self.world.certificates.remove(key);
                self.denials.remove(key);
            }
            Source::Credential(key) => {
                self.world.credentials.remove(key);
            }
            Source::Kind(_) => {}
        }
    }

    fn classes(
        &mut self,
        update: Update<crd::gateway_class::GatewayClass>,
        odd: &BTreeSet<Key>,
    ) -> Changes {
        let live = self.status(Target::Class, &update, odd, |o| &o.metadata, |o| &o.status);
        let mut named: BTreeMap<Key, _> = std::mem::take(&mut self.world.classes)
            .into_iter()
            .map(|(name, class)| (Key::new("", name), class))
            .collect();
        let world = keep(
            &mut named,
            update,
            odd,
            |o| &o.metadata,
            project::gateway_class,
        );
        let named = named.into_iter().map(|(key, class)| (key.name, class));
        self.world.classes = named.collect();
        Changes {
            live,
            parts: !world.is_empty(),
            ..Changes::world(!world.is_empty())
        }
    }

    fn namespaces(
        &mut self,
        update: Update<PartialObjectMeta<Namespace>>,
        odd: &BTreeSet<Key>,
    ) -> Changes {
        let mut named: BTreeMap<Key, _> = std::mem::take(&mut self.world.namespaces)
            .into_iter()
            .map(|(name, labels)| (Key::new("", name), labels))
            .collect();
        let changed = keep(
            &mut named,
            update,
            odd,
            |o| &o.metadata,
            |o| project::labels(&o.metadata),
        );
        let named = named.into_iter().map(|(key, labels)| (key.name, labels));
        self.world.namespaces = named.collect();
        Changes::world(!changed.is_empty())
    }

    fn config_map(&mut self, key: &Key, update: Update<ConfigMap>, odd: &BTreeSet<Key>) -> Changes {
        let text = |map: &ConfigMap| {
            let text = map.data.as_ref()?.get(parameters::FILE)?;
            Some(parameters::parse(text))
        };
        let map = match update {
            Update::Reset(_) if odd.contains(key) => return Changes::default(),
            Update::Reset(list) => list
                .into_iter()
                .find(|map| project::key(&map.metadata) == *key),
            Update::Apply(map) => Some(map),
            Update::Delete(_) | Update::OddDelete(_) => None,
            Update::Failed(failure) if failure.is_bad_request() => None,
            Update::Odd(_) | Update::Failed(_) => return Changes::default(),
        };
        let bundle = map.as_ref().map_or(Err(BadBundle::NotFound), Bundle::read);
        let now = map.as_ref().and_then(text);
        let before = self.world.parameters.insert(key.clone(), now.clone());
        let changed = before != Some(now);
        let trusted = self.world.authorities.insert(key.clone(), bundle.clone());
        self.forget_validations();
        Changes {
            parts: changed,
            ..Changes::world(changed || trusted != Some(bundle))
        }
    }

    /// What a route says now is not known, and may forbid what it allowed before. Returns the route if that changed anything.
    fn refuse_rules(&mut self, odd: &OddObject) -> Option<Key> {
        let key = Key::new(&odd.namespace, &odd.name);
        let route = self.world.routes.get_mut(&key)?;
        let problem = Some(format!("the object does not decode: {}", odd.error));
        let before = route.rules.clone();
        for rule in &mut route.rules {
            rule.problem.clone_from(&problem);
        }
        (route.rules != before).then_some(key)
    }

    /// Live status of one kind.
    fn status<K, S: serde::Serialize>(
        &mut self,
        target: impl Fn(Key) -> Target,
        update: &Update<K>,
        odd: &BTreeSet<Key>,
        meta: impl Fn(&K) -> &ObjectMeta,
        status: impl Fn(&K) -> &Option<S>,
    ) -> Live {
        let json = |object: &K| {
            let status = status(object).as_ref().map(serde_json::to_value);
            status.and_then(Result::ok).unwrap_or(Value::Null)
        };
        let id = |object: &K| target(project::key(meta(object)));
        match update {
            Update::Reset(list) => {
                let kind = std::mem::discriminant(&target(Key::default()));
                self.live
                    .retain(|id, _| std::mem::discriminant(id) != kind || odd.contains(id.key()));
                let statuses = list.iter().map(|object| (id(object), json(object)));
                self.live.extend(statuses);
                Live {
                    all: true,
                    ..Live::default()
                }
            }
            Update::Apply(object) => {
                let (id, now) = (id(object), json(object));
                let before = self.live.insert(id.clone(), now.clone());
                Live::of(id, before != Some(now))
            }
            Update::Delete(object) => {
                let id = id(object);
                let before = self.live.remove(&id);
                Live::of(id, before.is_some())
            }
            Update::Odd(_) | Update::OddDelete(_) | Update::Failed(_) => Live::default(),
        }
    }
}

/// As if the object had been deleted; of kinds that a CRD defines.
fn deletion(kind: &str, key: Key) -> Option<Event> {
    let gone = OddObject {
        namespace: key.namespace,
        name: key.name,
        error: String::new(),
    };
    Some(match kind {
        "GatewayClass" => Event::Classes(Update::OddDelete(gone)),
        "Gateway" => Event::Gateways(Update::OddDelete(gone)),
        "HTTPRoute" => Event::Routes(Update::OddDelete(gone)),
        "InferencePool" => Event::Pools(Update::OddDelete(gone)),
        IMPORT => Event::Imports(Update::OddDelete(gone)),
        "ReferenceGrant" => Event::Grants(Update::OddDelete(gone)),
        POLICY => Event::Policies(Update::OddDelete(gone)),
        TLS_POLICY => Event::TlsPolicies(Update::OddDelete(gone)),
        _ => return None,
    })
}
