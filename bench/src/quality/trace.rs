//! Requests as a trace: when each comes, what its prompt shares with others, how long its answer is.
//!
//! Everything is in blocks of 64 tokens, as the prefix index cuts prompts.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use scheduling::{Moment, prefix};

/// Tokens of a block.
pub(super) const BLOCK: u32 = 64;

/// What is asked for, in order of time.
#[derive(Clone, Debug)]
pub struct Trace {
    pub(super) arrivals: Vec<Arrival>,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// When the gateway asks for a pick.
    pub(super) at: Moment,
    /// Hashes of the blocks of the prompt, and after them of the answer: a later turn of a chat begins with both.
    pub(super) chain: Arc<[u64]>,
    /// Blocks of the prompt; at least 1.
    pub(super) prompt: usize,
    /// The chat that it is a turn of.
    pub(super) session: Option<usize>,
}

/// What kind of requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Two fifths share long beginnings in groups, two fifths are turns of chats, one fifth shares nothing.
    Mixed,
    /// Short prompts and answers that share nothing: many requests a second.
    Short,
}

/// Blocks of content, each once in a trace but for what is shared.
struct Source {
    rng: StdRng,
    /// The next content that nobody had.
    fresh: u64,
    /// Beginnings that many requests share.
    groups: Vec<Vec<u64>>,
    /// Beginnings of chats.
    systems: Vec<Vec<u64>>,
    /// Chats whose user thinks, by when the next turn is due.
    chats: VecDeque<Chat>,
    sessions: usize,
}

/// A chat so far.
struct Chat {
    due: Moment,
    session: usize,
    content: Vec<u64>,
}

/// Shared beginnings: documents, examples, tools. The r-th most wanted one is wanted as often as 1 / r.
const GROUPS: usize = 40;
const GROUP_BLOCKS: (usize, usize) = (8, 64);
/// What follows a shared beginning.
const QUESTION: (usize, usize) = (1, 8);
const SYSTEMS: usize = 4;
const SYSTEM_BLOCKS: usize = 4;
const MESSAGE: (usize, usize) = (1, 4);
/// A chat ends with this share of its turns, or when it is too long.
const LAST_TURN: f64 = 1.0 / 6.0;
const LONGEST_CHAT: usize = 128;
/// From one turn until the next: the answer and this, and as long again on average.
const THINK: Duration = Duration::from_secs(5);
/// Prompts that share nothing; short ones are as frequent as long ones on a scale of powers.
const SINGLE: (usize, usize) = (2, 128);
const ANSWER: (usize, usize) = (1, 8);
/// Of short requests.
const SHORT_PROMPT: (usize, usize) = (1, 4);

// === impl Trace ===

impl Trace {
    /// So many requests, at random times with this mean rate. The same seed gives the same trace.
    pub fn generate(workload: Workload, requests: usize, per_second: f64, seed: u64) -> Self {
        let mut source = Source::new(seed);
        let mut at = Moment::START;
        let arrivals = (0..requests).map(|_| {
            at = at.plus(source.exponential(Duration::from_secs_f64(1.0 / per_second)));
            source.arrival(workload, at)
        });
        Self {
            arrivals: arrivals.collect(),
        }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// The same requests, all at the start.
    pub(super) fn at_once(&self) -> Self {
        let mut all = self.clone();
        for arrival in &mut all.arrivals {
            arrival.at = Moment::START;
        }
        all
    }
}

// === impl Arrival ===

impl Arrival {
    /// Hashes of the prompt's blocks.
    pub(super) fn prefix(&self) -> &[u64] {
        self.chain.get(..self.prompt).unwrap_or_default()
    }

    /// Tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> u32 {
        tokens(self.prompt)
    }
}

/// Tokens of so many blocks.
pub(super) fn tokens(blocks: usize) -> u32 {
    u32::try_from(blocks)
        .unwrap_or(u32::MAX)
        .saturating_mul(BLOCK)
}

// === impl Source ===

impl Source {
    fn new(seed: u64) -> Self {
        let mut source = Self {
            rng: StdRng::seed_from_u64(seed),
            fresh: 0,
            groups: Vec::new(),
            systems: Vec::new(),
            chats: VecDeque::new(),
            sessions: 0,
        };
        for _ in 0..GROUPS {
            let length = source.between(GROUP_BLOCKS);
            let group = source.content(length);
            source.groups.push(group);
        }
        for _ in 0..SYSTEMS {
            let system = source.content(SYSTEM_BLOCKS);
            source.systems.push(system);
        }
        source
    }

    fn arrival(&mut self, workload: Workload, at: Moment) -> Arrival {
        let (content, session) = match workload {
            Workload::Short => (self.fresh_prompt(SHORT_PROMPT), None),
            Workload::Mixed => match self.rng.random_range(0..5) {
                0 | 1 => (self.grouped_prompt(), None),
                2 | 3 => return self.turn(at),
                _ => (self.fresh_prompt(SINGLE), None),
            },
        };
        let answer = match workload {
            Workload::Short => 1,
            Workload::Mixed => self.between(ANSWER),
        };
        self.complete(at, content, answer, session).0
    }

