//! How much each worker has to do: the prompts that were sent to it and are not over.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use hashbrown::{HashMap, hash_map::EntryRef};
use moment::Moment;
use parking_lot::Mutex;
use scheduling::Slot;

use self::prompts::{Depth, Prompts};
use crate::hash::Seq;

mod prompts;

#[cfg(test)]
mod tests;

/// Bookings of all workers.
///
/// # Memory
/// Up to [`Limits::bookings`], and [`MAX_BOOKED_BLOCKS`] blocks of their prompts at 8 bytes; beside them up to
/// [`Limits::predicted_blocks`] of computed prompts for each worker, at 8 to 32 bytes and 90 for each beginning that
/// prompts share.
///
/// # Threads
/// A lock for each worker and for each of 64 parts of the bookings, each for the time of one prompt; the lock of a
/// booking is taken before that of its worker.
pub struct Loads {
    limits: Limits,
    /// By slot.
    workers: ArcSwap<Vec<Option<Arc<Member>>>>,
    parts: Box<[Mutex<Part>]>,
    chance: RandomState,
    bookings: AtomicUsize,
    blocks: AtomicUsize,
}

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Ids of a block.
    pub block_size: usize,
    /// Bookings at most.
    pub bookings: usize,
    /// A booking that nobody names for so long is over.
    pub idle: Duration,
    /// How long a computed prompt counts as cached at a worker whose events are live; 0: they alone tell.
    pub keep_live: Duration,
    /// The same at a worker of which nothing else is known.
    pub keep_unknown: Duration,
    /// Blocks of computed prompts for each worker.
    pub predicted_blocks: usize,
}

/// What a worker has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Ids of prompts that are yet to be computed.
    pub prefill_tokens: u64,
    /// Different blocks of all prompts, and one for the end of each that fills none.
    pub decode_blocks: u64,
    /// Bookings.
    pub requests: u32,
}

/// A worker as a prompt finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// What it has to do.
    pub load: Load,
    /// Blocks of the prompt that its other prompts have.
    pub active: u32,
    /// Blocks of the prompt that it will have computed, as its bookings let expect.
    pub predicted: u32,
}

/// A prompt that is about to be sent to a worker.
#[derive(Clone, Debug)]
pub struct NewBooking {
    /// The worker.
    pub slot: Slot,
    /// All full blocks.
    pub chain: Arc<[Seq]>,
    /// Ids.
    pub ids: u32,
    /// Ids that it need not compute.
    pub cached: u32,
    /// Nobody will report that it is computed: what it has to compute decays.
    pub decays: bool,
}

/// Why a prompt was not booked. It may be sent all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBooked {
    /// Its end was reported before.
    #[error("the request ended before it was booked")]
    Ended,
    /// Its id is taken.
    #[error("there is a booking with this id")]
    Duplicate,
    /// There are as many bookings, or blocks of bookings, as there may be.
    #[error("there are too many bookings")]
    Full,
    /// The worker is gone.
    #[error("the worker is gone")]
    Gone,
}

#[derive(Debug)]
struct Member {
    slot: Slot,
    state: Mutex<Worker>,
}

#[derive(Debug)]
struct Worker {
    prompts: Prompts,
    load: Load,
    /// Of bookings whose progress nobody reports, as of `at`.
    decaying: f64,
    at: Moment,
    is_live: bool,
}

/// Some of the bookings by their ids.
type Part = HashMap<Box<str>, Held>;

/// What there is under an id.
#[derive(Debug)]
enum Held {
    Booking(Booking),
    /// Its end came before it.
    Ended(Moment),
}

#[derive(Debug)]
struct Booking {
    new: NewBooking,
    is_computed: bool,
    booked: Moment,
    /// When it was last named.
    named: Moment,
}

