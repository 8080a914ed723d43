use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use proptest::prelude::*;

use super::*;
use crate::{
    event::{Event, ExtraKeys, Removed, Stored, Tier},
    hash::{Seed, chain},
};

const BLOCK: usize = 4;
const PLENTY: usize = 1 << 30;

/// The plainest index: for each worker its blocks with their whole prompts.
#[derive(Default)]
struct Oracle {
    workers: HashMap<u32, HashMap<u64, Known>>,
}

#[derive(Clone)]
struct Known {
    prompt: Vec<u32>,
    references: [u32; 3],
}

// === impl Oracle ===

impl Oracle {
    fn stored(&mut self, worker: u32, hashes: &[u64], prompt: &[u32], from: usize, tier: Tier) {
        let blocks = self.workers.entry(worker).or_default();
        for (at, hash) in hashes.iter().enumerate() {
            let end = (from + at + 1) * BLOCK;
            let known = blocks.entry(*hash).or_insert_with(|| Known {
                prompt: prompt[..end].to_vec(),
                references: [0; 3],
            });
            known.references[tier.index()] += 1;
        }
    }

    fn removed(&mut self, worker: u32, hashes: &[u64], tier: Tier) {
        let blocks = self.workers.entry(worker).or_default();
        for hash in hashes {
            if let Some(known) = blocks.get_mut(hash) {
                let references = &mut known.references[tier.index()];
                *references = references.saturating_sub(1);
                if known.references == [0; 3] {
                    blocks.remove(hash);
                }
            }
        }
    }

    fn matches(&self, worker: u32, prompt: &[u32]) -> Overlap {
        let mut overlap = Overlap::default();
        let Some(blocks) = self.workers.get(&worker) else {
            return overlap;
        };
        for end in (BLOCK..=prompt.len()).step_by(BLOCK) {
            let same = |known: &&Known| known.prompt == prompt[..end];
            let found: Vec<&Known> = blocks.values().filter(same).collect();
            let at = |tier: Tier| found.iter().any(|it| it.references[tier.index()] > 0);
            if at(Tier::Gpu) {
                overlap.gpu += 1;
            } else if at(Tier::Host) {
                overlap.host += 1;
            } else if at(Tier::Disk) {
                overlap.disk += 1;
            } else {
                break;
            }
        }
        overlap
    }
}

fn names(prompt: &[u32]) -> Vec<Seq> {
    let mut out = Vec::new();
    chain(prompt, BLOCK, Seed::PLAIN, &mut out);
    out
}

/// An engine's own names of the blocks.
fn engine_names(prompt: &[u32]) -> Vec<u64> {
    names(prompt)
        .into_iter()
        .map(|it| it.get() ^ 0x99)
        .collect()
}

fn mk_stored(prompt: &[u32], from: usize, tier: Tier) -> Event<'static> {
    let hashes = engine_names(prompt);
    Event::Stored(Stored {
        parent: from.checked_sub(1).map(|at| hashes[at]),
        hashes: hashes[from..].to_vec(),
        ids: prompt[from * BLOCK..].to_vec(),
        block_size: BLOCK as u64,
        tier,
        is_full_attention: true,
        ..Stored::default()
    })
}

fn mk_removed(hashes: Vec<u64>, tier: Tier) -> Event<'static> {
    Event::Removed(Removed {
        hashes,
        tier,
        group: None,
    })
}

/// Prompts that share beginnings: each block is one of two.
fn mk_prompt(number: u64, blocks: usize) -> Vec<u32> {
    let id = |at: usize| u32::try_from((number >> (at / BLOCK).min(63)) & 1).unwrap();
    (0..blocks * BLOCK).map(id).collect()
}

fn overlap(index: &Index, prompt: &[u32], slot: Slot) -> Overlap {
    let mut out = [Overlap::default()];
    index.matches(&names(prompt), &[slot], &mut out);
    out[0]
}

