//! Network prefixes, and the addresses that one cluster never names to another: one list for whoever passes addresses on
//! and whoever uses them.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A network prefix, such as `10.2.0.0/16`. Bits behind its length are kept and mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

/// A text that is no network prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CidrError(String);

/// Why a list of networks cannot be that of a cluster's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodCidrsError {
    /// One of them is no prefix.
    NotACidr(CidrError),
    /// There is none.
    Empty,
    /// There are more than [`MAX_POD_CIDRS`].
    TooMany(usize),
    /// It is every address of its family.
    Everything(Cidr),
    /// It is wider than any cluster's: the shortest length is the second one.
    TooWide(Cidr, u8),
    /// It holds, or is within, a network in which no pod is: the second one.
    NeverPods(Cidr, Cidr),
}

/// Largest number of networks of the pods of one cluster.
pub const MAX_POD_CIDRS: usize = 64;

/// Shortest lengths of a network of pods. Nothing that an organisation has is wider: 10.0.0.0/8 and `fc00::/7` are the widest
/// private networks, and registries give away at most a /16 of IPv6.
const WIDEST_V4: u8 = 8;
const WIDEST_V6: u8 = 16;
/// Unique local addresses, which may be named as a whole.
const LOCAL_V6: Cidr = v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7);

/// This host, its links, and groups: a network that holds one of them is a mistake.
const LOCAL: [Cidr; 9] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16), // the metadata services of most clouds
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 96), // unspecified, loopback, and IPv4-compatible
    v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), // IPv4-mapped: would evade the rules for IPv4
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
];

/// Services of a cloud that its machines alone reach: metadata with credentials, and the like.
const CLOUDS: [Cidr; 11] = [
    v4([100, 100, 100, 200], 32),                          // Alibaba Cloud
    v4([100, 96, 0, 96], 32),                              // Volcengine
    v4([100, 80, 80, 80], 32),                             // UCloud
    v4([168, 63, 129, 16], 32),                            // Azure
    v4([192, 0, 0, 0], 24), // protocol assignments; 192.0.0.192 is Oracle Cloud's, in part
    v6([0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0], 32), // AWS: metadata, pod identity, DNS, time
    v6([0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0], 32), // Google Cloud
    v6([0xfd00, 0x00c1, 0, 0, 0, 0, 0, 0], 32), // Oracle Cloud
    v6([0xfd00, 0x0042, 0, 0, 0, 0, 0, 0], 32), // Scaleway
    v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0], 48), // Akamai
    v6([0xfd00, 0x0100, 0, 0, 0, 0, 0x0100, 0x0200], 128), // Alibaba Cloud
];

/// IPv6 addresses that stand for IPv4 addresses, which would evade the rules for those.
const TRANSLATED: [Cidr; 5] = [
    v6([0x0064, 0xff9b, 0, 0, 0, 0, 0, 0], 96), // NAT64
    v6([0x0064, 0xff9b, 1, 0, 0, 0, 0, 0], 48), // NAT64 of a network of its own
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32),      // Teredo
    v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),      // 6to4
    v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96),      // IPv4-translated
];

/// Networks in which no endpoint of another cluster is, whatever anybody says.
pub fn never() -> impl Iterator<Item = Cidr> {
    LOCAL.into_iter().chain(CLOUDS).chain(TRANSLATED)
}

/// Whether the address is in one of the networks of [`never()`].
pub fn is_never(ip: IpAddr) -> bool {
    never().any(|network| network.contains(ip))
}

