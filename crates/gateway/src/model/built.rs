//! Models and status, kept up to date by what of the world changes. After any sequence of changes they are what is built from
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::infra::parameters;
use crate::select::Policy;
use crate::world::{HttpRoute, InferencePool, Key, Touched, World};

use super::attach::{Attachment, attach, gateway_of};
use super::backend_tls::{TlsTable, TlsUsers};
use super::build::{Attached, make_model, note_rules, parent_status, pool_status, used};
use super::gateways::{self, OurGateway, our};
use super::refs::{IMPORT_GROUP, POOL_GROUP};
use super::rules::{Rules, make_rules};
use super::{
    Backend, GatewayModel, Import, ImportStatus, ParentStatus, Settings, TlsPolicies, WantedStatus,
    backends, certificates, policies, status,
};

#[cfg(test)]
mod tests;

/// What follows from the world.
#[derive(Debug, Default)]
pub(crate) struct Built {
    pub(crate) models: BTreeMap<Key, Arc<GatewayModel>>,
    pub(crate) wanted: WantedStatus,
    /// By import, what holds for it.
    pub(crate) policies: BTreeMap<Key, Policy>,
    routes: BTreeMap<Key, BuiltRoute>,
    /// Routes by what they name, whether it is there or not.
    naming: BTreeMap<Named, BTreeSet<Key>>,
    /// Those that routes use.
    imports: BTreeMap<Key, Arc<Import>>,
    tls: Arc<TlsTable>,
}

/// What is made again where one of these changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// Gateways with another model than before, or with none any more.
    pub(crate) models: BTreeSet<Key>,
    pub(crate) status: StatusDelta,
}

/// Objects whose status shall say something else than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatusDelta {
    /// Any object's.
    pub(crate) all: bool,
    pub(crate) gateways: BTreeSet<Key>,
    pub(crate) routes: BTreeSet<Key>,
    pub(crate) pools: BTreeSet<Key>,
    pub(crate) imports: BTreeSet<Key>,
    pub(crate) policies: BTreeSet<Key>,
    pub(crate) tls_policies: BTreeSet<Key>,
}

#[derive(Debug)]
struct BuiltRoute {
    attachments: Vec<Attachment>,
    rules: Rules,
    named: BTreeSet<Named>,
}

/// What a route names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Gateway(Key),
    Service(Key),
    Pool(Key),
    Import(Key),
}

/// What is to be made again.
#[derive(Debug, Default)]
struct Dirty {
    routes: BTreeSet<Key>,
    gateways: BTreeSet<Key>,
    pools: BTreeSet<Key>,
    imports: BTreeSet<Key>,
}

/// What every Gateway of ours serves, nothing where it is not accepted, and the status of all objects we report on.
#[cfg(test)]
pub(crate) fn build(world: &World, settings: &Settings) -> (Vec<GatewayModel>, WantedStatus) {
    let mut built = Built::default();
    built.renew(world, settings, &Touched::all(), false);
    let models = built.models.into_values();
    (models.map(Arc::unwrap_or_clone).collect(), built.wanted)
}

// === impl Built ===

impl Built {
    /// Follows what has changed. What depends on a ConfigMap or Secret that is not listed yet stays as it was.
    pub(crate) fn update(
        &mut self,
        world: &World,
        settings: &Settings,
        touched: &Touched,
    ) -> Delta {
        self.renew(world, settings, touched, true)
    }

