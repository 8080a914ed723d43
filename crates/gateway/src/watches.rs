//! The watches: one per kind for the whole cluster, one per pool for its pods, one per named
//! ConfigMap or Secret. All feed one bounded channel; when it is full, the watches wait.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::Api;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};
use watch::{Config, CrdState, LastListed, Tolerant, Update};

use crate::index::{CRDS, Event, Source};
use crate::infra::MANAGED_BY;
use crate::world::{ListedCredential, ListedSecret, RawSecret};

/// Two bursts of changes at the coalescing window: more would only be memory.
pub(crate) const EVENTS: usize = 1024;

/// Updates that are passed on together: as many deletions cost one look at their CRD.
const BATCH: usize = 256;

/// Wait before the objects of a CRD that was gone are listed again. What is deleted before that list, under the new CRD, is
/// kept like what went with the old one.
const LIST_AGAIN: Duration = Duration::from_secs(1);
const LIST_AGAIN_MAX: Duration = Duration::from_secs(30);

/// Time between two looks at the CRD of a kind for a change of its schema.
const LOOK: Duration = Duration::from_secs(15);

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

type Updates<K> = Pin<Box<dyn Stream<Item = Update<K>> + Send>>;

/// One watch, on its way to the reader.
struct Feed {
    events: mpsc::Sender<Event>,
    kind: &'static str,
    crd: Option<Crd>,
}

/// The CRD of a kind: it is asked after each batch that takes objects away, before that batch is passed on, and every
/// [`LOOK`].
struct Crd {
    client: Client,
    kind: &'static str,
    name: &'static str,
    last_listed: LastListed,
    schema: Schema,
    look: Instant,
    list_again: Option<Instant>,
    /// Looks in a row at which it was gone, or another one.
    doubts: u32,
}

