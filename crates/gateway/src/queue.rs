//! Writes by key: the newest wins, several keys at once, one key in order. Only while this replica is the one that writes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use foreign_text::{MAX_MESSAGE, clipped};
use lease::{Claim, Tenure};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Enough to fill a round trip to the API server, few enough not to be throttled by it.
const IN_FLIGHT: usize = 8;

/// The library repeats some answers up to 15 times within a call: no call may take longer.
const DEADLINE: Duration = Duration::from_secs(5);

/// Time in which the watch shows what was written; until then the same is not written again.
const ECHO: Duration = Duration::from_secs(2);

/// Longest wait between tries; the first is a second, then doubled.
const BACKOFF_LIMIT: Duration = Duration::from_mins(1);

/// Bounded by the number of keys.
pub(crate) struct Queue<K, V> {
    state: Arc<Mutex<State<K, V>>>,
    wake: Arc<Notify>,
}

struct State<K, V> {
    waiting: BTreeMap<K, V>,
    busy: BTreeSet<K>,
    written: BTreeMap<K, (V, Instant)>,
    failing: BTreeMap<K, Failing<V>>,
}

struct Failing<V> {
    /// In a row.
    failures: u32,
    again: Instant,
    /// What failed: another value need not wait.
    value: V,
}

/// How a write ended: none where this replica had to stop writing before it did.
type Written<K, V> = (K, V, Option<Result<(), String>>);

// === impl Queue ===

impl<K, V> Clone for Queue<K, V> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            wake: Arc::clone(&self.wake),
        }
    }
}

