//! Names of other clusters to addresses. The DNS zones are theirs as well: one that never answers must not use up threads, nor
//! delay what is known.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Lookups at once. Each holds a thread until the resolver of the system gives up, which no time limit of ours ends.
const LOOKUPS: usize = 32;

/// Addresses of one name that are kept.
const MAX_ANSWER: usize = 128;

/// Age from which on an answer is asked for again, and age up to which it is used meanwhile.
const FRESH: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_secs(30);

/// Has one lookup in flight for each name, and the last answer.
pub(super) struct Resolver {
    names: Arc<Mutex<BTreeMap<String, Name>>>,
    places: Arc<Semaphore>,
    tasks: Mutex<JoinSet<()>>,
    lookup: Lookup,
}

type Lookup = Box<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

#[derive(Default)]
struct Name {
    answer: Option<(Vec<IpAddr>, Instant)>,
    /// Closed when the lookup in flight ends.
    running: Option<watch::Receiver<()>>,
}

// === impl Resolver ===

impl Resolver {
    /// By the resolver of the system.
    pub(super) fn system() -> Self {
        Self::new(|name| {
            async move {
                let found = lookup_host((name, 0)).await?;
                Ok(found.map(|at| at.ip()).collect())
            }
            .boxed()
        })
    }

    pub(super) fn new(
        lookup: impl Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            names: Arc::default(),
            places: Arc::new(Semaphore::new(LOOKUPS)),
            tasks: Mutex::default(),
            lookup: Box::new(lookup),
        }
    }

    /// The last answer where it is not too old, else the next one; none where there is no such name. A caller may stop waiting:
    /// the lookup goes on, and its answer is there for the next caller.
    pub(super) async fn addresses(&self, name: &str) -> Vec<IpAddr> {
        let running = {
            let mut names = self.names.lock();
            let now = Instant::now();
            let known = names.entry(name.to_owned()).or_default();
            let age = known.answer.as_ref().map(|(_, at)| now - *at);
            if known.running.is_none() && age.is_none_or(|age| age >= FRESH) {
                known.running = Some(self.begin(name));
            }
            if age.is_some_and(|age| age < KEPT) {
                return known.addresses();
            }
            known.running.clone()
        };
        if let Some(mut running) = running {
            // An error is the end of the lookup.
            let _ = running.changed().await;
        }
        let names = self.names.lock();
        names.get(name).map(Name::addresses).unwrap_or_default()
    }

    fn begin(&self, name: &str) -> watch::Receiver<()> {
        let (ended, running) = watch::channel(());
        let (names, places) = (Arc::clone(&self.names), Arc::clone(&self.places));
        let (lookup, name) = ((self.lookup)(name.to_owned()), name.to_owned());
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let place = places.acquire().await;
            let result = lookup.await;
            drop(place);
            let mut names = names.lock();
            let now = Instant::now();
            if let Some(known) = names.get_mut(&name) {
                known.running = None;
                if let Ok(mut addresses) = result {
                    addresses.truncate(MAX_ANSWER);
                    known.answer = Some((addresses, now));
                }
            }
            // Names that nobody asks for any more go, and answers that are too old.
            names.retain(|_, known| {
                known.answer.take_if(|(_, at)| now - *at >= KEPT);
                known.running.is_some() || known.answer.is_some()
            });
            drop(names);
            drop(ended);
        });
        running
    }
}

// === impl Name ===

impl Name {
    fn addresses(&self) -> Vec<IpAddr> {
        let answer = self.answer.as_ref();
        answer
            .map(|(addresses, _)| addresses.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{join_all, pending};
    use tokio::time::{advance, timeout};

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 9));

    /// `dead.…` is never answered, `gone.…` does not exist, `once.…` is answered the first time only. Counts lookups.
    fn mk() -> (Resolver, Arc<AtomicUsize>) {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let resolver = Resolver::new(move |name| {
            let earlier = count.fetch_add(1, Ordering::SeqCst);
            async move {
                let is_dead = name.starts_with("dead") || name.starts_with("once") && earlier > 0;
                match is_dead {
                    true => pending().await,
                    false if name.starts_with("gone") => Err(io::ErrorKind::NotFound.into()),
                    false => Ok(vec![ADDRESS]),
                }
            }
            .boxed()
        });
        (resolver, begun)
    }

    async fn ask(resolver: &Resolver, name: &str) -> Option<Vec<IpAddr>> {
        let asked = resolver.addresses(name);
        timeout(Duration::from_millis(100), asked).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_lookup_of_a_name_is_in_flight_however_often_it_is_asked_for() {
        let (resolver, begun) = mk();
        for _ in 0..10 {
            assert_eq!(ask(&resolver, "dead.example").await, None);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        let all = (0..10).map(|_| ask(&resolver, "east.example"));
        for answer in join_all(all).await {
            assert_eq!(answer, Some(vec![ADDRESS]));
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn last_answer_is_used_for_thirty_seconds_while_no_other_comes() {
        let (resolver, begun) = mk();
        for (second, expected, lookups) in [
            (0, Some(vec![ADDRESS]), 1),
            (4, Some(vec![ADDRESS]), 1),
            (6, Some(vec![ADDRESS]), 2),
            (29, Some(vec![ADDRESS]), 2),
            (31, None, 2),
        ] {
            let (resolver, begun) = (&resolver, &begun);
            let start = Instant::now();
            assert_eq!(
                ask(resolver, "once.example").await,
                expected,
                "at {second} s"
            );
            assert_eq!(begun.load(Ordering::SeqCst), lookups, "at {second} s");
            let next = match second {
                0 => 4,
                6 => 23,
                _ => 2,
            };
            advance(Duration::from_secs(next).saturating_sub(start.elapsed())).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_are_gone_are_not_kept() {
        let (resolver, _) = mk();
        assert_eq!(ask(&resolver, "gone.example").await, Some(Vec::new()));
        assert!(resolver.names.lock().is_empty());
        ask(&resolver, "east.example").await;
        advance(KEPT).await;
        ask(&resolver, "gone.example").await;
        assert!(resolver.names.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_are_bounded() {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let resolver = Resolver::new(move |_| {
            let count = Arc::clone(&count);
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                pending().await
            }
            .boxed()
        });
        for at in 0..2 * LOOKUPS {
            assert_eq!(ask(&resolver, &format!("dead{at}.example")).await, None);
        }
        assert_eq!(begun.load(Ordering::SeqCst), LOOKUPS);
    }
}
