//! Digests of import statuses. Each import that changes is compared with its plan, and a plan with the imports of all members;
//! nearly all are as planned: comparing one number is enough.

use std::{
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use crd::{
    Condition, ControllerStatus, ImportedCluster, Parent,
    conditions::{ACCEPTED, CONSISTENT, READY},
};
use xxhash_rust::xxh3::Xxh3Default;

use super::{entry::ImportStatus, heap::Heap};

/// The status of a live import, shared with the imports in other members that have an equal one.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveStatus(Arc<SharedStatus>);

/// A status, with its digest.
#[derive(Clone, Debug)]
pub struct SharedStatus {
    status: ImportStatus,
    /// None: not known.
    digest: Option<u64>,
    /// Size in bytes.
    heap: usize,
}

/// Whether we write conditions of this type for an import as a whole.
pub fn is_ours(condition: &Condition) -> bool {
    [ACCEPTED, READY, CONSISTENT].contains(&condition.type_.as_str())
}

/// Digest of what the named controller writes, without the times of conditions. What gateways add does not change it. A
/// server that forges a collision harms only its own cluster.
pub fn digest(status: &ImportStatus, controller_name: &str) -> u64 {
    let ImportStatus {
        observed_generation,
        conditions,
        controllers,
        clusters,
    } = status;
    let mut hash = Xxh3Default::new();
    observed_generation.hash(&mut hash);
    each(
        conditions.iter().filter(|one| is_ours(one)),
        &mut hash,
        condition,
    );
    let ours = controllers.iter().filter(|one| one.name == controller_name);
    each(ours, &mut hash, controller);
    each(clusters.iter(), &mut hash, |entry, hash| {
        let known = entry.digest();
        known.unwrap_or_else(|| digest_entry(entry)).hash(hash);
    });
    hash.finish()
}

/// The same for one entry.
pub(super) fn digest_entry(cluster: &ImportedCluster) -> u64 {
    let mut hash = Xxh3Default::new();
    entry(cluster, &mut hash);
    hash.finish()
}

/// The same of our entry in a pool's status; none: there is no such entry.
pub fn digest_entry_in_pool(conditions: Option<&[Condition]>) -> u64 {
    let mut hash = Xxh3Default::new();
    conditions.is_some().hash(&mut hash);
    each(conditions.unwrap_or_default().iter(), &mut hash, condition);
    hash.finish()
}

/// Hashes what the digest of an entry leaves out.
pub(super) fn times_of_entry(entry: &ImportedCluster, hash: &mut Xxh3Default) {
    let of_parents = entry.parents.iter().flat_map(|parent| &parent.conditions);
    each(entry.conditions.iter().chain(of_parents), hash, time);
}

/// Hashes the items and their number, so that adjacent lists stay distinct.
fn each<'a, T: 'a>(
    items: impl Iterator<Item = &'a T>,
    hash: &mut Xxh3Default,
    one: fn(&T, &mut Xxh3Default),
) {
    let mut count = 0_usize;
    for item in items {
        one(item, hash);
        count += 1;
    }
    count.hash(hash);
}

fn controller(controller: &ControllerStatus, hash: &mut Xxh3Default) {
    let ControllerStatus {
        name: _,
        exporting_clusters,
        // a gateway's
        parents: _,
        conditions,
    } = controller;
    exporting_clusters.hash(hash);
    each(conditions.iter(), hash, condition);
}

fn entry(entry: &ImportedCluster, hash: &mut Xxh3Default) {
    let ImportedCluster {
        name,
        routing_mode,
        target_port_number,
        target_ports,
        app_protocol,
        labels,
        drain_until,
        pod_cidrs,
        endpoint_picker,
        parents,
        conditions,
    } = entry;
    name.hash(hash);
    routing_mode.hash(hash);
    target_port_number.hash(hash);
    target_ports.hash(hash);
    app_protocol.hash(hash);
    labels.hash(hash);
    drain_until
        .as_ref()
        .map(|time| time.0.as_nanosecond())
        .hash(hash);
    pod_cidrs.hash(hash);
    endpoint_picker.hash(hash);
    each(parents.iter(), hash, parent);
    each(conditions.iter(), hash, condition);
}

fn parent(parent: &Parent, hash: &mut Xxh3Default) {
    let Parent {
        name,
        namespace,
        service,
        hostnames,
        listeners,
        conditions,
    } = parent;
    name.hash(hash);
    namespace.hash(hash);
    service.hash(hash);
    hostnames.hash(hash);
    listeners.hash(hash);
    each(conditions.iter(), hash, condition);
}

fn time(condition: &Condition, hash: &mut Xxh3Default) {
    condition.type_.hash(hash);
    let time = condition.last_transition_time.0;
    time.as_nanosecond().hash(hash);
}

fn condition(condition: &Condition, hash: &mut Xxh3Default) {
    let Condition {
        last_transition_time: _,
        message,
        observed_generation,
        reason,
        status,
        type_,
    } = condition;
    message.hash(hash);
    observed_generation.hash(hash);
    reason.hash(hash);
    status.hash(hash);
    type_.hash(hash);
}

// === impl LiveStatus ===

impl LiveStatus {
    /// Computes the digest for the named controller.
    pub fn new(status: ImportStatus, controller_name: &str) -> Self {
        Self(Arc::new(SharedStatus {
            digest: Some(digest(&status, controller_name)),
            heap: status.heap(),
            status,
        }))
    }

    /// None: only a full comparison can decide.
    pub fn digest(&self) -> Option<u64> {
        self.0.digest
    }

    /// Size when it was read, in bytes.
    pub(super) fn heap(&self) -> usize {
        self.0.heap
    }

    /// Digest of the whole status, with times.
    pub fn exact(&self) -> u64 {
        let ImportStatus {
            observed_generation: _,
            conditions,
            controllers,
            clusters,
        } = &self.0.status;
        let mut hash = Xxh3Default::new();
        self.0.digest.hash(&mut hash);
        let of_controllers = controllers.iter().flat_map(|one| &one.conditions);
        each(conditions.iter().chain(of_controllers), &mut hash, time);
        each(clusters.iter(), &mut hash, |entry, hash| {
            entry.exact().hash(hash);
        });
        hash.finish()
    }

    /// The shared part.
    pub fn shared(&self) -> &Arc<SharedStatus> {
        &self.0
    }

    /// Whether both share one status.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<Arc<SharedStatus>> for LiveStatus {
    fn from(shared: Arc<SharedStatus>) -> Self {
        Self(shared)
    }
}

impl Deref for LiveStatus {
    type Target = ImportStatus;

    fn deref(&self) -> &ImportStatus {
        &self.0.status
    }
}

/// A change, as tests make it, clears the digest.
#[cfg(any(test, feature = "fixtures"))]
impl std::ops::DerefMut for LiveStatus {
    fn deref_mut(&mut self) -> &mut ImportStatus {
        let shared = Arc::make_mut(&mut self.0);
        shared.digest = None;
        &mut shared.status
    }
}

// === impl SharedStatus ===

impl PartialEq for SharedStatus {
    fn eq(&self, other: &Self) -> bool {
        self.status == other.status
    }
}

#[cfg(test)]
mod tests {
    use crd::ControllerParent;
    use serde_json::json;

    use super::*;
    use crate::fixtures::mk_status;

    const US: &str = "isthmus.dev/mci-controller";

    fn mk() -> ImportStatus {
        let status = json!({
            "observedGeneration": 1,
            "conditions": [mk_condition("Ready", "Good", 1)],
            "controllers": [{"name": US, "exportingClusters": [{"name": "a"}],
                "conditions": [mk_condition("Ready", "Good", 1)]}],
            "clusters": [{
                "name": "a", "routingMode": "EndpointMode", "targetPortNumber": 8000,
                "targetPorts": [{"number": 8000}], "labels": {"region": "eu"},
                "drainUntil": "2026-01-01T00:00:00Z", "podCIDRs": ["10.2.0.0/16"],
                "endpointPicker": {"name": "epp", "service": [{"type": "LoadBalancer", "addresses": ["192.0.2.1"]}]},
                "parents": [{"name": "gw", "namespace": "infra", "service": [{"type": "LoadBalancer"}],
                    "hostnames": ["x.example"], "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
                    "conditions": [mk_condition("Programmed", "Good", 1)]}],
                "conditions": [mk_condition("Ready", "Good", 1)],
            }],
        });
        mk_status(serde_json::from_value(status).expect("a status"))
    }

    fn mk_condition(type_: &str, reason: &str, second: i64) -> serde_json::Value {
        json!({"type": type_, "status": "True", "reason": reason, "message": "", "observedGeneration": 1,
            "lastTransitionTime": format!("2026-01-01T00:00:0{second}Z")})
    }

    #[test]
    fn times_and_what_others_add_do_not_count() {
        let additions: [fn(&mut ImportStatus); 4] = [
            |status| {
                let time = &mut status.clusters[0].conditions[0].last_transition_time;
                time.0 += jiff::SignedDuration::from_secs(5);
            },
            |status| {
                let theirs = mk_condition("Programmed", "Theirs", 1);
                status
                    .conditions
                    .push(serde_json::from_value(theirs).expect("a condition"));
            },
            |status| {
                let theirs = json!({"name": "example.com/gateway", "conditions": []});
                status
                    .controllers
                    .push(serde_json::from_value(theirs).expect("a controller"));
            },
            |status| {
                let theirs = json!({"parentRef": {"name": "gw"}});
                let theirs: ControllerParent = serde_json::from_value(theirs).expect("a parent");
                status.controllers[0].parents.push(theirs);
            },
        ];
        for add in additions {
            let mut status = mk();
            add(&mut status);
            assert_ne!(status, mk());
            assert_eq!(digest(&status, US), digest(&mk(), US), "{status:?}");
        }
    }

    #[test]
    fn everything_that_we_write_counts() {
        let changes: [fn(&mut ImportStatus); 23] = [
            |status| status.observed_generation = None,
            |status| status.conditions.clear(),
            |status| status.conditions[0].reason = "Bad".to_owned(),
            |status| status.controllers.clear(),
            |status| status.controllers[0].exporting_clusters.clear(),
            |status| status.controllers[0].conditions.clear(),
            |status| status.clusters.clear(),
            |status| status.clusters[0].name = "b".to_owned(),
            |status| status.clusters[0].routing_mode = crd::RoutingMode::ParentMode,
            |status| status.clusters[0].target_port_number = 1,
            |status| status.clusters[0].target_ports.clear(),
            |status| status.clusters[0].app_protocol = Some("http".to_owned()),
            |status| status.clusters[0].labels.clear(),
            |status| status.clusters[0].drain_until = None,
            |status| status.clusters[0].pod_cidrs.clear(),
            |status| status.clusters[0].endpoint_picker = None,
            |status| status.clusters[0].parents.clear(),
            |status| {
                status.clusters[0].parents[0].service[0]
                    .ports
                    .push(crd::ServicePort {
                        number: 80,
                        name: None,
                        protocol: None,
                        app_protocol: None,
                    });
            },
            |status| status.clusters[0].parents[0].hostnames.clear(),
            |status| status.clusters[0].parents[0].listeners[0].port = 81,
            |status| status.clusters[0].parents[0].conditions.clear(),
            |status| status.clusters[0].conditions[0].message = "more".to_owned(),
            |status| status.clusters[0].conditions[0].observed_generation = Some(2),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut status = mk();
            change(&mut status);
            assert_ne!(digest(&status, US), digest(&mk(), US), "change {at}");
        }
    }

    #[test]
    fn a_change_clears_the_digest() {
        let mut live = LiveStatus::new(mk(), US);
        assert!(live.digest().is_some());
        live.observed_generation = None;
        assert_eq!(live.digest(), None);
    }
}
