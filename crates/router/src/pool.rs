//! The workers of the pool: who they are, and which prompts may go to them.
//!
//! Who chooses loads one [`Table`] for a prompt and sees one consistent pool.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, Guard};
use kv_router::{Slot, StreamState, WorkerBlocks, Workers};
use parking_lot::RwLock;
use scheduling::{EndpointId, Labels, Member};
use tokio::sync::Notify;

/// The workers, what they have and what they have to do.
pub struct Pool {
    /// One permit for a change of a stream's state that nobody has looked at.
    pub(crate) stream_changed: Notify,
    /// What they have and what they have to do; shared with those who apply events.
    pub(crate) workers: Arc<Workers>,
    table: ArcSwap<Table>,
}

/// The workers at one time.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// By their ids.
    workers: Vec<Arc<Worker>>,
    by_address: HashMap<SocketAddr, Arc<Worker>>,
    /// By the index of a slot.
    by_slot: Vec<Option<(Slot, Arc<Worker>)>>,
    /// Of all ranks.
    slots: Vec<Slot>,
    /// Of the worker that has the most.
    ranks: usize,
}

/// An address that prompts go to.
#[derive(Debug)]
pub(crate) struct Worker {
    /// `namespace/pod-rank-0`.
    pub(crate) name: Box<str>,
    pub(crate) address: SocketAddr,
    /// As in replies.
    pub(crate) destination: Box<str>,
    /// The data parallel ranks behind it; one where it has none.
    pub(crate) ranks: Box<[Arc<Rank>]>,
    /// The labels of its pod.
    pub(crate) labels: Arc<Labels>,
    id: EndpointId,
}

/// A cache of its own behind an address, and how its events are.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) slot: Slot,
    /// The number of the rank behind the address, as its engine's server counts them, from 0; the place of the target
    /// port where that distinguishes them.
    pub(crate) number: u8,
    pub(crate) events: EventsSeen,
}

/// What is known of a stream of events. Its owner writes, pages read.
#[derive(Debug, Default)]
pub(crate) struct EventsSeen {
    state: RwLock<Option<StreamState>>,
    /// What went wrong last.
    reason: RwLock<Option<String>>,
    /// One more than the number of the last message; 0: there was none.
    next: AtomicU64,
    /// Blocks by their engine's names.
    pub(crate) blocks: AtomicUsize,
    /// Milliseconds from when the engine made the last message until it was applied, by the clocks of both.
    pub(crate) lag_ms: AtomicU64,
}

/// Members that came and went.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// With the blocks of each rank, in order.
    pub(crate) added: Vec<(Arc<Worker>, Vec<WorkerBlocks>)>,
    /// Their blocks are to be given back.
    pub(crate) removed: Vec<Arc<Worker>>,
    /// There are too many workers: these get no prompts.
    pub(crate) left_out: Vec<EndpointId>,
}

/// What a worker is known by: one that differs in any of it is another.
type Key<'a> = (&'a EndpointId, SocketAddr, usize);

// === impl Pool ===

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    /// Without workers.
    pub fn new(workers: Workers) -> Self {
        Self {
            stream_changed: Notify::new(),
            workers: Arc::new(workers),
            table: ArcSwap::default(),
        }
    }

    /// The workers now.
    pub(crate) fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// These are the members from now on, with so many ranks behind an address where target ports are no ranks.
    ///
    /// Who came is known at once. Who went gets no prompts from now on; it is forgotten when its blocks are given back to
    /// [`Workers::remove`].
    pub(crate) fn replace(&self, members: &[Member], ranks: u8) -> Changes {
        let by_port = members.iter().any(|member| member.id.rank > 0);
        let ranks = if by_port { 1 } else { usize::from(ranks) };
        let before = self.table.load();
        let mut known: HashMap<Key<'_>, &Arc<Worker>> =
            before.workers.iter().map(|it| (it.key(), it)).collect();
        let (mut changes, mut all) = (Changes::default(), Vec::new());
        for member in members {
            if let Some(worker) = known.remove(&(&member.id, member.address, ranks)) {
                all.push(Arc::clone(worker));
                continue;
            }
            let blocks: Vec<_> = (0..ranks).map_while(|_| self.workers.add()).collect();
            if blocks.len() < ranks {
                for blocks in blocks {
                    self.workers.remove(blocks);
                }
                changes.left_out.push(member.id.clone());
                continue;
            }
            let worker = Arc::new(Worker::new(member, &blocks));
            all.push(Arc::clone(&worker));
            changes.added.push((worker, blocks));
        }
        changes.removed = before
            .workers
            .iter()
            .filter(|it| known.contains_key(&it.key()))
            .map(Arc::clone)
            .collect();
        self.table.store(Arc::new(Table::new(all)));
        changes
    }
}

