//! What the state of a stream says: nothing here changes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::xds::{Kind, Resource};
use moment::Moment;

use super::{ACK_LIMIT, Ads};

impl Ads {
    /// What Envoy has and the snapshot has not.
    pub(super) fn gone(&self, kind: Kind) -> Vec<String> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let known = self.types[kind as usize].known.iter();
        let gone = known.filter(|(name, held)| {
            held.is_some() && !snapshot.of(kind).contains_key(name.as_str())
        });
        gone.map(|(name, _)| name.clone()).collect()
    }

    /// Envoy refused the newest of a route table or import, and may serve an older one, which leads
    /// where the snapshot does not.
    pub(super) fn serves_on_what_is_not_here(&self) -> bool {
        let Some(snapshot) = &self.snapshot else {
            return false;
        };
        let routes = &self.types[Kind::Routes as usize].subscribed;
        let mut refused = self.quarantine.iter().filter(|(kind, name, version)| {
            // A refusal may come when there is something newer already.
            let newest = snapshot.of(*kind).get(name);
            newest.is_some_and(|newest| newest.version == *version)
        });
        refused.any(|(kind, name, _)| match kind {
            Kind::Routes => routes.contains(name),
            Kind::Endpoints => name.starts_with("import/") || name.starts_with("hopped/"),
            Kind::Cluster | Kind::Secret | Kind::Listener => false,
        })
    }

    /// Each resource of the type is acknowledged or at least on its way.
    pub(super) fn all_sent(&self, kind: Kind) -> bool {
        let sent = self.types[kind as usize].in_flight.as_ref();
        let is_sent = |name: &String, resource: &Option<Arc<Resource>>| {
            let version = resource.as_ref().map(|resource| resource.version);
            sent.is_some_and(|sent| sent.resources.get(name).copied() == version)
        };
        let pending = self.pending(kind, |_| true);
        pending
            .iter()
            .all(|(name, resource)| is_sent(name, resource))
    }

    /// Nothing of the type is on its way, or for longer than we wait.
    pub(super) fn settled(&self, kind: Kind, now: Moment) -> bool {
        let sent = self.types[kind as usize].in_flight.as_ref();
        sent.is_none_or(|sent| sent.at.plus(ACK_LIMIT) <= now)
    }

    /// Resources to send, quarantined ones left out; `None`: Envoy asked for one there is not.
    pub(super) fn pending(
        &self,
        kind: Kind,
        wanted: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, Option<Arc<Resource>>> {
        let Some(snapshot) = &self.snapshot else {
            return BTreeMap::new();
        };
        let (state, all) = (&self.types[kind as usize], snapshot.of(kind));
        let mut pending = BTreeMap::new();
        let candidates: Vec<&String> = if state.wildcard {
            all.keys().collect()
        } else {
            state.subscribed.iter().collect()
        };
        for name in candidates.into_iter().filter(|name| wanted(name)) {
            let known = state.known.get(name);
            match all.get(name) {
                Some(resource) => {
                    let again = kind == Kind::Endpoints && self.repush.contains(name);
                    let has = known == Some(&Some(resource.version));
                    let id = (kind, name.clone(), resource.version);
                    let later = kind == Kind::Listener && self.retries.holds(name);
                    if (again || !has) && !later && !self.quarantine.contains(&id) {
                        pending.insert(name.clone(), Some(Arc::clone(resource)));
                    }
                }
                None if known.is_none() => {
                    pending.insert(name.clone(), None);
                }
                None => {}
            }
        }
        pending
    }
}
