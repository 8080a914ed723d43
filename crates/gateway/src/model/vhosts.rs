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
    let mut vhosts: Vec<VirtualHost> = domains
        .into_iter()
        .map(|domain| {
            let owner = owner(listeners, domain);
            let served = owner.filter(|owner| served(owner));
            VirtualHost {
                domain: domain.clone(),
                misdirected: served.is_none(),
                rules: served.map_or_else(Vec::new, |owner| rules_of(owner, domain)),
            }
        })
        .collect();
    vhosts.sort_by(|a, b| {
        let specificity = a.domain.compare_specificity(&b.domain);
        specificity.then_with(|| a.domain.cmp(&b.domain))
    });
    vhosts
}

fn owner<'a>(listeners: &'a [PortListener], domain: &Hostname) -> Option<&'a PortListener> {
    let covering = listeners.iter();
    let covering = covering.filter(|listener| listener.hostname.covers(domain));
    covering.min_by(|a, b| a.hostname.compare_specificity(&b.hostname))
}

fn rules_of(owner: &PortListener, domain: &Hostname) -> Vec<Arc<Rule>> {
    let mut rules: Vec<(&Hostname, &Arc<Rule>)> = owner
        .routes
        .iter()
        .filter(|(host, _)| host.served.covers(domain))
        .flat_map(|(host, rules)| rules.iter().map(move |rule| (&host.named, rule)))
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
