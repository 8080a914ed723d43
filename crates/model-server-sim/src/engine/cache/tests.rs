//! What the cache knows, and what it gives up.

use rstest::rstest;

use super::*;

const SEED: PrefixSeed<'_> = PrefixSeed {
    model: "m",
    adapter: "",
    salt: "",
};

fn mk_blocks(prompt: &str) -> Vec<BlockHash> {
    prefix_blocks(SEED, prompt.as_bytes(), 1)
}

/// Admits, fills and releases one sequence, as if it ran alone.
fn run(cache: &mut KvCache, prompt: &str) -> usize {
    let blocks = mk_blocks(prompt);
    let hits = cache.matched(&blocks);
    let (known, new) = blocks.split_at(hits);
    assert!(cache.admit(known, to_u32(new.len())));
    cache.fill(new);
    cache.release(&blocks, 0);
    hits
}

#[test]
fn a_hash_covers_everything_before_it() {
    let (first, second) = (mk_blocks("aaaabbbbcc"), mk_blocks("aaaaxxxxbbbb"));
    assert_eq!((first.len(), second.len()), (2, 3), "full blocks only");
    assert_eq!(first[0], second[0]);
    assert_ne!(first[1], second[2]);
}

#[rstest]
#[case(PrefixSeed { model: "n", ..SEED })]
#[case(PrefixSeed { adapter: "m", model: "", salt: "" })]
#[case(PrefixSeed { salt: "s", ..SEED })]
fn another_model_adapter_or_salt_shares_nothing(#[case] other: PrefixSeed<'_>) {
    assert_ne!(prefix_blocks(other, b"aaaa", 1), mk_blocks("aaaa"));
}

#[test]
fn a_prompt_finds_the_blocks_of_an_earlier_one() {
    let mut cache = KvCache::new(10);
    assert_eq!(run(&mut cache, "aaaabbbbcccc"), 0);
    assert_eq!(run(&mut cache, "aaaabbbbdddd"), 2);
    assert_eq!(cache.in_use(), 0);
}

#[test]
fn the_end_of_the_least_recently_used_prefix_goes_first() {
    let mut cache = KvCache::new(4);
    run(&mut cache, "aaaabbbb");
    run(&mut cache, "ccccdddd");
    run(&mut cache, "aaaa");
    run(&mut cache, "eeee");
    let known = |prompt: &str| cache.matched(&mk_blocks(prompt));
    assert_eq!(
        (known("aaaabbbb"), known("ccccdddd"), known("eeee")),
        (1, 2, 1)
    );
}

#[test]
fn blocks_in_use_are_never_given_up() {
    let mut cache = KvCache::new(3);
    let blocks = mk_blocks("aaaabbbb");
    assert!(cache.admit(&[], 2));
    cache.fill(&blocks);
    assert!(!cache.admit(&[], 2), "only one is left");
    assert!(cache.admit(&blocks, 1), "shared blocks need no room");
    assert_eq!(cache.in_use(), 3);
    cache.release(&blocks, 1);
    cache.release(&blocks, 0);
    assert_eq!(cache.in_use(), 0);
    assert!(cache.admit(&[], 3));
    assert_eq!(cache.matched(&blocks), 0);
}

#[test]
fn idle_blocks_that_are_hit_need_room_too() {
    let mut cache = KvCache::new(2);
    run(&mut cache, "aaaa");
    let blocks = mk_blocks("aaaa");
    assert!(!cache.admit(&blocks, 2));
    assert_eq!(cache.matched(&blocks), 1, "nothing changed");
    assert!(cache.admit(&blocks, 1));
}

#[test]
fn two_that_filled_the_same_block_share_it() {
    let mut cache = KvCache::new(2);
    let blocks = mk_blocks("aaaa");
    assert!(cache.admit(&[], 1) && cache.admit(&[], 1));
    cache.fill(&blocks);
    cache.fill(&blocks);
    assert_eq!(cache.in_use(), 1);
}