fn check(index: &Index, oracle: &Oracle, workers: &[WorkerBlocks], prompt: &[u32]) {
    let slots: Vec<Slot> = workers.iter().map(WorkerBlocks::slot).collect();
    let mut out = vec![Overlap::default(); slots.len()];
    index.matches(&names(prompt), &slots, &mut out);
    for (at, overlap) in (0..).zip(out) {
        assert_eq!(overlap, oracle.matches(at, prompt), "worker {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With the cases that is more than 10^5 operations.
    #[test]
    fn the_index_is_the_oracle(ops in prop::collection::vec(
        (0_usize..70, 0..9, 0_u64..64, 1_usize..7, 0_usize..6, 0_usize..3), 3000..5000)
    ) {
        let index = Index::new(BLOCK, PLENTY);
        let mut oracle = Oracle::default();
        let mut workers: Vec<_> = (0..70).filter_map(|_| index.add()).collect();
        for (number, (worker, op, prompt, blocks, from, tier)) in ops.into_iter().enumerate() {
            // few workers with much, and some in the next word
            let worker = if worker % 3 == 0 { worker } else { worker % 4 };
            let id = u32::try_from(worker).unwrap();
            let prompt = mk_prompt(prompt, blocks);
            let tier = Tier::ALL[tier];
            let from = from.min(blocks - 1);
            let hashes = engine_names(&prompt);
            match op {
                0..=4 => {
                    let applied = workers[worker].apply(&index, &mk_stored(&prompt, from, tier));
                    let known = oracle.workers.entry(id).or_default();
                    if from == 0 || known.contains_key(&hashes[from - 1]) {
                        prop_assert_eq!(applied, Ok(Applied::Blocks(blocks - from)));
                        oracle.stored(id, &hashes[from..], &prompt, from, tier);
                    } else {
                        prop_assert_eq!(applied, Err(Refused::Orphan));
                    }
                }
                // from anywhere: the middle, what is there at another tier, what is not there
                5..=7 => {
                    let gone = hashes[from..].to_vec();
                    oracle.removed(id, &gone, tier);
                    prop_assert!(workers[worker].apply(&index, &mk_removed(gone, tier)).is_ok());
                }
                _ if number % 40 == 0 => {
                    oracle.workers.remove(&id);
                    prop_assert!(workers[worker].apply(&index, &Event::Cleared).is_ok());
                }
                _ => {}
            }
            if number % 50 == 0 {
                check(&index, &oracle, &workers, &prompt);
            }
        }
        for prompt in 0..64 {
            check(&index, &oracle, &workers, &mk_prompt(prompt, 6));
        }
        for mut worker in workers {
            worker.clear(&index);
            prop_assert_eq!(worker.pairs(), 0);
        }
        prop_assert_eq!(index.stats().records, 0);
    }
}

#[test]
fn four_writers_and_two_readers_agree_in_the_end_and_readers_see_no_foreign_blocks() {
    let index = Index::new(BLOCK, PLENTY);
    let prompts: Vec<Vec<u32>> = (0..64).map(|number| mk_prompt(number, 6)).collect();
    let unknown = mk_prompt(0b111, 6)
        .iter()
        .map(|id| id + 7)
        .collect::<Vec<u32>>();
    let done = AtomicBool::new(false);
    let mut writers: Vec<_> = (0..4).filter_map(|_| index.add()).collect();
    let slots: Vec<Slot> = writers.iter().map(WorkerBlocks::slot).collect();
    let write = |worker: &mut WorkerBlocks| {
        for round in 0..300 {
            for (number, prompt) in prompts.iter().enumerate() {
                worker
                    .apply(&index, &mk_stored(prompt, 0, Tier::Gpu))
                    .unwrap();
                if number >= 32 || round < 299 {
                    let gone = mk_removed(engine_names(prompt), Tier::Gpu);
                    worker.apply(&index, &gone).unwrap();
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = [Overlap::default(); 4];
                while !done.load(Ordering::Relaxed) {
                    for prompt in &prompts {
                        index.matches(&names(prompt), &slots, &mut out);
                        assert!(out.iter().all(|it| it.blocks() <= 6));
                    }
                    index.matches(&names(&unknown), &slots, &mut out);
                    assert_eq!(out, [Overlap::default(); 4]);
                }
            });
        }
        let all: Vec<_> = writers
            .iter_mut()
            .map(|it| scope.spawn(|| write(it)))
            .collect();
        for it in all {
            it.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for slot in slots {
        assert_eq!(overlap(&index, &prompts[5], slot).gpu, 6);
        // of what went the beginning is that of others
        assert_eq!(overlap(&index, &prompts[63], slot).gpu, 5);
    }
}

#[test]
fn a_removed_worker_matches_nothing_and_its_slot_comes_back_when_swept() {
    let index = Index::new(BLOCK, PLENTY);
    let prompt = mk_prompt(5, 6);
    let mut worker = index.add().unwrap();
    worker
        .apply(&index, &mk_stored(&prompt, 0, Tier::Gpu))
        .unwrap();
    let old = worker.slot();
    index.remove(worker);
    assert_eq!(overlap(&index, &prompt, old), Overlap::default());
    assert_ne!(index.add().unwrap().slot().index, old.index);
    assert_eq!(index.sweep(4), 4);
    assert_eq!(index.sweep(4096), 2);
    assert_eq!(index.stats().records, 0);
    // another worker at the same place: what still names the former matches nothing
    let mut next = index.add().unwrap();
    assert_eq!(next.slot().index, old.index);
    next.apply(&index, &mk_stored(&prompt, 0, Tier::Gpu))
        .unwrap();
    assert_eq!(overlap(&index, &prompt, old), Overlap::default());
    assert_eq!(overlap(&index, &prompt, next.slot()).gpu, 6);
}

#[test]
fn there_are_no_more_workers_than_slots() {
    let index = Index::new(BLOCK, PLENTY);
    let mut workers: Vec<_> = (0..MAX_SLOTS).filter_map(|_| index.add()).collect();
    assert!(index.add().is_none());
    index.remove(workers.pop().unwrap());
    index.sweep(1);
    assert!(index.add().is_some());
}

/// One prompt after the other, never the same.
fn fill(index: &Index, worker: &mut WorkerBlocks, start: u32, prompts: u32) {
    for number in start..start + prompts {
        let prompt: Vec<u32> = (0..8 * BLOCK)
            .map(|at| number * 64 + u32::try_from(at).unwrap())
            .collect();
        worker
            .apply(index, &mk_stored(&prompt, 0, Tier::Gpu))
            .unwrap();
    }
}

#[test]
fn memory_stays_under_its_bound_and_the_oldest_blocks_go_first() {
    let max_bytes = 4 << 20;
    let index = Index::new(BLOCK, max_bytes);
    let mut workers: Vec<_> = (0..2).filter_map(|_| index.add()).collect();
    for worker in &mut workers {
        fill(&index, worker, 0, 10_000);
    }
    let share = max_bytes / PAIR_BYTES / 2;
    let fixed = Index::new(BLOCK, 0).stats().bytes;
    let bytes = |workers: &[WorkerBlocks]| {
        index.stats().bytes - fixed + workers.iter().map(WorkerBlocks::bytes).sum::<usize>()
    };
    assert!(workers.iter().all(|it| it.len() == share));
    assert!(bytes(&workers) <= max_bytes, "{}", bytes(&workers));
    // an own prompt for each worker costs most
    fill(&index, &mut workers[0], 1 << 20, 10_000);
    assert!(bytes(&workers) <= max_bytes, "{}", bytes(&workers));
    assert_eq!(
        index.stats().evicted,
        (2 * 80_000 + 80_000 - 2 * share) as u64
    );
    let first: Vec<u32> = (0..32).collect();
    let last: Vec<u32> = (0..32).map(|at| 9_999 * 64 + at).collect();
    assert_eq!(overlap(&index, &first, workers[1].slot()).gpu, 0);
    assert_eq!(overlap(&index, &last, workers[1].slot()).gpu, 8);
    // a third worker: the shares of all are less
    workers.extend(index.add());
    for it in &mut workers {
        it.trim(&index);
    }
    assert!(
        workers
            .iter()
            .all(|it| it.len() <= max_bytes / PAIR_BYTES / 3)
    );
}

#[test]
fn workers_that_come_and_go_leave_nothing() {
    let index = Index::new(BLOCK, 8 << 20);
    let empty = index.stats();
    let mut most = 0;
    for round in 0..200 {
        let mut worker = index.add().unwrap();
        fill(&index, &mut worker, round * 100, 100);
        index.remove(worker);
        index.sweep(4096);
        most = most.max(index.stats().bytes);
    }
    // small tables keep what one worker needed
    assert!(most < empty.bytes + 200_000, "{most}");
    assert_eq!(index.stats().records, 0);
    assert_eq!(index.add().unwrap().slot().index, 0);
}

/// A batch of blocks with these fields set.
fn mk_with(prompt: &[u32], change: impl FnOnce(&mut Stored<'static>)) -> Event<'static> {
    let Event::Stored(mut stored) = mk_stored(prompt, 0, Tier::Gpu) else {
        unreachable!("it is stored");
    };
    change(&mut stored);
    Event::Stored(stored)
}

#[test]
fn adapters_are_kept_apart_and_children_have_the_adapter_of_their_parent() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let first = mk_with(&prompt[..8], |it| it.lora_name = Some("sql"));
    worker.apply(&index, &first).unwrap();
    worker
        .apply(&index, &mk_stored(&prompt, 2, Tier::Gpu))
        .unwrap();
    let mut with_lora = Vec::new();
    chain(&prompt, BLOCK, Seed::new(Some("sql"), None), &mut with_lora);
    let mut out = [Overlap::default()];
    index.matches(&with_lora, &[worker.slot()], &mut out);
    assert_eq!(out[0].gpu, 6);
    assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, 0);
}

#[test]
fn blocks_of_other_attention_are_not_indexed_and_their_removal_takes_nothing() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    worker
        .apply(&index, &mk_with(&prompt, |it| it.group = Some(0)))
        .unwrap();
    let window = mk_with(&prompt, |it| {
        (it.group, it.is_full_attention) = (Some(1), false);
    });
    assert_eq!(worker.apply(&index, &window), Ok(Applied::OtherGroup));
    let gone = |group| {
        Event::Removed(Removed {
            hashes: engine_names(&prompt),
            tier: Tier::Gpu,
            group: Some(group),
        })
    };
    worker.apply(&index, &gone(1)).unwrap();
    assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, 6);
    worker.apply(&index, &gone(0)).unwrap();
    assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, 0);
    assert!(worker.is_empty());
}

/// The number of blocks of a salted prompt that are known under this seed.
fn overlap_with(index: &Index, prompt: &[u32], seed: Seed, slot: Slot) -> u32 {
    let (mut names, mut out) = (Vec::new(), [Overlap::default()]);
    chain(prompt, BLOCK, seed, &mut names);
    index.matches(&names, &[slot], &mut out);
    out[0].gpu
}

#[test]
fn a_salt_that_is_a_field_is_that_of_the_prompt_and_may_be_repeated_behind_it() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let salted = |it: &mut Stored<'static>| it.cache_salt = Some("T");
    worker
        .apply(&index, &mk_with(&prompt[..8], salted))
        .unwrap();
    let Event::Stored(mut behind) = mk_stored(&prompt, 2, Tier::Gpu) else {
        unreachable!("it is stored");
    };
    salted(&mut behind);
    worker.apply(&index, &Event::Stored(behind)).unwrap();
    let known = |salt| overlap_with(&index, &prompt, Seed::new(None, salt), worker.slot());
    assert_eq!((known(Some("T")), known(None)), (6, 0));
}

