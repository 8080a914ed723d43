//! The loop of one stream.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kv_router::{
    Batch, Effect, EventStream, Index, Input, PartialCause, StreamState, WorkerBlocks, Workers,
};
use moment::Clock;
use tokio::{
    task::yield_now,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    counts::Counts,
    link::{Link, LinkEvent},
    observer::{Observer, Received},
    replay::{Replay, ReplayEvent},
    seen::Seen,
    wire::Payload,
};

/// Where an engine, or one rank of it, publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// What happens in its cache.
    pub events: SocketAddr,
    /// What happened lately, if it keeps that.
    pub replay: Option<SocketAddr>,
}

struct Follower<O> {
    engine: Engine,
    blocks: WorkerBlocks,
    workers: Arc<Workers>,
    observer: O,
    clock: Clock,
    stream: EventStream<Payload>,
    state: StreamState,
    /// Why the state is partial, as far as the stream knows.
    partial: Option<PartialCause>,
    /// Why the last replay failed.
    replay_error: Option<String>,
    /// The number of ids in a block, where the engine's blocks have another size.
    other_size: u64,
    effects: VecDeque<Effect<Payload>>,
    link: Link,
    replay: Option<Replay>,
    /// The last message of this connection.
    heard: Option<u64>,
    held: Held,
    turn: Turn,
}

/// What happened next.
enum Happened {
    Link(LinkEvent),
    Replay(u64, ReplayEvent),
    Tick,
}

/// Bytes of messages that wait for a replay.
#[derive(Debug, Default)]
struct Held(usize);

/// Since when a task has its thread.
struct Turn {
    since: Instant,
}

/// What other tasks may have to wait for this one.
const TURN: Duration = Duration::from_micros(500);
/// As much as eight of the largest messages.
const MAX_HELD: usize = 64 << 20;

