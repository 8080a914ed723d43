use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use proptest::{collection::vec, prelude::*};
use rstest::rstest;

use super::*;
use crate::slot::Slot;

const MIB: usize = 1 << 20;

fn slot(index: u32, generation: u32) -> Slot {
    Slot { index, generation }
}

/// A chain of `blocks` blocks whose text is `name` in all of them.
fn mk_chain(name: &str, blocks: usize) -> Vec<u64> {
    let mut block = name.as_bytes().to_vec();
    block.resize(32, b'.');
    chain(1, std::iter::repeat_n(block.as_slice(), blocks), 32, blocks)
}

fn matched(index: &PrefixIndex, chain: &[u64], slot: Slot) -> u32 {
    let mut out = [u32::MAX];
    index.matches(chain, &[slot], &mut out);
    out[0]
}

/// Goes through all blocks, so many a step.
fn expire(index: &PrefixIndex, now: u32, step: usize) -> usize {
    let mut cursor = Cursor::default();
    let mut expired = 0;
    while !cursor.is_done() {
        expired += index.expire(&mut cursor, now, step);
    }
    assert_eq!(index.expire(&mut cursor, now, step), 0, "it is done");
    expired
}

/// The rules in the plainest form.
struct Oracle {
    shards: usize,
    /// By slot index: the generation that has it, and what it has by shard, last used first. None: removed.
    endpoints: BTreeMap<u32, (u32, Option<OracleEndpoint>)>,
}

struct OracleEndpoint {
    capacity: usize,
    /// Each with its end.
    blocks: Vec<Vec<(u64, u32)>>,
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Prompt, Slot, u32),
    Expire(u32),
    Forget(Prompt, Slot),
    Remove(Slot),
    SetCapacity(Slot, usize),
    Sweep(usize),
    Match(Prompt),
}

/// Blocks of prompts of one family are equal up to `shared`.
#[derive(Clone, Debug)]
struct Prompt {
    family: u8,
    shared: usize,
    branch: u8,
    rest: usize,
}

impl Prompt {
    fn chain(&self) -> Vec<u64> {
        let mut text = vec![self.family; self.shared * 8];
        text.resize(text.len() + self.rest * 8, 100 + self.branch);
        chain(9, [text.as_slice()], 8, 1000)
    }
}

impl Oracle {
    /// The endpoint of the slot, unless it is gone or older than the one there.
    fn endpoint(&mut self, slot: Slot) -> Option<&mut OracleEndpoint> {
        let shards = self.shards;
        let mk_endpoint = || OracleEndpoint {
            capacity: DEFAULT_CAPACITY,
            blocks: vec![Vec::new(); shards],
        };
        let (generation, endpoint) = self
            .endpoints
            .entry(slot.index)
            .or_insert_with(|| (slot.generation, Some(mk_endpoint())));
        if *generation < slot.generation {
            (*generation, *endpoint) = (slot.generation, Some(mk_endpoint()));
        }
        (*generation == slot.generation)
            .then_some(endpoint.as_mut())
            .flatten()
    }

    fn insert(&mut self, chain: &[u64], slot: Slot, end: u32) {
        let shards = self.shards;
        let Some(endpoint) = self.endpoint(slot) else {
            return;
        };
        for hash in chain.iter().rev() {
            let blocks = &mut endpoint.blocks[usize::try_from(*hash).unwrap() % shards];
            let before = blocks.iter().find(|it| it.0 == *hash).map_or(0, |it| it.1);
            blocks.retain(|it| it.0 != *hash);
            blocks.insert(0, (*hash, end.max(before)));
            blocks.truncate((endpoint.capacity / shards).max(1));
        }
    }

    fn forget(&mut self, chain: &[u64], slot: Slot) {
        let endpoint = self.endpoints.get_mut(&slot.index);
        if let Some((generation, Some(endpoint))) = endpoint
            && *generation == slot.generation
        {
            for blocks in &mut endpoint.blocks {
                blocks.retain(|it| !chain.contains(&it.0));
            }
        }
    }

    fn expire(&mut self, now: u32) {
        let present = self.endpoints.values_mut().filter_map(|it| it.1.as_mut());
        for blocks in present.flat_map(|it| &mut it.blocks) {
            blocks.retain(|it| it.1 > now);
        }
    }

    fn set_capacity(&mut self, slot: Slot, capacity: usize) {
        let shards = self.shards;
        if let Some(endpoint) = self.endpoint(slot) {
            endpoint.capacity = capacity;
            for blocks in &mut endpoint.blocks {
                blocks.truncate((capacity / shards).max(1));
            }
        }
    }