/// Names of blocks in bookings: 128 MiB of them.
pub const MAX_BOOKED_BLOCKS: usize = 1 << 24;
/// The end of a request that is not known yet is remembered for so long.
const ENDED: Duration = Duration::from_secs(10);
/// As many as end in 10 s at 6500 a second.
const MAX_ENDED: usize = 1 << 16;
const PARTS: usize = 64;
/// Ids a second that a worker computes, where nobody reports it.
const DECAY: f64 = 10_000.0;
/// Runs of blocks that a booking looks at to forget them.
const STEPS: usize = 8;

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            block_size: 16,
            bookings: 100_000,
            idle: Duration::from_mins(1),
            keep_live: Duration::from_secs(10),
            keep_unknown: Duration::from_mins(2),
            predicted_blocks: 16_384,
        }
    }
}

impl Limits {
    fn keep(&self, is_live: bool) -> Duration {
        if is_live {
            self.keep_live
        } else {
            self.keep_unknown
        }
    }
}

// === impl Loads ===

impl Loads {
    /// No workers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            workers: ArcSwap::default(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            chance: RandomState::new(),
            bookings: AtomicUsize::new(0),
            blocks: AtomicUsize::new(0),
        }
    }

    /// There is a worker at this slot, without bookings.
    pub fn add(&self, slot: Slot) {
        let state = Worker {
            prompts: Prompts::new(self.chance.hash_one(slot)),
            load: Load::default(),
            decaying: 0.0,
            at: Moment::START,
            is_live: false,
        };
        let member = Arc::new(Member {
            slot,
            state: Mutex::new(state),
        });
        self.workers.rcu(|workers| {
            let mut workers = Vec::clone(workers);
            let at = slot.index as usize;
            if workers.len() <= at {
                workers.resize(at + 1, None);
            }
            workers[at] = Some(Arc::clone(&member));
            workers
        });
    }

    /// The worker is gone, and its bookings with it.
    pub fn remove(&self, slot: Slot) {
        self.workers.rcu(|workers| {
            let mut workers = Vec::clone(workers);
            if let Some(place) = workers.get_mut(slot.index as usize)
                && place.as_ref().is_some_and(|it| it.slot == slot)
            {
                *place = None;
            }
            workers
        });
        for part in &self.parts {
            part.lock().retain(|_, held| {
                let gone = matches!(held, Held::Booking(it) if it.new.slot == slot);
                if gone {
                    self.forget(held);
                }
                !gone
            });
        }
    }

    /// Whether the events of the worker's engine are complete: then they tell soon what it has computed.
    pub fn set_live(&self, slot: Slot, is_live: bool) {
        self.with(slot, |worker| worker.is_live = is_live);
    }

    /// Where this booking is; none when there is none.
    pub fn slot_of(&self, id: &str) -> Option<Slot> {
        match self.part(id).lock().get(id) {
            Some(Held::Booking(booking)) => Some(booking.new.slot),
            _ => None,
        }
    }

    /// What the worker has to do; none when it is gone.
    pub fn of(&self, slot: Slot, now: Moment) -> Option<Load> {
        self.with(slot, |worker| worker.load(now))
    }

    /// The worker as this prompt finds it; none when it is gone.
    pub fn view(&self, slot: Slot, chain: &[Seq], now: Moment) -> Option<View> {
        self.with(slot, |worker| {
            let keep = self.limits.keep(worker.is_live);
            let Depth { active, predicted } = worker.prompts.depth(chain, now, keep);
            View {
                load: worker.load(now),
                active: u32::try_from(active).unwrap_or(u32::MAX),
                predicted: u32::try_from(predicted).unwrap_or(u32::MAX),
            }
        })
    }

    /// Counts a prompt for its worker until it is freed, or until nobody named it for long.
    /// # Errors
    /// When it cannot be booked; nothing is changed then.
    pub fn book(&self, id: &str, new: NewBooking, now: Moment) -> Result<(), NotBooked> {
        let mut part = self.part(id).lock();
        match part.get(id) {
            Some(Held::Booking(_)) => return Err(NotBooked::Duplicate),
            Some(Held::Ended(at)) if now.since(*at) < ENDED => return Err(NotBooked::Ended),
            _ => {}
        }
        let blocks = new.chain.len();
        if self.blocks.fetch_add(blocks, Ordering::Relaxed) + blocks > MAX_BOOKED_BLOCKS {
            self.blocks.fetch_sub(blocks, Ordering::Relaxed);
            return Err(NotBooked::Full);
        }
        if self.bookings.fetch_add(1, Ordering::Relaxed) >= self.limits.bookings {
            self.give_back(blocks);
            return Err(NotBooked::Full);
        }
        let booking = Booking {
            new,
            is_computed: false,
            booked: now,
            named: now,
        };
        if !self.enter(&booking, now) {
            self.give_back(blocks);
            return Err(NotBooked::Gone);
        }
        part.insert(id.into(), Held::Booking(booking));
        Ok(())
    }

    /// The prompt was computed, by another worker than was chosen if `served` is another. False: there is no such booking.
    pub fn prefill_complete(&self, id: &str, served: Option<Slot>, now: Moment) -> bool {
        let mut part = self.part(id).lock();
        let Some(Held::Booking(booking)) = part.get_mut(id) else {
            return false;
        };
        booking.named = now;
        let served = served.filter(|slot| *slot != booking.new.slot);
        if let Some(served) = served {
            self.leave(booking, now);
            booking.new.slot = served;
            booking.is_computed = true;
            self.enter(booking, now);
        } else if booking.is_computed {
            return true;
        }
        let left = booking.left(now);
        booking.is_computed = true;
        self.with(booking.new.slot, |worker| {
            if served.is_none() {
                worker.computed(&booking.new, left, now);
            }
            worker.prompts.computed(&booking.new.chain, now);
        });
        true
    }

    /// The request is over, however it ended. False: there was no such booking; one that comes within 10 s is not booked.
    pub fn free(&self, id: &str, now: Moment) -> bool {
        let mut part = self.part(id).lock();
        match part.entry_ref(id) {
            EntryRef::Occupied(entry) if matches!(entry.get(), Held::Booking(_)) => {
                let held = entry.remove();
                if let Held::Booking(booking) = &held {
                    self.leave(booking, now);
                }
                self.forget(&held);
                true
            }
            _ => {
                if part.len() < (self.limits.bookings + MAX_ENDED) / PARTS {
                    part.insert(id.into(), Held::Ended(now));
                }
                false
            }
        }
    }

    /// The request is still under way. False: there is no such booking.
    pub fn keepalive(&self, id: &str, now: Moment) -> bool {
        match self.part(id).lock().get_mut(id) {
            Some(Held::Booking(booking)) => {
                booking.named = now;
                true
            }
            _ => false,
        }
    }

    /// Ends what nobody named for long, and forgets what was computed long ago: to be called each second or so. How many
    /// bookings it ended.
    pub fn expire(&self, now: Moment) -> usize {
        let mut expired = 0;
        for part in &self.parts {
            part.lock().retain(|_, held| match held {
                Held::Ended(at) => now.since(*at) < ENDED,
                Held::Booking(booking) if now.since(booking.named) < self.limits.idle => {
                    self.decayed(booking, now);
                    true
                }
                Held::Booking(booking) => {
                    self.leave(booking, now);
                    self.forget(held);
                    expired += 1;
                    false
                }
            });
        }
        for member in self.workers.load().iter().flatten() {
            self.expire_prompts(&mut member.state.lock(), now, usize::MAX);
        }
        expired
    }

    /// Ends all bookings: others than this process were asked meanwhile.
    pub fn clear(&self, now: Moment) {
        for part in &self.parts {
            part.lock().retain(|_, held| {
                if let Held::Booking(booking) = held {
                    self.leave(booking, now);
                    self.forget(held);
                }
                false
            });
        }
    }

    /// Blocks of prompts, of bookings and of those computed lately; takes each worker's lock in turn.
    pub fn blocks(&self) -> usize {
        let workers = self.workers.load();
        let blocks = |member: &Arc<Member>| member.state.lock().prompts.blocks();
        workers.iter().flatten().map(blocks).sum()
    }

    /// How many there are.
    pub fn bookings(&self) -> usize {
        self.bookings.load(Ordering::Relaxed)
    }

    /// Counts the booking for its worker; false when that is gone.
    fn enter(&self, booking: &Booking, now: Moment) -> bool {
        let entered = self.with(booking.new.slot, |worker| {
            worker.decay(now);
            let Booking {
                new, is_computed, ..
            } = booking;
            worker.load.requests += 1;
            worker.load.decode_blocks += new.tail(self.limits.block_size);
            if !is_computed && new.decays {
                worker.decaying += f64::from(new.uncached());
            } else if !is_computed {
                worker.load.prefill_tokens += u64::from(new.uncached());
            }
            worker.prompts.book(&new.chain, *is_computed);
            self.expire_prompts(worker, now, STEPS);
        });
        entered.is_some()
    }

    /// The booking counts no more for its worker.
    fn leave(&self, booking: &Booking, now: Moment) {
        let Booking {
            new, is_computed, ..
        } = booking;
        self.with(new.slot, |worker| {
            worker.load.requests = worker.load.requests.saturating_sub(1);
            let tail = new.tail(self.limits.block_size);
            worker.load.decode_blocks = worker.load.decode_blocks.saturating_sub(tail);
            if !is_computed {
                worker.computed(new, booking.left(now), now);
            }
            worker.prompts.free(&new.chain, *is_computed);
        });
    }

    /// Where nobody reports it a prompt is computed once nothing of it is left.
    fn decayed(&self, booking: &mut Booking, now: Moment) {
        if booking.new.decays && !booking.is_computed && booking.left(now) <= 0.0 {
            booking.is_computed = true;
            self.with(booking.new.slot, |worker| {
                worker.prompts.computed(&booking.new.chain, now);
            });
        }
    }

    fn expire_prompts(&self, worker: &mut Worker, now: Moment, steps: usize) {
        let keep = self.limits.keep(worker.is_live);
        let most = self.limits.predicted_blocks;
        worker.prompts.expire(now, keep, most, steps);
    }

    fn forget(&self, held: &Held) {
        if let Held::Booking(booking) = held {
            self.give_back(booking.new.chain.len());
        }
    }

    fn give_back(&self, blocks: usize) {
        self.bookings.fetch_sub(1, Ordering::Relaxed);
        self.blocks.fetch_sub(blocks, Ordering::Relaxed);
    }

    fn with<T>(&self, slot: Slot, f: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let workers = self.workers.load();
        let member = workers.get(slot.index as usize)?.as_ref()?;
        (member.slot == slot).then(|| f(&mut member.state.lock()))
    }

    fn part(&self, id: &str) -> &Mutex<Part> {
        let hash = self.chance.hash_one(id);
        // a remainder below 64
        &self.parts[usize::try_from(hash % PARTS as u64).unwrap_or(0)]
    }
}

