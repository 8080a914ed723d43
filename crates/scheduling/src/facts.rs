//! What the pick must know of a request.

use std::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

/// Longest list of endpoints in one answer: enough for every retry a gateway makes.
pub const MAX_LIST: u8 = 8;

/// What the pick must know of a request. Prompt hashes, adapter and session join it with the scorers
/// that read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The endpoints the proxy allows; absent: all of the pool.
    pub subset: Option<Subset>,
    /// How many endpoints the proxy can try in order, 1 to [`MAX_LIST`].
    pub list: u8,
}

/// An allow-list of endpoints. An empty one allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset(SmallVec<[Allowed; 4]>);

/// One entry of a [`Subset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Every port of this address.
    Ip(IpAddr),
    /// This address and port.
    Address(SocketAddr),
}

// === impl Facts ===

impl Default for Facts {
    /// Any endpoint, a list of one.
    fn default() -> Self {
        Self {
            subset: None,
            list: 1,
        }
    }
}

// === impl Subset ===

impl Subset {
    /// Whether `address` may be picked.
    pub fn allows(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|entry| match entry {
            Allowed::Ip(ip) => *ip == address.ip(),
            Allowed::Address(allowed) => *allowed == address,
        })
    }

    /// Adds the entries of a comma-separated list; what is no address is skipped.
    pub fn extend_from_list(&mut self, list: &str) {
        self.0.extend(list.split(',').filter_map(Allowed::parse));
    }

    /// Whether it allows nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Allowed ===

impl Allowed {
    /// Parses `ip`, `ip:port`, `[v6]` or `[v6]:port`, with blanks around it; else `None`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Self::Address(address));
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        bare.parse::<IpAddr>().ok().map(Self::Ip)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.0.0.1", "10.0.0.1:8000", true)]
    #[case("10.0.0.1", "10.0.0.1:8001", true)]
    #[case("10.0.0.1:8000", "10.0.0.1:8001", false)]
    #[case(" 10.0.0.2:8000 , 10.0.0.1:8000", "10.0.0.1:8000", true)]
    #[case("[fd00::1]:8000", "[fd00::1]:8000", true)]
    #[case("fd00::1", "[fd00::1]:9", true)]
    #[case("[fd00::1]", "[fd00::1]:9", true)]
    #[case("", "10.0.0.1:8000", false)]
    #[case("pod-a:8000,,x", "10.0.0.1:8000", false)]
    fn entries_allow_what_they_say(
        #[case] list: &str,
        #[case] address: SocketAddr,
        #[case] allowed: bool,
    ) {
        let mut subset = Subset::default();
        subset.extend_from_list(list);
        assert_eq!(subset.allows(address), allowed);
    }

    #[test]
    fn entries_that_are_no_addresses_leave_the_subset_empty() {
        let mut subset = Subset::default();
        subset.extend_from_list("pod-a:8000, 10.0.0.1:99999");
        assert!(subset.is_empty());
    }
}
