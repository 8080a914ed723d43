//! From the model to what the selection is about, and to whom is observed for it (pure).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crd::networks::Cidr;

use crate::model::{
    Epp, EppAddresses, HealthPort, Import, Imported, Mode, ParentAddresses, Pool, Readiness,
    Security, Trusted, Verification, picker,
};
use crate::observe::{Authorities, Job, Jobs, Kind, Method, Probe, Scrape, SignedBy, Targets};
use crate::world::{BadCredential, Credential, Endpoints, Key, World};

use super::policy::Policy;
use super::state::{ClusterId, Entry, Standing, Wanted};

/// Names of a Service port that serves metrics, as charts have them.
const METRICS_PORT_NAMES: [&str; 2] = ["metrics", "http-metrics"];

/// The imports in use.
pub(crate) type Imports<'i> = BTreeMap<Key, &'i Import>;

/// Each import with its policy and its clusters that requests can get to.
pub(crate) fn wanted(
    imports: &Imports<'_>,
    policies: &BTreeMap<Key, Policy>,
    world: &World,
) -> Wanted {
    let nowhere: Arc<[Cidr]> = Arc::new([]);
    let wanted = imports.iter().map(|(key, import)| {
        let policy = policies.get(key).cloned().unwrap_or_default();
        let entries = import.hops().map(|(cluster, mode)| {
            let mut entry = entry(cluster, mode);
            if policy.metrics().is_some() {
                let scrape = match mode {
                    Mode::Local(pool) => local_scrape(pool, &cluster.name, world, None),
                    Mode::Endpoint(_) | Mode::Parent(_) => scrape(cluster, world, &nowhere),
                };
                entry.unscraped = scrape.err();
            }
            (cluster.name.clone(), entry)
        });
        let entries = entries.collect();
        (key.clone(), (policy, entries))
    });
    wanted.collect()
}

fn entry(cluster: &Imported, mode: &Mode) -> Entry {
    let is_local = matches!(mode, Mode::Local(_));
    Entry {
        is_local,
        // Endpoints of other clusters are not known without their endpoint picker.
        fails_open: is_local && cluster.fail_open,
        standing: match cluster.readiness {
            Readiness::Ready => Standing::Ready,
            Readiness::NotReady(_) => Standing::NotReady,
            Readiness::Draining { .. } => Standing::Draining,
        },
        unscraped: None,
    }
}

/// What whom to observe depends on besides the imports.
pub(crate) struct Surroundings<'s> {
    pub(crate) world: &'s World,
    pub(crate) endpoints: &'s Endpoints,
    /// The local pools of imports.
    pub(crate) pools: BTreeMap<Key, &'s Pool>,
    /// The name that gRPC health checks ask for.
    pub(crate) health_service: &'s str,
    /// What names of other clusters must not lead to, besides the networks of this one.
    pub(crate) deny: &'s [Cidr],
}

/// Probes of the clusters among which there is a choice, and scrapes where shares depend on metrics.
pub(crate) fn jobs(
    imports: &Imports<'_>,
    policies: &BTreeMap<Key, Policy>,
    around: &Surroundings<'_>,
) -> Jobs {
    let denied = around.deny.iter().chain(&around.world.own_networks);
    let denied: Arc<[Cidr]> = denied.copied().collect();
    let default = Policy::default();
    let mut jobs = Jobs::new();
    for (key, import) in imports {
        if import.hops().count() < 2 {
            continue;
        }
        let policy = policies.get(key).unwrap_or(&default);
        for (cluster, mode) in import.hops() {
            let id = ClusterId {
                import: key.clone(),
                cluster: cluster.name.clone(),
            };
            let (hosts, method) = around.probed(mode);
            let probe = Probe {
                targets: Targets::new(hosts, Arc::clone(&denied)),
                method,
                interval: policy.health.interval,
                timeout: policy.health.timeout,
            };
            jobs.insert((id.clone(), Kind::Probe), Job::Probe(probe));
            if policy.metrics().is_none() {
                continue;
            }
            let scrape = match mode {
                Mode::Local(pool) => local_scrape(pool, &cluster.name, around.world, Some(around)),
                Mode::Endpoint(_) | Mode::Parent(_) => scrape(cluster, around.world, &denied),
            };
            if let Ok(scrape) = scrape {
                jobs.insert((id, Kind::Scrape), Job::Scrape(scrape));
            }
        }
    }
    jobs
}