    fn renew(
        &mut self,
        world: &World,
        settings: &Settings,
        touched: &Touched,
        waits: bool,
    ) -> Delta {
        let is_unknown = |key: &Key| {
            let gateway = world.gateways.get(key).filter(|_| waits);
            gateway.is_some_and(|gateway| {
                parameters::is_unknown(world, gateway) || certificates::is_unknown(world, gateway)
            })
        };
        let mut delta = Delta::default();
        let mut dirty = if touched.all {
            delta.status.all = true;
            let table = TlsTable::new(world, &self.tls);
            let dirty = self.begin_anew(world, settings, waits);
            self.tls = Arc::new(table);
            dirty
        } else {
            self.dirty(world, touched)
        };
        let tls = TlsPolicies::new(world, Arc::clone(&self.tls));
        if touched.all || !touched.imports.is_empty() {
            let now = policies::status(world);
            let before = std::mem::replace(&mut self.wanted.policies, now);
            let differing = self.wanted.policies.iter();
            let differing = differing.filter(|(key, now)| before.get(*key) != Some(*now));
            delta.status.policies = differing.map(|(key, _)| key.clone()).collect();
        }
        let mut ours = BTreeMap::new();
        for key in std::mem::take(&mut dirty.routes) {
            self.route(&tls, settings, &key, &mut ours, &mut dirty, &mut delta);
        }
        self.report_routes(world, touched, &mut delta);
        self.make_imports(&tls, settings, &dirty.imports);
        let reported = touched.reports.iter().cloned();
        let reported: BTreeSet<Key> = reported.chain(dirty.gateways.iter().cloned()).collect();
        for key in reported {
            if is_unknown(&key) {
                continue;
            }
            if !ours.contains_key(&key)
                && let Some(gateway) = our(world, settings, &key)
            {
                ours.insert(key.clone(), gateway);
            }
            let is_built = dirty.gateways.contains(&key);
            let gateway = ours.get_mut(&key);
            self.gateway(&tls, settings, &key, gateway, is_built, &mut delta);
        }
        self.report_pools(&tls, settings, &dirty.pools, &mut delta);
        self.report_imports(world, &dirty.imports, &mut delta);
        let is_moved = touched.all
            || !dirty.gateways.is_empty()
            || !touched.services.is_empty()
            || !touched.reports.is_empty();
        if is_moved {
            self.report_tls_policies(&tls, &mut delta);
        }
        self.tls.forget_before();
        delta
    }

    /// Everything is made again. What is not known yet of a class or Gateway leaves what is said of it, and the model, as before.
    fn begin_anew(&mut self, world: &World, settings: &Settings, waits: bool) -> Dirty {
        let is_unknown = |name: &str| {
            let class = world.classes.get(name).filter(|_| waits);
            class.is_some_and(|class| parameters::is_unknown_of_class(world, class))
        };
        let mut before = std::mem::take(self);
        before.wanted.classes.retain(|name, _| is_unknown(name));
        self.models = before.models;
        self.wanted.gateways = before.wanted.gateways;
        self.wanted.classes = status::classes(world, settings);
        self.wanted.classes.retain(|name, _| !is_unknown(name));
        self.wanted.classes.append(&mut before.wanted.classes);
        self.imports = before.imports;
        self.policies = policies::of_imports(world);
        let known = self.models.keys().chain(self.wanted.gateways.keys());
        Dirty {
            routes: world.routes.keys().cloned().collect(),
            gateways: world.gateways.keys().chain(known).cloned().collect(),
            pools: world.pools.keys().cloned().collect(),
            imports: world
                .imports
                .keys()
                .chain(self.imports.keys())
                .cloned()
                .collect(),
        }
    }

    /// What depends on what changed.
    fn dirty(&self, world: &World, touched: &Touched) -> Dirty {
        let picks = |(key, pool): &(&Key, &InferencePool)| {
            let picker = pool
                .picker
                .as_ref()
                .filter(|_| !touched.services.is_empty());
            let picker = picker.map(|picker| Key::new(&key.namespace, &picker.name));
            picker.is_some_and(|service| touched.services.contains(&service))
        };
        let picking = world.pools.iter().filter(picks);
        let picking = picking.map(|(key, _)| key.clone());
        let pools: BTreeSet<Key> = touched.pools.iter().cloned().chain(picking).collect();
        // a pool joins the import of its name
        let imports: BTreeSet<Key> = touched.imports.union(&pools).cloned().collect();
        let services = touched.services.iter().cloned().map(Named::Service);
        let of_pools = touched.pools.iter().cloned().map(Named::Pool);
        let of_imports = touched.imports.iter().cloned().map(Named::Import);
        let named = services.chain(of_pools).chain(of_imports);
        let naming = named.flat_map(|named| self.naming(&named));
        let routes: BTreeSet<Key> = touched.routes.iter().chain(naming).cloned().collect();
        let reached = pools.iter().cloned().map(Named::Pool);
        let reached = reached.chain(imports.iter().cloned().map(Named::Import));
        let reaching = reached.flat_map(|named| self.naming(&named));
        let gateways = reaching
            .chain(&routes)
            .filter_map(|key| self.routes.get(key));
        let gateways = gateways.flat_map(|route| &route.attachments);
        Dirty {
            gateways: gateways.map(|one| one.gateway.clone()).collect(),
            routes,
            pools,
            imports,
        }
    }

