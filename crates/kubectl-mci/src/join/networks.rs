//! The networks of a member's pods, as its nodes or its pods show them. Pure.

use std::net::IpAddr;

use crd::networks::{Cidr, MAX_POD_CIDRS, parse_pod_cidrs};
use k8s_openapi::api::core::v1::{Node, Pod};

/// Networks, and the objects that they were found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) networks: Vec<Cidr>,
    /// The ranges or addresses that were found; each of the networks contains some of them.
    pub(super) parts: Vec<Cidr>,
    /// The kind of the parts, for messages.
    pub(super) of: &'static str,
}

/// What a cluster shows of the networks of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// The networks from the nodes' ranges for pods; none where nodes have none.
    pub(super) nodes: Option<Found>,
    /// The networks from the addresses of pods; none where there is no pod, or the addresses are not known.
    pub(super) pods: Option<Found>,
    /// What could not be read, for messages; empty if all could be read.
    pub(super) unchecked: String,
}

/// Nodes get their ranges from one of the cluster, which no object names: mostly a /16, and in IPv6 a /56. A network of
/// this length around the ranges holds those of nodes to come.
const AROUND_V4: u8 = 16;
const AROUND_V6: u8 = 56;
/// Number of parts that a message lists; the others are only counted.
const SHOWN: usize = 4;

/// The networks from the nodes' ranges for pods; none where nodes have none.
pub(super) fn of_nodes(nodes: &[Node]) -> Option<Found> {
    let specs = nodes.iter().filter_map(|node| node.spec.as_ref());
    let ranges = specs.flat_map(|spec| {
        let many = spec.pod_cidrs.iter().flatten();
        many.chain(&spec.pod_cidr)
    });
    around(
        ranges.filter_map(|text| text.parse().ok()),
        "the podCIDRs of its nodes",
    )
}

