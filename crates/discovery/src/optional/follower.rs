//! One kind of one group: looked for, watched, given up when its CRD goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::pending,
    mem,
    time::Duration,
};

use ::watch::{Config, OddObject, Tolerant, Update as Change, WatchFailure, backoff, jittered};
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Error,
    api::ListParams,
    core::{ApiResource, NotUsed, Object},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info};

use crate::{
    objects::{Found, Seen},
    update::{Outbox, Steps},
};

/// Between two looks for a kind that is not served.
pub(super) const LOOK: Duration = Duration::from_secs(30);
/// Between two looks at a kind that may not be read: who grants the right can wait, and each look leaves a line in the API
/// server's audit log.
pub(super) const DENIED: Duration = Duration::from_mins(5);
/// From the vanishing of an object to the question whether its CRD still stands. A CRD that is deleted says so before the
/// first of its objects goes, and the API server publishes that within milliseconds.
pub(super) const DOUBT: Duration = Duration::from_secs(1);
/// The same of an object that is not in the first list after its CRD was gone: time to put it back.
pub(super) const RETURN: Duration = Duration::from_secs(30);
/// One request.
const TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// How objects of one kind and group are read.
pub(super) struct Resource {
    api: ApiResource,
    namespace: String,
    open: Box<dyn Fn(Client) -> BoxStream<'static, Change<Seen>> + Send + Sync>,
}

/// What a follower has to report.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    /// All its objects of our pool.
    Table(BTreeMap<String, Found>),
    /// It is known what there is. Reported after each look that came to an end.
    Looked,
    /// A list is complete.
    Listed,
    /// The CRD of what was listed is gone.
    Gone,
    /// It may not be read.
    Denied,
    Failed {
        reason: &'static str,
        error: String,
    },
    Odd {
        name: String,
        error: String,
    },
}

pub(super) struct Follower {
    client: Client,
    resource: Resource,
    phase: Phase,
    objects: BTreeMap<String, Found>,
    /// Objects that the list being received has, but that cannot be read.
    odd: BTreeSet<String>,
    /// Objects that vanished, and when to ask whether somebody deleted them. Until then they stay.
    doubts: BTreeMap<String, Instant>,
    /// Requests in a row that failed.
    failures: u32,
    /// It was listed, and the CRD is gone since.
    gone: bool,
    listed: bool,
    denied: bool,
}

enum Phase {
    /// Looked for at this time.
    Looking(Instant),
    Watching(BoxStream<'static, Change<Seen>>),
}

/// What the API server says of a kind.
enum Standing {
    Served,
    /// It does not know it, or its CRD is being deleted.
    Gone,
    Denied,
    Unknown(Failure),
}

struct Failure {
    reason: &'static str,
    error: String,
}

/// The way to the objects of a kind, of which `reduce` keeps what matters.
pub(super) fn watched<S>(
    namespace: &str,
    api: ApiResource,
    reduce: impl Fn(Object<S, NotUsed>) -> Result<Seen, OddObject> + Clone + Send + Sync + 'static,
) -> Resource
where
    S: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (kind, within) = (api.clone(), namespace.to_owned());
    let open = move |client: Client| {
        let objects: Api<Tolerant<Object<S, NotUsed>>> =
            Api::namespaced_with(client, &within, &kind);
        let name = kind.kind.clone();
        ::watch::reduced_as(name, objects, Config::default(), reduce.clone()).boxed()
    };
    Resource {
        api,
        namespace: namespace.to_owned(),
        open: Box::new(open),
    }
}

// === impl Resource ===

