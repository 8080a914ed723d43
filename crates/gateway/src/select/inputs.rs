//! From the model to what the selection is about, and to whom is observed for it (pure).

use std::collections::BTreeMap;
use std::sync::Arc;

use crd::networks::Cidr;

use crate::model::{Epp, EppAddresses, Import, Imported, Mode, Readiness};
use crate::observe::{Job, Jobs, Kind, Method, Probe, Scrape, Targets};
use crate::world::{Key, World};

use super::policy::{HealthRule, Policy};
use super::state::{ClusterId, Entry, Standing, Wanted};

/// The imports in use.
pub(crate) type Imports<'i> = BTreeMap<Key, &'i Import>;

/// Each import with its policy and its clusters that requests can get to.
pub(crate) fn wanted(imports: &Imports<'_>, policies: &BTreeMap<Key, Policy>) -> Wanted {
    let wanted = imports.iter().map(|(key, import)| {
        let policy = policies.get(key).cloned().unwrap_or_default();
        let entries = import.hops().map(|(cluster, mode)| {
            let entry = entry(cluster, mode);
            (cluster.name.clone(), entry)
        });
        (key.clone(), (policy, entries.collect()))
    });
    wanted.collect()
}

fn entry(cluster: &Imported, mode: &Mode) -> Entry {
    let is_local = match mode {
        Mode::Endpoint(_) => false,
    };
    Entry {
        is_local,
        // Endpoints of other clusters are not known without their endpoint picker.
        fails_open: is_local && cluster.fail_open,
        standing: match cluster.readiness {
            Readiness::Ready => Standing::Ready,
            Readiness::NotReady(_) => Standing::NotReady,
            Readiness::Draining { .. } => Standing::Draining,
        },
    }
}

/// Probes of the clusters among which there is a choice, and scrapes where shares depend on metrics. `health_service` is the
/// name that gRPC health checks ask for, `deny` what names of other clusters must not lead to.
pub(crate) fn jobs(
    imports: &Imports<'_>,
    policies: &BTreeMap<Key, Policy>,
    world: &World,
    health_service: &str,
    deny: &[Cidr],
) -> Jobs {
    let denied: Arc<[Cidr]> = deny.iter().chain(&world.own_networks).copied().collect();
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
            let probe = probe(mode, &policy.health, health_service, &denied);
            if let Some(probe) = probe {
                jobs.insert((id.clone(), Kind::Probe), Job::Probe(probe));
            }
            if policy.metrics().is_some()
                && let Some(scrape) = scrape(cluster, world, &denied)
            {
                jobs.insert((id, Kind::Scrape), Job::Scrape(scrape));
            }
        }
    }
    jobs
}

fn probe(
    mode: &Mode,
    rule: &HealthRule,
    health_service: &str,
    denied: &Arc<[Cidr]>,
) -> Option<Probe> {
    let (hosts, method) = match mode {
        Mode::Endpoint(mode) => of_epp(&mode.epp, health_service)?,
    };
    Some(Probe {
        targets: Targets {
            hosts,
            denied: Arc::clone(denied),
        },
        method,
        interval: rule.interval,
        timeout: rule.timeout,
    })
}

/// Where an endpoint picker is probed, and how: by gRPC health where its port is known; a guess of it would find those
/// unhealthy that do not have it.
fn of_epp(epp: &Epp, health_service: &str) -> Option<(Vec<(String, u16)>, Method)> {
    let method = |health: Option<u16>| match health {
        Some(_) => Method::Grpc {
            service: health_service.to_owned(),
        },
        None => Method::Tcp,
    };
    match &epp.addresses {
        EppAddresses::Ips { addresses, health } => {
            let hosts = addresses.iter().map(|at| {
                let port = health.unwrap_or(at.port());
                (at.ip().to_string(), port)
            });
            Some((hosts.collect(), method(*health)))
        }
        EppAddresses::Dns { hosts, health } => {
            let hosts = hosts.iter();
            let hosts = hosts.map(|(host, port)| (host.clone(), health.unwrap_or(*port)));
            Some((hosts.collect(), method(*health)))
        }
        EppAddresses::Slices { .. } => None,
    }
}

/// `None`: the entry has no metrics, or names a Secret that cannot be used; its cluster counts as the mean of the others.
fn scrape(cluster: &Imported, world: &World, denied: &Arc<[Cidr]>) -> Option<Scrape> {
    let metrics = cluster.metrics.as_ref()?;
    let credential = match &metrics.secret {
        None => None,
        Some(secret) => {
            let listed = world.credentials.get(secret)?.as_ref().ok()?;
            if listed.cluster != cluster.name {
                return None;
            }
            Some(listed.credential.clone())
        }
    };
    let targets = Targets {
        hosts: metrics.addresses.clone(),
        denied: Arc::clone(denied),
    };
    Some(Scrape::new(targets, credential))
}

/// The Secrets that imports name for the metrics of their clusters, where shares depend on them.
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
    named.collect()
}

#[cfg(test)]
mod tests;
