//! The networks that a member's addresses are limited to.

use std::{net::IpAddr, str::FromStr, sync::Arc};

use ipnet::IpNet;

/// A list of networks, comma-separated in CIDR notation; one address stands for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

/// The limits on the addresses of one member: each address must lie in a network of every list. Without a list, any
/// address passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed(Vec<Arc<Networks>>);

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network: use CIDR notation, such as 10.0.0.0/8 or fd00::/8")]
pub struct NetworkError(String);

// === impl Networks ===

impl Networks {
    /// No address lies in them.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    fn contain(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&ip))
    }
}

impl FromStr for Networks {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let network = |part: &str| {
            let part = part.trim();
            let whole: Result<IpNet, _> = part.parse();
            whole
                .or_else(|_| part.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| NetworkError(part.to_owned()))
        };
        text.split(',')
            .map(network)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

// === impl Allowed ===

impl Allowed {
    /// Adds a limit.
    #[must_use]
    pub fn and(mut self, networks: Arc<Networks>) -> Self {
        self.0.push(networks);
        self
    }

    /// Whether there is a limit: then no host name passes, since its addresses are not known.
    pub fn is_limited(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether the address lies in a network of every list; one mapped into IPv6 counts as the IPv4 address that it is.
    pub fn admits(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().all(|networks| networks.contain(ip))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk(lists: &[&str]) -> Allowed {
        let parsed = lists.iter().map(|list| list.parse().expect("networks"));
        parsed.fold(Allowed::default(), |allowed, networks| {
            allowed.and(Arc::new(networks))
        })
    }

    #[rstest]
    #[case(&[], "192.0.2.1", true)]
    #[case(&["10.0.0.0/8"], "10.9.9.9", true)]
    #[case(&["10.0.0.0/8"], "11.0.0.1", false)]
    #[case(&["10.0.0.0/8, fd00::/8"], "fd12::1", true)]
    #[case(&["10.0.0.0/8"], "fd12::1", false)]
    #[case(&["10.0.0.0/8"], "::ffff:10.0.0.1", true)]
    #[case(&["10.0.0.0/8", "10.1.0.0/16"], "10.2.0.1", false)]
    #[case(&["10.0.0.0/8", "10.1.0.0/16"], "10.1.0.1", true)]
    #[case(&["192.0.2.7"], "192.0.2.7", true)]
    #[case(&["192.0.2.7"], "192.0.2.8", false)]
    fn every_list_narrows(#[case] lists: &[&str], #[case] ip: &str, #[case] admitted: bool) {
        let ip = ip.parse().expect("an address");
        assert_eq!(mk(lists).admits(ip), admitted);
    }

    #[rstest]
    #[case("")]
    #[case("10.0.0.0/33")]
    #[case("10.0.0.0/8,")]
    #[case("everywhere")]
    fn what_is_no_network_is_named(#[case] text: &str) {
        let error = text.parse::<Networks>().expect_err("refused").to_string();
        assert!(error.contains("is no network"), "{error}");
    }

    #[test]
    fn an_empty_list_admits_nothing() {
        let allowed = Allowed::default().and(Arc::new(Networks::none()));
        assert!(allowed.is_limited());
        assert!(!allowed.admits("10.0.0.1".parse().expect("an address")));
    }
}