    fn remove(&mut self, slot: Slot) {
        let place = self.endpoints.entry(slot.index).or_insert((0, None));
        if place.0 <= slot.generation {
            *place = (slot.generation, None);
        }
    }

    fn matches(&self, chain: &[u64], slot: Slot) -> u32 {
        let Some((generation, Some(endpoint))) = self.endpoints.get(&slot.index) else {
            return 0;
        };
        if *generation != slot.generation {
            return 0;
        }
        let has = |hash: &&u64| {
            let blocks = &endpoint.blocks[usize::try_from(**hash).unwrap() % self.shards];
            blocks.iter().any(|it| it.0 == **hash)
        };
        u32::try_from(chain.iter().take_while(has).count()).unwrap()
    }

    fn entries(&self) -> usize {
        let present = self.endpoints.values().filter_map(|it| it.1.as_ref());
        present.flat_map(|it| &it.blocks).map(Vec::len).sum()
    }
}

fn any_slot() -> impl Strategy<Value = Slot> {
    (0..6_u32, 0..4_u32).prop_map(|(index, generation)| slot(index, generation))
}

fn any_prompt() -> impl Strategy<Value = Prompt> {
    (0..3_u8, 0..40_usize, 0..6_u8, 0..30_usize).prop_map(|(family, shared, branch, rest)| Prompt {
        family,
        shared,
        branch,
        rest,
    })
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any_prompt(), any_slot(), prop_oneof![1..9_u32, Just(u32::MAX)])
            .prop_map(|(prompt, slot, end)| Op::Insert(prompt, slot, end)),
        2 => (0..9_u32).prop_map(Op::Expire),
        2 => (any_prompt(), any_slot()).prop_map(|(prompt, slot)| Op::Forget(prompt, slot)),
        8 => any_prompt().prop_map(Op::Match),
        1 => any_slot().prop_map(Op::Remove),
        2 => (any_slot(), 0..200_usize).prop_map(|(slot, blocks)| Op::SetCapacity(slot, blocks)),
        1 => (0..50_usize).prop_map(Op::Sweep),
    ]
}

fn all_slots() -> Vec<Slot> {
    (0..7)
        .flat_map(|index| (0..4).map(move |generation| slot(index, generation)))
        .collect()
}

proptest! {
    #[test]
    fn index_answers_as_the_oracle(
        ops in vec(any_op(), 1..80),
        shards in prop_oneof![Just(1_usize), Just(2), Just(8)],
    ) {
        // No capacity is lowered: six endpoints with the default fit.
        let bytes = 6 * DEFAULT_CAPACITY * 64;
        let index = PrefixIndex::new(bytes, shards);
        let mut oracle = Oracle { shards, endpoints: BTreeMap::new() };
        let slots = all_slots();
        for op in ops {
            match op {
                Op::Insert(prompt, slot, end) => {
                    index.insert_until(&prompt.chain(), slot, end);
                    oracle.insert(&prompt.chain(), slot, end);
                }
                Op::Expire(now) => {
                    expire(&index, now, 5);
                    oracle.expire(now);
                }
                Op::Forget(prompt, slot) => {
                    index.forget(&prompt.chain(), slot);
                    oracle.forget(&prompt.chain(), slot);
                }
                Op::Remove(slot) => {
                    index.remove(slot);
                    oracle.remove(slot);
                }
                Op::SetCapacity(slot, blocks) => {
                    index.set_capacity(slot, blocks);
                    // What a lowered capacity leaves over goes later; the oracle has it gone at once.
                    index.sweep(usize::MAX);
                    oracle.set_capacity(slot, blocks);
                }
                Op::Sweep(max) => {
                    index.sweep(max);
                }
                Op::Match(prompt) => {
                    let chain = prompt.chain();
                    let mut out = vec![u32::MAX; slots.len()];
                    index.matches(&chain, &slots, &mut out);
                    let expected: Vec<_> =
                        slots.iter().map(|slot| oracle.matches(&chain, *slot)).collect();
                    prop_assert_eq!(out, expected);
                }
            }
        }
        index.sweep(usize::MAX);
        let stats = index.stats();
        prop_assert_eq!(stats.entries, oracle.entries());
        prop_assert!(stats.blocks <= stats.entries && stats.bytes <= bytes);
    }
}

