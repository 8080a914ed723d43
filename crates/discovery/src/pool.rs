//! The pods that an InferencePool selects.

use std::mem;

use ::watch::{Config, Update as Change};
use crd::inference_pool::InferencePool;
use futures::{StreamExt, stream::BoxStream};
use kube::{Api, Client};

use crate::{
    ports::MAX_PORTS,
    selected::{Selected, Target, trouble},
    update::{Discovery, Kind, Outbox, Steps, Update, Updates, updates},
};

/// Follows one InferencePool and its pods. The selector goes to the API server, which sends only the pods that match.
/// When it changes, the old pods stay members, on the old ports, until the new watch has listed.
pub struct PoolDiscovery {
    /// Reads pools and pods of the namespace.
    pub client: Client,
    /// The pool's namespace.
    pub namespace: String,
    /// The pool's name.
    pub name: String,
}

struct Follower {
    name: String,
    pools: BoxStream<'static, Change<InferencePool>>,
    /// The list being received has the pool, but it cannot be read: its absence from the list is no deletion.
    odd: bool,
    pods: Selected,
}

// === impl PoolDiscovery ===

impl Discovery for PoolDiscovery {
    fn updates(self: Box<Self>) -> Updates {
        let Self {
            client,
            namespace,
            name,
        } = *self;
        let api = Api::namespaced(client.clone(), &namespace);
        let config = Config::default().fields(&format!("metadata.name={name}"));
        updates(Follower {
            name,
            pools: ::watch::objects(api, config).boxed(),
            odd: false,
            pods: Selected::new(client, namespace),
        })
    }
}

// === impl Follower ===

impl Steps for Follower {
    async fn step(&mut self, out: &mut Outbox) {
        tokio::select! {
            Some(change) = self.pools.next() => self.on_pool(change, out),
            event = self.pods.next() => self.pods.on(event, out),
        }
    }
}

impl Follower {
    fn on_pool(&mut self, change: Change<InferencePool>, out: &mut Outbox) {
        let is_ours = |pool: &InferencePool| pool.metadata.name.as_ref() == Some(&self.name);
        out.extend(trouble(Kind::Pool, &change));
        match change {
            Change::Reset(pools) => {
                out.push_back(Update::Listed(Kind::Pool));
                let odd = mem::take(&mut self.odd);
                match pools.iter().find(|pool| is_ours(pool)) {
                    Some(pool) => self.pods.select(Target::of(pool), out),
                    None if odd => {}
                    None => self.on_gone(out),
                }
            }
            Change::Apply(pool) if is_ours(&pool) => {
                self.odd = false;
                self.pods.select(Target::of(&pool), out);
            }
            Change::Delete(pool) if is_ours(&pool) => self.on_gone(out),
            Change::OddDelete(odd) if odd.name == self.name => self.on_gone(out),
            Change::Apply(_) | Change::Delete(_) | Change::OddDelete(_) => {}
            Change::Odd(odd) => self.odd |= odd.name == self.name,
            Change::Failed(_) => self.odd = false,
        }
    }

    fn on_gone(&mut self, out: &mut Outbox) {
        self.pods.clear();
        out.push_back(Update::Gone {
            pool: format!("{}/{}", self.pods.namespace(), self.name),
        });
    }
}

// === impl Target ===

impl Target {
    /// Reads the pool. Ports beyond 1..65535 and after the eighth, which its schema forbids, are left out.
    fn of(pool: &InferencePool) -> Self {
        let labels = pool.spec.selector.match_labels.iter();
        let terms: Vec<_> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let ports = pool.spec.target_ports.iter();
        let ports = ports.filter_map(|port| u16::try_from(port.number).ok());
        Self {
            selector: terms.join(","),
            ports: ports.filter(|port| *port != 0).take(MAX_PORTS).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
