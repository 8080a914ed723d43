//! An engine out of libzmq sockets, and what is seen of it.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use kv_events::{ConnectionError, Engine, Observer, Received, ReplayResult, follow};
use kv_router::{Limits, Overlap, Seed, Slot, StreamState, WorkerBlocks, Workers, chain};
use libzmq::{Kind, Peer, Socket};
use parking_lot::Mutex;
use rmp::encode;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

pub(crate) const BLOCK: usize = 4;
/// Longer than anything takes here, on a machine that does much else.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Batches by their numbers.
type Kept = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// What an engine publishes, and keeps for replays.
pub(crate) struct RealEngine {
    pub(crate) peer: Peer,
    pub(crate) publisher: Socket,
    replays: Option<Replays>,
    kept: Kept,
}

/// The topic that engines put between the empty frame of a reply and the number.
pub(crate) const TOPIC: &[u8] = b"kv@10.0.0.1@model";

struct Replays {
    address: SocketAddr,
    answers: Arc<AtomicBool>,
    has_topic: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    task: Option<thread::JoinHandle<()>>,
}

/// A stream that is followed, and all that was seen of it.
pub(crate) struct Followed {
    pub(crate) seen: Arc<Seen>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) slot: Slot,
    stop: CancellationToken,
    tasks: JoinSet<WorkerBlocks>,
}

#[derive(Default)]
pub(crate) struct Seen {
    log: Mutex<Log>,
    /// While held nobody reads what the engine publishes.
    pub(crate) gate: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) states: Vec<StreamState>,
    pub(crate) reasons: Vec<Option<String>>,
    pub(crate) numbers: Vec<u64>,
    pub(crate) gap: u64,
    pub(crate) forgotten: u32,
    pub(crate) replays: Vec<ReplayResult>,
    pub(crate) malformed: Vec<&'static str>,
    pub(crate) disconnected: Vec<&'static str>,
    pub(crate) ages: Vec<Option<Duration>>,
}

struct Watcher(Arc<Seen>);

/// A prompt of so many blocks, that differs from others.
pub(crate) fn prompt(name: u32, blocks: usize) -> Vec<u32> {
    let ids = u32::try_from(blocks * BLOCK).unwrap();
    (0..ids).map(|id| name * 10_000 + id).collect()
}

/// A batch that stores the blocks `from..` of a prompt.
pub(crate) fn stored(name: u32, blocks: usize, from: usize) -> Vec<u8> {
    stored_of(name, blocks, from, BLOCK)
}

pub(crate) fn stored_of(name: u32, blocks: usize, from: usize, size: usize) -> Vec<u8> {
    let hash = |block: usize| u64::from(name) << 32 | block as u64;
    let mut out = Vec::new();
    encode::write_array_len(&mut out, 2).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    encode::write_f64(&mut out, now.as_secs_f64()).unwrap();
    encode::write_array_len(&mut out, 1).unwrap();
    encode::write_array_len(&mut out, 5).unwrap();
    encode::write_str(&mut out, "BlockStored").unwrap();
    encode::write_array_len(&mut out, u32::try_from(blocks - from).unwrap()).unwrap();
    for block in from..blocks {
        encode::write_uint(&mut out, hash(block)).unwrap();
    }
    match from.checked_sub(1) {
        Some(parent) => drop(encode::write_uint(&mut out, hash(parent)).unwrap()),
        None => encode::write_nil(&mut out).unwrap(),
    }
    let ids = &prompt(name, blocks)[from * BLOCK..];
    encode::write_array_len(&mut out, u32::try_from(ids.len()).unwrap()).unwrap();
    for id in ids {
        encode::write_uint(&mut out, u64::from(*id)).unwrap();
    }
    encode::write_uint(&mut out, size as u64).unwrap();
    out
}

/// A batch of so many bytes that changes nothing.
pub(crate) fn padding(bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for len in [2, 1, 2] {
        if len == 1 {
            encode::write_nil(&mut out).unwrap();
        }
        encode::write_array_len(&mut out, len).unwrap();
    }
    encode::write_str(&mut out, "Padding").unwrap();
    encode::write_bin_len(&mut out, bytes).unwrap();
    out.resize(out.len() + bytes as usize, 0);
    out
}

