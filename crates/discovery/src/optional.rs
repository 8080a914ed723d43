//! The kinds that a cluster may have or not: objects that say more of a pool's models.
//!
//! ```text
//!  a follower for each kind and group: look each 30 s ─► watch ─► table ─┐
//!                                                                        ├─► ObjectUpdate ─► program
//!  …                                                                     ┘
//! ```

use std::collections::BTreeMap;

use crd::{inference_model, inference_model_rewrite, inference_objective};
use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use kube::{Client, core::ApiResource};

use crate::{
    objects::{Found, Objects, Seen},
    update::{Kind, Outbox, Steps, updates},
};

mod follower;

use follower::{Follower, Heard, Resource, watched};

/// Follows the InferenceObjectives, InferenceModelRewrites and InferenceModels that name one pool.
pub struct ObjectDiscovery {
    /// Reads these kinds in the namespace, where they are served.
    pub client: Client,
    /// The pool's namespace, and so the objects'.
    pub namespace: String,
    /// The pool's name.
    pub pool: String,
}

/// One thing that was learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectUpdate {
    /// All that is known, whenever it changed. Before the first one there is nothing.
    Objects(Objects),
    /// Every kind was looked for, and what is there was listed. Once.
    Settled,
    /// Whether a watch of the kind has listed. Not reported of one that is not served.
    Synced {
        /// The kind.
        kind: Kind,
        /// It has.
        synced: bool,
    },
    /// Objects of the kind vanished with its CRD: the last ones stay in force.
    Gone {
        /// The kind.
        kind: Kind,
        /// Plural and group.
        resource: String,
    },
    /// The kind is served, and may not be read: looked at again after minutes. Reported once.
    Denied {
        /// The kind.
        kind: Kind,
        /// Plural and group.
        resource: String,
    },
    /// The kind could not be read. What is known stays, a retry follows by itself.
    Failed {
        /// The kind.
        kind: Kind,
        /// Stable, for labels.
        reason: &'static str,
        /// What went wrong, for a person.
        error: String,
    },
    /// An object is not as it should be: its last state stays. The others count as they are.
    Odd {
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
        /// What is wrong with it, for a person.
        error: String,
    },
}

/// Puts together what the followers hear.
struct Collector {
    followers: SelectAll<BoxStream<'static, (usize, Heard)>>,
    sources: Vec<Source>,
    settled: bool,
    published: Objects,
}

struct Source {
    kind: Kind,
    resource: String,
    table: BTreeMap<String, Found>,
    looked: bool,
    synced: bool,
}

// === impl ObjectDiscovery ===

impl ObjectDiscovery {
    /// Follows the objects from now on, for ever. To be called in a tokio runtime.
    pub fn updates(self) -> BoxStream<'static, ObjectUpdate> {
        let [objectives, former_objectives] = inference_objective::resources();
        let [rewrites, former_rewrites] = inference_model_rewrite::resources();
        let watches = [
            self.objectives(objectives),
            self.objectives(former_objectives),
            self.rewrites(rewrites),
            self.rewrites(former_rewrites),
            self.models(inference_model::resource()),
        ];
        let sources = watches.iter().map(|(kind, resource)| Source {
            kind: *kind,
            resource: resource.name(),
            table: BTreeMap::new(),
            looked: false,
            synced: false,
        });
        let sources = sources.collect();
        let followers = watches.into_iter().enumerate();
        let followers = followers.map(|(index, (_, resource))| {
            let heard = updates(Follower::new(self.client.clone(), resource));
            heard.map(move |heard| (index, heard)).boxed()
        });
        updates(Collector {
            followers: followers.collect(),
            sources,
            settled: false,
            published: Objects::default(),
        })
    }

    fn objectives(&self, api: ApiResource) -> (Kind, Resource) {
        let pool = self.pool.clone();
        let reduce = move |object| Ok(Seen::objective(&pool, object));
        (Kind::Objective, watched(&self.namespace, api, reduce))
    }

    fn rewrites(&self, api: ApiResource) -> (Kind, Resource) {
        let pool = self.pool.clone();
        let reduce = move |object| Seen::rewrite(&pool, object);
        (Kind::Rewrite, watched(&self.namespace, api, reduce))
    }

    fn models(&self, api: ApiResource) -> (Kind, Resource) {
        let pool = self.pool.clone();
        let reduce = move |object| Seen::model(&pool, object);
        (Kind::Model, watched(&self.namespace, api, reduce))
    }
}

// === impl Collector ===

impl Steps<ObjectUpdate> for Collector {
    async fn step(&mut self, out: &mut Outbox<ObjectUpdate>) {
        // none of them ends
        if let Some((index, heard)) = self.followers.next().await {
            self.on(index, heard, out);
        }
    }
}

impl Collector {
    fn on(&mut self, index: usize, heard: Heard, out: &mut Outbox<ObjectUpdate>) {
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        let (kind, resource) = (source.kind, &source.resource);
        match heard {
            Heard::Table(table) => {
                source.table = table;
                let tables = self.sources.iter().map(|source| &source.table);
                let objects = Objects::of(tables);
                if objects != self.published {
                    self.published = objects.clone();
                    out.push_back(ObjectUpdate::Objects(objects));
                }
            }
            Heard::Looked => {
                source.looked = true;
                if !self.settled && self.sources.iter().all(|source| source.looked) {
                    self.settled = true;
                    out.push_back(ObjectUpdate::Settled);
                }
            }
            Heard::Listed => self.sync(index, true, out),
            Heard::Gone => {
                let resource = resource.clone();
                out.push_back(ObjectUpdate::Gone { kind, resource });
                self.sync(index, false, out);
            }
            Heard::Denied => {
                let resource = resource.clone();
                out.push_back(ObjectUpdate::Denied { kind, resource });
                self.sync(index, false, out);
            }
            Heard::Failed { reason, error } => out.push_back(ObjectUpdate::Failed {
                kind,
                reason,
                error: format!("{resource}: {error}"),
            }),
            Heard::Odd { name, error } => out.push_back(ObjectUpdate::Odd { kind, name, error }),
        }
    }

    /// A kind is synced as long as one of its groups is.
    fn sync(&mut self, index: usize, synced: bool, out: &mut Outbox<ObjectUpdate>) {
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        source.synced = synced;
        let kind = source.kind;
        let mut groups = self.sources.iter().filter(|source| source.kind == kind);
        let synced = groups.any(|source| source.synced);
        out.push_back(ObjectUpdate::Synced { kind, synced });
    }
}

#[cfg(test)]
mod tests;