/// Reads the networks of a cluster's pods, comma-separated.
///
/// # Errors
/// When one is no prefix, when there is none or more than [`MAX_POD_CIDRS`], and when one of them cannot be meant: one that
/// is wider than /8 (of IPv6 /16, and /7 in `fc00::/7`), that holds addresses of a host's own (loopback, link-local,
/// multicast), or in which no pod can be.
pub fn parse_pod_cidrs(text: &str) -> Result<Vec<Cidr>, PodCidrsError> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let count = parts.clone().take(MAX_POD_CIDRS + 1).count();
    if count > MAX_POD_CIDRS {
        return Err(PodCidrsError::TooMany(parts.count()));
    }
    let mut networks = Vec::with_capacity(count);
    for part in parts {
        let network = part
            .parse::<Cidr>()
            .map_err(PodCidrsError::NotACidr)?
            .masked();
        if network.length == 0 {
            return Err(PodCidrsError::Everything(network));
        }
        let impossible = LOCAL
            .into_iter()
            .find(|local| local.overlaps(&network))
            .or_else(|| never().find(|denied| denied.covers(&network)));
        if let Some(impossible) = impossible {
            return Err(PodCidrsError::NeverPods(network, impossible));
        }
        let widest = match network.address {
            IpAddr::V4(_) => WIDEST_V4,
            IpAddr::V6(_) if LOCAL_V6.covers(&network) => LOCAL_V6.length,
            IpAddr::V6(_) => WIDEST_V6,
        };
        if network.length < widest {
            return Err(PodCidrsError::TooWide(network, widest));
        }
        networks.push(network);
    }
    if networks.is_empty() {
        return Err(PodCidrsError::Empty);
    }
    networks.sort_unstable();
    networks.dedup();
    Ok(networks)
}

/// The fewest networks with exactly the addresses of these, sorted.
pub fn merged(networks: impl IntoIterator<Item = Cidr>) -> Vec<Cidr> {
    let mut networks: Vec<Cidr> = networks.into_iter().map(Cidr::masked).collect();
    // A network comes before those that it covers.
    networks.sort_unstable();
    let mut merged: Vec<Cidr> = Vec::new();
    for mut network in networks {
        if merged.last().is_some_and(|last| last.covers(&network)) {
            continue;
        }
        // Two halves are one, which may be a half again.
        while let Some(last) = merged.last()
            && let Some(whole) = last.whole_with(&network)
        {
            merged.pop();
            network = whole;
        }
        merged.push(network);
    }
    merged
}

/// At most `most` networks of each family, sorted, that cover these: as [`merged`] where that is few enough, and else those of a
/// length, the longest that is enough, around all that are smaller.
pub fn covering(networks: impl IntoIterator<Item = Cidr>, most: usize) -> Vec<Cidr> {
    let (v4, v6): (Vec<Cidr>, Vec<Cidr>) = networks
        .into_iter()
        .partition(|network| network.address.is_ipv4());
    let few = |networks: Vec<Cidr>| {
        let mut networks = merged(networks);
        let longest = networks.iter().map(Cidr::length).max().unwrap_or(0);
        for length in (0..longest).rev() {
            if networks.len() <= most {
                break;
            }
            networks = merged(networks.into_iter().map(|one| one.at_length(length)));
        }
        networks
    };
    let mut all = few(v4);
    all.extend(few(v6));
    all
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
    /// The network of this length that holds the address; none where the length is more than the family has bits.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let widest = if address.is_ipv4() { 32 } else { 128 };
        (length <= widest).then_some(Self { address, length })
    }

    /// The network of one address.
    pub fn host(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }

    /// Whether the address is in it; one of the other family is not.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.covers(&Self::host(ip))
    }

    /// Whether all of the other is in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.prefix() == other.at_length(self.length).prefix()
    }

    /// Whether the two have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The same without the bits behind its length.
    #[must_use]
    pub fn masked(self) -> Self {
        let (v4, bits, host_bits) = self.prefix();
        let bits = bits.checked_shl(host_bits).unwrap_or(0);
        let address = if v4 {
            IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(0)))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        };
        Self { address, ..self }
    }

    /// The address as it was given.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// In bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// The network of this length around it; itself where it is not longer.
    #[must_use]
    pub fn at_length(self, length: u8) -> Self {
        let length = self.length.min(length);
        Self { length, ..self }
    }

    /// The network of which the two are the halves.
    fn whole_with(&self, other: &Self) -> Option<Self> {
        let whole = self.at_length(self.length.checked_sub(1)?).masked();
        let halves = self.length == other.length && !self.covers(other) && whole.covers(other);
        halves.then_some(whole)
    }

    /// Whether it is of IPv4, the bits within its length, and the number of those behind.
    fn prefix(&self) -> (bool, u128, u32) {
        let (v4, bits, width) = match self.address {
            IpAddr::V4(ip) => (true, u128::from(ip.to_bits()), 32),
            IpAddr::V6(ip) => (false, ip.to_bits(), 128),
        };
        let host_bits: u32 = width - u32::from(self.length);
        (v4, bits.checked_shr(host_bits).unwrap_or(0), host_bits)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || CidrError(text.chars().take(64).collect());
        let (address, length) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let length: u8 = length.parse().map_err(|_| bad())?;
        Self::new(address, length).ok_or_else(bad)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

// === impl CidrError ===

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no network prefix: expected address/length, for example 10.2.0.0/16",
            self.0
        )
    }
}