/// The schema of a CRD, by its generation. With another one the server returns other fields of the same objects (K6), and
/// a watch may go on from what the schema before left of them, though nothing is written after that.
#[derive(Debug, Default)]
struct Schema {
    generation: Option<i64>,
    /// The list after a change may be the last that the old schema answers: one more follows.
    once_more: bool,
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
        watches.all(Config::default(), Event::Policies);
        watches.all(Config::default(), Event::TlsPolicies);
        watches.all(Config::default(), Event::Services);
        watches.all(Config::default(), Event::Slices);
        watches.all(Config::default(), Event::ServiceCidrs);
        watches.all(Config::default(), Event::Nodes);
        watches.all(ours.clone(), Event::Deployments);
        watches.all(ours.clone(), Event::ServiceAccounts);
        watches.all(ours, Event::DisruptionBudgets);
        let namespaces: Api<_> = Api::all(watches.client.clone());
        let list = move || -> Updates<_> {
            Box::pin(watch::metadata::<Namespace>(
                namespaces.clone(),
                Config::default(),
            ))
        };
        watches.forward(list, Event::Namespaces, None);
        watches
    }

    /// Watches exactly these besides the kinds. A pool's text is a label selector, a ConfigMap's or
    /// Secret's is not used.
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
                let list = move || objects::<Pod>(&pods, &config);
                Some(self.forward(list, move |update| Event::Pods(pool.clone(), update), None))
            }
            Source::ConfigMap(key) => {
                let maps: Api<_> = Api::namespaced(self.client.clone(), &key.namespace);
                let config = Config::default().fields(&format!("metadata.name={}", key.name));
                let key = key.clone();
                let list = move || objects::<ConfigMap>(&maps, &config);
                let wrap = move |update| Event::ConfigMap(key.clone(), update);
                Some(self.forward(list, wrap, None))
            }
            // By its name, so that a role can be restricted to some.
            Source::Secret(key) => {
                let secrets: Api<Tolerant<RawSecret>> =
                    Api::namespaced(self.client.clone(), &key.namespace);
                let config = Config::default().fields(&format!("metadata.name={}", key.name));
                let key = key.clone();
                let list = move || -> Updates<_> {
                    let read = |raw| Ok(ListedSecret::read(raw));
                    Box::pin(watch::reduced(secrets.clone(), config.clone(), read))
                };
                let wrap = move |update| Event::Secret(key.clone(), update);
                Some(self.forward(list, wrap, None))
            }
            Source::Credential(key) => {
                let secrets: Api<Tolerant<RawSecret>> =
                    Api::namespaced(self.client.clone(), &key.namespace);
                let config = Config::default().fields(&format!("metadata.name={}", key.name));
                let key = key.clone();
                let list = move || -> Updates<_> {
                    let read = |raw| Ok(ListedCredential::read(raw));
                    Box::pin(watch::reduced(secrets.clone(), config.clone(), read))
                };
                let wrap = move |update| Event::Credential(key.clone(), update);
                Some(self.forward(list, wrap, None))
            }
        }
    }

    fn all<K>(&mut self, config: Config, wrap: fn(Update<K>) -> Event)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api = Api::all(self.client.clone());
        let kind = K::kind(&());
        let crd = CRDS.iter().find(|(name, _)| *name == kind).copied();
        self.forward(move || objects::<K>(&api, &config), wrap, crd);
    }

    /// Of a kind that a CRD defines, `crd` has kind and CRD.
    fn forward<K: Send + 'static>(
        &mut self,
        list: impl Fn() -> Updates<K> + Send + 'static,
        wrap: impl Fn(Update<K>) -> Event + Send + 'static,
        crd: Option<(&'static str, &'static str)>,
    ) -> AbortHandle {
        let kind = std::any::type_name::<K>().rsplit("::").next().unwrap_or("");
        let feed = Feed {
            events: self.events.clone(),
            kind: kind.trim_end_matches('>'),
            crd: crd.map(|(kind, name)| Crd {
                client: self.client.clone(),
                kind,
                name,
                last_listed: LastListed::default(),
                schema: Schema::default(),
                look: Instant::now(),
                list_again: None,
                doubts: 0,
            }),
        };
        self.tasks.spawn(feed.run(list, wrap))
    }
}

fn objects<K>(api: &Api<Tolerant<K>>, config: &Config) -> Updates<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    Box::pin(watch::objects::<K>(api.clone(), config.clone()))
}

// === impl Feed ===

impl Feed {
    /// Until the reader is gone.
    async fn run<K: Send + 'static>(
        mut self,
        list: impl Fn() -> Updates<K> + Send + 'static,
        wrap: impl Fn(Update<K>) -> Event + Send + 'static,
    ) {
        let mut batches = list().ready_chunks(BATCH);
        loop {
            let due = self.crd.as_ref().map(Crd::due);
            let due = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let batch = tokio::select! {
                batch = batches.next() => batch,
                () = due => {
                    if let Some(crd) = &mut self.crd
                        && crd.lists_again().await
                    {
                        batches = list().ready_chunks(BATCH);
                    }
                    continue;
                }
            };
            let Some(batch) = batch else { return };
            if let Some(crd) = &mut self.crd
                && batch.iter().any(takes_away)
            {
                let listed = batch.iter().any(|one| matches!(one, Update::Reset(_)));
                let confirmed = Event::Confirmed(crd.kind, crd.confirms(listed).await);
                if self.events.send(confirmed).await.is_err() {
                    return;
                }
            }
            for update in batch {
                self.log(&update);
                if self.events.send(wrap(update)).await.is_err() {
                    return;
                }
            }
        }
    }

    fn log<K>(&self, update: &Update<K>) {
        let kind = self.kind;
        match update {
            Update::Failed(failure) if failure.is_kind_missing() => debug!(kind, "no such kind"),
            Update::Failed(failure) => {
                let reason = failure.reason();
                warn!(kind, reason, message = failure.message, "watch failed");
            }
            _ => {}
        }
    }
}

