//! The snapshots of all Gateways, kept up to date by what changed: an endpoint event costs the assignments that read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::GatewayModel;
use crate::select::Selection;
use crate::world::{Endpoints, Key};

use super::ads::server::Snapshots;
use super::{Assignment, Options, Plan, Resource, Snapshot, endpoints, translate};

/// What an assignment reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reads {
    /// The `EndpointSlice`s of the Service.
    Service(Key),
    /// The pods of the pool.
    Pool(Key),
    /// How the requests of the import are shared.
    Import(Key),
}

/// What Envoys of each Gateway shall have.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) snapshots: Snapshots,
    plans: BTreeMap<Key, Plan>,
    /// The Gateways and clusters whose assignments read it.
    readers: BTreeMap<Reads, BTreeSet<(Key, String)>>,
}

// === impl Assignment ===

impl Assignment {
    pub(super) fn reads(&self) -> Option<Reads> {
        match self {
            Self::Service { service, .. } | Self::Epp { service, .. } => {
                Some(Reads::Service(service.clone()))
            }
            Self::Pool { pool, .. } => Some(Reads::Pool(pool.clone())),
            Self::Hops { import, .. } => Some(Reads::Import(import.clone())),
            Self::Fixed { .. } | Self::Hop(_) => None,
        }
    }
}

// === impl Served ===

impl Served {
    /// The Gateway has another model now, or is not ours any more.
    pub(crate) fn plan(
        &mut self,
        gateway: &Key,
        model: Option<&GatewayModel>,
        options: &Options,
        endpoints: &Endpoints,
        selection: &Selection,
    ) {
        let now = model.map(|model| translate(model, options));
        let before = self.plans.remove(gateway);
        let readers = before.iter().flat_map(|plan| &plan.assignments);
        for (cluster, reads) in readers.filter_map(|(name, one)| Some((name, one.reads()?))) {
            if let Some(all) = self.readers.get_mut(&reads) {
                all.remove(&(gateway.clone(), cluster.clone()));
                if all.is_empty() {
                    self.readers.remove(&reads);
                }
            }
        }
        let Some(now) = now else {
            Arc::make_mut(&mut self.snapshots).remove(gateway);
            return;
        };
        for (cluster, one) in &now.assignments {
            if let Some(reads) = one.reads() {
                let all = self.readers.entry(reads).or_default();
                all.insert((gateway.clone(), cluster.clone()));
            }
        }
        let served = self.snapshots.get(gateway);
        let made = snapshot(&now, before.as_ref().zip(served), endpoints, selection);
        if served.is_none_or(|served| **served != made) {
            Arc::make_mut(&mut self.snapshots).insert(gateway.clone(), Arc::new(made));
        }
        self.plans.insert(gateway.clone(), now);
    }

    /// Makes the assignments again that read something that changed.
    pub(crate) fn assign(
        &mut self,
        changed: &BTreeSet<Reads>,
        endpoints: &Endpoints,
        selection: &Selection,
    ) {
        let readers = changed.iter().filter_map(|reads| self.readers.get(reads));
        let mut made: BTreeMap<&Key, Vec<(&String, Arc<Resource>)>> = BTreeMap::new();
        for (gateway, cluster) in readers.flatten() {
            let plan = self.plans.get(gateway);
            let Some(source) = plan.and_then(|plan| plan.assignments.get(cluster)) else {
                continue;
            };
            let resource = endpoints::assignment(cluster, source, endpoints, selection);
            let served = self.snapshots.get(gateway);
            let before = served.and_then(|served| served.endpoints.get(cluster));
            if before.is_none_or(|before| *before != resource) {
                made.entry(gateway).or_default().push((cluster, resource));
            }
        }
        if made.is_empty() {
            return;
        }
        let snapshots = Arc::make_mut(&mut self.snapshots);
        for (gateway, resources) in made {
            if let Some(served) = snapshots.get_mut(gateway) {
                let served = Arc::make_mut(served);
                for (cluster, resource) in resources {
                    served.endpoints.insert(cluster.clone(), resource);
                }
            }
        }
    }
}

/// The snapshot of a plan. Assignments that are made as before stay: endpoints that changed meanwhile are followed by
/// [`Served::assign`].
fn snapshot(
    plan: &Plan,
    before: Option<(&Plan, &Arc<Snapshot>)>,
    endpoints: &Endpoints,
    selection: &Selection,
) -> Snapshot {
    let kept = |cluster: &String, source: &Assignment| {
        let (plan, served) = before?;
        let is_same = plan.assignments.get(cluster) == Some(source);
        served.endpoints.get(cluster).filter(|_| is_same).cloned()
    };
    let assignments = plan.assignments.iter().map(|(cluster, source)| {
        let resource = kept(cluster, source)
            .unwrap_or_else(|| endpoints::assignment(cluster, source, endpoints, selection));
        (cluster.clone(), resource)
    });
    Snapshot {
        uid: plan.uid.clone(),
        clusters: plan.clusters.clone(),
        endpoints: assignments.collect(),
        secrets: plan.secrets.clone(),
        listeners: plan.listeners.clone(),
        routes: plan.routes.clone(),
    }
}
