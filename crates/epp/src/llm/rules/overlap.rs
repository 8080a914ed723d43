//! Endpoints that belong to several clusters. Each cluster has a load and caches of its own, so that what such an endpoint
//! does for one is not known when it is weighed for another.

use std::collections::{BTreeMap, HashMap};

use metadata::Cluster;
use scheduling::Labels;

use super::Table;

/// What clusters have in common, of the endpoints that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// Endpoints that belong to more than one.
    pub(crate) endpoints: usize,
    /// The first of them.
    pub(crate) first: usize,
    /// Two clusters that have it.
    pub(crate) clusters: [Cluster; 2],
}

// === impl Table ===

impl Table {
    /// What clusters to which rules lead have in common; none: no endpoint belongs to two. `members`: the labels of each
    /// endpoint. Takes a step for each cluster and for each label of an endpoint.
    pub(crate) fn overlap<'a>(&self, members: impl Iterator<Item = &'a Labels>) -> Option<Overlap> {
        let clusters = self.clusters.as_ref()?;
        let rules = self.models.iter().flat_map(|model| &model.rules);
        let used: BTreeMap<&Cluster, &Labels> = rules
            .filter_map(|rule| Some((&rule.cluster, &**clusters.get(&rule.cluster)?)))
            .collect();
        let (mut of_all, mut by_label) = (Vec::new(), HashMap::<_, Vec<_>>::new());
        for (cluster, labels) in used {
            match labels.first_key_value() {
                Some(first) => by_label.entry(first).or_default().push((cluster, labels)),
                None => of_all.push(cluster),
            }
        }
        let mut overlap: Option<Overlap> = None;
        for (at, member) in members.enumerate() {
            let has = |(name, value)| member.get(name) == Some(value);
            let labelled = member.iter().filter_map(|label| by_label.get(&label));
            let labelled = labelled.flatten();
            let labelled = labelled.filter(|(_, labels)| labels.iter().all(has));
            let mut of = of_all
                .iter()
                .copied()
                .chain(labelled.map(|(cluster, _)| *cluster));
            let (Some(one), Some(other)) = (of.next(), of.next()) else {
                continue;
            };
            let found = overlap.get_or_insert_with(|| Overlap {
                endpoints: 0,
                first: at,
                clusters: [one.clone(), other.clone()],
            });
            found.endpoints += 1;
        }
        overlap
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::llm::Rule;

    fn mk_labels(text: &str) -> Labels {
        let pairs = text
            .split_whitespace()
            .filter_map(|one| one.split_once('='));
        pairs
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    const MEMBERS: [&str; 4] = ["gpu=a tier=x", "gpu=b tier=x", "gpu=b", ""];

    #[rstest]
    #[case::apart(&[("c", "gpu=a"), ("d", "gpu=b")], None)]
    #[case::one_has_all(&[("c", ""), ("d", "gpu=b")], Some((2, 1)))]
    #[case::all_have_all(&[("c", ""), ("d", "")], Some((4, 0)))]
    #[case::by_different_labels(&[("c", "gpu=b"), ("d", "tier=x")], Some((1, 1)))]
    #[case::all_labels_are_needed(&[("c", "gpu=b tier=y"), ("d", "gpu=b")], None)]
    #[case::no_rule_leads_there(&[("c", "gpu=b"), ("unused", "gpu=b")], None)]
    fn endpoints_of_several_clusters_are_found(
        #[case] clusters: &[(&str, &str)],
        #[case] want: Option<(usize, usize)>,
    ) {
        let rules = ["c", "d", "elsewhere"].map(|name| Rule::of(name.parse().unwrap()));
        let clusters = clusters.iter().map(|(name, labels)| {
            let cluster: Cluster = name.parse().unwrap();
            (cluster, Arc::new(mk_labels(labels)))
        });
        let table = Table::new(vec![("m".into(), rules.into())], Some(clusters.collect()));
        let members = MEMBERS.map(mk_labels);
        let overlap = table.overlap(members.iter());
        let found = overlap.map(|it| {
            assert_eq!(it.clusters.map(|one| one.to_string()), ["c", "d"]);
            (it.endpoints, it.first)
        });
        assert_eq!(found, want);
    }
}