/// Keeps `blocks`, and with them the index of `workers`, as what the engine publishes, until `stop`; gives them back for
/// [`Workers::remove`]. They are as they were then: remove them, or they match for ever.
pub async fn follow(
    engine: Engine,
    blocks: WorkerBlocks,
    workers: Arc<Workers>,
    observer: impl Observer,
    stop: CancellationToken,
) -> WorkerBlocks {
    let mut follower = Follower::new(engine, blocks, workers, observer);
    // dropped at an await, of which none leaves a message half applied
    let running = async {
        loop {
            let happened = follower.next().await;
            follower.on(happened).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = running => {}
    }
    follower.blocks
}

// === impl Follower ===

impl<O: Observer> Follower<O> {
    fn new(engine: Engine, blocks: WorkerBlocks, workers: Arc<Workers>, observer: O) -> Self {
        let stream = EventStream::new(engine.replay.is_some());
        let state = stream.state();
        observer.state(state, None);
        Self {
            engine,
            blocks,
            workers,
            observer,
            clock: Clock::start(),
            stream,
            state,
            partial: None,
            replay_error: None,
            other_size: 0,
            effects: VecDeque::new(),
            link: Link::new(engine.events),
            replay: None,
            heard: None,
            held: Held::default(),
            turn: Turn {
                since: Instant::now(),
            },
        }
    }

    async fn next(&mut self) -> Happened {
        let tick = self.stream.next_at().map(|at| self.clock.instant(at));
        tokio::select! {
            event = self.link.next() => Happened::Link(event),
            (number, event) = replayed(self.replay.as_mut()) => Happened::Replay(number, event),
            () = reached(tick) => Happened::Tick,
        }
    }

    async fn on(&mut self, happened: Happened) {
        let input = match happened {
            Happened::Tick => Input::Tick,
            Happened::Link(LinkEvent::Connected) => {
                tracing::debug!(events = %self.engine.events, "subscribed");
                Input::Connected
            }
            Happened::Link(LinkEvent::Lost(error)) => {
                tracing::debug!(events = %self.engine.events, %error, "no subscription");
                self.observer.disconnected(&error);
                self.heard = None;
                Input::Disconnected
            }
            Happened::Link(LinkEvent::Message(message)) => {
                let Some(mut payload) = Payload::of(&message) else {
                    self.observer.malformed("frames");
                    return self.turn.pass().await;
                };
                self.note_gap(payload.number);
                let is_replaying = self.state == StreamState::Replaying;
                let bytes = if is_replaying {
                    payload = payload.alone();
                    payload.batch.len()
                } else {
                    message.len()
                };
                if !self.held.has_room_for(bytes, is_replaying)
                    && let Some(replay) = &self.replay
                {
                    let number = replay.number;
                    let mib = MAX_HELD >> 20;
                    self.replay_error = Some(format!("over {mib} MiB of messages came meanwhile"));
                    self.obey(Input::ReplayFailed(number)).await;
                }
                Input::Message(payload.number, payload)
            }
            Happened::Replay(number, ReplayEvent::Message(payload)) => {
                Input::Replayed(number, payload.number, payload)
            }
            Happened::Replay(number, ReplayEvent::Ended) => Input::ReplayEnded(number),
            Happened::Replay(number, ReplayEvent::Failed(error)) => {
                tracing::debug!(replay = ?self.engine.replay, %error, "no replay");
                self.replay_error = Some(error.to_string());
                Input::ReplayFailed(number)
            }
        };
        self.obey(input).await;
        self.turn.pass().await;
    }

    /// Reports what is missing before a message.
    fn note_gap(&mut self, number: u64) {
        if let Some(heard) = self.heard
            && let Some(missing @ 1..) = number.checked_sub(heard.saturating_add(1))
        {
            self.observer.gap(missing);
        }
        self.heard = Some(self.heard.map_or(number, |heard| heard.max(number)));
    }

    async fn obey(&mut self, input: Input<Payload>) {
        self.decide(input);
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Apply(payload) => self.apply(payload).await,
                Effect::Clear => {
                    self.blocks.clear(&self.workers.index);
                    self.observer.forgotten();
                }
                Effect::Replay { number, from } => self.ask(number, from),
                Effect::Connect(wait) => self.link.connect_after(wait),
            }
        }
    }

    fn decide(&mut self, input: Input<Payload>) {
        let effects = self.stream.on(input, self.clock.now(), &mut rand::rng());
        self.effects.extend(effects);
        let state = self.stream.state();
        if state != StreamState::Replaying {
            self.end_replay();
        }
        let partial = self.stream.partial();
        if (state, partial) != (self.state, self.partial) {
            (self.state, self.partial) = (state, partial);
            let reason = self.reason();
            self.observer.state(state, reason.as_deref());
        }
    }

    /// Why the state is not the expected one.
    fn reason(&self) -> Option<String> {
        match (self.state, self.partial) {
            (StreamState::BlockSizeMismatch, _) => {
                let ours = self.workers.index.block_size();
                let theirs = self.other_size;
                Some(format!(
                    "the engine's blocks have {theirs} ids, which is another size than {ours} ids: set --block-size to the engine's"
                ))
            }
            (StreamState::Partial, Some(cause @ PartialCause::FailedReplay)) => {
                let error = self.replay_error.as_deref().unwrap_or("no reason is known");
                Some(format!("{cause}: {error}"))
            }
            (StreamState::Partial, cause) => cause.map(|cause| cause.to_string()),
            _ => None,
        }
    }

    fn ask(&mut self, number: u64, from: u64) {
        self.end_replay();
        // without a port the stream asks for none
        let address = self.engine.replay;
        self.replay = address.map(|address| Replay::new(address, number, from));
    }

    fn end_replay(&mut self) {
        if let Some(replay) = self.replay.take() {
            self.observer.replayed(replay.result());
        }
    }

    async fn apply(&mut self, payload: Payload) {
        let batch = match Batch::read(&payload.batch) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::debug!(events = %self.engine.events, number = payload.number, %error, "a message is no events");
                self.observer.malformed(error.reason());
                // the messages that were missed may have removed blocks
                self.blocks.clear(&self.workers.index);
                self.observer.forgotten();
                return self.decide(Input::Unreadable);
            }
        };
        let mut counts = Counts::default();
        let mut seen = Seen::default();
        let index: &Index = &self.workers.index;
        for event in &batch.events {
            let applied = self.blocks.apply(index, event);
            counts.count(event, applied);
            seen.note(event, applied);
            self.turn.pass().await;
        }
        if seen.is_forgotten {
            self.observer.forgotten();
        }
        self.observer.received(&Received {
            number: payload.number,
            counts,
            blocks: self.blocks.len(),
            age: batch.at.and_then(age),
            is_replayed: self.state == StreamState::Replaying,
        });
        if let Some(error) = seen.unreadable {
            tracing::debug!(events = %self.engine.events, number = payload.number, %error, "an event was left out");
            self.decide(Input::Unreadable);
        }
        if seen.is_our_size {
            self.decide(Input::OurBlockSize);
        } else if let Some(size) = seen.other_size {
            self.other_size = size;
            self.decide(Input::OtherBlockSize);
        }
        if seen.is_orphan {
            self.decide(Input::Orphan);
        }
    }
}

async fn replayed(replay: Option<&mut Replay>) -> (u64, ReplayEvent) {
    match replay {
        Some(replay) => (replay.number, replay.next().await),
        None => std::future::pending().await,
    }
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Since that many seconds of 1970; none if they are no time.
fn age(seconds: f64) -> Option<Duration> {
    let at = Duration::try_from_secs_f64(seconds).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(at))
}

// === impl Held ===

impl Held {
    /// Counts a message that came, and says whether it may wait for a replay, if there is one.
    fn has_room_for(&mut self, bytes: usize, is_replaying: bool) -> bool {
        if !is_replaying {
            // as the one that begins a replay
            self.0 = bytes;
            return true;
        }
        self.0 = self.0.saturating_add(bytes);
        self.0 <= MAX_HELD
    }
}

// === impl Turn ===

impl Turn {
    /// Lets others have the thread if it was had for long.
    async fn pass(&mut self) {
        if self.since.elapsed() >= TURN {
            yield_now().await;
            self.since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