    /// Routes that name it.
    fn naming<'s>(&'s self, named: &Named) -> impl Iterator<Item = &'s Key> + use<'s> {
        self.naming.get(named).into_iter().flatten()
    }

    /// Makes a route again, or forgets it.
    fn route<'w>(
        &mut self,
        tls: &TlsPolicies<'w>,
        settings: &Settings,
        key: &Key,
        ours: &mut BTreeMap<Key, OurGateway<'w>>,
        dirty: &mut Dirty,
        delta: &mut Delta,
    ) {
        let world = tls.world();
        if let Some(before) = self.routes.remove(key) {
            for named in &before.named {
                if let Some(routes) = self.naming.get_mut(named) {
                    routes.remove(key);
                    if routes.is_empty() {
                        self.naming.remove(named);
                    }
                }
            }
            self.note_used(&before, dirty);
        }
        let Some(route) = world.routes.get(key) else {
            if self.wanted.routes.remove(key).is_some() {
                delta.status.routes.insert(key.clone());
            }
            return;
        };
        let parents = route.parents.iter();
        for parent in parents.filter_map(|parent| gateway_of(parent, &key.namespace)) {
            if !ours.contains_key(&parent)
                && let Some(gateway) = our(world, settings, &parent)
            {
                ours.insert(parent, gateway);
            }
        }
        let attachments = attach(world, ours, route);
        let rules = if attachments.is_empty() {
            Rules::default()
        } else {
            make_rules(world, tls, route)
        };
        let parents = attachments
            .iter()
            .map(|one| Named::Gateway(one.gateway.clone()));
        let now = BuiltRoute {
            named: parents.chain(referred(route)).collect(),
            attachments,
            rules,
        };
        for named in &now.named {
            let routes = self.naming.entry(named.clone()).or_default();
            routes.insert(key.clone());
        }
        self.note_used(&now, dirty);
        self.report_route(world, key, route, &now, delta);
        self.routes.insert(key.clone(), now);
    }

    /// What serves the route, and what it uses.
    fn note_used(&self, route: &BuiltRoute, dirty: &mut Dirty) {
        if route.attachments.is_empty() {
            return;
        }
        let gateways = route.attachments.iter().map(|one| one.gateway.clone());
        dirty.gateways.extend(gateways);
        for backend in used(&route.rules, &self.policies) {
            match backend {
                Backend::Pool(key) => dirty.pools.insert(key),
                Backend::Import(key) => dirty.imports.insert(key),
                Backend::Service(..) | Backend::Invalid => false,
            };
        }
    }

    fn report_route(
        &mut self,
        world: &World,
        key: &Key,
        route: &HttpRoute,
        built: &BuiltRoute,
        delta: &mut Delta,
    ) {
        let attachments = built.attachments.iter();
        let parents: Vec<ParentStatus> = attachments
            .map(|one| parent_status(world, &self.policies, route, &built.rules, one))
            .collect();
        if self.wanted.routes.get(key) != Some(&parents) {
            self.wanted.routes.insert(key.clone(), parents);
            delta.status.routes.insert(key.clone());
        }
    }

    /// What routes say of Gateways of which something else is reported.
    fn report_routes(&mut self, world: &World, touched: &Touched, delta: &mut Delta) {
        let gateways = touched.reports.iter().cloned().map(Named::Gateway);
        let routes = gateways.flat_map(|gateway| self.naming(&gateway));
        let routes: BTreeSet<Key> = routes.cloned().collect();
        for key in routes {
            if let Some(built) = self.routes.remove(&key) {
                if let Some(route) = world.routes.get(&key) {
                    self.report_route(world, &key, route, &built, delta);
                }
                self.routes.insert(key, built);
            }
        }
    }

    /// Of imports that nobody uses, none is made.
    fn make_imports(&mut self, tls: &TlsPolicies<'_>, settings: &Settings, keys: &BTreeSet<Key>) {
        for key in keys {
            let is_used = self.uses(&Backend::Import(key.clone())).next().is_some();
            let Some(object) = tls.world().imports.get(key).filter(|_| is_used) else {
                self.imports.remove(key);
                continue;
            };
            let policy = self.policies.get(key);
            let made = backends::make_import(tls, settings, key, object, policy);
            let before = self.imports.get(key);
            if before.is_none_or(|before| **before != made) {
                self.imports.insert(key.clone(), Arc::new(made));
            }
        }
    }

    /// The attachments of routes that use the pool or import, with their routes' rules.
    fn uses<'s>(
        &'s self,
        backend: &'s Backend,
    ) -> impl Iterator<Item = (&'s Attachment, &'s Rules)> {
        let named = match backend {
            Backend::Pool(key) => vec![Named::Pool(key.clone()), Named::Import(key.clone())],
            Backend::Import(key) => vec![Named::Import(key.clone())],
            Backend::Service(..) | Backend::Invalid => Vec::new(),
        };
        let routes: BTreeSet<&Key> = named.iter().flat_map(|one| self.naming(one)).collect();
        let routes = routes.into_iter().filter_map(|key| self.routes.get(key));
        let using = routes
            .filter(move |route| used(&route.rules, &self.policies).any(|used| used == *backend));
        using.flat_map(|route| route.attachments.iter().map(move |one| (one, &route.rules)))
    }

    /// The Gateways with routes to the pool or import, and whether such a route is accepted.
    fn users(&self, backend: &Backend) -> BTreeMap<Key, bool> {
        let mut users = BTreeMap::new();
        for (one, rules) in self.uses(backend) {
            let accepted: &mut bool = users.entry(one.gateway.clone()).or_default();
            *accepted |= one.listeners.is_ok() && rules.any_supported;
        }
        users
    }

    /// Makes a Gateway's status and, if it `is_built`, its model; of one that is none of ours there is neither.
    fn gateway(
        &mut self,
        tls: &TlsPolicies<'_>,
        settings: &Settings,
        key: &Key,
        gateway: Option<&mut OurGateway<'_>>,
        is_built: bool,
        delta: &mut Delta,
    ) {
        let Some(gateway) = gateway else {
            if self.models.remove(key).is_some() {
                delta.models.insert(key.clone());
            }
            if self.wanted.gateways.remove(key).is_some() {
                delta.status.gateways.insert(key.clone());
            }
            return;
        };
        let world = tls.world();
        let mut attached = Attached::new();
        for route_key in self.naming(&Named::Gateway(key.clone())) {
            let Some(route) = self.routes.get(route_key) else {
                continue;
            };
            let mut noted = BTreeSet::new();
            let attachments = route.attachments.iter().filter(|one| one.gateway == *key);
            for (index, hosts) in attachments.flat_map(|one| one.listeners.iter().flatten()) {
                if let Some(listener) = gateway.listeners.get_mut(*index) {
                    listener.attached.insert(route_key.clone());
                }
                if is_built {
                    let target = attached.entry(*index).or_default();
                    let new = hosts.iter().filter(|host| noted.insert((*index, *host)));
                    note_rules(target, new, &route.rules.rules);
                }
            }
        }
        if is_built {
            let mut model = make_model(tls, settings, &self.imports, gateway, attached);
            let before = self.models.get(key);
            keep_drain(world, &mut model, before.map(|before| &**before));
            if before.is_none_or(|before| **before != model) {
                self.models.insert(key.clone(), Arc::new(model));
                delta.models.insert(key.clone());
            }
        }
        let status = gateways::status::of(world, gateway);
        if self.wanted.gateways.get(key) != Some(&status) {
            self.wanted.gateways.insert(key.clone(), status);
            delta.status.gateways.insert(key.clone());
        }
    }

    fn report_pools(
        &mut self,
        tls: &TlsPolicies<'_>,
        settings: &Settings,
        keys: &BTreeSet<Key>,
        delta: &mut Delta,
    ) {
        for key in keys {
            let users = self.users(&Backend::Pool(key.clone()));
            let pool = tls.world().pools.get(key);
            let now = pool.map(|pool| pool_status(tls, settings, key, pool, &users));
            if self.wanted.pools.get(key) == now.as_ref() {
                continue;
            }
            match now {
                Some(now) => self.wanted.pools.insert(key.clone(), now),
                None => self.wanted.pools.remove(key),
            };
            delta.status.pools.insert(key.clone());
        }
    }

    fn report_imports(&mut self, world: &World, keys: &BTreeSet<Key>, delta: &mut Delta) {
        for key in keys {
            let now = world.imports.get(key).map(|object| ImportStatus {
                generation: object.generation,
                import: self.imports.get(key).cloned(),
                gateways: self.users(&Backend::Import(key.clone())),
            });
            if self.wanted.imports.get(key) == now.as_ref() {
                continue;
            }
            match now {
                Some(now) => self.wanted.imports.insert(key.clone(), now),
                None => self.wanted.imports.remove(key),
            };
            delta.status.imports.insert(key.clone());
        }
    }

    /// Routes that may lead to what a policy for TLS names.
    fn naming_targets(&self, tls: &TlsPolicies<'_>) -> BTreeSet<&Key> {
        let services = tls.services();
        let pools = tls.world().pools.iter().filter(|(key, pool)| {
            let picker = pool.picker.as_ref().filter(|_| !services.is_empty());
            let picker = picker.map(|picker| Key::new(&key.namespace, &picker.name));
            picker.is_some_and(|service| services.contains(&service))
        });
        let pools: BTreeSet<&Key> = pools.map(|(key, _)| key).chain(tls.pools()).collect();
        // the pool may be used as one of the import of its name
        let pools = pools.into_iter();
        let pools = pools.flat_map(|key| [Named::Pool(key.clone()), Named::Import(key.clone())]);
        let imports = tls.imports().into_iter().cloned().map(Named::Import);
        let named = services.iter().map(|key| Named::Service((*key).clone()));
        let named = named.chain(pools).chain(imports);
        named.flat_map(|named| self.naming(&named)).collect()
    }

    /// What policies for TLS are told at each Gateway whose routes lead to their targets.
    fn report_tls_policies(&mut self, tls: &TlsPolicies<'_>, delta: &mut Delta) {
        if tls.world().tls_policies.is_empty() && self.wanted.tls_policies.is_empty() {
            return;
        }
        let mut used_at = BTreeSet::new();
        let routes = self.naming_targets(tls).into_iter();
        for route in routes.filter_map(|key| self.routes.get(key)) {
            let served = route.attachments.iter().filter(|one| one.listeners.is_ok());
            for one in served {
                let backends = used(&route.rules, &self.policies);
                used_at.extend(backends.map(|backend| (&one.gateway, backend)));
            }
        }
        let mut users = TlsUsers::new();
        for (gateway, backend) in used_at {
            tls.note(&mut users, &backend, gateway);
        }
        let now = tls.status(&users);
        let before = std::mem::replace(&mut self.wanted.tls_policies, now);
        let differing = self.wanted.tls_policies.iter();
        let differing = differing.filter(|(key, now)| before.get(*key) != Some(*now));
        let differing = differing.map(|(key, _)| key.clone());
        delta.status.tls_policies = differing.collect();
    }
}

