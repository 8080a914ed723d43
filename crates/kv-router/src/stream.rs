//! The stream of one engine's events: what is applied, replayed and forgotten.
//!
//! Messages are numbered from 0 in each life of an engine. Slow subscribers lose some without being told, and a new one
//! learns nothing of what was before; a replay gives the last of them again.

use std::{collections::VecDeque, time::Duration};

use moment::Moment;
use rand::{Rng, RngExt};
use smallvec::SmallVec;

use self::state::BlockSize;

mod state;

#[cfg(test)]
mod tests;

pub use state::{PartialCause, StreamState};

/// One stream, of one rank of a worker; `M` is what a message carries. Whoever owns the connections feeds it and obeys the
/// effects in their order.
#[derive(Debug)]
pub struct EventStream<M> {
    can_replay: bool,
    /// Of the message that was applied last.
    last: Option<u64>,
    /// Why blocks may be missing that were stored before the known ones.
    partial: Option<PartialCause>,
    block_size: BlockSize,
    link: Link,
    replay: Option<Replay<M>>,
    attempts: u64,
    orphan_replay: Option<Moment>,
}

/// What happened to the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<M> {
    /// The subscription stands.
    Connected,
    /// The connection ended, or could not be made.
    Disconnected,
    /// A message came.
    Message(u64, M),
    /// A message of the replay with this number came.
    Replayed(u64, u64, M),
    /// The replay with this number has no more messages.
    ReplayEnded(u64),
    /// The replay with this number failed.
    ReplayFailed(u64),
    /// What was applied last has an unknown parent.
    Orphan,
    /// The last message could not be read, or only in part.
    Unreadable,
    /// The last message has blocks of the expected size.
    OurBlockSize,
    /// The last message has blocks of another size in the accelerator's memory, and none of the expected size.
    OtherBlockSize,
    /// Time passed: [`EventStream::next_at`] came.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<M> {
    /// Apply this.
    Apply(M),
    /// Forget all blocks of the worker.
    Clear,
    /// Ask for all messages from `from` on, and report them under `number`; a former replay is over.
    Replay {
        /// Its number.
        number: u64,
        /// The first message that is wanted.
        from: u64,
    },
    /// Connect after this time.
    Connect(Duration),
}

/// What is to be done, in order.
pub type Effects<M> = SmallVec<[Effect<M>; 2]>;

#[derive(Debug)]
enum Link {
    /// There was none yet, or what was known before was forgotten.
    Down { retries: u32 },
    /// What is known is kept until then.
    Lost { until: Moment, retries: u32 },
    /// Until a message comes it may be another engine than before, or none: the next wait is longer, and what is known from
    /// before, if anything is, is kept for `left` without a connection.
    Up {
        left: Option<Duration>,
        retries: u32,
    },
}

#[derive(Debug)]
struct Replay<M> {
    number: u64,
    since: Moment,
    /// The message that is to come next.
    next: u64,
    /// None came yet.
    is_empty: bool,
    /// It repeats what is known, which is forgotten when the first message comes.
    is_fresh: bool,
    buffer: VecDeque<(u64, M)>,
}

/// Some 100 ms of an engine's messages.
const BUFFER: usize = 1024;
const REPLAY_TIME: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_secs(10);
const ORPHANS_EACH: Duration = Duration::from_secs(30);
/// The first wait is between half of this and all of it.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const MAX_WAIT: Duration = Duration::from_secs(5);

// === impl EventStream ===

impl<M> EventStream<M> {
    /// A stream that is not connected yet; its owner connects it. `can_replay`: the engine has a port for it.
    pub fn new(can_replay: bool) -> Self {
        Self {
            can_replay,
            last: None,
            partial: None,
            block_size: BlockSize::Unknown,
            link: Link::Down { retries: 0 },
            replay: None,
            attempts: 0,
            orphan_replay: None,
        }
    }