// === impl NewBooking ===

impl NewBooking {
    fn uncached(&self) -> u32 {
        self.ids.saturating_sub(self.cached)
    }

    /// One when the prompt ends within a block.
    fn tail(&self, block_size: usize) -> u64 {
        u64::from(self.ids as usize > self.chain.len() * block_size)
    }
}

// === impl Booking ===

impl Booking {
    /// What is left to compute of a booking whose progress nobody reports.
    fn left(&self, now: Moment) -> f64 {
        let age = now.since(self.booked).as_secs_f64();
        (f64::from(self.new.uncached()) - age * DECAY).max(0.0)
    }
}

// === impl Worker ===

impl Worker {
    fn load(&mut self, now: Moment) -> Load {
        self.decay(now);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "never negative, and below the sum of all prompts"
        )]
        let decaying = self.decaying as u64;
        Load {
            prefill_tokens: self.load.prefill_tokens + decaying,
            decode_blocks: self.load.decode_blocks + self.prompts.active() as u64,
            requests: self.load.requests,
        }
    }

    fn computed(&mut self, new: &NewBooking, left: f64, now: Moment) {
        if new.decays {
            self.decay(now);
            self.decaying = (self.decaying - left).max(0.0);
        } else {
            let left = u64::from(new.uncached());
            self.load.prefill_tokens = self.load.prefill_tokens.saturating_sub(left);
        }
    }

    fn decay(&mut self, now: Moment) {
        let gone = now.since(self.at).as_secs_f64() * DECAY;
        self.decaying = (self.decaying - gone).max(0.0);
        self.at = self.at.max(now);
    }
}
