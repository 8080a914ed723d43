//! The networks of a member's pods, as its nodes or its pods show them. Pure.

use std::net::IpAddr;

use crd::networks::{Cidr, MAX_POD_CIDRS, parse_pod_cidrs};
use k8s_openapi::api::core::v1::{Node, Pod};

/// Networks, and what shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) networks: Vec<Cidr>,
    /// Each of the networks is around some of these.
    pub(super) parts: Vec<Cidr>,
    /// What the parts are, for people.
    pub(super) of: &'static str,
}

/// Nodes get their ranges from one of the cluster, which no object names: mostly a /16, and in IPv6 a /56. A network of
/// this length around the ranges holds those of nodes to come.
const AROUND_V4: u8 = 16;
const AROUND_V6: u8 = 56;
/// Parts in a message; of the others there is only the number.
const SHOWN: usize = 4;

/// By the ranges that nodes have for their pods; none where they have none.
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

/// By the addresses of its pods, but for those that have their node's.
pub(super) fn of_pods(pods: &[Pod]) -> Option<Found> {
    let own = pods.iter().filter(|pod| {
        let spec = pod.spec.as_ref();
        spec.is_none_or(|spec| spec.host_network != Some(true))
    });
    let statuses = own.filter_map(|pod| pod.status.as_ref());
    let addresses = statuses.flat_map(|status| {
        let many = status.pod_ips.iter().flatten().map(|one| &one.ip);
        many.chain(&status.pod_ip)
    });
    let addresses = addresses.filter_map(|text| text.parse::<IpAddr>().ok());
    around(addresses.map(Cidr::host), "the addresses of its pods")
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
    let mut networks: Vec<Cidr> = networks.collect();
    networks.sort_unstable();
    networks.dedup();
    let all = networks.clone();
    networks.retain(|one| !all.iter().any(|other| other != one && other.covers(one)));
    (!networks.is_empty()).then_some(Found {
        networks,
        parts,
        of,
    })
}

// === impl Found ===

impl Found {
    /// As the annotation has it.
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

    /// `10.1.0.0/24, 10.1.1.0/24 and 7 more`.
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

    fn mk_pod(ip: &str, host_network: bool) -> Pod {
        let pod = json!({"metadata": {"name": "p"},
            "spec": {"containers": [], "hostNetwork": host_network},
            "status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        serde_json::from_value(pod).expect("a pod")
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
            mk_pod("10.1.3.7", false),
            mk_pod("10.1.9.1", false),
            mk_pod("192.0.2.1", true),
        ];
        let found = of_pods(&pods).expect("found");
        assert_eq!(found.text().expect("networks"), "10.1.0.0/16");
        let many: Vec<Pod> = (0..70)
            .map(|n| mk_pod(&format!("10.{n}.0.1"), false))
            .collect();
        let refused = of_pods(&many).expect("found").text().expect_err("too many");
        assert!(refused.contains("70 networks"), "{refused}");
    }
}