impl<K, V> Queue<K, V>
where
    K: Clone + Ord + Send + std::fmt::Debug + 'static,
    V: Clone + PartialEq + Send + 'static,
{
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                waiting: BTreeMap::new(),
                busy: BTreeSet::new(),
                written: BTreeMap::new(),
                failing: BTreeMap::new(),
            })),
            wake: Arc::new(Notify::new()),
        }
    }

    /// All that differs now: what is not in it need not be written any more.
    pub(crate) fn replace(&self, wanted: BTreeMap<K, V>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.written.retain(|_, (_, at)| *at + ECHO > now);
        state
            .failing
            .retain(|key, failing| wanted.get(key) == Some(&failing.value));
        let written = std::mem::take(&mut state.written);
        let fresh = wanted
            .into_iter()
            .filter(|(key, value)| written.get(key).is_none_or(|(before, _)| before != value));
        state.waiting = fresh.collect();
        state.written = written;
        drop(state);
        self.wake.notify_one();
    }

    /// Works while the claim is valid, until `stop`, then finishes what has begun. `work` fails with what to tell. `over` is called
    /// after each tenure, when nothing is under way any more.
    pub(crate) async fn run<F, Fut>(
        self,
        work: F,
        over: impl Fn(),
        claim: Claim,
        stop: CancellationToken,
    ) where
        F: Fn(K, V) -> Fut,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                tenure = claim.gained() => {
                    self.work(&work, tenure, &stop).await;
                    self.forget_written();
                    over();
                }
            }
        }
    }

    /// Another replica writes from now on: what was written, and what failed, says nothing any more.
    fn forget_written(&self) {
        let mut state = self.state.lock();
        state.written.clear();
        state.failing.clear();
    }

    /// The same until the end of the tenure, at which what has begun is cut off.
    async fn work<F, Fut>(&self, work: &F, tenure: Tenure, stop: &CancellationToken)
    where
        F: Fn(K, V) -> Fut,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut running: JoinSet<Written<K, V>> = JoinSet::new();
        loop {
            while running.len() < IN_FLIGHT
                && let Some((key, value)) = self.take()
            {
                let call = work(key.clone(), value.clone());
                let tenure = tenure.clone();
                running.spawn(async move {
                    let result = tokio::select! {
                        biased;
                        () = tenure.ended() => None,
                        result = timeout(DEADLINE, call) => {
                            Some(result.unwrap_or_else(|_| Err("no answer in 5 s".to_owned())))
                        }
                    };
                    (key, value, result)
                });
            }
            let retry = self.next_retry();
            let sleep = async {
                match retry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tenure.ended() => break,
                () = self.wake.notified() => {}
                () = sleep => {}
                Some(done) = running.join_next() => self.done(done),
            }
        }
        while let Some(done) = running.join_next().await {
            self.done(done);
        }
    }

    fn take(&self) -> Option<(K, V)> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let ready = |key: &K| {
            let failing = state.failing.get(key);
            let patient = failing.is_none_or(|failing| failing.again <= now);
            patient && !state.busy.contains(key)
        };
        let key = state.waiting.keys().find(|key| ready(key)).cloned()?;
        let entry = state.waiting.remove_entry(&key)?;
        state.busy.insert(key);
        Some(entry)
    }

    fn next_retry(&self) -> Option<Instant> {
        let now = Instant::now();
        let state = self.state.lock();
        let waiting = state
            .failing
            .iter()
            .filter(|(key, _)| state.waiting.contains_key(key) && !state.busy.contains(key));
        let again = waiting.map(|(_, failing)| failing.again);
        again.filter(|at| *at > now).min()
    }

    fn done(&self, done: Result<Written<K, V>, tokio::task::JoinError>) {
        let (key, value, result) = match done {
            Ok(done) => done,
            Err(error) => {
                // The key stays busy: what panics once does so again.
                warn!(%error, "a write panicked");
                return;
            }
        };
        let now = Instant::now();
        let mut state = self.state.lock();
        state.busy.remove(&key);
        match result {
            // the next tenure begins with it
            None => {
                state.waiting.entry(key).or_insert(value);
            }
            Some(Ok(())) => {
                state.failing.remove(&key);
                // Offered again while it was being written.
                if state.waiting.get(&key) == Some(&value) {
                    state.waiting.remove(&key);
                }
                state.written.insert(key, (value, now));
            }
            Some(Err(error)) => {
                let error = clipped(error, MAX_MESSAGE);
                // Another was offered while this one was being written: it need not wait.
                if state.waiting.get(&key).is_some_and(|next| *next != value) {
                    warn!(?key, error, "write failed");
                    return;
                }
                let before = state.failing.get(&key);
                let failures = before.map_or(0, |failing| failing.failures) + 1;
                let wait = Duration::from_secs(1 << (failures - 1).min(6)).min(BACKOFF_LIMIT);
                warn!(?key, error, failures, "write failed");
                let failing = Failing {
                    failures,
                    again: now + wait,
                    value: value.clone(),
                };
                state.failing.insert(key.clone(), failing);
                state.waiting.entry(key).or_insert(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use lease::ByHand;
    use moment::Clock;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    fn mk_wanted(pairs: &[(&'static str, u32)]) -> BTreeMap<&'static str, u32> {
        pairs.iter().copied().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn newest_value_wins_and_failures_are_tried_again() {
        let queue = Queue::new();
        let (calls, mut seen) = mpsc::channel(16);
        let stop = CancellationToken::new();
        queue.replace(mk_wanted(&[("a", 1)]));
        queue.replace(mk_wanted(&[("a", 2), ("b", 1)]));
        let failed = Arc::new(Mutex::new(false));
        let again = queue.clone();
        let work = {
            let failed = Arc::clone(&failed);
            move |key: &'static str, value: u32| {
                let calls = calls.clone();
                let first = key == "b" && !std::mem::replace(&mut *failed.lock(), key == "b");
                // The same is asked for while it is under way: it is not written twice.
                again.replace(mk_wanted(&[("a", 2), ("b", 1)]));
                async move {
                    calls.send((key, value)).await.map_err(|e| e.to_string())?;
                    if first { Err("refused".into()) } else { Ok(()) }
                }
            }
        };
        let mut tasks = JoinSet::new();
        let running = queue
            .clone()
            .run(work, || (), Claim::always(), stop.clone());
        tasks.spawn(running);
        let mut all = Vec::new();
        while all.len() < 3 {
            all.push(seen.recv().await.unwrap());
        }
        all.sort_unstable();
        assert_eq!(all, [("a", 2), ("b", 1), ("b", 1)]);
        // What was just written is not written again before the watch can show it.
        queue.replace(mk_wanted(&[("a", 2)]));
        assert!(queue.take().is_none());
        tokio::time::advance(ECHO).await;
        stop.cancel();
        tasks.join_next().await.unwrap().unwrap();
        queue.replace(mk_wanted(&[("a", 2)]));
        assert_eq!(queue.take(), Some(("a", 2)));
    }

    /// The same state is offered each second, as happens while other objects change.
    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_ever_more_rarely() {
        let queue = Queue::new();
        let begin = Instant::now();
        let mut tries = Vec::new();
        while begin.elapsed() < Duration::from_secs(200) {
            queue.replace(mk_wanted(&[("a", 1)]));
            if let Some((key, value)) = queue.take() {
                tries.push(begin.elapsed().as_secs());
                queue.done(Ok((key, value, Some(Err("refused".to_owned())))));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    }

    /// A failure of the value that is offered holds it back; a value that mends it is tried at once.
    #[tokio::test(start_paused = true)]
    async fn failure_holds_back_its_own_value_alone() {
        let queue = Queue::new();
        let fail = |key, value| queue.done(Ok((key, value, Some(Err("refused".to_owned())))));
        queue.replace(mk_wanted(&[("a", 1)]));
        assert_eq!(queue.take(), Some(("a", 1)));
        fail("a", 1);
        queue.replace(mk_wanted(&[("a", 1)]));
        assert_eq!(queue.take(), None);
        queue.replace(mk_wanted(&[("a", 2)]));
        assert_eq!(queue.take(), Some(("a", 2)));
        // offered while the one before it is under way
        queue.replace(mk_wanted(&[("a", 3)]));
        fail("a", 2);
        assert_eq!(queue.take(), Some(("a", 3)));
    }

    /// The calls of a replica, each of which ends when the test says so.
    struct Replica {
        hand: ByHand,
        queue: Queue<&'static str, u32>,
        calls: mpsc::Receiver<(&'static str, u32, oneshot::Sender<()>)>,
        /// How many are over.
        tenures: Arc<AtomicU32>,
        _tasks: JoinSet<()>,
    }

    impl Replica {
        fn start() -> Self {
            let (hand, claim) = ByHand::new(Clock::start());
            let (begun, calls) = mpsc::channel(16);
            let work = move |key, value| {
                let begun = begun.clone();
                async move {
                    let (end, ended) = oneshot::channel();
                    begun
                        .send((key, value, end))
                        .await
                        .map_err(|error| error.to_string())?;
                    ended.await.map_err(|error| error.to_string())
                }
            };
            let (queue, tenures) = (Queue::new(), Arc::<AtomicU32>::default());
            let count = Arc::clone(&tenures);
            let over = move || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            let mut tasks = JoinSet::new();
            let stop = CancellationToken::new();
            tasks.spawn(queue.clone().run(work, over, claim, stop));
            Self {
                hand,
                queue,
                calls,
                tenures,
                _tasks: tasks,
            }
        }

        async fn is_quiet(&mut self) -> bool {
            timeout(Duration::from_secs(1), self.calls.recv())
                .await
                .is_err()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_replica_with_the_claim_writes() {
        let mut replica = Replica::start();
        replica.queue.replace(mk_wanted(&[("a", 1)]));
        assert!(replica.is_quiet().await);
        replica.queue.replace(mk_wanted(&[("a", 2)]));
        replica.hand.hold(Duration::from_secs(10));
        let (_, value, mut end) = replica.calls.recv().await.unwrap();
        assert_eq!(value, 2, "the newest");
        // it is cut off with the claim, and the other replica writes
        replica.hand.give_up();
        assert_eq!(replica.tenures.load(Ordering::Relaxed), 0);
        timeout(Duration::from_secs(1), end.closed()).await.unwrap();
        assert!(replica.is_quiet().await);
        assert_eq!(replica.tenures.load(Ordering::Relaxed), 1);
        replica.queue.replace(mk_wanted(&[("b", 1)]));
        assert!(replica.is_quiet().await);
        replica.hand.hold(Duration::from_secs(10));
        let (key, ..) = replica.calls.recv().await.unwrap();
        assert_eq!(key, "b", "what is wanted by now");
    }

    /// What it wrote before is written again where the other replica has written something else since.
    #[tokio::test(start_paused = true)]
    async fn a_replica_that_gains_the_claim_again_begins_anew() {
        let mut replica = Replica::start();
        for _ in 0..2 {
            replica.hand.hold(Duration::from_millis(100));
            replica.queue.replace(mk_wanted(&[("a", 1)]));
            let (_, value, end) = replica.calls.recv().await.unwrap();
            assert_eq!(value, 1);
            end.send(()).unwrap();
            assert!(replica.is_quiet().await);
        }
    }
}