    /// What is to be done about `input`.
    pub fn on(&mut self, input: Input<M>, now: Moment, rng: &mut impl Rng) -> Effects<M> {
        let mut effects = Effects::new();
        self.time_out(now, &mut effects);
        match input {
            Input::Connected => self.connected(now, &mut effects),
            Input::Disconnected => self.disconnected(now, rng, &mut effects),
            Input::Message(number, message) => {
                self.message(number, message, now, &mut effects);
            }
            Input::Replayed(replay, number, message) if self.is_replay(replay) => {
                self.replayed(number, message, &mut effects);
            }
            Input::ReplayEnded(replay) if self.is_replay(replay) => self.relearn(&mut effects),
            Input::ReplayFailed(replay) if self.is_replay(replay) => {
                self.give_up(PartialCause::FailedReplay, &mut effects);
            }
            Input::Orphan => self.orphan(now, &mut effects),
            Input::Unreadable => self.partial = Some(PartialCause::Unreadable),
            Input::OurBlockSize => self.block_size = BlockSize::Ours,
            Input::OtherBlockSize if self.block_size == BlockSize::Unknown => {
                self.block_size = BlockSize::Other;
            }
            _ => {}
        }
        effects
    }

    /// When [`Input::Tick`] is due.
    pub fn next_at(&self) -> Option<Moment> {
        let replay = self.replay.as_ref().map(|it| it.since + REPLAY_TIME);
        let lost = match self.link {
            Link::Lost { until, .. } => Some(until),
            _ => None,
        };
        replay.into_iter().chain(lost).min()
    }

    /// How far what is known can be trusted.
    pub fn state(&self) -> StreamState {
        match self.link {
            Link::Down { .. } | Link::Lost { .. } => StreamState::Connecting,
            _ if self.replay.is_some() => StreamState::Replaying,
            _ if self.block_size == BlockSize::Other => StreamState::BlockSizeMismatch,
            _ if self.last.is_none() => StreamState::NoEvents,
            _ if self.partial.is_some() => StreamState::Partial,
            Link::Up { .. } => StreamState::Live,
        }
    }

    /// Why the known blocks are incomplete, if they are.
    pub fn partial(&self) -> Option<PartialCause> {
        self.partial
    }

    fn time_out(&mut self, now: Moment, effects: &mut Effects<M>) {
        if let Link::Lost { until, retries } = self.link
            && now >= until
        {
            self.link = Link::Down { retries };
            self.clear(effects);
        }
        let replay = self.replay.as_ref();
        if replay.is_some_and(|it| now.since(it.since) >= REPLAY_TIME) {
            self.give_up(PartialCause::SlowReplay, effects);
        }
    }

    fn connected(&mut self, now: Moment, effects: &mut Effects<M>) {
        self.link = match self.link {
            Link::Lost { until, retries } => Link::Up {
                left: Some(until.since(now)),
                retries,
            },
            Link::Down { retries } | Link::Up { retries, .. } => Link::Up {
                left: None,
                retries,
            },
        };
        // An engine that publishes nothing at present may have published before.
        if self.last.is_none() && self.can_replay {
            self.start(0, false, None, now, effects);
        }
    }

    fn disconnected(&mut self, now: Moment, rng: &mut impl Rng, effects: &mut Effects<M>) {
        self.replay = None;
        let (Link::Up { retries, .. } | Link::Down { retries } | Link::Lost { retries, .. }) =
            self.link;
        let most = FIRST_WAIT
            .saturating_mul(1 << retries.min(16))
            .min(MAX_WAIT);
        effects.push(Effect::Connect(most.mul_f64(rng.random_range(0.5..1.0))));
        let retries = retries + 1;
        self.link = match self.link {
            Link::Lost { until, .. } => Link::Lost { until, retries },
            Link::Up { left, .. } if self.last.is_some() => Link::Lost {
                until: now + left.unwrap_or(KEPT),
                retries,
            },
            _ => Link::Down { retries },
        };
    }

    fn message(&mut self, number: u64, message: M, now: Moment, effects: &mut Effects<M>) {
        let mut was_again = false;
        if let Link::Up { left, retries } = &mut self.link {
            was_again = left.take().is_some();
            *retries = 0;
        }
        if let Some(replay) = &mut self.replay {
            replay.buffer.push_back((number, message));
            if replay.buffer.len() > BUFFER {
                self.give_up(PartialCause::SlowReplay, effects);
            }
            return;
        }
        let Some(last) = self.last else {
            return self.first(number, message, now, effects);
        };
        let next = last.saturating_add(1);
        if number == next {
            self.apply(number, message, effects);
        } else if was_again {
            self.clear(effects);
            self.first(number, message, now, effects);
        } else if number > next {
            if self.can_replay {
                self.start(next, false, Some((number, message)), now, effects);
            } else {
                self.clear(effects);
                self.partial = Some(PartialCause::Gap);
                self.apply(number, message, effects);
            }
        }
    }

