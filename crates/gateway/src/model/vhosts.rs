//! The virtual hosts of one port: every host belongs to the most specific listener that covers it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::attach::Host;
use super::order::Order;
use super::{Chain, Hostname, Protocol, Rule, VirtualHost};

/// One listener of the port; all have the same protocol.
#[derive(Clone, Debug)]
pub(crate) struct PortListener {
    pub(crate) hostname: Hostname,
    /// `None`: it cannot be served, as it has no certificate. Its hosts are nobody else's.
    pub(crate) protocol: Option<Protocol>,
    /// Rules by the host, within the listener's, for which their route is attached.
    pub(crate) routes: BTreeMap<Host, Vec<Arc<Rule>>>,
}

/// Of HTTP one chain for all listeners; of HTTPS one for each that can be served, most specific first.
pub(crate) fn make_chains(listeners: &[PortListener]) -> Vec<Chain> {
    let mut chains = Vec::new();
    for listener in listeners {
        match &listener.protocol {
            Some(Protocol::Http) => {
                let protocol = Protocol::Http;
                let vhosts = make_vhosts(listeners, |_| true);
                return vec![Chain { protocol, vhosts }];
            }
            Some(protocol @ Protocol::Https { .. }) => chains.push(Chain {
                protocol: protocol.clone(),
                vhosts: make_vhosts(listeners, |other| other.hostname == listener.hostname),
            }),
            None => {}
        }
    }
    chains.sort_by(|a, b| a.protocol.compare_specificity(&b.protocol));
    chains
}

/// One virtual host per distinct host of a listener or route, and rules in those of the listeners that are `served` here. It
/// holds every rule that covers its domain, since Envoy asks the one virtual host only; without any it answers 404.
fn make_vhosts(
    listeners: &[PortListener],
    served: impl Fn(&PortListener) -> bool,
) -> Vec<VirtualHost> {
    let mut domains: BTreeSet<&Hostname> = BTreeSet::new();
    for listener in listeners {
        domains.insert(&listener.hostname);
        if served(listener) {
            domains.extend(listener.routes.keys().map(|host| &host.served));
        }
    }
    let hosts: Vec<Option<ByHost<'_>>> = listeners
        .iter()
        .map(|listener| served(listener).then(|| by_host(listener)))
        .collect();
    let mut vhosts: Vec<VirtualHost> = domains
        .into_iter()
        .map(|domain| {
            let owner = owner(listeners, domain);
            let served = owner.and_then(|owner| hosts.get(owner)?.as_ref());
            VirtualHost {
                domain: domain.clone(),
                misdirected: served.is_none(),
                rules: served.map_or_else(Vec::new, |hosts| rules_of(hosts, domain)),
            }
        })
        .collect();
    vhosts.sort_by(|a, b| {
        let specificity = a.domain.compare_specificity(&b.domain);
        specificity.then_with(|| a.domain.cmp(&b.domain))
    });
    vhosts
}

/// The index of the listener that the domain belongs to.
fn owner(listeners: &[PortListener], domain: &Hostname) -> Option<usize> {
    let covering = listeners.iter().enumerate();
    let covering = covering.filter(|(_, listener)| listener.hostname.covers(domain));
    let owner = covering.min_by(|(_, a), (_, b)| a.hostname.compare_specificity(&b.hostname));
    owner.map(|(index, _)| index)
}

/// Rules by the host for which they are served, each with the host that their route names.
type ByHost<'a> = BTreeMap<&'a Hostname, Vec<(&'a Hostname, &'a Arc<Rule>)>>;

fn by_host(listener: &PortListener) -> ByHost<'_> {
    let mut hosts = ByHost::new();
    for (host, rules) in &listener.routes {
        let there = hosts.entry(&host.served).or_default();
        there.extend(rules.iter().map(|rule| (&host.named, rule)));
    }
    hosts
}

/// The hosts that cover the domain: itself, and each wildcard that it is under.
fn covering(domain: &Hostname) -> Vec<Hostname> {
    let mut hosts = vec![domain.clone()];
    if let Hostname::Exact(name) | Hostname::Suffix(name) = domain {
        let dots = name.match_indices('.').filter(|(at, _)| *at > 0);
        let suffixes = dots.filter_map(|(at, _)| name.get(at + 1..));
        hosts.extend(suffixes.map(|suffix| Hostname::Suffix(suffix.to_owned())));
        hosts.push(Hostname::Any);
    }
    hosts
}

fn rules_of(hosts: &ByHost<'_>, domain: &Hostname) -> Vec<Arc<Rule>> {
    let mut rules: Vec<(&Hostname, &Arc<Rule>)> = covering(domain)
        .iter()
        .filter_map(|host| hosts.get(host))
        .flatten()
        .copied()
        .collect();
    let order = Order::of(rules.iter().map(|(_, rule)| &***rule));
    rules.sort_by(|(host_a, a), (host_b, b)| {
        let specificity = host_a.compare_specificity(host_b);
        specificity.then_with(|| order.compare(a, b))
    });
    // A route with `*.b` and `a.b` has each rule twice for `a.b`; the first says it all.
    let mut seen = BTreeSet::new();
    rules.retain(|(_, rule)| seen.insert(&rule.id));
    rules
        .into_iter()
        .map(|(_, rule)| Arc::clone(rule))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also names that no API server would take.
    #[test]
    fn the_hosts_that_cover_a_domain_are_found_by_its_name() {
        let names = [
            "*", "a", "*.a", "b.a", "*.b.a", "c.b.a", "*.c.b.a", "xb.a", ".a", "*..a", "a.", "c..a",
        ];
        let hosts = names.map(|name| Hostname::parse(Some(name)));
        for domain in &hosts {
            let found = covering(domain);
            for host in &hosts {
                assert_eq!(found.contains(host), host.covers(domain), "{host} {domain}");
            }
        }
    }
}
