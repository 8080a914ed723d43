//! Models and status, kept up to date by what of the world changes. After any sequence of changes they are what is built from
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::feedback::Feedback;
use crate::parameters;
use crate::select::Policy;
use crate::world::{HttpRoute, InferencePool, Key, Touched, World};

use super::attach::{Attachment, Host, attach, gateway_of};
use super::backend_tls::{TlsTable, TlsUsers};
use super::build::{Attached, make_model, note_rules, parent_status, pool_status, used};
use super::gateways::{self, OurGateway, our};
use super::refs::{IMPORT_GROUP, POOL_GROUP};
use super::rules::{Rules, make_rules};
use super::{
    Backend, GatewayModel, Import, ImportStatus, ParentStatus, Settings, Target, TlsPolicies,
    WantedStatus, backends, certificates, policies, status,
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

/// What an update of the world changed.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Gateways with another model than before, or with none any more.
    pub(crate) models: BTreeSet<Key>,
    pub(crate) status: StatusDelta,
    pub(crate) unreported: Unreported,
}

/// Objects whose status shall say something else than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatusDelta {
    /// Any object's.
    pub(crate) all: bool,
    pub(crate) targets: BTreeSet<Target>,
}

/// What is to be reported again, by [`Built::report`].
#[derive(Debug, Default)]
pub(crate) struct Unreported {
    routes: BTreeSet<Key>,
    gateways: BTreeSet<Key>,
    /// Gateways with other feedback than before: their routes may say something else as well.
    pub(crate) feedback: BTreeSet<Key>,
    /// What is said of policies for TLS.
    tls_policies: bool,
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

/// What every Gateway of ours serves, nothing where it is not accepted, and the status of all objects we report on. An Envoy
/// runs for the Gateway of the fixture.
#[cfg(test)]
pub(crate) fn build(world: &World, settings: &Settings) -> (Vec<GatewayModel>, WantedStatus) {
    build_with(world, &crate::fixture::mk_feedback(), settings)
}

#[cfg(test)]
pub(crate) fn build_with(
    world: &World,
    feedback: &Feedback,
    settings: &Settings,
) -> (Vec<GatewayModel>, WantedStatus) {
    let mut built = Built::default();
    let Delta { unreported, .. } = built.renew(world, settings, &Touched::all(), false);
    built.say(world, feedback, settings, unreported, false);
    let models = built.models.into_values();
    (models.map(Arc::unwrap_or_clone).collect(), built.wanted)
}

/// Whether a ConfigMap or Secret of the Gateway is not listed yet.
fn is_unknown(world: &World, key: &Key) -> bool {
    let gateway = world.gateways.get(key);
    gateway.is_some_and(|gateway| {
        parameters::is_unknown(world, gateway) || certificates::is_unknown(world, gateway)
    })
}

// === impl Built ===

impl Built {
    /// Follows what has changed. What depends on a ConfigMap or Secret that is not listed yet stays as it was. What Gateways and
    /// routes say depends on feedback as well, and is left to [`Self::report`].
    pub(crate) fn update(
        &mut self,
        world: &World,
        settings: &Settings,
        touched: &Touched,
    ) -> Delta {
        self.renew(world, settings, touched, true)
    }

    /// Makes what Gateways and routes say again.
    pub(crate) fn report(
        &mut self,
        world: &World,
        feedback: &Feedback,
        settings: &Settings,
        unreported: Unreported,
    ) -> StatusDelta {
        self.say(world, feedback, settings, unreported, true)
    }

    fn renew(
        &mut self,
        world: &World,
        settings: &Settings,
        touched: &Touched,
        waits: bool,
    ) -> Delta {
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
            let differing = differing.map(|(key, _)| Target::Policy(key.clone()));
            delta.status.targets.extend(differing);
        }
        let mut ours = BTreeMap::new();
        for key in std::mem::take(&mut dirty.routes) {
            self.route(&tls, settings, &key, &mut ours, &mut dirty, &mut delta);
        }
        self.make_imports(&tls, settings, &dirty.imports);
        for key in &dirty.gateways {
            if waits && is_unknown(world, key) {
                continue;
            }
            if !ours.contains_key(key)
                && let Some(gateway) = our(world, settings, key)
            {
                ours.insert(key.clone(), gateway);
            }
            self.gateway(&tls, settings, key, ours.get(key), &mut delta);
        }
        self.report_pools(&tls, settings, &dirty.pools, &mut delta.status);
        self.report_imports(world, &dirty.imports, &mut delta.status);
        let is_moved = touched.all || !dirty.gateways.is_empty() || !touched.services.is_empty();
        delta.unreported.tls_policies = is_moved;
        delta.unreported.gateways = dirty.gateways;
        delta.unreported.feedback.clone_from(&touched.reports);
        delta
    }