#[test]
fn blocks_whose_ids_do_not_say_what_they_are_match_no_prompt() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let mut known = |change: fn(&mut Stored<'static>)| {
        worker.clear(&index);
        worker.apply(&index, &mk_with(&prompt, change)).unwrap();
        assert_eq!(worker.len(), 6);
        overlap(&index, &prompt, worker.slot()).gpu
    };
    assert_eq!(known(|it| it.is_unnamed_adapter = true), 0);
    assert_eq!(known(|it| it.opaque_from = Some(11)), 2);
    assert_eq!(known(|it| it.opaque_from = Some(12)), 3);
    assert_eq!(known(|_| {}), 6);
}

#[test]
fn an_event_without_ids_adds_a_tier_to_the_blocks_that_are_known() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let offloaded = |group| {
        Event::Stored(Stored {
            hashes: [&engine_names(&prompt)[..], &[77]].concat(),
            tier: Tier::Host,
            group: Some(group),
            is_full_attention: true,
            ..Stored::default()
        })
    };
    let window = mk_with(&prompt, |it| {
        (it.group, it.is_full_attention) = (Some(1), false);
    });
    worker
        .apply(&index, &mk_stored(&prompt, 0, Tier::Gpu))
        .unwrap();
    worker.apply(&index, &window).unwrap();
    // the group's blocks are not indexed
    assert_eq!(worker.apply(&index, &offloaded(1)), Ok(Applied::OtherGroup));
    let gone = mk_removed(engine_names(&prompt), Tier::Gpu);
    worker.apply(&index, &gone).unwrap();
    assert_eq!(overlap(&index, &prompt, worker.slot()).host, 0);

    worker
        .apply(&index, &mk_stored(&prompt, 0, Tier::Gpu))
        .unwrap();
    worker.apply(&index, &offloaded(0)).unwrap();
    worker.apply(&index, &gone).unwrap();
    assert_eq!(overlap(&index, &prompt, worker.slot()).host, 6);
    assert_eq!((worker.len(), worker.pairs()), (6, 6));
    let gone = mk_removed(engine_names(&prompt), Tier::Host);
    worker.apply(&index, &gone).unwrap();
    assert!(worker.is_empty());
}

