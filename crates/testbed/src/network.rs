//! The wires: hub ↔ cluster ↔ pod, and how they are cut.
//!
//! Every wire is a veth pair whose ends have link-local addresses, so that no cluster address is spent on it. A cut is
//! always silent: packets vanish, nobody answers "unreachable".

use std::net::Ipv4Addr;

use crate::addresses::{ClusterAddresses, HUB};
use crate::netns::{NetNs, NetworkError};

/// The hub's end of each wire to a cluster.
const HUB_END: &str = "169.254.0.1";
/// A cluster's end of its wire to the hub.
const CLUSTER_END: &str = "169.254.0.2";
/// A cluster's end of each wire to a pod: the pod's gateway.
const POD_GATEWAY: &str = "169.254.1.1";
/// A hardware address nobody has: frames to it are dropped by whoever receives them.
const NOBODY: &str = "02:00:00:00:00:01";

/// The network of one cluster: its namespace and its wire to the hub.
#[derive(Clone, Debug)]
pub(crate) struct ClusterNetwork {
    pub(crate) hub: NetNs,
    pub(crate) namespace: NetNs,
    pub(crate) addresses: ClusterAddresses,
}

/// The network of one pod; [`PodNetwork::remove`] takes the wire away.
#[derive(Clone, Debug)]
pub(crate) struct PodNetwork {
    pub(crate) namespace: NetNs,
    pub(crate) address: Ipv4Addr,
    cluster: NetNs,
    wire: String,
}

/// Gives the hub its address; call once, before the clusters.
pub(crate) async fn make_hub() -> Result<NetNs, NetworkError> {
    let hub = NetNs::current()?;
    hub.ip(&format!("link set lo up\naddr replace {HUB}/32 dev lo\n"))
        .await?;
    forward(&hub)?;
    Ok(hub)
}

/// Makes all addresses of these networks local ones of the hub.
pub(crate) async fn add_local(networks: &[String]) -> Result<(), NetworkError> {
    let routes = networks
        .iter()
        .map(|network| format!("route replace local {network} dev lo\n"));
    let batch: String = routes.collect();
    NetNs::current()?.ip(&batch).await
}

/// Forwards packets, and does not mind that they come and go by different wires.
fn forward(namespace: &NetNs) -> Result<(), NetworkError> {
    namespace
        .run(|| {
            let all = "/proc/sys/net/ipv4/conf/all";
            std::fs::write(format!("{all}/forwarding"), "1")?;
            std::fs::write(format!("{all}/rp_filter"), "0")?;
            std::fs::write("/proc/sys/net/ipv4/conf/default/rp_filter", "0")
        })
        .map_err(NetworkError::Namespace)
}

// === impl ClusterNetwork ===

impl ClusterNetwork {
    pub(crate) async fn make(
        hub: &NetNs,
        addresses: ClusterAddresses,
    ) -> Result<Self, NetworkError> {
        let network = Self {
            hub: hub.clone(),
            namespace: NetNs::create()?,
            addresses,
        };
        forward(&network.namespace)?;
        hub.ip(&hub_batch(addresses, &network.namespace.path()))
            .await?;
        network.namespace.ip(&cluster_batch(addresses)).await?;
        Ok(network)
    }

    /// Packets from this cluster to `other` vanish in the hub.
    pub(crate) async fn cut_to(&self, other: &Self) -> Result<(), NetworkError> {
        self.hub.ip(&self.rule("add", other)).await
    }

    /// Undoes [`ClusterNetwork::cut_to`].
    pub(crate) async fn heal_to(&self, other: &Self) -> Result<(), NetworkError> {
        self.hub.ip(&self.rule("del", other)).await
    }

    fn rule(&self, verb: &str, other: &Self) -> String {
        let (wire, cidr) = (wire_to_cluster(self.addresses), other.addresses.cidr());
        format!("rule {verb} iif {wire} to {cidr} blackhole\n")
    }

    /// A pod's namespace with `address` in it.
    pub(crate) async fn make_pod(&self, address: Ipv4Addr) -> Result<PodNetwork, NetworkError> {
        let [.., high, low] = address.octets();
        let pod = PodNetwork {
            namespace: NetNs::create()?,
            address,
            cluster: self.namespace.clone(),
            wire: format!("p{}", u16::from_be_bytes([high, low])),
        };
        let end = pod.namespace.path();
        self.namespace
            .ip(&pod_wire_batch(&pod.wire, &end, address, self.addresses))
            .await?;
        pod.namespace.ip(&pod_batch(address)).await?;
        Ok(pod)
    }
}

// === impl PodNetwork ===

impl PodNetwork {
    /// From now on nothing reaches the pod, and so no connection of its own comes about either.
    pub(crate) async fn blackhole(&self) -> Result<(), NetworkError> {
        let Self { address, wire, .. } = self;
        let batch = format!("neigh replace {address} lladdr {NOBODY} nud permanent dev {wire}\n");
        self.cluster.ip(&batch).await
    }

    /// Undoes [`PodNetwork::blackhole`].
    pub(crate) async fn heal(&self) -> Result<(), NetworkError> {
        let Self { address, wire, .. } = self;
        self.cluster
            .ip(&format!("neigh del {address} dev {wire}\n"))
            .await
    }

    /// Takes the wire away, and with it the route.
    pub(crate) async fn remove(&self) -> Result<(), NetworkError> {
        self.cluster.ip(&format!("link del {}\n", self.wire)).await
    }
}

fn wire_to_cluster(addresses: ClusterAddresses) -> String {
    format!("c{}", addresses.number())
}

fn hub_batch(addresses: ClusterAddresses, namespace: &str) -> String {
    let (wire, cidr) = (wire_to_cluster(addresses), addresses.cidr());
    format!(
        "link add {wire} type veth peer name hub netns {namespace}\n\
         addr add {HUB_END}/32 dev {wire}\n\
         link set {wire} up\n\
         route add {cidr} via {CLUSTER_END} dev {wire} onlink src {HUB}\n"
    )
}

fn cluster_batch(addresses: ClusterAddresses) -> String {
    let (api_server, node) = (addresses.api_server(), addresses.node());
    let (services, balancers) = (addresses.service_cidr(), addresses.load_balancer_cidr());
    format!(
        "link set lo up\n\
         addr add {api_server}/32 dev lo\n\
         addr add {node}/32 dev lo\n\
         addr add {CLUSTER_END}/32 dev hub\n\
         link set hub up\n\
         route add default via {HUB_END} dev hub onlink src {api_server}\n\
         route add local {services} dev lo\n\
         route add local {balancers} dev lo\n"
    )
}

fn pod_wire_batch(
    wire: &str,
    namespace: &str,
    address: Ipv4Addr,
    addresses: ClusterAddresses,
) -> String {
    let api_server = addresses.api_server();
    format!(
        "link add {wire} type veth peer name eth0 netns {namespace}\n\
         addr add {POD_GATEWAY}/32 dev {wire}\n\
         link set {wire} up\n\
         route add {address}/32 dev {wire} src {api_server}\n"
    )
}

fn pod_batch(address: Ipv4Addr) -> String {
    format!(
        "link set lo up\n\
         addr add {address}/32 dev eth0\n\
         link set eth0 up\n\
         route add default via {POD_GATEWAY} dev eth0 onlink src {address}\n"
    )
}