impl Resource {
    /// Plural and group.
    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.api.plural, self.api.group)
    }

    /// Whether the kind is served, and not about to end: then nothing can be created.
    async fn is_served(&self, client: &Client) -> Standing {
        let resources = client.list_api_group_resources(&self.api.api_version);
        match timeout(TIMEOUT, resources).await {
            Ok(Ok(list)) => {
                let served = list.resources.iter().any(|one| {
                    one.name == self.api.plural && one.verbs.iter().any(|verb| verb == "create")
                });
                if served {
                    Standing::Served
                } else {
                    Standing::Gone
                }
            }
            Ok(Err(error)) => Standing::of(&error),
            Err(_) => Standing::timed_out(),
        }
    }

    /// Whether its objects may be listed.
    async fn is_allowed(&self, client: &Client) -> Standing {
        let objects: Api<Object<NotUsed, NotUsed>> =
            Api::namespaced_with(client.clone(), &self.namespace, &self.api);
        let params = ListParams::default().limit(1);
        match timeout(TIMEOUT, objects.list_metadata(&params)).await {
            Ok(Ok(_)) => Standing::Served,
            Ok(Err(error)) => Standing::of(&error),
            Err(_) => Standing::timed_out(),
        }
    }
}

// === impl Standing ===

impl Standing {
    fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) if status.code == 404 => Self::Gone,
            Error::Api(status) if status.code == 403 => Self::Denied,
            Error::Api(status) => Self::Unknown(Failure {
                reason: "ServerError",
                error: status.message.clone(),
            }),
            error => Self::Unknown(Failure {
                reason: "ConnectionLost",
                error: error.to_string(),
            }),
        }
    }

    fn timed_out() -> Self {
        Self::Unknown(Failure {
            reason: "ConnectionLost",
            error: format!("no answer within {TIMEOUT:?}"),
        })
    }
}

// === impl Follower ===

impl Follower {
    pub(super) fn new(client: Client, resource: Resource) -> Self {
        Self {
            client,
            resource,
            phase: Phase::Looking(Instant::now()),
            objects: BTreeMap::new(),
            odd: BTreeSet::new(),
            doubts: BTreeMap::new(),
            failures: 0,
            gone: false,
            listed: false,
            denied: false,
        }
    }

    async fn look(&mut self, out: &mut Outbox<Heard>) {
        let served = match self.resource.is_served(&self.client).await {
            // who may not ask tries
            Standing::Served | Standing::Denied => self.resource.is_allowed(&self.client).await,
            other => other,
        };
        match served {
            Standing::Served => {
                info!(resource = self.resource.name(), "watching");
                self.failures = 0;
                self.denied = false;
                self.phase = Phase::Watching((self.resource.open)(self.client.clone()));
            }
            Standing::Gone => {
                self.denied = false;
                self.end(out);
            }
            Standing::Denied => self.deny(out),
            Standing::Unknown(Failure { reason, error }) => {
                out.push_back(Heard::Failed { reason, error });
                self.phase = Phase::Looking(self.retry_at());
            }
        }
    }

    fn on(&mut self, change: Change<Seen>, out: &mut Outbox<Heard>) {
        match change {
            Change::Reset(list) => self.reset(list, out),
            Change::Apply(seen) => {
                self.failures = 0;
                self.odd.remove(&seen.name);
                if self.apply(seen) {
                    self.report(out);
                }
            }
            Change::Delete(seen) => self.doubt(seen.name, DOUBT),
            Change::OddDelete(odd) => {
                self.odd.remove(&odd.name);
                self.doubt(odd.name, DOUBT);
            }
            Change::Odd(OddObject { name, error, .. }) => {
                self.doubts.remove(&name);
                self.odd.insert(name.clone());
                out.push_back(Heard::Odd { name, error });
            }
            Change::Failed(failure) => self.fail(&failure, out),
        }
    }

    fn reset(&mut self, list: Vec<Seen>, out: &mut Outbox<Heard>) {
        let odd = mem::take(&mut self.odd);
        let listed: BTreeSet<String> = list.iter().map(|seen| seen.name.clone()).collect();
        let mut changed = false;
        for seen in list {
            changed |= self.apply(seen);
        }
        let after = if mem::take(&mut self.gone) {
            RETURN
        } else {
            DOUBT
        };
        let known: Vec<_> = self.objects.keys().cloned().collect();
        for name in known {
            if odd.contains(&name) {
                self.doubts.remove(&name);
            } else if !listed.contains(&name) {
                self.doubt(name, after);
            }
        }
        self.failures = 0;
        if !mem::replace(&mut self.listed, true) {
            out.push_back(Heard::Listed);
        }
        if changed {
            self.report(out);
        }
        out.push_back(Heard::Looked);
    }