    fn say(
        &mut self,
        world: &World,
        feedback: &Feedback,
        settings: &Settings,
        unreported: Unreported,
        waits: bool,
    ) -> StatusDelta {
        let Unreported {
            mut routes,
            mut gateways,
            feedback: differing,
            tls_policies,
        } = unreported;
        let named = differing.iter().cloned().map(Named::Gateway);
        routes.extend(named.flat_map(|gateway| self.naming(&gateway)).cloned());
        let mut delta = StatusDelta::default();
        if tls_policies || !differing.is_empty() {
            let tls = TlsPolicies::new(world, Arc::clone(&self.tls));
            self.report_tls_policies(&tls, feedback, &mut delta);
        }
        self.tls.forget_before();
        gateways.extend(differing);
        for key in routes {
            self.report_route(world, feedback, key, &mut delta);
        }
        for key in gateways {
            if !waits || !is_unknown(world, &key) {
                self.report_gateway(world, feedback, settings, key, &mut delta);
            }
        }
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
                delta.status.targets.insert(Target::Route(key.clone()));
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
        self.routes.insert(key.clone(), now);
        delta.unreported.routes.insert(key.clone());
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
        feedback: &Feedback,
        key: Key,
        delta: &mut StatusDelta,
    ) {
        let (Some(route), Some(built)) = (world.routes.get(&key), self.routes.get(&key)) else {
            return;
        };
        let attachments = built.attachments.iter();
        let parents: Vec<ParentStatus> = attachments
            .map(|one| parent_status(world, feedback, &self.policies, route, &built.rules, one))
            .collect();
        if self.wanted.routes.get(&key) != Some(&parents) {
            delta.targets.insert(Target::Route(key.clone()));
            self.wanted.routes.insert(key, parents);
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

    /// Makes a Gateway's model again; of one that is none of ours there is none.
    fn gateway(
        &mut self,
        tls: &TlsPolicies<'_>,
        settings: &Settings,
        key: &Key,
        gateway: Option<&OurGateway<'_>>,
        delta: &mut Delta,
    ) {
        let Some(gateway) = gateway else {
            if self.models.remove(key).is_some() {
                delta.models.insert(key.clone());
            }
            return;
        };
        let mut attached = Attached::new();
        for (_, route) in self.attached_to(key) {
            let mut noted = BTreeSet::new();
            for (index, hosts) in route.listeners_of(key) {
                let target = attached.entry(index).or_default();
                let new = hosts.iter().filter(|host| noted.insert((index, *host)));
                note_rules(target, new, &route.rules.rules);
            }
        }
        let mut model = make_model(tls, settings, &self.imports, gateway, attached);
        let before = self.models.get(key);
        keep_drain(tls.world(), &mut model, before.map(|before| &**before));
        if before.is_none_or(|before| **before != model) {
            self.models.insert(key.clone(), Arc::new(model));
            delta.models.insert(key.clone());
        }
    }

    /// Makes a Gateway's status again; of one that is none of ours there is none.
    fn report_gateway(
        &mut self,
        world: &World,
        feedback: &Feedback,
        settings: &Settings,
        key: Key,
        delta: &mut StatusDelta,
    ) {
        let Some(mut gateway) = our(world, settings, &key) else {
            if self.wanted.gateways.remove(&key).is_some() {
                delta.targets.insert(Target::Gateway(key));
            }
            return;
        };
        for (name, route) in self.attached_to(&key) {
            for (index, _) in route.listeners_of(&key) {
                if let Some(listener) = gateway.listeners.get_mut(index) {
                    listener.attached.insert(name.clone());
                }
            }
        }
        let status = gateways::status::of(feedback, &gateway);
        if self.wanted.gateways.get(&key) != Some(&status) {
            delta.targets.insert(Target::Gateway(key.clone()));
            self.wanted.gateways.insert(key, status);
        }
    }

    /// Routes that name the Gateway.
    fn attached_to(&self, gateway: &Key) -> impl Iterator<Item = (&Key, &BuiltRoute)> {
        let routes = self.naming(&Named::Gateway(gateway.clone()));
        routes.filter_map(move |key| Some((key, self.routes.get(key)?)))
    }

    fn report_pools(
        &mut self,
        tls: &TlsPolicies<'_>,
        settings: &Settings,
        keys: &BTreeSet<Key>,
        delta: &mut StatusDelta,
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
            delta.targets.insert(Target::Pool(key.clone()));
        }
    }

    fn report_imports(&mut self, world: &World, keys: &BTreeSet<Key>, delta: &mut StatusDelta) {
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
            delta.targets.insert(Target::Import(key.clone()));
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
    fn report_tls_policies(
        &mut self,
        tls: &TlsPolicies<'_>,
        feedback: &Feedback,
        delta: &mut StatusDelta,
    ) {
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
        let now = tls.status(&users, feedback);
        let before = std::mem::replace(&mut self.wanted.tls_policies, now);
        let differing = self.wanted.tls_policies.iter();
        let differing = differing.filter(|(key, now)| before.get(*key) != Some(*now));
        let differing = differing.map(|(key, _)| Target::TlsPolicy(key.clone()));
        delta.targets.extend(differing);
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

// === impl BuiltRoute ===

impl BuiltRoute {
    /// The listeners of the Gateway that the route is attached to, by their place in its list, with the route's hosts there.
    fn listeners_of<'s>(
        &'s self,
        gateway: &'s Key,
    ) -> impl Iterator<Item = (usize, &'s Vec<Host>)> {
        let attachments = self.attachments.iter();
        let attachments = attachments.filter(move |one| one.gateway == *gateway);
        let listeners = attachments.flat_map(|one| one.listeners.iter().flatten());
        listeners.map(|(index, hosts)| (*index, hosts))
    }
}

// === impl StatusDelta ===

impl StatusDelta {
    pub(crate) fn add(&mut self, other: Self) {
        let Self { all, targets } = other;
        self.all |= all;
        self.targets.extend(targets);
    }

    /// Whether that of an import is among them.
    pub(crate) fn has_imports(&self) -> bool {
        let mut targets = self.targets.iter();
        targets.any(|target| matches!(target, Target::Import(_)))
    }
}
