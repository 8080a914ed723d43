//! The stream of updates and its backoff.

use std::{
    fmt::{Debug, Display},
    pin::Pin,
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    core::PartialObjectMeta,
    runtime::watcher::{self, Config, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{Tolerant, WatchFailure, backoff, clipped, failure::MAX_TEXT};

/// One change of a watched kind.
#[derive(Clone, Debug)]
pub enum Update<K> {
    /// A complete list: what is not in it, and is not told as [`Update::Odd`] just before it, is gone.
    Reset(Vec<K>),
    /// Added or changed.
    Apply(K),
    /// Deleted; its last state.
    Delete(K),
    /// An object that does not decode. It exists: treat it as unknown, not as absent.
    Odd(OddObject),
    /// An object that does not decode was deleted: it is gone, as with [`Update::Delete`].
    OddDelete(OddObject),
    /// The list or watch broke; a retry follows after a backoff.
    Failed(WatchFailure),
}

/// An object that could not be decoded into its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddObject {
    /// Its namespace, empty for a cluster-scoped kind.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What does not fit.
    pub error: String,
}

/// Shortest wait after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
/// Longest wait after failures in a row.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Failures further apart than this are not in a row: twice the longest wait between two tries.
const IN_A_ROW: Duration = Duration::from_mins(1);
/// Time between two lines about objects of a kind that do not decode.
const ODD_APART: Duration = Duration::from_secs(10);

/// Watches whole objects: `objects::<Pod>(Api::namespaced(client, "ml"), Config::default())`.
pub fn objects<K>(api: Api<Tolerant<K>>, config: Config) -> impl Stream<Item = Update<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    reduced(api, config, Ok)
}

/// Watches whole objects and keeps of each what `reduce` makes of it, at once: so a long list holds no more than that
/// until it is complete. One of which it can make nothing is as odd as one that does not decode.
pub fn reduced<K, F>(
    api: Api<Tolerant<K>>,
    config: Config,
    reduce: impl Fn(K) -> Result<F, OddObject> + Send + Sync,
) -> impl Stream<Item = Update<F>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Send,
{
    reduced_as(K::kind(&()).into_owned(), api, config, reduce)
}

/// As [`reduced`], of a type that is no kind by itself. `kind` is what logs call it.
pub fn reduced_as<K, F>(
    kind: String,
    api: Api<Tolerant<K>>,
    config: Config,
    reduce: impl Fn(K) -> Result<F, OddObject> + Send + Sync,
) -> impl Stream<Item = Update<F>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Send,
{
    let begin = move || watcher::watcher(api.clone(), config.clone());
    let decode = move |object: Tolerant<K>| object.decoded().and_then(&reduce);
    updates(kind, begin, decode)
}

/// Watches metadata alone, for kinds of which nothing else is needed.
pub fn metadata<K>(
    api: Api<PartialObjectMeta<K>>,
    config: Config,
) -> impl Stream<Item = Update<PartialObjectMeta<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    reduced_metadata(api, config, Ok)
}

/// As [`reduced`], of metadata alone.
pub fn reduced_metadata<K, F>(
    api: Api<PartialObjectMeta<K>>,
    config: Config,
    reduce: impl Fn(PartialObjectMeta<K>) -> Result<F, OddObject> + Send + Sync,
) -> impl Stream<Item = Update<F>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Send,
{
    let begin = move || watcher::watcher(api.clone(), config.clone());
    updates(K::kind(&()).into_owned(), begin, reduce)
}

struct State<S, K> {
    events: Pin<Box<S>>,
    /// The list being received.
    list: Vec<K>,
    listing: bool,
    /// Failures since the last sign of life.
    failures: u32,
    /// Those before the last list, until an event follows it: a list that no watch can follow is no sign of life.
    before_list: u32,
    last_failure: Option<Instant>,
    odd: OddLog,
}

/// Objects that do not decode, and when a line was last written about one: a server may send any number of them.
struct OddLog {
    kind: String,
    told: Option<Instant>,
    untold: u64,
}