// === impl Schema ===

impl Schema {
    /// Whether the kind is to be listed, now that the CRD has this generation.
    fn lists_again(&mut self, generation: i64) -> bool {
        let before = self.generation.replace(generation);
        let changed = before.is_some_and(|before| before != generation);
        std::mem::replace(&mut self.once_more, changed) || changed
    }
}

// === impl Crd ===

impl Crd {
    /// When [`Self::lists_again`] is to be asked.
    fn due(&self) -> Instant {
        self.list_again.map_or(self.look, |at| at.min(self.look))
    }

    /// Whether the kind is to be listed now.
    async fn lists_again(&mut self) -> bool {
        let now = Instant::now();
        let mut again = self.list_again.take_if(|at| *at <= now).is_some();
        if self.look <= now {
            let state = watch::crd_state(&self.client, self.name).await;
            if let CrdState::Standing { generation, .. } = state
                && self.schema.lists_again(generation)
            {
                info!(
                    crd = self.name,
                    generation, "listing the kind again: its CRD changed"
                );
                again = true;
            }
            self.look = Instant::now() + watch::jittered(LOOK);
        }
        again
    }

    /// Whether the CRD confirms that what vanished was deleted. If it does not, the kind is listed again soon: a watch
    /// may outlive its CRD, and only a list shows what exists under the next one.
    async fn confirms(&mut self, listed: bool) -> bool {
        let state = watch::crd_state(&self.client, self.name).await;
        let confirmed = self.last_listed.confirms(&state, listed);
        if confirmed {
            self.doubts = 0;
            return true;
        }
        if self.doubts == 0 {
            let crd = self.name;
            warn!(
                crd,
                "the CRD is gone or another one: its objects stay in use for now"
            );
        }
        self.doubts = self.doubts.saturating_add(1);
        // one that is stuck at its end is listed without end
        let wait = watch::backoff(self.doubts, LIST_AGAIN, LIST_AGAIN_MAX, &mut rand::rng());
        self.list_again = Some(Instant::now() + wait);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;
    use crate::world::Key;

    /// A server that has one CRD, of this generation.
    fn mk_client(tasks: &mut JoinSet<()>, generation: Arc<AtomicI64>) -> Client {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tasks.spawn(async move {
            while let Some((_, send)) = server.next_request().await {
                let generation = generation.load(Ordering::SeqCst);
                let crd = json!({"metadata": {"uid": "u", "generation": generation}});
                send.send_response(Response::new(Body::from(crd.to_string().into_bytes())));
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_listed_twice_after_its_crd_changed() {
        let mut tasks = JoinSet::new();
        let generation = Arc::new(AtomicI64::new(1));
        let (events, _reader) = mpsc::channel(1);
        let feed = Feed {
            events,
            kind: "ConfigMap",
            crd: Some(Crd {
                client: mk_client(&mut tasks, Arc::clone(&generation)),
                kind: "ConfigMap",
                name: "maps.example",
                last_listed: LastListed::default(),
                schema: Schema::default(),
                look: Instant::now(),
                list_again: None,
                doubts: 0,
            }),
        };
        let lists = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lists);
        let list = move || -> Updates<ConfigMap> {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(futures::stream::pending())
        };
        let wrap = |update| Event::ConfigMap(Key::default(), update);
        tasks.spawn(feed.run(list, wrap));
        sleep(Duration::from_mins(1)).await;
        assert_eq!(lists.load(Ordering::SeqCst), 1, "nothing changed");
        generation.store(2, Ordering::SeqCst);
        let changed = Instant::now();
        while lists.load(Ordering::SeqCst) < 2 {
            sleep(Duration::from_millis(100)).await;
            assert!(changed.elapsed() < LOOK.mul_f64(1.3), "at the next look");
        }
        sleep(Duration::from_mins(1)).await;
        assert_eq!(lists.load(Ordering::SeqCst), 3, "once more, and no more");
    }

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
