//! The watches: one per kind for the whole cluster, one per pool for its pods, one per named
//! ConfigMap. All feed one bounded channel; when it is full, the watches wait.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::Api;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};
use watch::{Config, Update};

use crate::index::{CRDS, Event, Source};
use crate::infra::MANAGED_BY;

/// Two bursts of changes at the coalescing window: more would only be memory.
pub(crate) const EVENTS: usize = 1024;

/// Updates that are passed on together: as many deletions cost one look at their CRD.
const BATCH: usize = 256;

pub(crate) struct Watches {
    client: Client,
    events: mpsc::Sender<Event>,
    tasks: JoinSet<()>,
    /// Those that come and go, with their selectors.
    dynamic: BTreeMap<Source, (String, AbortHandle)>,
}

/// Watches that were ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// Nobody asks for their objects any more.
    pub(crate) gone: Vec<Source>,
    /// Others take over, and their first list tells what to drop.
    pub(crate) replaced: Vec<Source>,
}

/// What of the open watches is not wanted as it is.
fn compare<'a>(
    open: impl Iterator<Item = (&'a Source, &'a String)>,
    wanted: &BTreeMap<Source, String>,
) -> Stopped {
    let mut stopped = Stopped::default();
    for (source, text) in open {
        match wanted.get(source) {
            None => stopped.gone.push(source.clone()),
            Some(now) if now != text => stopped.replaced.push(source.clone()),
            Some(_) => {}
        }
    }
    stopped
}

/// Whether objects may be gone after it.
fn takes_away<K>(update: &Update<K>) -> bool {
    match update {
        Update::Reset(_) | Update::Delete(_) | Update::OddDelete(_) => true,
        Update::Apply(_) | Update::Odd(_) | Update::Failed(_) => false,
    }
}

// === impl Watches ===

impl Watches {
    pub(crate) fn start(client: Client, events: mpsc::Sender<Event>) -> Self {
        let mut watches = Self {
            client,
            events,
            tasks: JoinSet::new(),
            dynamic: BTreeMap::new(),
        };
        let ours =
            Config::default().labels(&format!("{}={MANAGED_BY}", crd::annotations::MANAGED_BY));
        watches.all(Config::default(), Event::Classes);
        watches.all(Config::default(), Event::Gateways);
        watches.all(Config::default(), Event::Routes);
        watches.all(Config::default(), Event::Pools);
        watches.all(Config::default(), Event::Imports);
        watches.all(Config::default(), Event::Grants);
        watches.all(Config::default(), Event::Services);
        watches.all(Config::default(), Event::Slices);
        watches.all(ours.clone(), Event::Deployments);
        watches.all(ours, Event::ServiceAccounts);
        let namespaces = Api::all(watches.client.clone());
        let namespaces = watch::metadata::<Namespace>(namespaces, Config::default());
        watches.forward(Box::pin(namespaces), Event::Namespaces, None);
        watches
    }

    /// Watches exactly these besides the kinds. A pool's text is a label selector, a ConfigMap's is
    /// not used.
    pub(crate) fn sync(&mut self, wanted: &BTreeMap<Source, String>) -> Stopped {
        let open = self.dynamic.iter();
        let stopped = compare(open.map(|(source, (text, _))| (source, text)), wanted);
        for source in stopped.gone.iter().chain(&stopped.replaced) {
            if let Some((_, task)) = self.dynamic.remove(source) {
                task.abort();
            }
        }
        for (source, selector) in wanted {
            if !self.dynamic.contains_key(source)
                && let Some(task) = self.open(source, selector)
            {
                self.dynamic
                    .insert(source.clone(), (selector.clone(), task));
            }
        }
        stopped
    }

    /// Comes back only if a watch ended by itself, which none does while its reader lives.
    pub(crate) async fn ended(&mut self) {
        loop {
            match self.tasks.join_next().await {
                Some(Err(error)) if error.is_cancelled() => {} // dropped by `sync`
                Some(_) | None => return,
            }
        }
    }

    fn open(&mut self, source: &Source, selector: &str) -> Option<AbortHandle> {
        match source {
            Source::Kind(_) => None,
            Source::Pods(pool) => {
                let pods: Api<_> = Api::namespaced(self.client.clone(), &pool.namespace);
                let config = Config::default().labels(selector);
                let pool = pool.clone();
                let pods = Box::pin(watch::objects::<Pod>(pods, config));
                Some(self.forward(pods, move |update| Event::Pods(pool.clone(), update), None))
            }
            Source::ConfigMap(key) => {
                let maps: Api<_> = Api::namespaced(self.client.clone(), &key.namespace);
                let config = Config::default().fields(&format!("metadata.name={}", key.name));
                let key = key.clone();
                let maps = Box::pin(watch::objects::<ConfigMap>(maps, config));
                let wrap = move |update| Event::ConfigMap(key.clone(), update);
                Some(self.forward(maps, wrap, None))
            }
        }
    }

    fn all<K>(&mut self, config: Config, wrap: fn(Update<K>) -> Event)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let objects = watch::objects::<K>(Api::all(self.client.clone()), config);
        let kind: Cow<'_, str> = K::kind(&());
        let crd = CRDS.iter().find(|(name, _)| *name == kind).copied();
        self.forward(Box::pin(objects), wrap, crd);
    }

    /// Of a kind that a CRD defines, `crd` has kind and CRD: it is asked after each batch that takes objects away, and
    /// before that batch is passed on.
    fn forward<K: Send + 'static>(
        &mut self,
        updates: Pin<Box<dyn Stream<Item = Update<K>> + Send>>,
        wrap: impl Fn(Update<K>) -> Event + Send + 'static,
        crd: Option<(&'static str, &'static str)>,
    ) -> AbortHandle {
        let events = self.events.clone();
        let client = self.client.clone();
        let mut batches = updates.ready_chunks(BATCH);
        let kind = std::any::type_name::<K>().rsplit("::").next().unwrap_or("");
        let kind = kind.trim_end_matches('>');
        self.tasks.spawn(async move {
            while let Some(batch) = batches.next().await {
                if let Some((kind, crd)) = crd
                    && batch.iter().any(takes_away)
                {
                    let state = watch::crd_state(&client, crd).await;
                    if events.send(Event::Crd(kind, state)).await.is_err() {
                        return;
                    }
                }
                for update in batch {
                    match &update {
                        Update::Failed(failure) if failure.is_kind_missing() => {
                            debug!(kind, "no such kind");
                        }
                        Update::Failed(failure) => {
                            let reason = failure.reason();
                            warn!(kind, reason, message = failure.message, "watch failed");
                        }
                        _ => {}
                    }
                    if events.send(wrap(update)).await.is_err() {
                        return;
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Key;

    #[test]
    fn watch_with_another_selector_replaces_the_one_before() {
        let pool = |name: &str| Source::Pods(Key::new("ns", name));
        let texts = |all: &[(&str, &str)]| -> BTreeMap<Source, String> {
            let texts = all
                .iter()
                .map(|(name, text)| (pool(name), (*text).to_owned()));
            texts.collect()
        };
        let open = texts(&[("same", "a=1"), ("edited", "a=1"), ("gone", "a=1")]);
        let wanted = texts(&[("same", "a=1"), ("edited", "a=2"), ("new", "a=1")]);
        let expected = Stopped {
            gone: vec![pool("gone")],
            replaced: vec![pool("edited")],
        };
        assert_eq!(compare(open.iter(), &wanted), expected);
    }
}