fn updates<S, W, K>(
    kind: String,
    begin: impl Fn() -> S + Send + Sync,
    decode: impl Fn(W) -> Result<K, OddObject> + Send + Sync,
) -> impl Stream<Item = Update<K>> + Send
where
    S: Stream<Item = Result<Event<W>, watcher::Error>> + Send,
    W: Send,
    K: Send,
{
    let state = State {
        events: Box::pin(begin()),
        list: Vec::new(),
        listing: false,
        failures: 0,
        before_list: 0,
        last_failure: None,
        odd: OddLog {
            kind,
            told: None,
            untold: 0,
        },
    };
    let edge = std::sync::Arc::new((begin, decode));
    stream::unfold(state, move |mut state| {
        let edge = edge.clone();
        async move {
            if state.failures > 0 && !state.listing {
                let wait = backoff(state.failures, BACKOFF_MIN, BACKOFF_MAX, &mut rand::rng());
                tokio::time::sleep(wait).await;
            }
            let (begin, decode) = &*edge;
            loop {
                let event = state.events.next().await?;
                let update = match event {
                    Ok(Event::Init) => {
                        state.list = Vec::new();
                        state.listing = true;
                        None
                    }
                    Ok(Event::InitApply(object)) => match decode(object) {
                        Ok(object) => {
                            state.list.push(object);
                            None
                        }
                        Err(odd) => Some(state.odd.update(odd)),
                    },
                    Ok(Event::InitDone) => {
                        state.listing = false;
                        let failures = std::mem::take(&mut state.failures);
                        state.before_list = state.before_list.saturating_add(failures);
                        Some(Update::Reset(std::mem::take(&mut state.list)))
                    }
                    Ok(Event::Apply(object)) => {
                        state.failures = 0;
                        state.before_list = 0;
                        Some(match decode(object) {
                            Ok(object) => Update::Apply(object),
                            Err(odd) => state.odd.update(odd),
                        })
                    }
                    Ok(Event::Delete(object)) => {
                        state.failures = 0;
                        state.before_list = 0;
                        Some(match decode(object) {
                            Ok(object) => Update::Delete(object),
                            Err(odd) => Update::OddDelete(odd),
                        })
                    }
                    Err(error) => {
                        state.listing = false;
                        state.list = Vec::new();
                        let failure = WatchFailure::from(&error);
                        // a quiet kind gives no sign of life between two failures that are hours apart
                        let now = Instant::now();
                        let apart = state.last_failure.is_some_and(|last| now - last > IN_A_ROW);
                        if apart {
                            state.failures = 0;
                            state.before_list = 0;
                        }
                        if failure.relists() {
                            let before_list = std::mem::take(&mut state.before_list);
                            state.failures = state.failures.saturating_add(before_list);
                        }
                        state.failures = state.failures.saturating_add(1);
                        state.last_failure = Some(now);
                        if failure.relists() {
                            // of itself, it would only resume a watch that was refused
                            state.events = Box::pin(begin());
                        }
                        debug!(kind = state.odd.kind, reason = failure.reason(), error = %failure, "watch failed");
                        Some(Update::Failed(failure))
                    }
                };
                if let Some(update) = update {
                    return Some((update, state));
                }
            }
        }
    })
}

// === impl OddObject ===

impl OddObject {
    /// The object with these metadata, and what does not fit in it. Long texts are cut.
    pub fn new(metadata: &ObjectMeta, error: &dyn Display) -> Self {
        Self {
            namespace: clipped(metadata.namespace.clone().unwrap_or_default(), MAX_TEXT),
            name: clipped(metadata.name.clone().unwrap_or_default(), MAX_TEXT),
            error: clipped(error.to_string(), MAX_TEXT),
        }
    }
}

// === impl OddLog ===

impl OddLog {
    fn update<K>(&mut self, odd: OddObject) -> Update<K> {
        if self.is_due(Instant::now()) {
            let untold = std::mem::take(&mut self.untold);
            warn!(
                kind = self.kind,
                namespace = odd.namespace,
                name = odd.name,
                error = odd.error,
                untold,
                "skipping an object that does not decode"
            );
        }
        Update::Odd(odd)
    }

    /// Whether this one is told; the others are counted.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.told.is_some_and(|told| now - told < ODD_APART) {
            self.untold = self.untold.saturating_add(1);
            return false;
        }
        self.told = Some(now);
        true
    }
}

#[cfg(test)]
mod tests;
