//! From pods to members; pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ::watch::Update;
use crd::inference_pool::InferencePool;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use scheduling::{EndpointId, Labels, Member};
use tracing::warn;

/// Limits the ports of a pod: `8000,8001`. The second name is the former one.
const ACTIVE_PORTS: [&str; 2] = [
    "llm-d.ai/active-ports",
    "inference.networking.k8s.io/active-ports",
];
/// Names the engine of a pod. The second name is the former one.
const ENGINE: [&str; 2] = [
    "llm-d.ai/engine-type",
    "inference.networking.k8s.io/engine-type",
];

/// What matters of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolFacts {
    /// Labels its pods have.
    pub(super) selector: BTreeMap<String, String>,
    /// Target ports, in their order; at most 8.
    ports: Vec<u16>,
}

/// The pods of one selector, as far as they can be members.
#[derive(Debug, Default)]
pub(super) struct Members {
    pods: BTreeMap<String, PodFacts>,
    /// Pods that the list being received has, but that cannot be read.
    odd: BTreeSet<String>,
}

/// What matters of a pod that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodFacts {
    uid: Arc<str>,
    ip: IpAddr,
    /// Absent: all ports of the pool.
    active_ports: Option<BTreeSet<u16>>,
    engine: Arc<str>,
    labels: Arc<Labels>,
}

// === impl PoolFacts ===

impl PoolFacts {
    /// Reads the pool. Ports beyond 1..65535 and after the eighth, which its schema forbids, are left out.
    pub(super) fn of(pool: &InferencePool) -> Self {
        let numbers = pool
            .spec
            .target_ports
            .iter()
            .map(|port| u16::try_from(port.number));
        let ports = numbers
            .flatten()
            .filter(|port| *port != 0)
            .take(8)
            .collect();
        Self {
            selector: pool.spec.selector.match_labels.clone(),
            ports,
        }
    }

    /// The selector in the API server's words.
    pub(super) fn selector_text(&self) -> String {
        let terms: Vec<_> = self
            .selector
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        terms.join(",")
    }
}

// === impl Members ===

impl Members {
    /// Takes one change.
    pub(super) fn on(&mut self, update: Update<Pod>) {
        match update {
            Update::Reset(pods) => {
                let odd = std::mem::take(&mut self.odd);
                self.pods.retain(|name, _| odd.contains(name));
                for pod in &pods {
                    self.apply(pod);
                }
            }
            Update::Apply(pod) => self.apply(&pod),
            Update::Delete(pod) => {
                self.pods.remove(&pod.name_any());
            }
            Update::Odd(odd) => {
                self.odd.insert(odd.name);
            }
            Update::OddDelete(odd) => {
                self.odd.remove(&odd.name);
                self.pods.remove(&odd.name);
            }
            Update::Failed(_) => self.odd.clear(),
        }
    }

    /// One member per ready pod and active target port.
    pub(super) fn list(&self, namespace: &str, pool: &PoolFacts) -> Vec<Member> {
        let namespace: Arc<str> = namespace.into();
        let mut members = Vec::with_capacity(self.pods.len() * pool.ports.len());
        for (name, pod) in &self.pods {
            let name: Arc<str> = name.as_str().into();
            let any_active = pool.ports.iter().any(|port| pod.allows(*port));
            for (rank, port) in (0_u8..).zip(&pool.ports) {
                if any_active && !pod.allows(*port) {
                    continue;
                }
                members.push(Member {
                    id: EndpointId {
                        namespace: Arc::clone(&namespace),
                        pod: Arc::clone(&name),
                        rank,
                        uid: Arc::clone(&pod.uid),
                    },
                    address: SocketAddr::new(pod.ip, *port),
                    engine: Arc::clone(&pod.engine),
                    labels: Arc::clone(&pod.labels),
                });
            }
        }
        members
    }

    fn apply(&mut self, pod: &Pod) {
        let name = pod.name_any();
        self.odd.remove(&name);
        match PodFacts::of(pod) {
            Some(facts) => self.pods.insert(name, facts),
            None => self.pods.remove(&name),
        };
    }
}

// === impl PodFacts ===

impl PodFacts {
    /// `None`: not a member now. A member is ready, has an address, is not being deleted, and runs.
    fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if over || !ready || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let engine = ENGINE
            .iter()
            .find_map(|key| pod.labels().get(*key))
            .map(String::as_str);
        Some(Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            ip: status.pod_ip.as_ref()?.parse().ok()?,
            active_ports: ACTIVE_PORTS
                .iter()
                .find_map(|key| pod.annotations().get(*key))
                .and_then(|text| {
                    let ports = parse_ports(text);
                    if ports.is_none() {
                        warn!(
                            pod = pod.name_any(),
                            text, "no valid port in active-ports: all ports of the pool are used"
                        );
                    }
                    ports
                }),
            engine: engine.unwrap_or_default().into(),
            labels: Arc::new(
                pod.labels()
                    .iter()
                    .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                    .collect(),
            ),
        })
    }

    fn allows(&self, port: u16) -> bool {
        self.active_ports
            .as_ref()
            .is_none_or(|active| active.contains(&port))
    }
}

/// The valid ports of a comma-separated list; `None` when there are none.
fn parse_ports(text: &str) -> Option<BTreeSet<u16>> {
    let ports: BTreeSet<u16> = text
        .split(',')
        .filter_map(|port| port.trim().parse().ok())
        .collect();
    (!ports.is_empty()).then_some(ports)
}

#[cfg(test)]
mod tests;
