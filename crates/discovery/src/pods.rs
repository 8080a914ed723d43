//! From pods to members; pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ::watch::{Update, clipped};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use scheduling::{EndpointId, Labels, Member};

use crate::engine::engine;

/// Limits the ports of a pod: `8000,8001`. The second name is the former one.
const ACTIVE_PORTS: [&str; 2] = [
    "llm-d.ai/active-ports",
    "inference.networking.k8s.io/active-ports",
];
/// What is reported of an annotation, in bytes: longer than any list of ports that makes sense.
const MAX_REPORTED: usize = 128;

/// The pods of one selector, as far as they can be members.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    pods: BTreeMap<String, PodFacts>,
    /// Pods that the list being received has, but that cannot be read.
    odd: BTreeSet<String>,
}

/// An annotation that names none of the ports there are, and so limits nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IgnoredPorts {
    pub(crate) pod: String,
    /// Cut if long.
    pub(crate) text: String,
}

/// An address of a pod that another one has, too, as on a host's network: requests are sent to addresses, so it is one
/// endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TakenAddress {
    pub(crate) pod: String,
    /// The name of the pod whose endpoint has the address.
    pub(crate) by: String,
    pub(crate) address: SocketAddr,
}

/// What matters of a pod that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodFacts {
    uid: Arc<str>,
    ip: IpAddr,
    /// Absent: all ports of the pool.
    active_ports: Option<ActivePorts>,
    engine: Arc<str>,
    labels: Arc<Labels>,
}

/// The annotation of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ActivePorts {
    /// Those of its words that are ports.
    ports: BTreeSet<u16>,
    text: String,
}

// === impl Pods ===

impl Pods {
    /// Takes one change.
    pub(crate) fn on(&mut self, update: Update<Pod>) {
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

    /// One member per ready pod and active target port; of those with one address the first.
    pub(crate) fn list(&self, namespace: &str, ports: &[u16]) -> Vec<Member> {
        let namespace: Arc<str> = namespace.into();
        let mut members = Vec::with_capacity(self.pods.len() * ports.len());
        let mut taken = HashSet::with_capacity(members.capacity());
        let mut name: Arc<str> = Arc::default();
        for (pod_name, pod, rank, address) in self.served(ports) {
            if !taken.insert(address) {
                continue;
            }
            if &*name != pod_name {
                name = pod_name.into();
            }
            members.push(Member {
                id: EndpointId {
                    namespace: Arc::clone(&namespace),
                    pod: Arc::clone(&name),
                    rank,
                    uid: Arc::clone(&pod.uid),
                },
                address,
                engine: Arc::clone(&pod.engine),
                labels: Arc::clone(&pod.labels),
            });
        }
        members
    }

    /// The addresses that [`Pods::list`] leaves out.
    pub(crate) fn taken_addresses(&self, ports: &[u16]) -> BTreeSet<TakenAddress> {
        let mut first: HashMap<SocketAddr, &str> = HashMap::new();
        let taken = self.served(ports).filter_map(|(pod, _, _, address)| {
            let by = *first.entry(address).or_insert(pod);
            (by != pod).then(|| TakenAddress {
                pod: pod.to_owned(),
                by: by.to_owned(),
                address,
            })
        });
        taken.collect()
    }

    /// Pods in the order of their names, each with its ranks and where these serve.
    fn served<'a>(
        &'a self,
        ports: &'a [u16],
    ) -> impl Iterator<Item = (&'a str, &'a PodFacts, u8, SocketAddr)> {
        self.pods.iter().flat_map(move |(name, pod)| {
            let active = pod.active_ports.as_ref();
            let active = active.filter(|active| active.names_any(ports));
            let ranks = (0_u8..).zip(ports);
            let ranks = ranks
                .filter(move |(_, port)| active.is_none_or(|active| active.ports.contains(port)));
            ranks
                .map(move |(rank, port)| (name.as_str(), pod, rank, SocketAddr::new(pod.ip, *port)))
        })
    }

    /// The annotations that [`Pods::list`] ignores.
    pub(crate) fn ignored_ports(&self, ports: &[u16]) -> BTreeSet<IgnoredPorts> {
        let ignored = self.pods.iter().filter_map(|(name, pod)| {
            let active = pod.active_ports.as_ref()?;
            (!active.names_any(ports)).then(|| IgnoredPorts {
                pod: name.clone(),
                text: active.text.clone(),
            })
        });
        ignored.collect()
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
        let engine = engine(|key| pod.labels().get(key).map(String::as_str));
        let active_ports = ACTIVE_PORTS
            .iter()
            .find_map(|key| pod.annotations().get(*key));
        let labels = pod.labels().iter();
        Some(Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            ip: status.pod_ip.as_ref()?.parse().ok()?,
            active_ports: active_ports.map(|text| ActivePorts::parse(text)),
            engine: engine.into(),
            labels: Arc::new(
                labels
                    .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                    .collect(),
            ),
        })
    }
}

// === impl ActivePorts ===

impl ActivePorts {
    /// Of the words between the commas, those that are no port are left out.
    fn parse(text: &str) -> Self {
        Self {
            ports: text
                .split(',')
                .filter_map(|port| port.trim().parse().ok())
                .collect(),
            text: clipped(text.to_owned(), MAX_REPORTED),
        }
    }

    fn names_any(&self, ports: &[u16]) -> bool {
        ports.iter().any(|port| self.ports.contains(port))
    }
}

#[cfg(test)]
mod tests;
