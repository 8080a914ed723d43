//! Watches for endpoints that belong to several clusters of the LLM filter: labels of pods show it, not the file.

use std::sync::Arc;

use metadata::Cluster;
use parking_lot::Mutex;
use scheduling::Snapshot;
use tracing::warn;

use crate::llm::LlmFilter;

/// What was found last.
#[derive(Debug, Default)]
pub(super) struct Overlaps(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// What was looked at.
    of: Option<(Arc<Snapshot>, Arc<LlmFilter>)>,
    endpoints: usize,
    /// Two of the clusters, which are warned of once.
    clusters: Option<[Cluster; 2]>,
}

// === impl Overlaps ===

impl Overlaps {
    /// Looks where members or rules are others than at the last time.
    pub(super) fn tend(&self, snapshot: &Arc<Snapshot>, filter: Option<&Arc<LlmFilter>>) {
        let mut seen = self.0.lock();
        let Some(filter) = filter else {
            *seen = Seen::default();
            return;
        };
        let is_seen = seen.of.as_ref().is_some_and(|(members, rules)| {
            Arc::ptr_eq(members, snapshot) && Arc::ptr_eq(rules, filter)
        });
        if is_seen {
            return;
        }
        let labels = snapshot.members().iter().map(|member| &*member.labels);
        let overlap = filter.rules.overlap(labels);
        if let Some(overlap) = &overlap
            && seen.clusters.as_ref() != Some(&overlap.clusters)
        {
            let [one, other] = &overlap.clusters;
            let member = snapshot.members().get(overlap.first);
            warn!(
                endpoint = member.map(|member| tracing::field::display(member.endpoint.id())),
                %one,
                %other,
                endpoints = overlap.endpoints,
                "an endpoint belongs to several clusters of the LLM filter, which do not know each other's load: \
                 give them labels that no pod has of both"
            );
        }
        *seen = Seen {
            of: Some((Arc::clone(snapshot), Arc::clone(filter))),
            endpoints: overlap.as_ref().map_or(0, |overlap| overlap.endpoints),
            clusters: overlap.map(|overlap| overlap.clusters),
        };
    }

    /// Endpoints that belong to more than one cluster.
    pub(super) fn endpoints(&self) -> usize {
        self.0.lock().endpoints
    }
}

#[cfg(test)]
mod tests {
    use scheduling::{Moment, Registry};

    use super::*;
    use crate::{config::Compat, fixtures::mk_member};

    const FILTER: &str = "
protocol: openai
model_mapping_rule: {m: {rules: [{cluster: a}, {cluster: b}]}}
clusters: {a: {zone: a}, b: {gpu: b}}";

    #[test]
    fn endpoints_of_several_clusters_are_counted_while_they_are_there() {
        let filter = Arc::new(LlmFilter::parse(FILTER, Compat::Strict).unwrap());
        let mut registry = Registry::default();
        let mut members = |labels: &[&[(&str, &str)]]| {
            let members = labels.iter().enumerate().map(|(nth, labels)| {
                let address = format!("10.0.0.{}:80", nth + 1);
                let mut member = mk_member(&address, address.parse().unwrap());
                let labels = labels.iter();
                let labels = labels.map(|(name, value)| ((*name).into(), (*value).into()));
                member.labels = Arc::new(labels.collect());
                member
            });
            Arc::new(registry.update(members.collect(), Moment::START))
        };
        let overlaps = Overlaps::default();
        let apart = members(&[&[("zone", "a")], &[("gpu", "b")]]);
        let both = members(&[&[("zone", "a")], &[("zone", "a"), ("gpu", "b")]]);
        let mut counts = Vec::new();
        for (members, filter) in [
            (&apart, Some(&filter)),
            (&both, Some(&filter)),
            (&both, None),
            (&both, Some(&filter)),
            (&apart, Some(&filter)),
        ] {
            overlaps.tend(members, filter);
            counts.push(overlaps.endpoints());
        }
        assert_eq!(counts, [0, 1, 0, 1, 0]);
    }
}