impl Error for CidrError {}

// === impl PodCidrsError ===

impl fmt::Display for PodCidrsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected =
            "expected the networks of the cluster's pods, for example 10.2.0.0/16,fd00:2::/56";
        match self {
            Self::NotACidr(error) => error.fmt(f),
            Self::Empty => write!(f, "it names no network: {expected}"),
            Self::TooMany(count) => write!(
                f,
                "{count} networks are too many: use at most {MAX_POD_CIDRS}, each of which may hold several"
            ),
            Self::Everything(network) => {
                write!(f, "{network} is every address there is: {expected}")
            }
            Self::TooWide(network, widest) => write!(
                f,
                "{network} is wider than the network of one cluster's pods, which is /{widest} at most: {expected}"
            ),
            Self::NeverPods(network, never) => write!(
                f,
                "{network} has addresses that are never a pod's (those of {never}): {expected}"
            ),
        }
    }
}

impl Error for PodCidrsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_clouds_and_translations_are_never_an_endpoint() {
        let never = [
            "0.0.0.0",
            "127.0.0.53",
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "100.96.0.96",
            "100.80.80.80",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:10.2.0.9",
            "fe80::a9fe:a9fe",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "fd00:a9fe:a9fe::1",
            "fd00:100::100:200",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "::ffff:0:a9fe:a9fe",
        ];
        // some clouds give 240.0.0.0/4 to pods
        let possible = [
            "10.2.0.9",
            "100.64.0.9",
            "8.8.8.8",
            "240.0.0.9",
            "fd00::9",
            "fd00:ec1::254",
            "2001:db8::1",
        ];
        for (addresses, expected) in [(&never[..], true), (&possible[..], false)] {
            for ip in addresses {
                assert_eq!(is_never(ip.parse().expect("an address")), expected, "{ip}");
            }
        }
    }

    #[test]
    fn bad_prefixes_say_what_is_expected() {
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129"] {
            let error = text.parse::<Cidr>().expect_err("refused").to_string();
            assert!(error.contains("for example 10.2.0.0/16"), "{error}");
        }
    }

    #[test]
    fn networks_are_compared() {
        let cases = [
            ("10.2.0.0/16", "10.2.3.0/24", true, true),
            ("10.2.3.0/24", "10.2.0.0/16", false, true),
            ("10.2.0.0/16", "10.3.0.0/16", false, false),
            ("0.0.0.0/0", "203.0.113.7/32", true, true),
            ("0.0.0.0/0", "fd00::/8", false, false),
            ("::/0", "fd00::/8", true, true),
        ];
        for (one, other, covers, overlaps) in cases {
            let [one, other] = [one, other].map(|text| text.parse::<Cidr>().expect("a prefix"));
            assert_eq!(one.covers(&other), covers, "{one} {other}");
            assert_eq!(one.overlaps(&other), overlaps, "{one} {other}");
        }
    }

    fn read(texts: &[&str]) -> Vec<Cidr> {
        let read = texts.iter().map(|text| text.parse().expect("a prefix"));
        read.collect()
    }

    #[test]
    fn networks_are_merged_where_the_addresses_stay_the_same() {
        let cases: [(&[&str], &[&str]); 8] = [
            (&[], &[]),
            (&["10.0.0.1/32", "10.0.0.0/32"], &["10.0.0.0/31"]),
            // neighbours, and no halves of one
            (
                &["10.0.0.1/32", "10.0.0.2/32"],
                &["10.0.0.1/32", "10.0.0.2/32"],
            ),
            (
                &["10.0.0.7/24", "10.0.0.9/32", "10.0.0.0/24"],
                &["10.0.0.0/24"],
            ),
            (
                &["10.0.3.0/24", "10.0.2.0/25", "10.0.0.0/23", "10.0.2.128/25"],
                &["10.0.0.0/22"],
            ),
            (
                &["0.0.0.0/1", "128.0.0.0/1", "::/0"],
                &["0.0.0.0/0", "::/0"],
            ),
            (&["fd00::/64", "fd00:0:0:1::/64"], &["fd00::/63"]),
            // as bits they are alike
            (&["0.0.0.0/32", "::/32"], &["0.0.0.0/32", "::/32"]),
        ];
        for (networks, expected) in cases {
            assert_eq!(merged(read(networks)), read(expected), "{networks:?}");
        }
    }

    #[test]
    fn networks_are_covered_by_few() {
        let nodes = [
            "10.0.0.1/32",
            "10.0.0.6/32",
            "10.0.9.9/32",
            "10.8.0.0/16",
            "fd00::1/128",
        ];
        let cases: [(usize, &[&str]); 4] = [
            (
                4,
                &[
                    "10.0.0.1/32",
                    "10.0.0.6/32",
                    "10.0.9.9/32",
                    "10.8.0.0/16",
                    "fd00::1/128",
                ],
            ),
            (
                3,
                &["10.0.0.0/29", "10.0.9.8/30", "10.8.0.0/16", "fd00::1/128"],
            ),
            (2, &["10.0.0.0/20", "10.8.0.0/16", "fd00::1/128"]),
            (1, &["10.0.0.0/12", "fd00::1/128"]),
        ];
        for (most, expected) in cases {
            assert_eq!(covering(read(&nodes), most), read(expected), "{most}");
        }
    }

    #[test]
    fn networks_of_pods_are_read_in_order_and_once() {
        let read = parse_pod_cidrs(" fd00:2::/56, 10.2.3.4/16,10.2.0.0/16,").expect("networks");
        let texts: Vec<String> = read.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.2.0.0/16", "fd00:2::/56"]);
    }

    #[test]
    fn the_widest_private_networks_may_be_of_pods() {
        for text in ["10.0.0.0/8", "fc00::/7", "fd00::/8", "2600::/16"] {
            let read = parse_pod_cidrs(text).expect("a network");
            assert_eq!(read[0].to_string(), text);
        }
    }

    #[test]
    fn networks_that_cannot_be_of_pods_are_refused() {
        let too_many = "10.0.0.0/8,".repeat(65);
        let cases = [
            ("", "no network"),
            (" , ", "no network"),
            ("10.0.0.0", "address/length"),
            ("10.0.0.0/8,0.0.0.0/0", "every address"),
            ("::/0", "every address"),
            ("126.0.0.0/7", "127.0.0.0/8"),
            ("169.254.0.0/16", "169.254.0.0/16"),
            ("fe00::/8", "fe80::/10"),
            ("fd00:ec2::/64", "fd00:ec2::/32"),
            ("2002:a00::/24", "2002::/16"),
            ("100.96.0.96/32", "100.96.0.96/32"),
            ("8.0.0.0/5", "/8 at most"),
            ("192.0.0.0/3", "/8 at most"),
            ("10.0.0.0/7", "/8 at most"),
            ("2000::/3", "/16 at most"),
            ("2600::/15", "/16 at most"),
            (&too_many, "65 networks"),
        ];
        for (text, said) in cases {
            let error = parse_pod_cidrs(text).expect_err("refused").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