#[test]
fn a_block_that_is_inserted_behind_a_walk_is_found_by_the_next() {
    let index = PrefixIndex::new(MIB, 1);
    let (early, late) = (mk_chain("early", 40), mk_chain("late", 8));
    index.insert_until(&early, slot(0, 0), 1);
    let mut cursor = Cursor::default();
    assert_eq!(index.expire(&mut cursor, 1, 16), 2);
    assert!(!cursor.is_done());
    // Into the places that the walk has passed.
    index.insert_until(&late[..2], slot(0, 0), 3);
    while !cursor.is_done() {
        index.expire(&mut cursor, 1, 16);
    }
    assert_eq!(index.stats().entries, 2);
    assert_eq!(expire(&index, 2, 16), 0);
    assert_eq!(expire(&index, 3, 16), 2);
}

#[test]
fn candidate_drops_out_at_its_first_miss() {
    let index = PrefixIndex::new(MIB, 1);
    let whole = mk_chain("a", 6);
    index.insert(&whole, slot(0, 0));
    index.insert(&whole[..2], slot(1, 0));
    // A gap at block 2.
    index.insert(&whole[..2], slot(2, 0));
    index.insert(&whole[3..], slot(2, 0));
    let candidates = [2, 0, 1, 0, 3].map(|at| slot(at, 0));
    let mut out = [u32::MAX; 5];
    index.matches(&whole, &candidates, &mut out);
    assert_eq!(out, [2, 6, 2, 6, 0]);
    index.matches(&[], &candidates, &mut out);
    assert_eq!(out, [0; 5]);
}

#[test]
fn end_of_a_chain_is_evicted_before_its_beginning() {
    let index = PrefixIndex::new(MIB, 1);
    let endpoint = slot(0, 0);
    index.set_capacity(endpoint, 10);
    let chain = mk_chain("a", 16);
    index.insert(&chain, endpoint);
    assert_eq!(matched(&index, &chain, endpoint), 10);
    index.insert(&mk_chain("b", 4), endpoint);
    assert_eq!(matched(&index, &chain, endpoint), 6);
}

