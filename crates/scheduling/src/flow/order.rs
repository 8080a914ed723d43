//! Which request is next: bands, flows in a band, requests in a flow.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use super::{
    Ticket,
    config::{BandConfig, Config, Fairness, Ordering},
};
use moment::Moment;

/// After every deadline there is: the rank of a request that may wait without end.
const NEVER: Moment = Moment::from_millis(u64::MAX);

/// All requests that can be dispatched, in order. A band and a flow exist while they hold one.
#[derive(Debug, Default)]
pub(super) struct Bands {
    by_priority: BTreeMap<i32, Band>,
}

/// What the order of a request depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) ticket: Ticket,
    pub(super) priority: i32,
    pub(super) fairness_id: &'a Arc<str>,
    pub(super) deadline: Option<Moment>,
}

#[derive(Debug)]
struct Band {
    ordering: Ordering,
    queue: Queue,
}

#[derive(Debug)]
enum Queue {
    GlobalStrict(BTreeSet<Rank>),
    RoundRobin(Rotation),
}

/// The flows of a band and the order of their turns.
#[derive(Debug, Default)]
struct Rotation {
    flows: BTreeMap<Arc<str>, Flow>,
    turns: BTreeMap<u64, Arc<str>>,
    /// After every turn in `turns`. Never used again: at one per nanosecond 64 bits last 584 years.
    next_turn: u64,
}

#[derive(Debug)]
struct Flow {
    turn: u64,
    queue: BTreeSet<Rank>,
}

/// The lowest is next. Under [`Ordering::Fcfs`] all deadlines are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    deadline: Moment,
    ticket: Ticket,
}

// === impl Bands ===

impl Bands {
    /// Adds a request; its band is made under `config` if there is none yet.
    pub(super) fn insert(&mut self, config: &Config, place: Place<'_>) {
        let band = self
            .by_priority
            .entry(place.priority)
            .or_insert_with(|| Band::new(config.band(place.priority)));
        let rank = band.rank(place);
        match &mut band.queue {
            Queue::GlobalStrict(queue) => {
                queue.insert(rank);
            }
            Queue::RoundRobin(rotation) => rotation.insert(place.fairness_id, rank),
        }
    }

    /// Takes a request out, wherever it stands.
    pub(super) fn remove(&mut self, place: Place<'_>) {
        let Some(band) = self.by_priority.get_mut(&place.priority) else {
            return;
        };
        let rank = band.rank(place);
        match &mut band.queue {
            Queue::GlobalStrict(queue) => {
                queue.remove(&rank);
            }
            Queue::RoundRobin(rotation) => rotation.remove(place.fairness_id, rank),
        }
        if band.queue.is_empty() {
            self.by_priority.remove(&place.priority);
        }
    }

    /// Takes the next request out: of the highest priority that has one.
    pub(super) fn pop(&mut self) -> Option<Ticket> {
        let mut highest = self.by_priority.last_entry()?;
        let rank = match &mut highest.get_mut().queue {
            Queue::GlobalStrict(queue) => queue.pop_first(),
            Queue::RoundRobin(rotation) => rotation.pop(),
        };
        if highest.get().queue.is_empty() {
            highest.remove();
        }
        rank.map(|rank| rank.ticket)
    }

    /// Takes all requests out of the bands that have other policies under `config`, to be inserted again
    /// in the order of the tickets. The other bands keep their turns.
    pub(super) fn take_outdated(&mut self, config: &Config) -> BTreeSet<Ticket> {
        let outdated = self
            .by_priority
            .extract_if(.., |priority, band| !band.follows(config.band(*priority)));
        outdated.flat_map(|(_, band)| band.tickets()).collect()
    }
}

// === impl Band ===

impl Band {
    fn new(config: &BandConfig) -> Self {
        Self {
            ordering: config.ordering,
            queue: match config.fairness {
                Fairness::GlobalStrict => Queue::GlobalStrict(BTreeSet::new()),
                Fairness::RoundRobin => Queue::RoundRobin(Rotation::default()),
            },
        }
    }

    fn follows(&self, config: &BandConfig) -> bool {
        let fairness = match self.queue {
            Queue::GlobalStrict(_) => Fairness::GlobalStrict,
            Queue::RoundRobin(_) => Fairness::RoundRobin,
        };
        (fairness, self.ordering) == (config.fairness, config.ordering)
    }

    fn rank(&self, place: Place<'_>) -> Rank {
        Rank {
            deadline: match self.ordering {
                Ordering::Fcfs => NEVER,
                Ordering::Edf => place.deadline.unwrap_or(NEVER),
            },
            ticket: place.ticket,
        }
    }

    fn tickets(self) -> Vec<Ticket> {
        let ranks: Vec<_> = match self.queue {
            Queue::GlobalStrict(queue) => queue.into_iter().collect(),
            Queue::RoundRobin(rotation) => {
                let flows = rotation.flows.into_values();
                flows.flat_map(|flow| flow.queue).collect()
            }
        };
        ranks.into_iter().map(|rank| rank.ticket).collect()
    }
}

// === impl Queue ===

impl Queue {
    fn is_empty(&self) -> bool {
        match self {
            Self::GlobalStrict(queue) => queue.is_empty(),
            Self::RoundRobin(rotation) => rotation.flows.is_empty(),
        }
    }
}

// === impl Rotation ===

impl Rotation {
    fn insert(&mut self, fairness_id: &Arc<str>, rank: Rank) {
        if let Some(flow) = self.flows.get_mut(fairness_id) {
            flow.queue.insert(rank);
            return;
        }
        let flow = Flow {
            turn: self.take_turn(fairness_id),
            queue: BTreeSet::from([rank]),
        };
        self.flows.insert(Arc::clone(fairness_id), flow);
    }

    fn remove(&mut self, fairness_id: &Arc<str>, rank: Rank) {
        let Some(flow) = self.flows.get_mut(fairness_id) else {
            return;
        };
        flow.queue.remove(&rank);
        if flow.queue.is_empty() {
            self.turns.remove(&flow.turn);
            self.flows.remove(fairness_id);
        }
    }

    fn pop(&mut self) -> Option<Rank> {
        let (_, fairness_id) = self.turns.pop_first()?;
        let mut flow = self.flows.remove(&fairness_id)?;
        let rank = flow.queue.pop_first();
        if !flow.queue.is_empty() {
            flow.turn = self.take_turn(&fairness_id);
            self.flows.insert(fairness_id, flow);
        }
        rank
    }

    /// Puts a flow behind all others.
    fn take_turn(&mut self, fairness_id: &Arc<str>) -> u64 {
        let next = self.next_turn + 1;
        let turn = mem::replace(&mut self.next_turn, next);
        self.turns.insert(turn, Arc::clone(fairness_id));
        turn
    }
}
