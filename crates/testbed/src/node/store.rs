//! What the API server has of one kind, kept by a watch.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use ::watch::{Config, Update};
use futures::StreamExt as _;
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// See the module. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Store<K> {
    shared: Arc<Shared<K>>,
}

#[derive(Debug)]
struct Shared<K> {
    objects: RwLock<BTreeMap<Key, Arc<K>>>,
    /// Counts changes.
    version: watch::Sender<u64>,
}

// === impl Store ===

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                objects: RwLock::default(),
                version: watch::Sender::new(0),
            }),
        }
    }

    /// Follows the kind in all namespaces; never ends. A change of `again` starts the watch anew, without waiting for
    /// the end of its backoff.
    pub(crate) async fn follow(self, client: Client, mut again: watch::Receiver<u64>) {
        loop {
            let api: Api<::watch::Tolerant<K>> = Api::all(client.clone());
            let mut updates = std::pin::pin!(::watch::objects(api, Config::default()));
            loop {
                tokio::select! {
                    update = updates.next() => match update {
                        Some(update) => self.take(update),
                        None => break,
                    },
                    Ok(()) = again.changed() => break,
                }
            }
        }
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.shared.objects.read().get(&key).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.shared.objects.read().values().cloned().collect()
    }

    /// Changes whenever the store does.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    fn take(&self, update: Update<K>) {
        {
            let mut objects = self.shared.objects.write();
            match update {
                Update::Reset(list) => {
                    *objects = list
                        .into_iter()
                        .map(|object| (key(&object), Arc::new(object)))
                        .collect();
                }
                Update::Apply(object) => {
                    objects.insert(key(&object), Arc::new(object));
                }
                Update::Delete(object) => {
                    objects.remove(&key(&object));
                }
                Update::OddDelete(odd) => {
                    objects.remove(&(odd.namespace, odd.name));
                }
                Update::Odd(_) | Update::Failed(_) => return,
            }
        }
        self.shared.version.send_modify(|version| *version += 1);
    }
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn mk(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("ml".to_owned());
        object.metadata.name = Some(name.to_owned());
        object
    }

    #[test]
    fn a_complete_list_removes_what_is_not_in_it() {
        let store = Store::new();
        store.take(Update::Apply(mk("old")));
        store.take(Update::Reset(vec![mk("new")]));
        assert!(store.get("ml", "old").is_none());
        assert!(store.get("ml", "new").is_some());
    }

    #[test]
    fn subscribers_see_every_change() {
        let store = Store::new();
        let mut changes = store.subscribe();
        store.take(Update::Apply(mk("a")));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        store.take(Update::Delete(mk("a")));
        assert!(changes.has_changed().unwrap());
        assert!(store.all().is_empty());
    }
}