#[test]
fn an_unreadable_event_forgets_all_unless_it_only_stored() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let error = crate::event::MalformedEvents::Ends;
    worker
        .apply(&index, &mk_stored(&prompt, 0, Tier::Gpu))
        .unwrap();
    for (is_stored, left) in [(true, 6), (false, 0)] {
        let event = Event::Unreadable { error, is_stored };
        assert_eq!(
            worker.apply(&index, &event),
            Err(Refused::Unreadable(error))
        );
        assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, left);
    }
    let shared = Event::Shared { is_stored: true };
    assert_eq!(worker.apply(&index, &shared), Ok(Applied::Shared));
}

#[test]
fn the_ids_show_a_block_size_that_is_left_out() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let unnamed = mk_with(&prompt, |it| it.block_size = 0);
    worker.apply(&index, &unnamed).unwrap();
    assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, 6);
}

#[test]
fn events_of_other_lengths_change_nothing() {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let other = mk_with(&prompt, |it| it.block_size = 16);
    assert_eq!(worker.apply(&index, &other), Err(Refused::BlockSize(16)));
    let short = mk_with(&prompt, |it| it.ids.truncate(23));
    assert_eq!(worker.apply(&index, &short), Err(Refused::Length(6, 23)));
    let unnamed = mk_with(&prompt, |it| {
        it.block_size = 0;
        it.ids.truncate(12);
    });
    assert_eq!(worker.apply(&index, &unnamed), Err(Refused::BlockSize(2)));
    let short = mk_with(&prompt, |it| {
        it.block_size = 0;
        it.ids.truncate(23);
    });
    assert_eq!(worker.apply(&index, &short), Err(Refused::Length(6, 23)));
    assert!(worker.is_empty());
    assert_eq!(
        ExtraKeys::default().next_block(None),
        crate::event::BlockKeys::None
    );
}