/// Until something is so; else shows what is.
pub(crate) async fn eventually<T: fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    is: impl Fn(&T) -> bool,
) {
    let start = Instant::now();
    loop {
        let seen = look();
        if is(&seen) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "not so: {what}; seen: {seen:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

// === impl RealEngine ===

impl RealEngine {
    pub(crate) fn start(has_replay: bool) -> Self {
        Self::start_at(0, 0, has_replay)
    }

    /// On the ports of an earlier one.
    pub(crate) fn restart(self) -> Self {
        let port = self.publisher.address().port();
        let replay = self.replays.as_ref().map(|it| it.address.port());
        drop(self);
        Self::start_at(port, replay.unwrap_or_default(), replay.is_some())
    }

    fn start_at(port: u16, replay: u16, has_replay: bool) -> Self {
        let mut peer = Peer::start().unwrap();
        let publisher = peer.bind(Kind::XPub, port).unwrap();
        let kept = Arc::default();
        let replays = has_replay.then(|| Replays::start(replay, Arc::clone(&kept)));
        Self {
            peer,
            publisher,
            replays,
            kept,
        }
    }

    pub(crate) fn address(&self) -> Engine {
        Engine {
            events: self.publisher.address(),
            replay: self.replays.as_ref().map(|it| it.address),
        }
    }

    /// Until somebody subscribes.
    #[track_caller]
    pub(crate) fn subscribed(&mut self) {
        let message = self.peer.receive(&self.publisher, LIMIT).unwrap();
        match message.as_deref() {
            Some([frame]) if frame[..] == [1] => {}
            // one that is gone
            Some([frame]) if frame[..] == [0] => self.subscribed(),
            other => panic!("no subscription: {other:?}"),
        }
    }

    pub(crate) fn publish(&mut self, number: u64, batch: &[u8]) {
        self.keep(number, batch);
        self.send(number, batch);
    }

    /// Lost on the way.
    pub(crate) fn keep(&mut self, number: u64, batch: &[u8]) {
        self.kept.lock().push((number, batch.to_vec()));
    }

    /// Not there for replays.
    pub(crate) fn send(&mut self, number: u64, batch: &[u8]) {
        let frames = [&b""[..], &number.to_be_bytes(), batch];
        self.peer.send(&self.publisher, &frames).unwrap();
    }

    /// Replays begin here from now on.
    pub(crate) fn forget_before(&self, number: u64) {
        self.kept.lock().retain(|(kept, _)| *kept >= number);
    }

    /// Replays are asked for in vain.
    pub(crate) fn leave_unanswered(&self) {
        let replays = self.replays.as_ref().expect("replays");
        replays.answers.store(false, Ordering::Relaxed);
    }

    /// Writes replays as vLLM did before 0.26: without the topic.
    pub(crate) fn replay_without_topic(&self) {
        let replays = self.replays.as_ref().expect("replays");
        replays.has_topic.store(false, Ordering::Relaxed);
    }

    /// Its connections end, and it goes on.
    pub(crate) fn reopen(&mut self) {
        self.peer.close(&self.publisher).unwrap();
        let port = self.publisher.address().port();
        let start = std::time::SystemTime::now();
        // the port is free when libzmq's own thread has closed it
        self.publisher = loop {
            match self.peer.bind(Kind::XPub, port) {
                Ok(publisher) => break publisher,
                Err(error) => assert!(start.elapsed().unwrap() < LIMIT, "{error}"),
            }
        };
    }
}

// === impl Replays ===

impl Replays {
    fn start(port: u16, kept: Kept) -> Self {
        let mut peer = Peer::start().unwrap();
        let router = peer.bind(Kind::Router, port).unwrap();
        let address = router.address();
        let answers = Arc::new(AtomicBool::new(true));
        let has_topic = Arc::new(AtomicBool::new(true));
        let stop = Arc::new(AtomicBool::new(false));
        let (told, stopped) = (answers.clone(), stop.clone());
        let with_topic = has_topic.clone();
        let task = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let asked = peer.receive(&router, Duration::from_millis(20)).unwrap();
                let Some([who, empty, from]) = asked.as_deref() else {
                    assert_eq!(asked, None, "not what engines are asked");
                    continue;
                };
                assert!(empty.is_empty());
                if !told.load(Ordering::Relaxed) {
                    continue;
                }
                let from = u64::from_be_bytes(from[..].try_into().unwrap());
                let kept = kept.lock().clone();
                let mut reply = |topic: &[u8], number: &[u8], batch: &[u8]| {
                    let four = [&who[..], b"", topic, number, batch];
                    let three = [&who[..], b"", number, batch];
                    if with_topic.load(Ordering::Relaxed) {
                        peer.send(&router, &four).unwrap();
                    } else {
                        peer.send(&router, &three).unwrap();
                    }
                };
                for (number, batch) in kept.iter().filter(|(number, _)| *number >= from) {
                    reply(TOPIC, &number.to_be_bytes(), batch);
                }
                reply(b"", &[0xff; 8], b"");
            }
        });
        Self {
            address,
            answers,
            has_topic,
            stop,
            task: Some(task),
        }
    }
}

