//! One Gateway's model as Envoy resources, but for the endpoints that pods change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{
    Backend, EndpointMode, Epp, EppAddresses, GatewayModel, Import, Imported, Mode,
    ParentAddresses, ParentMode, Pool, Security, ServiceBackend, Trusted, Verification,
};
use crate::world::Key;

use super::endpoints::Hop;
use super::listener;
use super::proto::cluster::Cluster;
use super::proto::listener::Listener;
use super::proto::route::RouteConfiguration;
use super::{Assignment, Options, Resource, cluster, names, route};

/// The resources of one Gateway, and where its endpoints come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The UID of the Gateway.
    pub(crate) uid: String,
    pub(crate) clusters: BTreeMap<String, Arc<Resource>>,
    pub(crate) secrets: BTreeMap<String, Arc<Resource>>,
    pub(crate) listeners: BTreeMap<String, Arc<Resource>>,
    pub(crate) routes: BTreeMap<String, Arc<Resource>>,
    /// By EDS cluster.
    pub(crate) assignments: BTreeMap<String, Assignment>,
}

pub(crate) fn translate(model: &GatewayModel, options: &Options) -> Plan {
    let mut plan = Plan {
        uid: model.uid.clone(),
        ..Plan::default()
    };
    for (port, one) in &model.ports {
        // Envoy takes no listener without a filter chain: all of these wait for a certificate.
        if one.chains.is_empty() {
            continue;
        }
        plan.listener(listener::edge(*port, one, options));
        for chain in &one.chains {
            let name = names::table(*port, &chain.protocol);
            plan.table(route::edge(&name, model, *port, chain, options));
        }
    }
    for (key, certificate) in &model.certificates {
        let resource = Arc::clone(certificate.resource());
        plan.secrets.insert(names::certificate(key), resource);
    }
    for ((key, port), service) in &model.services {
        plan.service(key, *port, service, options);
    }
    let hopped = hopped_pools(model);
    for pool in model.pools.values() {
        plan.pool(pool, options);
        if hopped.contains(&pool.key) {
            plan.pool_hop(pool, options);
        }
    }
    for import in model.imports.values() {
        plan.import(model, import, options);
    }
    plan
}

/// Pools that some rule reaches through a hop.
fn hopped_pools(model: &GatewayModel) -> BTreeSet<&Key> {
    let rules = model.rules().filter(|rule| rule.needs_hop());
    let backends = rules.flat_map(|rule| rule.action.backends());
    backends
        .filter_map(|weighted| match &weighted.backend {
            Backend::Pool(key) => Some(key),
            _ => None,
        })
        .collect()
}

// === impl Plan ===

impl Plan {
    fn service(&mut self, key: &Key, port: u16, service: &ServiceBackend, options: &Options) {
        let name = names::service(key, port);
        let Some(security) = &service.security else {
            self.cluster(cluster::nowhere(name), None);
            return;
        };
        self.authorities_of(security);
        let source = Assignment::Service {
            service: key.clone(),
            port_name: service.port_name.clone(),
        };
        let made = cluster::service(name, service, security, options);
        self.cluster(made, Some(source));
    }

    fn authorities_of(&mut self, security: &Security) {
        if let Security::Verified(verification) = security {
            self.authorities(verification);
        }
    }

    fn authorities(&mut self, verification: &Verification) {
        if let Trusted::Bundle(bundle) = &verification.authorities {
            let resource = Arc::clone(bundle.resource());
            self.secrets.insert(bundle.name().to_owned(), resource);
        }
    }

    fn pool(&mut self, pool: &Pool, options: &Options) {
        let source = Assignment::Pool {
            pool: pool.key.clone(),
            ports: pool.target_ports.clone(),
        };
        self.cluster(cluster::pool(names::pool(&pool.key), pool), Some(source));
        if let Some(epp) = &pool.epp {
            self.epp(names::epp(&pool.key), epp, options);
        }
    }

    fn pool_hop(&mut self, pool: &Pool, options: &Options) {
        let name = names::hop_pool(&pool.key);
        let hop = Assignment::Hop(name.clone());
        self.cluster(cluster::hopped(names::hopped(&pool.key)), Some(hop));
        self.listener(listener::hop(&name, listener::Hop::Pool, options));
        let epp_name = names::epp(&pool.key);
        let epp = pool.epp.as_ref().map(|epp| (epp_name.as_str(), epp));
        let to = names::pool(&pool.key);
        let open_at = pool.fail_open.then(|| route::last_attempt(1));
        let limit = Some(options.retry_body_limit);
        self.table(route::hop(&name, &to, epp, open_at, limit));
    }