    /// Takes an object as it is; whether that changed anything.
    fn apply(&mut self, seen: Seen) -> bool {
        self.doubts.remove(&seen.name);
        match seen.found {
            Some(found) if self.objects.get(&seen.name) == Some(&found) => false,
            Some(found) => {
                self.objects.insert(seen.name, found);
                true
            }
            None => self.objects.remove(&seen.name).is_some(),
        }
    }

    fn report(&self, out: &mut Outbox<Heard>) {
        out.push_back(Heard::Table(self.objects.clone()));
    }

    /// The object is not there any more: with its CRD, or because somebody deleted it.
    fn doubt(&mut self, name: String, after: Duration) {
        if self.objects.contains_key(&name) {
            let due = Instant::now() + after;
            self.doubts.entry(name).or_insert(due);
        }
    }

    fn fail(&mut self, failure: &WatchFailure, out: &mut Outbox<Heard>) {
        self.odd.clear();
        if failure.is_kind_missing() {
            self.end(out);
        } else if failure.status == Some(403) {
            self.deny(out);
        } else {
            out.push_back(Heard::Failed {
                reason: failure.reason(),
                error: failure.message.clone(),
            });
        }
    }

    /// The kind is not served: what was listed of it stays.
    fn end(&mut self, out: &mut Outbox<Heard>) {
        self.failures = 0;
        self.doubts.clear();
        self.odd.clear();
        if mem::take(&mut self.listed) {
            self.gone = true;
            out.push_back(Heard::Gone);
        } else {
            debug!(resource = self.resource.name(), "not served");
        }
        out.push_back(Heard::Looked);
        self.phase = Phase::Looking(Instant::now() + jittered(LOOK));
    }

    fn deny(&mut self, out: &mut Outbox<Heard>) {
        self.failures = 0;
        self.doubts.clear();
        self.odd.clear();
        self.listed = false;
        if !mem::replace(&mut self.denied, true) {
            out.push_back(Heard::Denied);
        }
        out.push_back(Heard::Looked);
        self.phase = Phase::Looking(Instant::now() + jittered(DENIED));
    }

    /// Asks whether objects that vanished were deleted. Who has no right to ask must believe it.
    async fn confirm(&mut self, out: &mut Outbox<Heard>) {
        match self.resource.is_served(&self.client).await {
            Standing::Served | Standing::Denied => {
                self.failures = 0;
                let now = Instant::now();
                let due = self.doubts.extract_if(.., |_, due| *due <= now);
                let deleted: Vec<_> = due.collect();
                for (name, _) in deleted {
                    self.objects.remove(&name);
                }
                self.report(out);
            }
            // a watch may outlive its CRD; only a list shows what exists under the next one
            Standing::Gone => self.end(out),
            Standing::Unknown(Failure { reason, error }) => {
                out.push_back(Heard::Failed { reason, error });
                let again = self.retry_at();
                for due in self.doubts.values_mut() {
                    *due = again.max(*due);
                }
            }
        }
    }

    fn retry_at(&mut self) -> Instant {
        self.failures = self.failures.saturating_add(1);
        let rng = &mut rand::rng();
        Instant::now() + backoff(self.failures, BACKOFF_MIN, BACKOFF_MAX, rng)
    }
}

impl Steps<Heard> for Follower {
    async fn step(&mut self, out: &mut Outbox<Heard>) {
        match &mut self.phase {
            Phase::Looking(at) => {
                sleep_until(*at).await;
                self.look(out).await;
            }
            Phase::Watching(changes) => {
                let due = self.doubts.values().min().copied();
                let due = async {
                    match due {
                        Some(at) => sleep_until(at).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    Some(change) = changes.next() => self.on(change, out),
                    () = due => self.confirm(out).await,
                }
            }
        }
    }
}