/// As an engine publishes it: a prompt whose block at this place has one extra key, a text or a number.
fn mk_keyed(prompt: &[u32], place: usize, key: Option<&str>) -> Vec<u8> {
    use rmp::encode;
    let mut out = Vec::new();
    let hashes = engine_names(prompt);
    let list = |out: &mut Vec<u8>, len: usize| {
        encode::write_array_len(out, u32::try_from(len).unwrap()).unwrap();
    };
    list(&mut out, 2);
    encode::write_f64(&mut out, 0.0).unwrap();
    list(&mut out, 1);
    list(&mut out, 9);
    encode::write_str(&mut out, "BlockStored").unwrap();
    list(&mut out, hashes.len());
    for hash in &hashes {
        encode::write_uint(&mut out, *hash).unwrap();
    }
    encode::write_nil(&mut out).unwrap();
    list(&mut out, prompt.len());
    for id in prompt {
        encode::write_uint(&mut out, u64::from(*id)).unwrap();
    }
    encode::write_uint(&mut out, BLOCK as u64).unwrap();
    for _ in 0..3 {
        encode::write_nil(&mut out).unwrap();
    }
    list(&mut out, hashes.len());
    for at in 0..hashes.len() {
        list(&mut out, usize::from(at == place));
        match key {
            _ if at != place => {}
            Some(text) => encode::write_str(&mut out, text).unwrap(),
            None => {
                encode::write_uint(&mut out, 7).unwrap();
            }
        }
    }
    out
}

#[test]
fn a_salt_keeps_prompts_apart_and_what_ids_do_not_tell_is_not_indexed_but_its_children_are_no_orphans()
 {
    let index = Index::new(BLOCK, PLENTY);
    let mut worker = index.add().unwrap();
    let prompt = mk_prompt(5, 6);
    let store = |worker: &mut WorkerBlocks, message: &[u8]| {
        let batch = crate::event::Batch::read(message).unwrap();
        worker.apply(&index, &batch.events[0]).unwrap();
    };
    store(&mut worker, &mk_keyed(&prompt, 0, Some("tenant")));
    let mut salted = Vec::new();
    chain(&prompt, BLOCK, Seed::new(None, Some("tenant")), &mut salted);
    let mut out = [Overlap::default()];
    index.matches(&salted, &[worker.slot()], &mut out);
    assert_eq!(out[0].gpu, 6);
    assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, 0);
    // a text further back is no salt
    for key in [Some("image"), None] {
        worker.clear(&index);
        store(&mut worker, &mk_keyed(&prompt, 2, key));
        assert_eq!(overlap(&index, &prompt, worker.slot()).gpu, 2);
        assert_eq!((worker.len(), worker.pairs()), (6, 6));
        let longer = mk_prompt(5, 8);
        let applied = worker.apply(&index, &mk_stored(&longer, 6, Tier::Gpu));
        assert_eq!(applied, Ok(Applied::Blocks(2)));
        let gone = mk_removed(engine_names(&longer), Tier::Gpu);
        worker.apply(&index, &gone).unwrap();
        assert_eq!((worker.len(), worker.pairs()), (0, 0));
    }
    assert_eq!(index.stats().records, 0);
}