/// Parameters that cannot be read change nothing: listeners keep what was last readable.
fn keep_drain(world: &World, model: &mut GatewayModel, before: Option<&GatewayModel>) {
    let gateway = world.gateways.get(&model.key);
    if gateway.is_none_or(|gateway| parameters::of_gateway(world, gateway).is_ok()) {
        return;
    }
    let known = before.and_then(|before| before.ports.values().next());
    if let Some(drain) = known.map(|port| port.drain) {
        model.ports.values_mut().for_each(|port| port.drain = drain);
    }
}

/// What the route's backend references name, whether or not they may.
fn referred(route: &HttpRoute) -> impl Iterator<Item = Named> {
    let backends = route.rules.iter().flat_map(|rule| &rule.backends);
    backends.filter_map(|one| {
        let namespace = one.namespace.as_ref().unwrap_or(&route.key.namespace);
        let key = Key::new(namespace, &one.name);
        match (&*one.group, &*one.kind) {
            ("", "Service") => Some(Named::Service(key)),
            (POOL_GROUP, "InferencePool") => Some(Named::Pool(key)),
            (IMPORT_GROUP, "InferencePoolImport") => Some(Named::Import(key)),
            _ => None,
        }
    })
}

// === impl StatusDelta ===

impl StatusDelta {
    pub(crate) fn add(&mut self, other: Self) {
        let Self {
            all,
            gateways,
            routes,
            pools,
            imports,
            policies,
            tls_policies,
        } = other;
        self.all |= all;
        self.gateways.extend(gateways);
        self.routes.extend(routes);
        self.pools.extend(pools);
        self.imports.extend(imports);
        self.policies.extend(policies);
        self.tls_policies.extend(tls_policies);
    }
}
