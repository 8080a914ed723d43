//! Lets the scheduler act on tokio's clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    CacheEvent, Dice, Event, Latency, Limits, Moment, Rejected, Scheduler, SequenceId, Stats, Work,
};

/// How far a sequence is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens made so far.
    pub tokens: u32,
    /// Tokens of the prompt that the prefix cache held; 0 before it has started.
    pub cached_tokens: u32,
    /// It has ended: no more tokens come.
    pub finished: bool,
}

/// The engine stopped before the sequence had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine stopped before the request was complete")]
pub struct Cancelled;

/// A handle to the running engine; clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// One accepted request. Dropping it frees its place in the queue or in the batch at once.
#[derive(Debug)]
pub struct Sequence {
    id: SequenceId,
    progress: watch::Receiver<Progress>,
    engine: Engine,
}

/// The engine at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) kv_usage: f64,
    /// LoRA adapters of running sequences, and of those that wait.
    pub(crate) running_adapters: BTreeSet<Arc<str>>,
    pub(crate) waiting_adapters: BTreeSet<Arc<str>>,
    pub(crate) stats: Stats,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    state: Mutex<State>,
    /// The next due moment may have changed.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    scheduler: Scheduler,
    stats: Stats,
    /// One per sequence that has not ended, so as many as the scheduler lets in.
    progress: BTreeMap<SequenceId, watch::Sender<Progress>>,
    listener: Option<Arc<dyn CacheListener>>,
}

/// Is told of what the cache does, in order, while nothing else happens in the engine: it must not wait.
pub(crate) trait CacheListener: Debug + Send + Sync {
    /// This happened in one step.
    fn happened(&self, events: Vec<CacheEvent>);
    /// There is another engine, which knows nothing.
    fn restarted(&self);
}

// === impl Engine ===

