//! Addresses that remote input may name.

use std::net::IpAddr;
use std::str::FromStr;

use crd::networks::{Cidr, CidrError, never};

/// Where the pods of an exporting cluster are: `east=10.2.0.0/16`, `*=10.0.0.0/8` for any cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterCidr {
    pub(crate) cluster: String,
    pub(crate) cidr: Cidr,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClusterCidrError {
    #[error(transparent)]
    NotACidr(#[from] CidrError),
    #[error(
        "{0:?} names no cluster: expected cluster=address/length, for example east=10.2.0.0/16"
    )]
    NoCluster(String),
}

/// Top-level names that lead to this host, its link or its cloud.
const INSIDE: [&str; 3] = ["localhost", "local", "internal"];

/// What no import may name and no remote EPP may pick: `more`, and what never is a pod.
pub(crate) fn denied(more: &[Cidr]) -> Vec<Cidr> {
    never().chain(more.iter().copied()).collect()
}

/// Whether the address is in none of the networks.
pub(crate) fn is_allowed(ip: IpAddr, deny: &[Cidr], own: &[Cidr]) -> bool {
    !deny.iter().chain(own).any(|cidr| cidr.contains(ip))
}

/// An RFC 1123 name of two or more labels, as the exporting side's controller allows: single labels
/// are names of this cluster, `localhost`, `local`, `internal` and `svc` lead inside, names that look
/// like addresses are none.
///
/// Whoever controls such a name can let it lead to an address that is denied when written as one. So
/// Envoy resolves it as an absolute name and sends no request for a Gateway to an address that is
/// denied. What remains is that it connects there, for health checks and before it refuses a request,
/// and that it speaks the EPP's protocol (gRPC `ext_proc`) where the name is an EPP's: that address is
/// not checked. Where that matters, deny Envoys such networks by a network policy.
pub(crate) fn is_hostname(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or("");
    text.len() <= 253
        && text.contains('.')
        && text.split('.').all(is_label)
        && last.bytes().any(|b| b.is_ascii_alphabetic())
        && !INSIDE.iter().any(|name| last.eq_ignore_ascii_case(name))
        && !text
            .split('.')
            .skip(1)
            .any(|label| label.eq_ignore_ascii_case("svc"))
}

/// One part of a name.
pub(crate) fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

// === impl ClusterCidr ===

impl FromStr for ClusterCidr {
    type Err = ClusterCidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (cluster, cidr) = text
            .split_once('=')
            .filter(|(cluster, _)| !cluster.is_empty())
            .ok_or_else(|| ClusterCidrError::NoCluster(text.to_owned()))?;
        Ok(Self {
            cluster: cluster.to_owned(),
            cidr: cidr.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.2.0.9", true)]
    #[case("169.254.169.254", false)]
    #[case("100.100.100.200", false)]
    #[case("10.96.0.1", false)] // given by the user
    #[case("10.1.255.2", false)] // of this cluster
    fn what_is_never_an_endpoint_and_what_the_user_denies_is_denied(
        #[case] ip: &str,
        #[case] allowed: bool,
    ) {
        let deny = denied(&["10.96.0.0/12".parse().unwrap()]);
        let own = ["10.1.255.2/32".parse().unwrap()];
        assert_eq!(is_allowed(ip.parse().unwrap(), &deny, &own), allowed);
    }

    #[rstest]
    #[case("epp.east.example", true)]
    #[case("epp.east.example.", true)]
    #[case("localhost", false)]
    #[case("a.localhost", false)]
    #[case("a.LOCAL", false)]
    #[case("metadata.google.internal.", false)]
    #[case("kubernetes.default.svc", false)]
    #[case("kubernetes.default.svc.cluster.example", false)]
    #[case("svc.example", true)]
    #[case("127.1", false)]
    #[case("10.0.0.300", false)]
    #[case("0x7f.1", false)]
    #[case("a..b", false)]
    #[case("-a.b", false)]
    #[case("a.b/../c", false)]
    fn only_full_names_are_hostnames(#[case] name: &str, #[case] valid: bool) {
        assert_eq!(is_hostname(name), valid);
    }
}