// === impl Table ===

impl Table {
    fn new(mut workers: Vec<Arc<Worker>>) -> Self {
        workers.sort_by(|one, other| one.id.cmp(&other.id));
        let mut table = Self::default();
        for worker in &workers {
            table.ranks = table.ranks.max(worker.ranks.len());
            let known = Arc::clone(worker);
            table.by_address.insert(worker.address, known);
            for rank in &worker.ranks {
                let at = rank.slot.index as usize;
                if table.by_slot.len() <= at {
                    table.by_slot.resize(at + 1, None);
                }
                if let Some(place) = table.by_slot.get_mut(at) {
                    *place = Some((rank.slot, Arc::clone(worker)));
                }
                table.slots.push(rank.slot);
            }
        }
        table.workers = workers;
        table
    }

    /// By name.
    pub(crate) fn workers(&self) -> &[Arc<Worker>] {
        &self.workers
    }

    /// All ranks of all workers.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Ranks of the worker that has the most.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks.max(1)
    }

    /// Who serves there.
    pub(crate) fn at(&self, address: SocketAddr) -> Option<&Arc<Worker>> {
        self.by_address.get(&address)
    }

    /// Whose slot it is.
    pub(crate) fn of(&self, slot: Slot) -> Option<&Arc<Worker>> {
        let (known, worker) = self.by_slot.get(slot.index as usize)?.as_ref()?;
        (*known == slot).then_some(worker)
    }

    /// Whether no worker has blocks that a connection or a replay is about to make known. Ranks whose events are not
    /// followed have none.
    pub(crate) fn are_caches_known(&self) -> bool {
        let ranks = self.workers.iter().flat_map(|worker| &worker.ranks);
        !ranks
            .filter_map(|rank| rank.events.state())
            .any(|state| matches!(state, StreamState::Connecting | StreamState::Replaying))
    }
}

// === impl Worker ===

impl Worker {
    fn new(member: &Member, blocks: &[WorkerBlocks]) -> Self {
        let Member {
            id,
            address,
            labels,
            ..
        } = member;
        let several = blocks.len() > 1;
        let rank = |(number, blocks): (u8, &WorkerBlocks)| {
            Arc::new(Rank {
                slot: blocks.slot(),
                number: if several { number } else { id.rank },
                events: EventsSeen::default(),
            })
        };
        Self {
            name: id.to_string().into(),
            address: *address,
            destination: address.to_string().into(),
            ranks: (0..).zip(blocks).map(rank).collect(),
            labels: Arc::clone(labels),
            id: id.clone(),
        }
    }

    /// The rank of a slot.
    pub(crate) fn rank(&self, slot: Slot) -> Option<&Arc<Rank>> {
        self.ranks.iter().find(|it| it.slot == slot)
    }

    fn key(&self) -> Key<'_> {
        (&self.id, self.address, self.ranks.len())
    }
}

// === impl EventsSeen ===

impl EventsSeen {
    /// None: events are not followed.
    pub(crate) fn state(&self) -> Option<StreamState> {
        *self.state.read()
    }

    pub(crate) fn set_state(&self, state: StreamState) {
        *self.state.write() = Some(state);
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.read().clone()
    }

    pub(crate) fn set_reason(&self, reason: Option<String>) {
        *self.reason.write() = reason;
    }

    /// The number of the last message.
    pub(crate) fn sequence(&self) -> Option<u64> {
        self.next.load(Relaxed).checked_sub(1)
    }