// === impl Surroundings ===

impl Surroundings<'_> {
    /// Whether the address may be that of a pod of this cluster. Whoever may write EndpointSlices names any, and the gateway reaches
    /// more than they do.
    fn may_be_a_pod(&self, ip: IpAddr) -> bool {
        let is_in = |networks: &[Cidr]| networks.iter().any(|network| network.contains(ip));
        let world = self.world;
        !is_in(&world.own_but_pods) && (is_in(&world.own_pods) || !is_in(self.deny))
    }

    /// The same of what only a connection is made to: a node may be one, for pods that have no network of their own.
    fn may_be_probed(&self, ip: IpAddr) -> bool {
        let is_in = |networks: &[Cidr]| networks.iter().any(|network| network.contains(ip));
        is_in(&self.world.own_pods) || !is_in(self.deny)
    }

    /// Where a cluster is probed, and how.
    fn probed(&self, mode: &Mode) -> (Vec<(String, u16)>, Method) {
        match mode {
            Mode::Endpoint(mode) => self.of_epp(&mode.epp),
            Mode::Local(pool) => {
                let epp = self.pools.get(pool).and_then(|pool| pool.epp.as_ref());
                let Some(epp) = epp else {
                    return (Vec::new(), Method::Tcp);
                };
                let (mut hosts, method) = self.of_epp(epp);
                let has_some = !hosts.is_empty();
                hosts.retain(|(host, _)| host.parse().is_ok_and(|ip| self.may_be_probed(ip)));
                // Own pods are among what is denied to other clusters where nodes have no networks of pods.
                let is_unknown = has_some && hosts.is_empty();
                let method = if is_unknown { Method::Assumed } else { method };
                (hosts, method)
            }
            Mode::Parent(mode) => {
                let hosts = match &mode.addresses {
                    ParentAddresses::Ips(addresses) => hosts(addresses, None),
                    ParentAddresses::Dns(hosts) => hosts.clone(),
                };
                let method = if let Some(verification) = &mode.verification {
                    verified(verification)
                } else {
                    let name = mode.host().filter(|_| mode.tls).map(str::to_owned);
                    let signed = SignedBy::System;
                    name.map_or(Method::Tcp, |name| Method::Tls { name, signed })
                };
                (hosts, method)
            }
        }
    }

    /// By gRPC health where its port is known; a guess of it would find those unhealthy that do not have it. Else by a connection,
    /// with the handshake that a policy asks for.
    fn of_epp(&self, epp: &Epp) -> (Vec<(String, u16)>, Method) {
        let grpc = Method::Grpc {
            service: self.health_service.to_owned(),
        };
        let connection = match &epp.security {
            Security::Verified(verification) => verified(verification),
            Security::Plaintext | Security::Unverified => Method::Tcp,
        };
        let method = |health: Option<u16>| health.map_or(connection.clone(), |_| grpc.clone());
        match &epp.addresses {
            EppAddresses::Ips { addresses, health } => (hosts(addresses, *health), method(*health)),
            EppAddresses::Dns { hosts, health } => {
                let hosts = hosts.iter();
                let hosts = hosts.map(|(host, port)| (host.clone(), health.unwrap_or(*port)));
                (hosts.collect(), method(*health))
            }
            EppAddresses::Slices {
                service,
                port_name,
                health,
            } => {
                let of_port = |name: &str| self.endpoints.of_service(service, name);
                match health {
                    None => (hosts(&of_port(port_name), None), connection),
                    Some(HealthPort::Named(name)) => (hosts(&of_port(name), None), grpc),
                    Some(HealthPort::Number(port)) => {
                        (hosts(&of_port(port_name), Some(*port)), grpc)
                    }
                }
            }
        }
    }
}

/// As Envoy verifies it; a connection where the certificate may have other names than the server name.
fn verified(verification: &Verification) -> Method {
    let Some(name) = verification.only_name() else {
        return Method::Tcp;
    };
    Method::Tls {
        name: name.to_owned(),
        signed: match &verification.authorities {
            Trusted::System => SignedBy::System,
            Trusted::Bundle(bundle) => SignedBy::Authorities(Authorities::new(bundle.clone())),
        },
    }
}

/// The addresses, with this port in the place of their own.
fn hosts(addresses: &[SocketAddr], port: Option<u16>) -> Vec<(String, u16)> {
    let hosts = addresses.iter();
    let hosts = hosts.map(|at| (at.ip().to_string(), port.unwrap_or(at.port())));
    hosts.collect()
}

