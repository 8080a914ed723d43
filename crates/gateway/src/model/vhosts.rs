//! The virtual hosts of one port: every host belongs to the most specific listener that covers it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Hostname, Rule, VirtualHost, order};

/// One listener of the port.
#[derive(Clone, Debug)]
pub(crate) struct PortListener {
    pub(crate) hostname: Hostname,
    /// Rules by the host, within the listener's, for which their route is attached.
    pub(crate) routes: BTreeMap<Hostname, Vec<Arc<Rule>>>,
}

/// One virtual host per distinct host of a listener or route. It holds every rule that covers its
/// domain, since Envoy asks the one virtual host only; without any it answers 404.
pub(crate) fn make_vhosts(listeners: &[PortListener]) -> Vec<VirtualHost> {
    let mut domains: BTreeSet<&Hostname> = BTreeSet::new();
    for listener in listeners {
        domains.insert(&listener.hostname);
        domains.extend(listener.routes.keys());
    }
    let mut vhosts: Vec<VirtualHost> = domains
        .into_iter()
        .map(|domain| VirtualHost {
            domain: domain.clone(),
            rules: rules_of(listeners, domain),
        })
        .collect();
    vhosts.sort_by(|a, b| {
        let specificity = a.domain.compare_specificity(&b.domain);
        specificity.then_with(|| a.domain.cmp(&b.domain))
    });
    vhosts
}

fn rules_of(listeners: &[PortListener], domain: &Hostname) -> Vec<Arc<Rule>> {
    let owner = listeners
        .iter()
        .filter(|listener| listener.hostname.covers(domain))
        .min_by(|a, b| a.hostname.compare_specificity(&b.hostname));
    let mut rules: Vec<(&Hostname, &Arc<Rule>)> = owner
        .into_iter()
        .flat_map(|listener| &listener.routes)
        .filter(|(host, _)| host.covers(domain))
        .flat_map(|(host, rules)| rules.iter().map(move |rule| (host, rule)))
        .collect();
    rules.sort_by(|(host_a, a), (host_b, b)| {
        let specificity = host_a.compare_specificity(host_b);
        specificity.then_with(|| order::compare(a, b))
    });
    // A route with `*.b` and `a.b` has each rule twice for `a.b`; the first says it all.
    let mut seen = BTreeSet::new();
    rules.retain(|(_, rule)| seen.insert(&rule.id));
    rules
        .into_iter()
        .map(|(_, rule)| Arc::clone(rule))
        .collect()
}
