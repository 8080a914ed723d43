//! Counts addresses that are left out of entries.

use std::collections::BTreeMap;

use crate::{
    metrics::Metrics,
    name::{ClusterName, Key},
    plan::KeyPlan,
};

/// Addresses that were counted, by key, exporter and reason.
#[derive(Debug, Default)]
pub(super) struct Rejections(BTreeMap<Key, BTreeMap<(ClusterName, &'static str), usize>>);

// === impl Rejections ===

impl Rejections {
    /// Counts each address once, however often its key is planned.
    pub(super) fn count(&mut self, key: &Key, plan: &KeyPlan, metrics: &Metrics) {
        let before = self.0.remove(key).unwrap_or_default();
        if plan.rejected.is_empty() {
            return;
        }
        let mut counts = BTreeMap::new();
        for (exporter, rejection) in &plan.rejected {
            let place = (exporter.clone(), rejection.reason());
            *counts.entry(place).or_default() += 1;
        }
        for (place, count) in &counts {
            let (exporter, reason) = place;
            let known = before.get(place).copied().unwrap_or_default();
            for _ in known..*count {
                metrics.member(exporter).rejected_address(reason);
            }
        }
        self.0.insert(key.clone(), counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::*,
        index::update::{Change, Update},
        plan::desired_for,
    };
    use moment::Moment;
    use prometheus_client::{encoding::text::encode, registry::Registry};

    #[test]
    fn a_rejected_address_is_counted_once() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.add(&mk_name("a"));
        let mut world = mk_world(&["a", "b"]);
        let mut rejections = Rejections::default();
        let now = Moment::default();
        let mut counted = |address: &str| {
            let service = mk_service(crd::ServiceType::LoadBalancer, address);
            let service = Update::Services(Change::Applied(service));
            export(&mut world, "a", "llm");
            world.update(&mk_name("a"), service, now);
            let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), now);
            rejections.count(&mk_key("llm"), &plan, &metrics);
            let mut page = String::new();
            encode(&mut page, &registry).expect("encodes");
            let name = r#"mci_rejected_addresses_total{cluster="a",reason="unroutable"} "#;
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.map(ToOwned::to_owned)
        };
        let addresses = ["127.0.0.1", "127.0.0.1", "198.51.100.1", "127.0.0.1"];
        let counts = addresses.map(|address| counted(address).unwrap_or_default());
        assert_eq!(counts, ["1", "1", "1", "2"]);
    }
}