    fn first(&mut self, number: u64, message: M, now: Moment, effects: &mut Effects<M>) {
        self.block_size = BlockSize::Unknown;
        if number > 0 && self.can_replay {
            return self.start(0, false, Some((number, message)), now, effects);
        }
        self.partial = (number > 0).then_some(PartialCause::Late);
        self.apply(number, message, effects);
    }

    fn orphan(&mut self, now: Moment, effects: &mut Effects<M>) {
        let is_due = self
            .orphan_replay
            .is_none_or(|at| now.since(at) >= ORPHANS_EACH);
        let is_live = self.state() == StreamState::Live;
        if is_live && self.can_replay && is_due {
            self.orphan_replay = Some(now);
            self.start(0, true, None, now, effects);
        }
    }

    fn start(
        &mut self,
        from: u64,
        is_fresh: bool,
        first: Option<(u64, M)>,
        now: Moment,
        effects: &mut Effects<M>,
    ) {
        self.attempts += 1;
        let number = self.attempts;
        self.replay = Some(Replay {
            number,
            since: now,
            next: from,
            is_empty: true,
            is_fresh,
            buffer: first.into_iter().collect(),
        });
        effects.push(Effect::Replay { number, from });
    }

    fn replayed(&mut self, number: u64, message: M, effects: &mut Effects<M>) {
        let known = self.last.is_some();
        let Some(replay) = &mut self.replay else {
            return;
        };
        if number < replay.next {
            return;
        }
        // a gap is closed from its beginning or not at all; else the replay is all that is known
        let is_late = number > replay.next;
        if is_late && (!replay.is_empty || (known && !replay.is_fresh)) {
            return self.give_up(PartialCause::ShortReplay, effects);
        }
        if replay.is_empty && replay.is_fresh {
            effects.push(Effect::Clear);
        }
        if replay.is_empty && (!known || replay.is_fresh) {
            self.partial = is_late.then_some(PartialCause::ShortReplay);
        }
        replay.is_empty = false;
        replay.next = number.saturating_add(1);
        self.apply(number, message, effects);
    }

    /// What was missed cannot be had: missed removals are worse than forgetting.
    fn give_up(&mut self, cause: PartialCause, effects: &mut Effects<M>) {
        let replay = self.replay.take();
        if self.last.is_some() {
            self.clear(effects);
        }
        self.partial = Some(cause);
        self.go_on(replay, effects);
    }

    /// The replay is over; what came meanwhile is applied.
    fn relearn(&mut self, effects: &mut Effects<M>) {
        let replay = self.replay.take();
        if self.last.is_none() {
            self.partial = Some(PartialCause::ShortReplay);
        }
        self.go_on(replay, effects);
    }

    fn go_on(&mut self, replay: Option<Replay<M>>, effects: &mut Effects<M>) {
        for (number, message) in replay.into_iter().flat_map(|it| it.buffer) {
            let next = self.last.map(|last| last.saturating_add(1));
            if next.is_some_and(|next| number < next) {
                continue;
            }
            if next.is_some_and(|next| number > next) {
                self.clear(effects);
                self.partial = Some(PartialCause::Gap);
            }
            self.apply(number, message, effects);
        }
        if self.last.is_none() {
            // No message is known, so none is missing before one; the next one starts another replay if there were some.
            self.partial = None;
        }
    }

    fn apply(&mut self, number: u64, message: M, effects: &mut Effects<M>) {
        self.last = Some(number);
        effects.push(Effect::Apply(message));
    }

    /// All is forgotten.
    fn clear(&mut self, effects: &mut Effects<M>) {
        self.last = None;
        self.partial = None;
        effects.push(Effect::Clear);
    }

    fn is_replay(&self, number: u64) -> bool {
        self.replay.as_ref().is_some_and(|it| it.number == number)
    }
}
