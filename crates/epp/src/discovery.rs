//! Who is in the pool: the pool's selector and ports, and the pods it selects.
//!
//! ```text
//!  watch of the pool ─► selector, ports ─┐
//!  watch of the selected pods ───────────┴─► Members ─► director's Pool, scraper
//! ```
//!
//! The selector goes to the API server, which sends only the pods that match. When it changes, the old
//! pods stay members, on the old ports, until the new watch has listed. A watch that fails proves nothing: what is known
//! stays.

use std::{pin::Pin, sync::Arc};

use ::watch::{Config, Update};
use crd::inference_pool::InferencePool;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use moment::Clock;
use scheduling::{Member, Snapshot};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    director::Pool,
    health::{Part, Readiness},
    metrics::Metrics,
};

mod members;

use members::{Members, PoolFacts};

/// Label values of the metrics.
const POOLS: &str = "InferencePool";
const PODS: &str = "Pod";

type Updates<K> = Pin<Box<dyn Stream<Item = Update<K>> + Send>>;

/// Follows one pool of the API server.
pub(crate) struct Discovery {
    /// Reads pools and pods of the namespace.
    pub client: Client,
    /// The pool's namespace.
    pub namespace: String,
    /// The pool's name.
    pub name: String,
    /// Gets the members.
    pub pool: Pool,
    /// Told when the members are known, and when the pool is gone.
    pub readiness: Readiness,
    /// Counts failures.
    pub metrics: Metrics,
    /// Gets each new snapshot; `None` until the first.
    pub snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    /// Time.
    pub clock: Clock,
}

/// The pods of one selector.
struct PodWatch {
    /// The pool as it was while it last had this selector: ports go with the pods they were given for.
    facts: PoolFacts,
    updates: Updates<Pod>,
    members: Members,
}

/// What is known of the pool.
#[derive(Default)]
struct State {
    /// The list being received has the pool, but it cannot be read: its absence from the list is no deletion.
    odd: bool,
    /// Listed: its pods are the members.
    current: Option<PodWatch>,
    /// The watch of a changed selector, until it has listed.
    next: Option<PodWatch>,
    published: Option<Vec<Member>>,
}

// === impl Discovery ===

impl Discovery {
    /// Follows the pool for ever.
    pub(crate) async fn run(self) {
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        let config = Config::default().fields(&format!("metadata.name={}", self.name));
        let mut pools: Updates<InferencePool> = Box::pin(::watch::objects(api, config));
        let mut state = State::default();
        loop {
            tokio::select! {
                Some(update) = pools.next() => self.on_pool(update, &mut state),
                Some(update) = next_pod(&mut state.current) => self.on_pod(update, &mut state),
                Some(update) = next_pod(&mut state.next) => self.on_next_pod(update, &mut state),
            }
        }
    }

    fn on_pool(&self, update: Update<InferencePool>, state: &mut State) {
        let is_ours = |pool: &InferencePool| pool.metadata.name.as_ref() == Some(&self.name);
        match update {
            Update::Reset(pools) => {
                self.metrics.discovery_synced(POOLS, true);
                let odd = std::mem::take(&mut state.odd);
                match pools.iter().find(|pool| is_ours(pool)) {
                    Some(pool) => self.on_pool_facts(PoolFacts::of(pool), state),
                    None if odd => {}
                    None => self.on_pool_gone(state),
                }
            }
            Update::Apply(pool) if is_ours(&pool) => {
                state.odd = false;
                self.on_pool_facts(PoolFacts::of(&pool), state);
            }
            Update::Delete(pool) if is_ours(&pool) => self.on_pool_gone(state),
            Update::OddDelete(odd) if odd.name == self.name => self.on_pool_gone(state),
            Update::Apply(_) | Update::Delete(_) | Update::OddDelete(_) => {}
            Update::Odd(odd) => {
                warn!(
                    name = odd.name,
                    error = odd.error,
                    "the pool cannot be read: its last state stays"
                );
                self.metrics.discovery_error(POOLS);
                state.odd |= odd.name == self.name;
            }
            Update::Failed(failure) => {
                state.odd = false;
                warn!(
                    reason = failure.reason(),
                    error = failure.message,
                    "the watch of the pool failed: members stay"
                );
                self.metrics.discovery_error(POOLS);
            }
        }
    }

    fn on_pool_facts(&self, facts: PoolFacts, state: &mut State) {
        let selects = |pods: &&mut PodWatch| pods.facts.selector == facts.selector;
        if let Some(pods) = state.current.as_mut().filter(selects) {
            pods.facts = facts;
            state.next = None;
        } else if let Some(pods) = state.next.as_mut().filter(selects) {
            pods.facts = facts;
        } else {
            info!(selector = %facts.selector_text(), "watching the pool's pods");
            state.next = Some(self.watch_pods(facts));
        }
        self.publish(state);
    }

    fn on_pool_gone(&self, state: &mut State) {
        warn!(
            namespace = self.namespace,
            name = self.name,
            "no such InferencePool: not ready, every request gets 503 until it is created"
        );
        self.readiness.set(Part::Discovery, false);
        self.metrics.discovery_synced(PODS, false);
        let published = state.published.is_some();
        *state = State::default();
        if published {
            self.send(Vec::new());
        }
    }

    fn on_pod(&self, update: Update<Pod>, state: &mut State) {
        if let Some(pods) = &mut state.current {
            self.note_pod_update(&update);
            pods.members.on(update);
        }
        self.publish(state);
    }

    /// The next watch takes over with its first complete list.
    fn on_next_pod(&self, update: Update<Pod>, state: &mut State) {
        let Some(pods) = &mut state.next else { return };
        self.note_pod_update(&update);
        let listed = matches!(update, Update::Reset(_));
        pods.members.on(update);
        if listed {
            state.current = state.next.take();
            self.metrics.discovery_synced(PODS, true);
            self.publish(state);
        }
    }

    fn note_pod_update(&self, update: &Update<Pod>) {
        match update {
            Update::Odd(odd) => {
                warn!(
                    pod = odd.name,
                    error = odd.error,
                    "a pod cannot be read: its last state stays"
                );
                self.metrics.discovery_error(PODS);
            }
            Update::Failed(failure) => {
                warn!(
                    reason = failure.reason(),
                    error = failure.message,
                    "the watch of the pods failed: members stay"
                );
                self.metrics.discovery_error(PODS);
            }
            Update::Reset(_) | Update::Apply(_) | Update::Delete(_) | Update::OddDelete(_) => {}
        }
    }

    fn watch_pods(&self, facts: PoolFacts) -> PodWatch {
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        let config = Config::default().labels(&facts.selector_text());
        PodWatch {
            facts,
            updates: Box::pin(::watch::objects(api, config)),
            members: Members::default(),
        }
    }

    /// Hands the members on, if they changed.
    fn publish(&self, state: &mut State) {
        let Some(pods) = &state.current else { return };
        let members = pods.members.list(&self.namespace, &pods.facts);
        if state.published.as_ref() == Some(&members) {
            return;
        }
        info!(members = members.len(), "members of the pool");
        state.published = Some(members.clone());
        self.send(members);
        self.readiness.set(Part::Discovery, true);
    }

    fn send(&self, members: Vec<Member>) {
        self.snapshots
            .send_replace(Some(self.pool.replace(members, self.clock.now())));
    }
}

async fn next_pod(pods: &mut Option<PodWatch>) -> Option<Update<Pod>> {
    match pods {
        Some(pods) => pods.updates.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