#[test]
fn removed_endpoint_matches_nothing_at_once() {
    let index = PrefixIndex::new(MIB, 4);
    let chain = mk_chain("a", 40);
    index.insert(&chain, slot(3, 5));
    assert_eq!(matched(&index, &chain, slot(3, 5)), 40);
    index.remove(slot(3, 5));
    assert_eq!(matched(&index, &chain, slot(3, 5)), 0);
    // A late insert, and one of a former endpoint at the place.
    index.insert(&chain, slot(3, 5));
    index.insert(&chain, slot(3, 4));
    index.set_capacity(slot(3, 5), 100);
    assert_eq!(matched(&index, &chain, slot(3, 5)), 0);
    assert_eq!(matched(&index, &chain, slot(3, 4)), 0);
    assert_eq!((index.stats().endpoints, index.stats().entries), (0, 40));
    assert_eq!(index.sweep(30), 30);
    assert_eq!(index.sweep(30), 10);
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn endpoints_removed_at_once_match_nothing_and_leave_their_share_to_others() {
    let index = PrefixIndex::new(16 << 10, 1);
    let chain = mk_chain("a", 200);
    for at in 0..4 {
        assert!(index.insert_until(&chain, slot(at, 1), 9));
    }
    // Unknown ones and former generations go too.
    index.remove_all(&[slot(0, 1), slot(1, 1), slot(2, 0), slot(3, 1), slot(9, 7)]);
    let gone = [0, 1, 3].map(|at| matched(&index, &chain, slot(at, 1)));
    assert_eq!(gone, [0; 3]);
    assert!(!index.insert_until(&chain, slot(0, 1), 9), "it was removed");
    assert!(index.insert_until(&chain, slot(2, 1), 9));
    assert_eq!(
        matched(&index, &chain, slot(2, 1)),
        200,
        "all 256 are its own"
    );
}

#[test]
fn restarted_endpoint_begins_with_nothing() {
    let index = PrefixIndex::new(MIB, 4);
    let chain = mk_chain("a", 40);
    index.insert(&chain, slot(3, 0));
    // The next generation ends the former, with or without a removal.
    index.insert(&chain[..2], slot(3, 1));
    assert_eq!(matched(&index, &chain, slot(3, 0)), 0);
    assert_eq!(matched(&index, &chain, slot(3, 1)), 2);
    index.remove(slot(3, 0));
    assert_eq!(matched(&index, &chain, slot(3, 1)), 2, "an old removal");
    index.remove(slot(3, 7));
    index.insert(&chain, slot(3, 7));
    assert_eq!(matched(&index, &chain, slot(3, 7)), 0, "never inserted");
}

#[test]
fn slots_that_are_used_again_find_nothing_of_former_endpoints() {
    let index = PrefixIndex::new(8 * MIB, 4);
    let common = mk_chain("common", 20);
    for generation in 0..500 {
        let now = slot(generation % 7, generation / 7);
        assert_eq!(matched(&index, &common, now), 0);
        index.insert(&common, now);
        index.insert(&mk_chain(&format!("own {generation}"), 20), now);
        assert_eq!(matched(&index, &common, now), 20);
        if generation % 3 > 0 {
            index.remove(now);
            assert_eq!(matched(&index, &common, now), 0);
        }
    }
    let stats = index.stats();
    assert!(stats.endpoints <= 7, "{stats:?}");
    // Inserts and new endpoints sweep by themselves.
    assert!(stats.entries <= 40 * 20, "{stats:?}");
}

#[test]
fn more_endpoints_than_one_word_are_told_apart() {
    let index = PrefixIndex::new(64 * MIB, 4);
    let chain = mk_chain("a", 300);
    let candidates: Vec<_> = (0..300).map(|at| slot(at, at)).collect();
    for (length, candidate) in (0..).zip(&candidates) {
        index.insert(&chain[..length], *candidate);
    }
    let mut out = vec![u32::MAX; 300];
    index.matches(&chain, &candidates, &mut out);
    assert_eq!(out, (0..300).collect::<Vec<_>>());
    index.matches(&chain, &candidates[150..], &mut out[150..]);
    assert_eq!(out, (0..300).collect::<Vec<_>>());
}

#[test]
fn slots_above_the_bounds_are_not_tracked() {
    // The smallest shard: 256 entries, 16 columns.
    let index = PrefixIndex::new(0, 1);
    let chain = mk_chain("a", 4);
    let tracks = |slot| {
        index.insert(&chain, slot);
        matched(&index, &chain, slot) == 4
    };
    assert!(!tracks(slot(u32::MAX, 0)));
    assert!((0..16).all(|at| tracks(slot(at, 0))));
    assert!(!tracks(slot(15 + 1, 0)));
    // Generations are no more endpoints than slots.
    assert!((0..1600).all(|at| tracks(slot(at % 16, 1 + at / 16))));
    index.remove(slot(7, 100));
    assert!(tracks(slot(7, 101)));
}

#[rstest]
#[case::smallest(0, 0, 1)]
#[case::rounded_up(0, 65, 128)]
#[case::most_shards(0, usize::MAX, 4096)]
#[case::one_huge_shard(usize::MAX, 1, 1)]
fn any_size_pays_for_its_fixed_parts(
    #[case] max_bytes: usize,
    #[case] shards: usize,
    #[case] rounded: usize,
) {
    let stats = PrefixIndex::new(max_bytes, shards).stats();
    assert!(stats.max_entries >= 256 * rounded, "{stats:?}");
    assert!(stats.bytes <= 2048 * rounded, "{stats:?}");
}

#[rstest]
#[case::one_shard(MIB, 1)]
#[case::many_shards(4 * MIB, 64)]
#[case::smallest(0, 8)]
fn memory_stays_under_the_bound(#[case] max_bytes: usize, #[case] shards: usize) {
    let index = PrefixIndex::new(max_bytes, shards);
    let max_bytes = max_bytes.max(shards * (16 << 10));
    let prompts = 100_000;
    for prompt in 0..prompts {
        // Ten endpoints, one of which restarts now and then.
        let endpoint = slot(
            prompt % 10,
            if prompt % 10 == 3 { prompt / 20_000 } else { 0 },
        );
        let chain = chain(u64::from(prompt), [[0; 6].as_slice()], 1, 6);
        index.insert(&chain, endpoint);
        if prompt % 1000 == 0 {
            let stats = index.stats();
            assert!(stats.bytes <= max_bytes, "{stats:?}");
            assert!(stats.entries <= stats.max_entries, "{stats:?}");
        }
    }
    let stats = index.stats();
    assert!(stats.bytes <= max_bytes, "{stats:?}");
    assert!(stats.entries > stats.max_entries * 9 / 10, "{stats:?}");
}

#[test]
fn entry_takes_at_most_64_bytes_while_tables_grow() {
    let index = PrefixIndex::new(64 * MIB, 4);
    let empty = index.stats().bytes;
    for prompt in 0..20_000 {
        index.set_capacity(slot(0, 0), usize::MAX);
        index.insert(&chain(prompt, [[0; 6].as_slice()], 1, 6), slot(0, 0));
        let stats = index.stats();
        // The room for a few entries which each shard begins with comes on top.
        assert!(
            stats.bytes <= empty + 64 * stats.entries + 4 * 1024,
            "{stats:?}"
        );
    }
}

#[test]
fn capacities_above_the_bound_are_lowered_in_proportion() {
    let index = PrefixIndex::new(64 * 1000, 1);
    let (small, large) = (slot(0, 0), slot(1, 0));
    index.set_capacity(small, 500);
    index.set_capacity(large, 1500);
    let [of_small, of_large] = [("s", small), ("l", large)].map(|(name, slot)| {
        let chain = mk_chain(name, 3000);
        index.insert(&chain, slot);
        matched(&index, &chain, slot)
    });
    assert!((of_small, of_large) == (333, 666), "{index:?}");
    // All of it for the one that stays.
    index.remove(small);
    let chain = mk_chain("l", 3000);
    index.insert(&chain, large);
    assert_eq!(matched(&index, &chain, large), 1000);
    assert_eq!(index.stats().entries, 1000);
}

#[test]
fn lowered_capacity_is_reached_with_the_next_inserts() {
    let index = PrefixIndex::new(MIB, 1);
    let endpoint = slot(0, 0);
    let chain = mk_chain("a", 1000);
    index.insert(&chain, endpoint);
    index.set_capacity(endpoint, 100);
    index.insert(&chain[..100], endpoint);
    assert!(index.stats().entries < 1000);
    index.sweep(usize::MAX);
    assert_eq!(matched(&index, &chain, endpoint), 100);
    // Most of the tables is given back.
    assert!(index.stats().bytes < 64 * 400, "{index:?}");
    index.insert(&mk_chain("b", 90), endpoint);
    assert_eq!(matched(&index, &chain, endpoint), 10);
}

#[test]
fn full_shard_takes_the_blocks_of_removed_endpoints_first() {
    let index = PrefixIndex::new(64 * 1000, 1);
    let full = mk_chain("a", 1000);
    index.set_capacity(slot(0, 0), 1000);
    index.insert(&full, slot(0, 0));
    index.remove(slot(0, 0));
    index.set_capacity(slot(1, 0), 1000);
    index.insert(&mk_chain("b", 1000), slot(1, 0));
    assert_eq!(matched(&index, &mk_chain("b", 1000), slot(1, 0)), 1000);
    assert_eq!(index.stats().entries, 1000);
}

#[test]
fn readers_see_what_stays_while_writers_move_records() {
    let index = PrefixIndex::new(MIB, 2);
    let (kept, foreign) = (mk_chain("kept", 64), mk_chain("foreign", 64));
    index.insert(&kept, slot(0, 0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..4_000 {
                let endpoint = slot(1 + round % 3, round / 1500);
                index.set_capacity(endpoint, 100 + 50 * (round as usize % 5));
                index.insert(&mk_chain(&round.to_string(), 40), endpoint);
            }
            done.store(true, Ordering::Relaxed);
        });
        let candidates = [0, 1, 2, 3].map(|at| slot(at, 0));
        while !done.load(Ordering::Relaxed) {
            let mut out = [u32::MAX; 4];
            index.matches(&kept, &candidates, &mut out);
            assert_eq!(out, [64, 0, 0, 0]);
            index.matches(&foreign, &candidates, &mut out);
            assert_eq!(out, [0; 4]);
        }
    });
}

