//! The former mode of an import's only cluster: what the new one cannot serve yet goes there.
//!
//! It is not known when an Envoy can use the Gateways, or the endpoint picker, of a new mode: they may have begun a moment ago, and
//! Envoy's last health check of them may be older. Addresses that are new in a cluster that Envoy still has are unhealthy until
//! their first check, for which no acknowledgement waits. So the former hop stays for a while, and takes the requests that the new
//! one answers with the mark that another cluster is to be tried. With several clusters the others take them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moment::Moment;

use crate::world::Key;

use super::endpoints::Hop;
use super::{Assignment, Plan, Resource, names};

/// A hop outlives its mode by this time, in which an Envoy checks the health of the new mode several times: that of an address
/// that it did not know at once, that of an unhealthy one within 4 s.
pub(super) const OUTLIVES: Duration = Duration::from_secs(30);

/// The hop of a former mode, with what it leads to, as it was when the mode changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Former {
    /// It goes then.
    pub(super) until: Moment,
    /// The name of its listener, and of its route table.
    pub(super) hop: String,
    pub(super) listener: Arc<Resource>,
    pub(super) table: Arc<Resource>,
    pub(super) clusters: BTreeMap<String, Arc<Resource>>,
    /// By EDS cluster.
    pub(super) assignments: BTreeMap<String, Assignment>,
    /// The authorities of its Gateway then, by which the clusters may verify.
    pub(super) secrets: BTreeMap<String, Arc<Resource>>,
}

/// The former hops beside those of the plan, by import: where the plan before had another hop for the same and only cluster.
pub(super) fn formers(before: &Plan, now: &Plan, at: Moment) -> BTreeMap<Key, Former> {
    let found = now.assignments.iter().filter_map(|(name, source)| {
        let (import, hop) = only_hop(source)?;
        let (_, earlier) = only_hop(before.assignments.get(name)?)?;
        let former = if earlier.cluster != hop.cluster {
            None
        } else if earlier.listener == hop.listener {
            let known = before.formers.get(import);
            known.filter(|former| former.until > at).cloned()
        } else {
            Former::of(before, import, earlier, at.plus(OUTLIVES))
        };
        Some((import.clone(), former?))
    });
    found.collect()
}

fn only_hop(source: &Assignment) -> Option<(&Key, &Hop)> {
    match source {
        Assignment::Hops { import, hops } => match hops.as_slice() {
            [hop] => Some((import, hop)),
            _ => None,
        },
        _ => None,
    }
}

// === impl Former ===

impl Former {
    fn of(plan: &Plan, import: &Key, hop: &Hop, until: Moment) -> Option<Self> {
        let names = if hop.listener == names::hop_parent(import, &hop.cluster) {
            vec![names::parent(import, &hop.cluster)]
        } else {
            let (pods, epp) = (
                names::pods(import, &hop.cluster),
                names::epp_of(import, &hop.cluster),
            );
            vec![pods, epp]
        };
        let clusters = names.iter().map(|name| {
            let cluster = plan.clusters.get(name)?;
            Some((name.clone(), Arc::clone(cluster)))
        });
        // the pool of this cluster has none of these
        let clusters = clusters.collect::<Option<_>>()?;
        let assignments = names.iter().filter_map(|name| {
            let source = plan.assignments.get(name)?;
            Some((name.clone(), source.clone()))
        });
        let authorities = plan.secrets.iter();
        let authorities = authorities.filter(|(name, _)| names::is_authorities(name));
        Some(Self {
            until,
            hop: hop.listener.clone(),
            listener: Arc::clone(plan.listeners.get(&hop.listener)?),
            table: Arc::clone(plan.routes.get(&hop.listener)?),
            clusters,
            assignments: assignments.collect(),
            secrets: authorities
                .map(|(name, secret)| (name.clone(), Arc::clone(secret)))
                .collect(),
        })
    }
}
