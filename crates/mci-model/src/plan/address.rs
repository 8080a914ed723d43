//! Which addresses of one member may enter another (spec 5.2).

use std::net::IpAddr;

use crd::networks::is_never;

use crate::{
    name::{is_label, is_subdomain},
    networks::Allowed,
};

/// Why an address was dropped; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rejection {
    /// An IP that has another meaning, or none, in another cluster.
    Unroutable,
    /// Neither an IP nor an RFC-1123 host name of 2 or more labels.
    Malformed,
    /// A host name that only its own cluster or host resolves.
    LocalName,
    /// Outside of the member's allowed networks; a host name counts as outside.
    NotAllowed,
}

/// Whether an address may be published.
/// # Errors
/// Why not.
pub(super) fn check(address: &str, allowed: &Allowed) -> Result<(), Rejection> {
    let within = if let Ok(ip) = address.parse::<IpAddr>() {
        if is_never(ip) {
            return Err(Rejection::Unroutable);
        }
        allowed.admits(ip)
    } else {
        check_hostname(address)?;
        !allowed.is_limited()
    };
    if within {
        Ok(())
    } else {
        Err(Rejection::NotAllowed)
    }
}

/// Removes addresses that may not be published, and repetitions; keeps the order.
pub(super) fn sanitise<'a>(
    addresses: impl IntoIterator<Item = &'a str>,
    allowed: &Allowed,
) -> (Vec<String>, Vec<Rejection>) {
    let mut kept: Vec<String> = Vec::new();
    let mut rejected = Vec::new();
    for address in addresses {
        match check(address, allowed) {
            Ok(()) if kept.iter().any(|known| known == address) => {}
            Ok(()) => kept.push(address.to_owned()),
            Err(rejection) => rejected.push(rejection),
        }
    }
    (kept, rejected)
}

fn check_hostname(name: &str) -> Result<(), Rejection> {
    let labels: Vec<&str> = name.split('.').collect();
    // a last label that begins with a digit may be parsed as an address: `127.1`, `0x7f.1`
    let looks_numeric = labels
        .last()
        .is_some_and(|last| last.starts_with(|first: char| first.is_ascii_digit()));
    match labels.as_slice() {
        ["localhost"] | [.., "localhost" | "local" | "internal" | "svc"] => {
            Err(Rejection::LocalName)
        }
        _ if labels.contains(&"svc") => Err(Rejection::LocalName),
        [] | [_] => Err(Rejection::Malformed),
        _ if !is_subdomain(name)
            || !labels.iter().all(|label| is_label(label))
            || looks_numeric =>
        {
            Err(Rejection::Malformed)
        }
        _ => Ok(()),
    }
}

// === impl Rejection ===

impl Rejection {
    /// Each of them.
    pub const ALL: [Self; 4] = [
        Self::Unroutable,
        Self::Malformed,
        Self::LocalName,
        Self::NotAllowed,
    ];

    /// The value of the metric's label `reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::Malformed => "malformed",
            Self::LocalName => "local_name",
            Self::NotAllowed => "not_allowed",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.1.2.3", None)]
    #[case("192.0.2.1", None)]
    #[case("2001:db8::1", None)]
    #[case("fd12::1", None)]
    #[case("lb.example.com", None)]
    #[case("127.0.0.1", Some(Rejection::Unroutable))]
    #[case("169.254.169.254", Some(Rejection::Unroutable))]
    #[case("::1", Some(Rejection::Unroutable))]
    #[case("::ffff:10.0.0.1", Some(Rejection::Unroutable))]
    #[case("100.100.100.200", Some(Rejection::Unroutable))]
    #[case("a b", Some(Rejection::Malformed))]
    #[case("127.1", Some(Rejection::Malformed))]
    #[case("host", Some(Rejection::Malformed))]
    #[case("", Some(Rejection::Malformed))]
    #[case("LB.example.com", Some(Rejection::Malformed))]
    #[case("localhost", Some(Rejection::LocalName))]
    #[case("x.localhost", Some(Rejection::LocalName))]
    #[case("x.local", Some(Rejection::LocalName))]
    #[case("metadata.google.internal", Some(Rejection::LocalName))]
    #[case("epp.ns.svc", Some(Rejection::LocalName))]
    #[case("epp.ns.svc.cluster.local", Some(Rejection::LocalName))]
    #[case("epp.ns.svc.example.com", Some(Rejection::LocalName))]
    fn addresses_are_checked(#[case] address: &str, #[case] expected: Option<Rejection>) {
        let found = check(address, &Allowed::default()).err();
        assert_eq!(found, expected, "{address}");
    }

    #[test]
    fn repetitions_go_and_order_stays() {
        let (kept, rejected) = sanitise(
            ["10.0.0.2", "10.0.0.1", "10.0.0.2", "127.0.0.1"],
            &Allowed::default(),
        );
        assert_eq!(kept, vec!["10.0.0.2", "10.0.0.1"]);
        assert_eq!(rejected, vec![Rejection::Unroutable]);
    }
    #[test]
    fn networks_narrow_what_is_good_otherwise() {
        let networks = "10.0.0.0/8, 127.0.0.0/8".parse().expect("networks");
        let allowed = Allowed::default().and(std::sync::Arc::new(networks));
        let rejection = |address| check(address, &allowed).err();
        assert_eq!(rejection("10.0.0.1"), None);
        assert_eq!(rejection("192.0.2.1"), Some(Rejection::NotAllowed));
        assert_eq!(rejection("127.0.0.1"), Some(Rejection::Unroutable));
        let unknown = rejection("lb.example.com");
        assert_eq!(unknown, Some(Rejection::NotAllowed));
    }
}