    pub(crate) fn set_sequence(&self, number: u64) {
        self.next.store(number.saturating_add(1), Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use kv_router::{Event, Limits, Overlap, Seed, Stored, chain};

    use super::*;

    pub(crate) const BLOCK: usize = 4;

    pub(crate) fn mk_pool(limits: Limits) -> Pool {
        let limits = Limits {
            block_size: BLOCK,
            ..limits
        };
        Pool::new(Workers::new(limits, 1 << 24))
    }

    /// `default/{pod}` with this UID, at 10.0.0.{host}:8000.
    pub(crate) fn mk_member(pod: &str, uid: &str, host: u8, rank: u8) -> Member {
        Member {
            id: EndpointId {
                namespace: "default".into(),
                pod: pod.into(),
                rank,
                uid: uid.into(),
            },
            address: SocketAddr::from(([10, 0, 0, host], 8000 + u16::from(rank))),
            engine: "".into(),
            labels: Arc::default(),
        }
    }

    /// The engine stored this prompt.
    pub(crate) fn store(pool: &Pool, blocks: &mut WorkerBlocks, ids: &[u32]) {
        let count = u64::try_from(ids.len() / BLOCK).unwrap();
        let stored = Event::Stored(Stored {
            hashes: (0..count).collect(),
            ids: ids.to_vec(),
            block_size: BLOCK as u64,
            is_full_attention: true,
            ..Stored::default()
        });
        blocks.apply(&pool.workers.index, &stored).unwrap();
    }

    fn overlap(pool: &Pool, slot: Slot, ids: &[u32]) -> u32 {
        let mut names = Vec::new();
        chain(ids, BLOCK, Seed::PLAIN, &mut names);
        let mut out = [Overlap::default()];
        pool.workers.index.matches(&names, &[slot], &mut out);
        out[0].gpu
    }

    #[test]
    fn a_pod_that_is_made_anew_is_another_worker_at_the_same_address() {
        let pool = mk_pool(Limits::default());
        let ids: Vec<u32> = (0..40).collect();
        let mut first = pool.replace(&[mk_member("a", "1", 1, 0)], 1);
        let (worker, mut blocks) = first.added.remove(0);
        store(&pool, &mut blocks[0], &ids);
        assert_eq!(overlap(&pool, worker.ranks[0].slot, &ids), 10);

        let second = pool.replace(&[mk_member("a", "2", 1, 0)], 1);
        assert_eq!(second.removed.len(), 1);
        let now = Arc::clone(pool.table().at(worker.address).unwrap());
        assert_ne!(now.ranks[0].slot, worker.ranks[0].slot);
        assert_eq!(overlap(&pool, now.ranks[0].slot, &ids), 0);
        assert!(pool.table().of(worker.ranks[0].slot).is_none());
        assert_eq!(pool.table().slots(), [now.ranks[0].slot]);
    }

    #[test]
    fn who_stays_keeps_its_slot_and_who_goes_is_named_once() {
        let pool = mk_pool(Limits::default());
        let members = [mk_member("a", "1", 1, 0), mk_member("b", "2", 2, 0)];
        let first = pool.replace(&members, 1);
        assert_eq!((first.added.len(), first.removed.len()), (2, 0));
        let kept = first.added[1].0.ranks[0].slot;
        let second = pool.replace(&members[1..], 1);
        assert_eq!((second.added.len(), second.removed.len()), (0, 1));
        assert_eq!(&*second.removed[0].name, "default/a-rank-0");
        assert_eq!(pool.table().slots(), [kept]);
        assert_eq!(pool.replace(&members[1..], 1).removed.len(), 0);
    }

    #[test]
    fn ranks_are_those_of_the_target_ports_or_as_many_as_are_stated() {
        let pool = mk_pool(Limits::default());
        let numbers = |changes: &Changes| -> Vec<Vec<u8>> {
            let of = |worker: &Worker| worker.ranks.iter().map(|it| it.number).collect();
            changes.added.iter().map(|(it, _)| of(it)).collect()
        };
        let one = mk_member("a", "1", 1, 0);
        let behind_one = pool.replace(std::slice::from_ref(&one), 4);
        assert_eq!(numbers(&behind_one), [[0, 1, 2, 3]]);
        // a second target port: each is a rank of its own
        let by_port = pool.replace(&[one, mk_member("a", "1", 1, 1)], 4);
        assert_eq!(numbers(&by_port), [[0], [1]]);
        assert_eq!(by_port.removed.len(), 1);
    }

    #[test]
    fn more_workers_than_there_can_be_are_left_out_whole() {
        let pool = mk_pool(Limits::default());
        let members: Vec<_> = (0..200)
            .map(|at| mk_member(&format!("p{at:03}"), "1", at, 0))
            .collect();
        // 128 of them have 64 ranks each
        let changes = pool.replace(&members, 64);
        assert_eq!((changes.added.len(), changes.left_out.len()), (128, 72));
        assert_eq!(pool.table().slots().len(), 8192);
    }
}