#[test]
fn what_one_insert_is_taken_back_of_stays_where_a_later_one_has_it_too() {
    let index = PrefixIndex::new(1 << 16, 1);
    let slot = Slot::default();
    let has = |chain: &[u64]| {
        let mut matched = [0];
        index.matches(chain, &[slot], &mut matched);
        matched[0]
    };
    assert!(index.insert_until(&[1, 2, 3, 4], slot, 7));
    assert!(index.insert_until(&[1, 2], slot, 8));
    index.forget_until(&[1, 2, 3, 4], slot, 7);
    assert_eq!(has(&[1, 2, 3, 4]), 2);
    index.forget_until(&[1, 2], slot, 8);
    assert_eq!(has(&[1, 2]), 0);
}

#[test]
fn a_refresh_keeps_what_is_there_from_eviction_and_not_for_longer() {
    let index = PrefixIndex::new(1 << 16, 1);
    let slot = Slot::default();
    index.set_capacity(slot, 2);
    assert!(index.insert_until(&[1], slot, 7));
    assert!(index.insert_until(&[2], slot, 7));
    index.refresh(&[1, 5], slot);
    assert_eq!(index.stats().entries, 2, "it adds none");
    assert!(index.insert_until(&[3], slot, 7));
    let has = |block| matched(&index, &[block], slot);
    assert_eq!([1, 2, 3].map(has), [1, 0, 1], "the one used last stays");
    index.forget_until(&[1], slot, 7);
    assert_eq!(matched(&index, &[1], slot), 0);
}