/// How the metrics of a cluster are read, or why they are not; it counts as the mean of the others then.
fn scrape(cluster: &Imported, world: &World, denied: &Arc<[Cidr]>) -> Result<Scrape, &'static str> {
    let metrics = cluster.metrics.as_ref();
    let metrics = metrics.ok_or("its entry names no metrics that this cluster may read")?;
    let credential = credential(metrics.secret.as_ref(), &cluster.name, world)?;
    let targets = Targets::new(metrics.addresses.clone(), Arc::clone(denied));
    Ok(Scrape::new(targets, credential))
}

/// The same of the pool of this cluster: its endpoint picker is where its Service leads to at the moment.
fn local_scrape(
    pool: &Key,
    cluster: &str,
    world: &World,
    around: Option<&Surroundings<'_>>,
) -> Result<Scrape, &'static str> {
    let missing = "the Service of its endpoint picker has no port of the name metrics or http-metrics, and the pool does not name another by isthmus.dev/metrics-port";
    let object = world.pools.get(pool).ok_or(missing)?;
    let Some(Ok((service, ports, picker))) = picker(world, pool, object) else {
        return Err(missing);
    };
    let named = |wanted: &dyn Fn(&str) -> bool| {
        let mut names = ports.ports.iter().map(|port| port.name.as_str());
        names.find(|name| wanted(name)).ok_or(missing)
    };
    let number = object.metrics_port.as_ref().map(|text| text.parse::<u16>());
    let (name, number) = match (&object.metrics_port, number) {
        (_, Some(Ok(number))) => (picker.name.as_str(), Some(number)),
        (Some(text), _) => (named(&|name| name == text)?, None),
        (None, _) => (named(&|name| METRICS_PORT_NAMES.contains(&name))?, None),
    };
    let secret = object.metrics_secret.as_ref();
    let secret = secret.map(|secret| Key::new(&pool.namespace, secret));
    let credential = credential(secret.as_ref(), cluster, world)?;
    let addresses = around.map(|around| {
        let mut addresses = around.endpoints.of_service(&service, name);
        addresses.retain(|at| around.may_be_a_pod(at.ip()));
        hosts(&addresses, number)
    });
    // There are no names among them.
    let targets = Targets::new(addresses.unwrap_or_default(), Arc::new([]));
    Ok(Scrape::new(targets, credential))
}

/// What the Secret has for the metrics of this cluster.
fn credential(
    secret: Option<&Key>,
    cluster: &str,
    world: &World,
) -> Result<Option<Credential>, &'static str> {
    let Some(secret) = secret else {
        return Ok(None);
    };
    let listed = world.credentials.get(secret);
    let listed = listed.ok_or("the Secret for its metrics is not listed yet")?;
    let listed = listed.as_ref().map_err(|bad| bad.text())?;
    if listed.cluster != cluster {
        return Err(BadCredential::NotLabelled.text());
    }
    Ok(Some(listed.credential.clone()))
}

/// The Secrets that imports name for the metrics of their clusters, and the pools of this cluster that join them, where shares
/// depend on them.
pub(crate) fn credentials(world: &World, policies: &BTreeMap<Key, Policy>) -> Vec<Key> {
    let by_metrics = policies
        .iter()
        .filter(|(_, policy)| policy.metrics().is_some());
    let imports = by_metrics.filter_map(|(key, _)| Some((key, world.imports.get(key)?)));
    let named = imports.flat_map(|(key, import)| {
        let pickers = import.clusters.iter().filter_map(|one| one.picker.as_ref());
        let secrets = pickers.filter_map(|picker| picker.metrics.as_ref()?.secret.as_ref());
        // Those of another namespace are not read.
        let own = secrets.filter(|secret| {
            let namespace = secret.namespace.as_ref();
            namespace.is_none_or(|namespace| *namespace == key.namespace)
        });
        own.map(|secret| Key::new(&key.namespace, &secret.name))
    });
    let local = policies.iter().filter(|(key, policy)| {
        policy.metrics().is_some() && policy.include_local && world.imports.contains_key(*key)
    });
    let local = local.filter_map(|(key, _)| {
        let secret = world.pools.get(key)?.metrics_secret.as_ref()?;
        Some(Key::new(&key.namespace, secret))
    });
    named.chain(local).collect()
}

#[cfg(test)]
mod tests;
