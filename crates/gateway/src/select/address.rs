//! Addresses that remote input may name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network prefix, such as `10.2.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cidr {
    address: IpAddr,
    length: u8,
}

/// Where the pods of an exporting cluster are: `east=10.2.0.0/16`, `*=10.0.0.0/8` for any cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterCidr {
    pub(crate) cluster: String,
    pub(crate) cidr: Cidr,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CidrError {
    #[error("{0:?} is no network prefix: expected address/length, for example 10.2.0.0/16")]
    NotACidr(String),
    #[error(
        "{0:?} names no cluster: expected cluster=address/length, for example east=10.2.0.0/16"
    )]
    NoCluster(String),
}

/// No EPP or pod of another cluster is there: this host, its link, groups, metadata services.
const NEVER: [Cidr; 9] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 127), // unspecified and loopback
    v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), // v4-mapped: would dodge the rules for v4
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
];

/// Top-level names that lead to this host, its link or its cloud.
const INSIDE: [&str; 3] = ["localhost", "local", "internal"];

/// What no import may name and no remote EPP may pick: `more`, and what never is a pod.
pub(crate) fn denied(more: &[Cidr]) -> Vec<Cidr> {
    NEVER.iter().chain(more).copied().collect()
}

pub(crate) fn is_allowed(ip: IpAddr, deny: &[Cidr]) -> bool {
    !deny.iter().any(|cidr| cidr.contains(ip))
}

/// An RFC 1123 name of two or more labels, as the exporting side's controller allows: single labels
/// would resolve by Envoy's search path, `localhost`, `local`, `internal` and `svc` lead inside, names
/// that look like addresses are none.
///
/// What remains: Envoy resolves the name, and the address it gets is not checked. Whoever controls
/// such a name can let it lead to an address that is denied when written as one; only the EPP's
/// protocol (gRPC ext_proc) is spoken there. Where that matters, deny Envoys such networks by a
/// network policy.
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

const fn v4(a: [u8; 4], length: u8) -> Cidr {
    Cidr {
        address: IpAddr::V4(Ipv4Addr::new(a[0], a[1], a[2], a[3])),
        length,
    }
}

const fn v6(a: [u16; 8], length: u8) -> Cidr {
    Cidr {
        address: IpAddr::V6(Ipv6Addr::new(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
        )),
        length,
    }
}

// === impl Cidr ===

impl Cidr {
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        let (network, ip, width) = match (self.address, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                (u128::from(network.to_bits()), u128::from(ip.to_bits()), 32)
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => (network.to_bits(), ip.to_bits(), 128),
            _ => return false,
        };
        let host_bits: u32 = width - u32::from(self.length);
        let prefix = |bits: u128| bits.checked_shr(host_bits).unwrap_or(0);
        prefix(network) == prefix(ip)
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// In bits.
    pub(crate) fn length(&self) -> u8 {
        self.length
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || CidrError::NotACidr(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let length: u8 = length.parse().map_err(|_| bad())?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        if length > widest {
            return Err(bad());
        }
        Ok(Self { address, length })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

// === impl ClusterCidr ===

impl FromStr for ClusterCidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (cluster, cidr) = text
            .split_once('=')
            .filter(|(cluster, _)| !cluster.is_empty())
            .ok_or_else(|| CidrError::NoCluster(text.to_owned()))?;
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
    #[case("8.8.8.8", true)]
    #[case("0.0.0.0", false)]
    #[case("127.0.0.53", false)]
    #[case("169.254.169.254", false)]
    #[case("224.0.0.1", false)]
    #[case("255.255.255.255", false)]
    #[case("::1", false)]
    #[case("::", false)]
    #[case("fe80::1", false)]
    #[case("ff02::1", false)]
    #[case("::ffff:10.2.0.9", false)]
    #[case("fd00::9", true)]
    #[case("10.96.0.1", false)] // given by the user
    fn addresses_that_lead_inside_are_denied(#[case] ip: &str, #[case] allowed: bool) {
        let deny = denied(&["10.96.0.0/12".parse().unwrap()]);
        assert_eq!(is_allowed(ip.parse().unwrap(), &deny), allowed);
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

    #[rstest]
    #[case("10.0.0.0")]
    #[case("10.0.0.0/33")]
    #[case("x/8")]
    #[case("fd00::/129")]
    fn bad_prefixes_say_what_is_expected(#[case] text: &str) {
        let error = text.parse::<Cidr>().unwrap_err().to_string();
        assert!(error.contains("for example 10.2.0.0/16"), "{error}");
    }

    #[test]
    fn whole_address_space_contains_everything_of_its_family() {
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("203.0.113.7".parse().unwrap()));
        assert!(!all.contains("fd00::1".parse().unwrap()));
    }
}