    fn import(&mut self, model: &GatewayModel, import: &Import, options: &Options) {
        let hop = |(cluster, mode): (&Imported, &Mode)| Hop {
            listener: match mode {
                Mode::Endpoint(_) | Mode::Local(_) => names::hop(&import.key, &cluster.name),
                Mode::Parent(_) => names::hop_parent(&import.key, &cluster.name),
            },
            cluster: cluster.name.clone(),
        };
        let hops = Assignment::Hops {
            import: import.key.clone(),
            hops: import.hops().map(hop).collect(),
            formers: import.former_hops().map(hop).collect(),
        };
        let name = names::import(&import.key);
        let made = cluster::import(name, !import.fails_open());
        self.cluster(made, Some(hops));
        for (cluster, mode) in import.hops().chain(import.former_hops()) {
            match mode {
                Mode::Endpoint(mode) => self.endpoint_hop(&import.key, cluster, mode, options),
                Mode::Parent(mode) => self.parent_hop(&import.key, cluster, mode, options),
                Mode::Local(pool) => {
                    if let Some(pool) = model.pools.get(pool) {
                        self.local_hop(import, cluster, pool, options);
                    }
                }
            }
        }
    }

    /// Other clusters have their turn first: only the last attempt goes on without the EPP.
    fn local_hop(&mut self, import: &Import, cluster: &Imported, pool: &Pool, options: &Options) {
        let name = names::hop(&import.key, &cluster.name);
        self.listener(listener::hop(&name, listener::Hop::Pool, options));
        let epp_name = names::epp(&pool.key);
        let epp = pool.epp.as_ref().map(|epp| (epp_name.as_str(), epp));
        let open_at = pool.fail_open;
        let open_at = open_at.then(|| route::last_attempt(import.hops().count()));
        let to = names::pool(&pool.key);
        self.table(route::hop(
            &name,
            &to,
            epp,
            open_at,
            Some(options.retry_body_limit),
        ));
    }

    fn parent_hop(
        &mut self,
        import: &Key,
        cluster: &Imported,
        mode: &ParentMode,
        options: &Options,
    ) {
        let name = names::hop_parent(import, &cluster.name);
        let parent = names::parent(import, &cluster.name);
        self.listener(listener::hop(&name, listener::Hop::Parent, options));
        let table = route::parent_hop(&name, &parent, mode, &options.cluster_name);
        self.table(table);
        let source = match &mode.addresses {
            ParentAddresses::Ips(addresses) => Some(Assignment::Fixed {
                addresses: addresses.clone(),
                health: None,
            }),
            ParentAddresses::Dns(_) => None,
        };
        if let Some(verification) = &mode.verification {
            self.authorities(verification);
        }
        let made = cluster::parent(parent, mode, cluster.http2, options);
        self.cluster(made, source);
    }

    fn endpoint_hop(
        &mut self,
        import: &Key,
        cluster: &Imported,
        mode: &EndpointMode,
        options: &Options,
    ) {
        let name = names::hop(import, &cluster.name);
        let epp = names::epp_of(import, &cluster.name);
        let pods = names::pods(import, &cluster.name);
        self.listener(listener::hop(&name, listener::Hop::UnknownPods, options));
        // Pods that nobody names cannot be invented: this hop always fails closed.
        let picked = Some((epp.as_str(), &mode.epp));
        self.table(route::hop(&name, &pods, picked, None, None));
        self.epp(epp, &mode.epp, options);
        self.cluster(cluster::pods(pods, mode, cluster.http2), None);
    }

    fn epp(&mut self, name: String, epp: &Epp, options: &Options) {
        self.authorities_of(&epp.security);
        let source = match &epp.addresses {
            EppAddresses::Slices {
                service,
                port_name,
                health,
            } => Some(Assignment::Epp {
                service: service.clone(),
                port_name: port_name.clone(),
                health: health.clone(),
            }),
            EppAddresses::Ips { addresses, health } => Some(Assignment::Fixed {
                addresses: addresses.clone(),
                health: *health,
            }),
            EppAddresses::Dns { .. } => None,
        };
        self.cluster(cluster::epp(name, epp, options), source);
    }

    fn cluster(&mut self, made: Cluster, source: Option<Assignment>) {
        let needs_endpoints = cluster::needs_endpoints(&made);
        debug_assert_eq!(needs_endpoints, source.is_some(), "{}", made.name);
        if let Some(source) = source {
            self.assignments.insert(made.name.clone(), source);
        }
        let resource = Resource::new(&made, needs_endpoints);
        self.clusters.insert(made.name, resource);
    }

    fn listener(&mut self, made: Listener) {
        let resource = Resource::new(&made, false);
        self.listeners.insert(made.name, resource);
    }

    fn table(&mut self, made: RouteConfiguration) {
        let resource = Resource::new(&made, false);
        self.routes.insert(made.name, resource);
    }
}