/// The addresses of a pod; none for a pod that uses its node's address or has ended.
pub(super) fn addresses_of(pod: &Pod) -> Vec<Cidr> {
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if host_network == Some(true) || matches!(phase, Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let addresses = status.into_iter().flat_map(|status| {
        let many = status.pod_ips.iter().flatten().map(|one| &one.ip);
        many.chain(&status.pod_ip)
    });
    addresses
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .map(Cidr::host)
        .collect()
}

/// The networks from the addresses of pods.
pub(super) fn of_pods(addresses: Vec<Cidr>) -> Option<Found> {
    around(addresses.into_iter(), "the addresses of its pods")
}

fn around(parts: impl Iterator<Item = Cidr>, of: &'static str) -> Option<Found> {
    let mut parts: Vec<Cidr> = parts.map(Cidr::masked).collect();
    parts.sort_unstable();
    parts.dedup();
    let networks = parts.iter().map(|part| {
        let length = if part.address().is_ipv4() {
            AROUND_V4
        } else {
            AROUND_V6
        };
        part.at_length(length).masked()
    });
    let networks = join_halves(networks.collect());
    (!networks.is_empty()).then_some(Found {
        networks,
        parts,
        of,
    })
}

/// The same addresses in the fewest networks.
fn join_halves(mut networks: Vec<Cidr>) -> Vec<Cidr> {
    networks.sort_unstable();
    let mut joined: Vec<Cidr> = Vec::new();
    for mut network in networks {
        if joined.last().is_some_and(|last| last.covers(&network)) {
            continue;
        }
        while let Some(both) = joined.last().and_then(|last| whole_of(*last, network)) {
            joined.pop();
            network = both;
        }
        joined.push(network);
    }
    joined
}

/// The network of which these are the two halves.
fn whole_of(one: Cidr, other: Cidr) -> Option<Cidr> {
    let length = one.length().checked_sub(1)?;
    let both = one.at_length(length).masked();
    (one.length() == other.length() && one != other && both == other.at_length(length).masked())
        .then_some(both)
}

// === impl Shown ===

impl Shown {
    /// The networks to use. Those of nodes come first, as they include pods that do not exist yet.
    pub(super) fn best(&self) -> Option<&Found> {
        self.nodes.as_ref().or(self.pods.as_ref())
    }

    /// Why the nodes' ranges cannot be the networks of its pods: some network plugins have ranges of their own and leave these
    /// unused.
    pub(super) fn contradiction(&self) -> Option<String> {
        let (nodes, pods) = (self.nodes.as_ref()?, self.pods.as_ref()?);
        let outside = pods.outside(&nodes.networks);
        if outside.is_empty() {
            return None;
        }
        let addresses = Found {
            networks: Vec::new(),
            parts: outside,
            of: pods.of,
        };
        let networks: Vec<String> = pods.networks.iter().map(ToString::to_string).collect();
        Some(format!(
            "{} of {} addresses of its pods ({}) are outside of the podCIDRs of its nodes ({}), so its network plugin has ranges of its own. Say the whole range of its pods with --pod-cidr; those seen are in {}",
            addresses.parts.len(),
            pods.parts.len(),
            addresses.shown(),
            nodes.shown(),
            networks.join(",")
        ))
    }

    /// A range or address that is in none of these networks, and its kind: the address of a pod, or the range of a node
    /// where pods get their addresses from their nodes.
    pub(super) fn outside(&self, networks: &[Cidr]) -> Option<(Cidr, &'static str)> {
        let nodes = self
            .nodes
            .as_ref()
            .filter(|_| self.contradiction().is_none());
        let all = self.pods.iter().chain(nodes);
        all.into_iter().find_map(|found| {
            let outside = found.outside(networks);
            Some((*outside.first()?, found.of))
        })
    }
}

// === impl Found ===

impl Found {
    /// The networks as the annotation's value.
    /// # Errors
    /// When they cannot be the networks of a cluster's pods.
    pub(super) fn text(&self) -> Result<String, String> {
        let texts: Vec<String> = self.networks.iter().map(ToString::to_string).collect();
        if texts.len() > MAX_POD_CIDRS {
            return Err(format!(
                "{} are in {} networks, and at most {MAX_POD_CIDRS} can be said",
                self.of,
                texts.len()
            ));
        }
        let text = texts.join(",");
        parse_pod_cidrs(&text).map_err(|error| format!("by {}: {error}", self.of))?;
        Ok(text)
    }

    /// The parts for a message, such as `10.1.0.0/24, 10.1.1.0/24 and 7 more`.
    pub(super) fn shown(&self) -> String {
        let mut text: Vec<String> = self
            .parts
            .iter()
            .take(SHOWN)
            .map(ToString::to_string)
            .collect();
        let more = self.parts.len().saturating_sub(SHOWN);
        if more > 0 {
            text.push(format!("and {more} more"));
        }
        text.join(", ")
    }

    /// Parts that are in none of these networks.
    pub(super) fn outside(&self, networks: &[Cidr]) -> Vec<Cidr> {
        let is_outside = |part: &&Cidr| !networks.iter().any(|network| network.covers(part));
        self.parts.iter().filter(is_outside).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_node(cidrs: &[&str]) -> Node {
        let node = json!({"metadata": {"name": "n"}, "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}});
        serde_json::from_value(node).expect("a node")
    }

    fn mk_pod(ip: &str, host_network: bool, phase: &str) -> Pod {
        let pod = json!({"metadata": {"name": "p"},
            "spec": {"containers": [], "hostNetwork": host_network},
            "status": {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]}});
        serde_json::from_value(pod).expect("a pod")
    }

    fn mk_addresses(ips: &[&str]) -> Option<Found> {
        let pods = ips.iter().map(|ip| mk_pod(ip, false, "Running"));
        of_pods(pods.flat_map(|pod| addresses_of(&pod)).collect())
    }

    #[test]
    fn ranges_of_nodes_are_in_the_network_around_them() {
        let nodes = [
            mk_node(&["10.244.1.0/24", "fd00:10:244:1::/64"]),
            mk_node(&["10.244.0.0/24", "fd00:10:244::/64"]),
            mk_node(&[]),
        ];
        let found = of_nodes(&nodes).expect("found");
        assert_eq!(
            found.text().expect("networks"),
            "10.244.0.0/16,fd00:10:244::/56"
        );
        assert_eq!(
            found.shown(),
            "10.244.0.0/24, 10.244.1.0/24, fd00:10:244::/64, fd00:10:244:1::/64"
        );
        let narrow = ["10.244.0.0/24".parse().expect("a network")];
        let outside = found.outside(&narrow);
        assert_eq!(outside.len(), 3);
        assert_eq!(of_nodes(&nodes[2..]), None);
    }

    #[test]
    fn a_range_that_is_wider_stays() {
        let found = of_nodes(&[mk_node(&["10.0.0.0/12"]), mk_node(&["10.1.0.0/24"])]);
        assert_eq!(
            found.expect("found").text().expect("networks"),
            "10.0.0.0/12"
        );
    }

    #[test]
    fn pods_show_networks_but_not_those_of_their_nodes() {
        let pods = [
            mk_pod("10.1.3.7", false, "Running"),
            mk_pod("10.1.9.1", false, "Pending"),
            mk_pod("192.0.2.1", true, "Running"),
            mk_pod("10.7.0.1", false, "Succeeded"),
        ];
        let found = of_pods(pods.iter().flat_map(addresses_of).collect()).expect("found");
        assert_eq!(found.text().expect("networks"), "10.1.0.0/16");
        let many: Vec<String> = (0..70).map(|n| format!("10.{}.0.1", 2 * n)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let refused = mk_addresses(&many)
            .expect("found")
            .text()
            .expect_err("too many");
        assert!(refused.contains("70 networks"), "{refused}");
    }

    #[test]
    fn networks_that_are_halves_are_said_as_one() {
        let nodes: Vec<Node> = (0..128)
            .map(|n| mk_node(&[&format!("10.{n}.0.0/24")]))
            .collect();
        let found = of_nodes(&nodes).expect("found");
        assert_eq!(found.text().expect("networks"), "10.0.0.0/9");
        let nodes = [1, 2, 3].map(|n| mk_node(&[&format!("10.{n}.0.0/24")]));
        let found = of_nodes(&nodes).expect("found");
        assert_eq!(found.text().expect("networks"), "10.1.0.0/16,10.2.0.0/15");
    }

    #[test]
    fn ranges_of_nodes_that_pods_do_not_use_are_not_believed() {
        let nodes = || of_nodes(&[mk_node(&["10.244.1.0/24"])]);
        let shown = |ips: &[&str]| Shown {
            nodes: nodes(),
            pods: mk_addresses(ips),
            unchecked: String::new(),
        };
        assert_eq!(shown(&[]).contradiction(), None);
        assert_eq!(shown(&["10.244.1.9", "10.244.7.9"]).contradiction(), None);
        let other = shown(&["10.0.3.4", "10.0.4.5", "10.244.1.9"]);
        let said = other.contradiction().expect("another range");
        for part in [
            "2 of 3",
            "10.0.3.4/32",
            "10.244.1.0/24",
            "--pod-cidr",
            "10.0.0.0/16",
        ] {
            assert!(said.contains(part), "{said}");
        }
        // then a Secret that has the range of the pods has all
        let all = ["10.0.0.0/16", "10.244.1.9/32"].map(|text| text.parse().expect("a network"));
        assert_eq!(other.outside(&all), None);
        assert!(shown(&[]).outside(&all[..1]).is_some(), "a node's range");
    }
}