impl Drop for Replays {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(task) = self.task.take() {
            task.join().unwrap();
        }
    }
}

// === impl Followed ===

impl Followed {
    pub(crate) fn start(engine: Engine) -> Self {
        let limits = Limits {
            block_size: BLOCK,
            ..Limits::default()
        };
        Self::start_in(engine, &Arc::new(Workers::new(limits, 64 << 20)))
    }

    pub(crate) fn start_in(engine: Engine, workers: &Arc<Workers>) -> Self {
        let blocks = workers.add().unwrap();
        let (slot, stop) = (blocks.slot(), CancellationToken::new());
        let seen = Arc::<Seen>::default();
        let mut tasks = JoinSet::new();
        let watcher = Watcher(seen.clone());
        tasks.spawn(follow(
            engine,
            blocks,
            workers.clone(),
            watcher,
            stop.clone(),
        ));
        Self {
            seen,
            workers: workers.clone(),
            slot,
            stop,
            tasks,
        }
    }

    pub(crate) async fn stop(mut self) -> WorkerBlocks {
        self.stop.cancel();
        self.tasks.join_next().await.expect("a task").unwrap()
    }

    /// How many blocks of a prompt of so many are known.
    pub(crate) fn overlap(&self, name: u32, blocks: usize) -> u32 {
        let mut names = Vec::new();
        chain(&prompt(name, blocks), BLOCK, Seed::PLAIN, &mut names);
        let mut out = [Overlap::default()];
        self.workers.index.matches(&names, &[self.slot], &mut out);
        out[0].gpu
    }

    pub(crate) async fn knows(&self, name: u32, blocks: usize, overlap: u32) {
        let what = format!("{overlap} of {blocks} blocks of prompt {name}");
        let look = || (self.overlap(name, blocks), self.seen.log());
        eventually(&what, look, |(known, _)| *known == overlap).await;
    }

    pub(crate) async fn is(&self, what: &str, is: impl Fn(&Log) -> bool) {
        eventually(what, || self.seen.log(), is).await;
    }

    pub(crate) async fn is_in(&self, state: StreamState) {
        self.is(state.name(), |log| log.states.last() == Some(&state))
            .await;
    }
}

// === impl Seen ===

impl Seen {
    pub(crate) fn log(&self) -> Log {
        self.log.lock().clone()
    }
}

impl Observer for Watcher {
    fn state(&self, state: StreamState, reason: Option<&str>) {
        let mut log = self.0.log.lock();
        log.states.push(state);
        log.reasons.push(reason.map(str::to_owned));
    }

    fn disconnected(&self, error: &ConnectionError) {
        self.0.log.lock().disconnected.push(error.reason());
    }

    fn received(&self, received: &Received) {
        let mut log = self.0.log.lock();
        log.numbers.push(received.number);
        log.ages.push(received.age);
        drop(log);
        drop(self.0.gate.lock());
    }

    fn malformed(&self, reason: &'static str) {
        self.0.log.lock().malformed.push(reason);
    }

    fn gap(&self, missing: u64) {
        self.0.log.lock().gap += missing;
    }

    fn forgotten(&self) {
        self.0.log.lock().forgotten += 1;
    }

    fn replayed(&self, result: ReplayResult) {
        self.0.log.lock().replays.push(result);
    }
}