    /// One whose beginning others have too.
    fn grouped_prompt(&mut self) -> Vec<u64> {
        let all: f64 = (1..=GROUPS).map(|rank| 1.0 / rank as f64).sum();
        let mut left = self.rng.random::<f64>() * all;
        let chosen = (1..GROUPS).find(|rank| {
            left -= 1.0 / *rank as f64;
            left <= 0.0
        });
        let mut content = self.groups[chosen.unwrap_or(GROUPS) - 1].clone();
        let question = self.between(QUESTION);
        content.extend(self.content(question));
        content
    }

    fn fresh_prompt(&mut self, (least, most): (usize, usize)) -> Vec<u64> {
        let (least, most) = ((least as f64).ln(), ((most + 1) as f64).ln());
        let length = (least + (most - least) * self.rng.random::<f64>()).exp();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between two small positive numbers"
        )]
        let length = length as usize;
        self.content(length)
    }

    /// The next turn of the chat that waits longest, or the first of a new one if none is due.
    fn turn(&mut self, at: Moment) -> Arrival {
        let due = self.chats.front().is_some_and(|chat| chat.due <= at);
        let chat = if due { self.chats.pop_front() } else { None };
        let (session, mut content) = if let Some(chat) = chat {
            (chat.session, chat.content)
        } else {
            self.sessions += 1;
            let system = self.rng.random_range(0..SYSTEMS);
            (self.sessions, self.systems[system].clone())
        };
        let message = self.between(MESSAGE);
        content.extend(self.content(message));
        let answer = self.between(ANSWER);
        let (arrival, content) = self.complete(at, content, answer, Some(session));
        let over = self.rng.random::<f64>() < LAST_TURN || content.len() >= LONGEST_CHAT;
        if !over {
            let due = at.plus(THINK).plus(self.exponential(2 * THINK));
            let place = self.chats.partition_point(|chat| chat.due <= due);
            let chat = Chat {
                due,
                session,
                content,
            };
            self.chats.insert(place, chat);
        }
        arrival
    }

    /// The request with this prompt, and its prompt with the answer.
    fn complete(
        &mut self,
        at: Moment,
        mut content: Vec<u64>,
        answer: usize,
        session: Option<usize>,
    ) -> (Arrival, Vec<u64>) {
        let prompt = content.len();
        content.extend(self.content(answer));
        let bytes: Vec<u8> = content.iter().flat_map(|one| one.to_le_bytes()).collect();
        let seed = prefix::seed("m", None);
        let chain = prefix::chain(seed, [bytes.as_slice()], size_of::<u64>(), content.len());
        let arrival = Arrival {
            at,
            chain: chain.into(),
            prompt,
            session,
        };
        (arrival, content)
    }

    /// Blocks that no other request has.
    fn content(&mut self, blocks: usize) -> Vec<u64> {
        let start = self.fresh;
        self.fresh += blocks as u64;
        (start..self.fresh).collect()
    }

    fn between(&mut self, (least, most): (usize, usize)) -> usize {
        self.rng.random_range(least..=most)
    }

    fn exponential(&mut self, mean: Duration) -> Duration {
        let share: f64 = self.rng.random();
        mean.mul_f64(-(1.0 - share).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(one: &Arrival, other: &Arrival) -> usize {
        let pairs = one.prefix().iter().zip(other.prefix());
        pairs.take_while(|(one, other)| one == other).count()
    }

    #[test]
    fn a_seed_is_a_trace_and_its_rate_is_as_asked() {
        let mk = |seed| Trace::generate(Workload::Mixed, 3000, 20.0, seed);
        let (one, same, other) = (mk(1), mk(1), mk(2));
        let chains = |trace: &Trace| -> Vec<Arc<[u64]>> {
            let arrivals = trace.arrivals.iter();
            arrivals.map(|one| Arc::clone(&one.chain)).collect()
        };
        assert_eq!(chains(&one), chains(&same));
        assert_ne!(chains(&one), chains(&other));
        let last = one.arrivals[2999].at.since_start().as_secs_f64();
        assert!((140.0..160.0).contains(&last), "3000 in {last} s");
    }

    #[test]
    fn a_turn_of_a_chat_begins_with_the_whole_turn_before() {
        let trace = Trace::generate(Workload::Mixed, 2000, 20.0, 3);
        let mut turns = 0;
        for (at, arrival) in trace.arrivals.iter().enumerate() {
            let before = trace.arrivals[..at].iter().rev();
            let mut same =
                before.filter(|one| arrival.session.is_some() && one.session == arrival.session);
            if let Some(former) = same.next() {
                assert!(arrival.prompt > former.chain.len());
                assert_eq!(arrival.chain[..former.chain.len()], former.chain[..]);
                assert!(arrival.at.since(former.at) >= THINK);
                turns += 1;
            }
        }
        assert!(turns > 300, "{turns} turns");
    }

    #[test]
    fn most_of_a_mixed_trace_shares_a_beginning_and_short_requests_share_none() {
        let sharing = |workload| {
            let trace = Trace::generate(workload, 1000, 20.0, 4);
            let arrivals = &trace.arrivals;
            let shares = |at: usize| {
                arrivals[..at]
                    .iter()
                    .any(|one| shared(one, &arrivals[at]) > 0)
            };
            (0..1000).filter(|at| shares(*at)).count()
        };
        assert!((650..900).contains(&sharing(Workload::Mixed)));
        assert_eq!(sharing(Workload::Short), 0);
    }
}
