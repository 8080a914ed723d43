//! `ParentMode`: which Gateways of an exporting cluster requests go to, and under which host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crd::Hostname;
use crd::networks::{Cidr, covering};

use crate::model::{ParentAddresses, ParentMode, Policed, Settings};
use crate::text::is_label;
use crate::world::{ImportedCluster, RemoteListener, RemoteParent};

use super::{Addresses, Ineligible, MAX_DENIED, addresses};

/// As the CRD has them: at most so many parents, listeners and host names of each.
const MAX_PARENTS: usize = 16;
const MAX_LISTENERS: usize = 16;
const MAX_HOSTNAMES: usize = 16;

/// Host names that a hop knows.
const MAX_HOSTS: usize = 64;

/// One Gateway that can be reached.
struct Way {
    addresses: Addresses,
    port: u16,
    https: bool,
    /// Empty: any.
    hosts: Vec<Hostname>,
    /// It takes all others as well, though only for these its certificate is known to be.
    takes_any: bool,
    unprogrammed: bool,
}

/// All Gateways that are programmed are used, and all there are while none is: that they are not ready is another matter. Where
/// some have HTTPS, only those. With a policy TLS is spoken to them in any case.
pub(super) fn mode(
    entry: &ImportedCluster,
    settings: &Settings,
    own: &[Cidr],
    policy: Option<Policed>,
) -> Result<ParentMode, Ineligible> {
    let mut ways = Vec::new();
    let mut denied = None;
    for parent in entry.parents.iter().take(MAX_PARENTS) {
        match way(parent, settings, own) {
            Ok(way) => ways.push(way),
            Err(Ineligible::AddressNotAssigned) => {}
            Err(why) => denied = denied.or(Some(why)),
        }
    }
    if ways.iter().any(|way| !way.unprogrammed) {
        ways.retain(|way| !way.unprogrammed);
    }
    if ways.iter().any(|way| way.https) {
        ways.retain(|way| way.https);
    }
    // What one of them takes for another model, or for none, is sent to none of them.
    let named = ways
        .iter()
        .find(|way| way.https && way.hosts.iter().any(is_exact))
        .or_else(|| ways.iter().find(|way| !way.hosts.is_empty()));
    let hosts = named.map(|way| way.hosts.clone()).unwrap_or_default();
    ways.retain(|way| takes_all(way, &hosts));
    let tls = ways.first().map(|way| way.https);
    let tls = tls.ok_or_else(|| denied.unwrap_or(Ineligible::AddressNotAssigned))?;
    let verification = policy.transpose().map_err(Ineligible::NotSecured)?;
    // Requests to hosts that no certificate is known for have to get another one.
    if tls && verification.is_none() && !hosts.iter().any(is_exact) {
        return Err(Ineligible::HostnameUnknown);
    }
    let addresses = all_addresses(&ways);
    let denied = match &addresses {
        ParentAddresses::Ips(_) => Vec::new(),
        ParentAddresses::Dns(_) => {
            let denied = settings.deny_cidrs.iter().chain(own);
            covering(denied.copied(), MAX_DENIED)
        }
    };
    Ok(ParentMode {
        addresses,
        tls: tls || verification.is_some(),
        verification,
        hosts,
        denied,
    })
}

fn is_exact(host: &Hostname) -> bool {
    matches!(host, Hostname::Exact(_))
}

fn takes_all(way: &Way, hosts: &[Hostname]) -> bool {
    let is_taken = |host: &Hostname| way.hosts.iter().any(|own| own.covers(host));
    way.takes_any || way.hosts.is_empty() || (!hosts.is_empty() && hosts.iter().all(is_taken))
}

fn way(parent: &RemoteParent, settings: &Settings, own: &[Cidr]) -> Result<Way, Ineligible> {
    let listeners = || parent.listeners.iter().take(MAX_LISTENERS);
    let chosen = listeners()
        .find(|one| one.https)
        .or_else(|| listeners().next())
        .ok_or(Ineligible::AddressNotAssigned)?;
    let same = listeners().filter(|one| (one.port, one.https) == (chosen.port, chosen.https));
    let (hosts, takes_any) = hosts(parent, same);
    Ok(Way {
        addresses: addresses(&parent.addresses, settings, own)?,
        port: chosen.port,
        https: chosen.https,
        // In plaintext nothing depends on the host.
        hosts: if takes_any && !chosen.https {
            Vec::new()
        } else {
            hosts
        },
        takes_any,
        unprogrammed: parent.unprogrammed,
    })
}

/// The hosts of the Gateway that these listeners take, and whether they take all others as well. Where it names none, those of the
/// listeners.
fn hosts<'a>(
    parent: &RemoteParent,
    listeners: impl Iterator<Item = &'a RemoteListener>,
) -> (Vec<Hostname>, bool) {
    let listeners: Vec<_> = listeners
        .map(|one| Hostname::parse(one.hostname.as_deref()))
        .collect();
    let published = parent.hostnames.iter().take(MAX_HOSTNAMES);
    let mut published: Vec<_> = published.map(|text| Hostname::parse(Some(text))).collect();
    if published.is_empty() {
        published.push(Hostname::Any);
    }
    let mut known = BTreeSet::new();
    let mut hosts = Vec::new();
    let mut takes_any = false;
    for host in &published {
        let common = listeners.iter().filter_map(|one| one.intersect(host));
        for host in common {
            if host == Hostname::Any {
                takes_any = true;
            } else if is_valid(&host) && hosts.len() < MAX_HOSTS && known.insert(host.clone()) {
                hosts.push(host);
            }
        }
    }
    (hosts, takes_any)
}

/// It becomes a domain of a route table and a header.
fn is_valid(host: &Hostname) -> bool {
    match host {
        Hostname::Exact(name) | Hostname::Suffix(name) => {
            name.len() <= 253 && name.split('.').all(is_label)
        }
        Hostname::Any => true,
    }
}

/// `STRICT_DNS` takes names and addresses alike, EDS addresses only.
fn all_addresses(ways: &[Way]) -> ParentAddresses {
    let ips: BTreeSet<SocketAddr> = ways
        .iter()
        .flat_map(|way| {
            let ips = way.addresses.ips.iter();
            ips.map(move |ip: &IpAddr| SocketAddr::new(*ip, way.port))
        })
        .collect();
    let names: BTreeSet<(String, u16)> = ways
        .iter()
        .flat_map(|way| {
            let names = way.addresses.names.iter();
            names.map(move |name| (name.clone(), way.port))
        })
        .collect();
    if names.is_empty() {
        return ParentAddresses::Ips(ips.into_iter().collect());
    }
    let ips = ips.iter().map(|at| (at.ip().to_string(), at.port()));
    ParentAddresses::Dns(ips.chain(names).collect())
}

#[cfg(test)]
mod tests;