impl Engine {
    /// An idle engine; it makes tokens while somebody runs [`Engine::run`].
    pub fn new(limits: Limits, latency: Latency, dice: Dice) -> Self {
        let state = State {
            scheduler: Scheduler::new(limits, latency, dice),
            stats: Stats::new(),
            progress: BTreeMap::new(),
            listener: None,
        };
        let shared = Shared {
            start: Instant::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Makes tokens when they are due, until `stop`; sequences alive then are [`Cancelled`].
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let next = self.act(|scheduler, now, events| {
                scheduler.advance(now, events);
                scheduler.next_due()
            });
            let due = async {
                match next {
                    Some(at) => sleep_until(self.shared.start + at.since_start()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.shared.changed.notified() => {}
                () = stop.cancelled() => break,
            }
        }
        // Dropped senders are how the sequences learn of it.
        self.shared.state.lock().progress.clear();
    }

    /// Adds work to the queue, or to the batch if there is room.
    ///
    /// # Errors
    /// [`Rejected`] as in [`Scheduler::submit`].
    pub fn submit(&self, work: Work) -> Result<Sequence, Rejected> {
        let (id, progress) = {
            let mut state = self.shared.state.lock();
            let mut events = Vec::new();
            let result = state.scheduler.submit(work, self.now(), &mut events);
            let accepted = result.map(|id| {
                let (sender, receiver) = watch::channel(Progress::default());
                state.progress.insert(id, sender);
                (id, receiver)
            });
            // After the insertion: it may have started at once.
            state.publish(&events);
            accepted?
        };
        self.shared.changed.notify_one();
        Ok(Sequence {
            id,
            progress,
            engine: self.clone(),
        })
    }

    /// From now on `listener` is told of what the cache does.
    pub(crate) fn set_listener(&self, listener: Arc<dyn CacheListener>) {
        let mut state = self.shared.state.lock();
        state.scheduler.cache_mut().keep_journal();
        state.listener = Some(listener);
    }

    /// As if it had crashed and were there again at once: sequences are [`Cancelled`], and the cache is empty.
    pub(crate) fn restart(&self) {
        let mut state = self.shared.state.lock();
        let mut events = Vec::new();
        state.scheduler.restart(self.now(), &mut events);
        state.publish(&events);
        if let Some(listener) = &state.listener {
            listener.restarted();
        }
    }

    /// Forgets what no sequence uses, as the path of that name of vLLM; false, and nothing changed, if some is used.
    pub(crate) fn reset_prefix_cache(&self) -> bool {
        self.act(|scheduler, now, events| {
            scheduler.advance(now, events);
            scheduler.cache_mut().clear()
        })
    }

    /// As [`Scheduler::set_latency`].
    pub fn set_latency(&self, latency: Latency) {
        self.act(|scheduler, now, events| {
            scheduler.advance(now, events);
            scheduler.set_latency(latency);
        });
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.shared.state.lock();
        Snapshot {
            waiting: state.scheduler.waiting(),
            running: state.scheduler.running(),
            kv_usage: state.scheduler.kv_usage(),
            running_adapters: state.scheduler.running_adapters(),
            waiting_adapters: state.scheduler.waiting_adapters(),
            stats: state.stats.clone(),
        }
    }

    fn now(&self) -> Moment {
        Moment::new(Instant::now().saturating_duration_since(self.shared.start))
    }

    fn act<T>(&self, step: impl FnOnce(&mut Scheduler, Moment, &mut Vec<Event>) -> T) -> T {
        let mut state = self.shared.state.lock();
        let mut events = Vec::new();
        let result = step(&mut state.scheduler, self.now(), &mut events);
        state.publish(&events);
        result
    }
}

// === impl State ===

impl State {
    fn publish(&mut self, events: &[Event]) {
        if let Some(listener) = &self.listener {
            let happened = self.scheduler.cache_mut().take_journal();
            if !happened.is_empty() {
                listener.happened(happened);
            }
        }
        for event in events {
            self.stats.observe(event);
            match *event {
                Event::Started {
                    id, cached_tokens, ..
                } => self.tell(id, |progress| progress.cached_tokens = cached_tokens),
                Event::Prefilled { .. } => {}
                Event::FirstToken { id, .. } => self.tell(id, |progress| progress.tokens = 1),
                Event::Token { id, produced, .. } => {
                    self.tell(id, |progress| progress.tokens = produced);
                }
                Event::Finished { id, .. } => {
                    self.tell(id, |progress| progress.finished = true);
                    self.progress.remove(&id);
                }
                Event::Aborted { id, .. } => {
                    self.progress.remove(&id);
                }
            }
        }
    }

    fn tell(&self, id: SequenceId, change: impl FnOnce(&mut Progress)) {
        if let Some(sender) = self.progress.get(&id) {
            sender.send_modify(change);
        }
    }
}

// === impl Sequence ===

impl Sequence {
    /// Waits until more than `seen` tokens are there or the sequence has ended.
    ///
    /// The wait ends in any case: latencies are bounded, so is the queue, and a stopped engine cancels.
    ///
    /// # Errors
    /// [`Cancelled`] when the engine stopped first.
    pub async fn beyond(&mut self, seen: u32) -> Result<Progress, Cancelled> {
        let progress = self
            .progress
            .wait_for(|progress| progress.tokens > seen || progress.finished)
            .await
            .map_err(|_| Cancelled)?;
        Ok(*progress)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`Cancelled`] when the engine stopped first.
    pub async fn finished(&mut self) -> Result<Progress, Cancelled> {
        let progress = self
            .progress
            .wait_for(|progress| progress.finished)
            .await
            .map_err(|_| Cancelled)?;
        Ok(*progress)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.engine
            .act(|scheduler, now, events| scheduler.cancel(self.id, now, events));
        self.engine.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        num::{NonZeroU32, NonZeroUsize},
        time::Duration,
    };

    use tokio::task::JoinSet;

    use super::*;
    use crate::engine::{Finish, Spread};

    fn mk_engine(tasks: &mut JoinSet<()>) -> (Engine, CancellationToken) {
        let limits = Limits {
            max_running: NonZeroUsize::MIN,
            max_waiting: 1,
            block_tokens: NonZeroU32::MIN,
            blocks: NonZeroU32::new(100).expect("not zero"),
            max_adapters: NonZeroUsize::MIN,
        };
        let latency = Latency {
            first_token: Spread::fixed(Duration::from_millis(100)),
            inter_token: Spread::fixed(Duration::from_millis(10)),
            ..Latency::default()
        };
        let engine = Engine::new(limits, latency, Dice::new(0));
        let stop = CancellationToken::new();
        tasks.spawn(engine.clone().run(stop.clone()));
        (engine, stop)
    }

    fn mk_work(output_tokens: u32) -> Work {
        Work {
            prompt_tokens: 5,
            prefix: Vec::new(),
            content: None,
            adapter: None,
            output_tokens,
            finish: Finish::Stop,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_when_they_are_due() {
        let mut tasks = JoinSet::new();
        let (engine, _stop) = mk_engine(&mut tasks);
        let start = Instant::now();
        let mut sequence = engine.submit(mk_work(3)).expect("room");
        for (seen, millis) in [(0, 100), (1, 110), (2, 120)] {
            let progress = sequence.beyond(seen).await.expect("running");
            assert_eq!(
                progress,
                Progress {
                    tokens: seen + 1,
                    cached_tokens: 0,
                    finished: seen == 2
                }
            );
            assert_eq!(start.elapsed().as_millis(), millis);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_sequence_gives_its_place_to_the_next() {
        let mut tasks = JoinSet::new();
        let (engine, _stop) = mk_engine(&mut tasks);
        let first = engine.submit(mk_work(3)).expect("room");
        let mut second = engine.submit(mk_work(1)).expect("room in the queue");
        let full = engine.submit(mk_work(1)).expect_err("the queue holds one");
        assert!(matches!(full, Rejected::QueueFull { .. }), "{full}");
        drop(first);
        let start = Instant::now();
        second.finished().await.expect("running");
        assert_eq!(start.elapsed().as_millis(), 100);
        let snapshot = engine.snapshot();
        assert_eq!(
            (snapshot.stats.aborted, snapshot.running, snapshot.waiting),
            (1, 0, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_engine_cancels_what_is_left() {
        let mut tasks = JoinSet::new();
        let (engine, stop) = mk_engine(&mut tasks);
        let mut sequence = engine.submit(mk_work(3)).expect("room");
        stop.cancel();
        assert_eq!(sequence.finished().await, Err(Cancelled));
    }
}
