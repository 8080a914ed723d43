//! What endpoints are believed to have cached: blocks of prompts that were sent to them.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;
use scheduling::{
    CacheLayout, Endpoint, Slot, Snapshot, inference_lb::LengthUnit, prefix, prefix::PrefixIndex,
};

use crate::{body::Parsed, config::Prefix};

/// Bytes of JSON that stand for one token of a prompt.
pub(crate) const BYTES_PER_TOKEN: u32 = LengthUnit::Tokens.bytes();

/// Blocks of endpoints that are gone, forgotten in one step.
const SWEEP: usize = 10_000;

/// The prefix index of one pool.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    settings: Prefix,
    index: PrefixIndex,
    /// The capacity that each slot was given.
    capacities: Mutex<HashMap<Slot, usize>>,
    /// Requests so far. It numbers their inserts, in place of the seconds at which blocks of other indexes are over: nothing
    /// is over here. From the 4294967295th on all have the same number.
    requests: AtomicU64,
}

/// What a request adds to the index once its answer is written.
#[derive(Debug)]
pub(crate) struct Learned {
    chain: Vec<u64>,
    /// The number of the insert: a later insert has a greater number.
    number: u32,
    /// So many of them the first endpoint was believed to have before.
    known: usize,
}

// === impl PrefixCache ===

impl PrefixCache {
    pub(crate) fn new(settings: Prefix) -> Self {
        let max_bytes = usize::try_from(settings.max_bytes).unwrap_or(usize::MAX);
        let index = PrefixIndex::new(max_bytes, settings.shards.into());
        Self {
            settings,
            index,
            capacities: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }

    /// What a request adds to the index; nothing, if the chain is empty. The endpoint that was picked was believed to have the
    /// first `known` blocks of it.
    pub(crate) fn learned(&self, chain: Vec<u64>, known: u32) -> Option<Learned> {
        if chain.is_empty() {
            return None;
        }
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        Some(Learned {
            chain,
            number: u32::try_from(before.saturating_add(1)).unwrap_or(u32::MAX),
            known: usize::try_from(known).unwrap_or(usize::MAX),
        })
    }

    pub(crate) fn block_tokens(&self) -> u32 {
        self.settings.block_tokens
    }

    /// The hashes of the prompt's blocks, as the server of `model` caches them.
    pub(crate) fn chain(&self, model: &str, parsed: &Parsed, body: &Bytes) -> Vec<u64> {
        let Prefix {
            block_tokens,
            max_prefix_tokens,
            ..
        } = self.settings;
        let spans = parsed.spans.iter().filter_map(|at| body.get(at.clone()));
        let block = usize::try_from(block_tokens.saturating_mul(BYTES_PER_TOKEN));
        let blocks = usize::try_from(max_prefix_tokens / block_tokens.max(1));
        let seed = prefix::seed(model, parsed.cache_salt.as_deref());
        prefix::chain(
            seed,
            spans,
            block.unwrap_or(usize::MAX),
            blocks.unwrap_or(usize::MAX),
        )
    }

    /// By slot, how many blocks from the start of the chain it is believed to have.
    pub(crate) fn matches(&self, chain: &[u64], slots: &[Slot], matched: &mut Vec<u32>) {
        matched.clear();
        matched.resize(slots.len(), 0);
        self.index.matches(chain, slots, matched);
    }

    /// The endpoint that was picked is to have these blocks from now on. Those that it was believed to have before stay those
    /// of the requests that put them there: if these take them back, this one is no reason to keep them.
    pub(crate) fn learn(&self, learned: &Learned, endpoint: &Endpoint) {
        let slot = cache_slot(endpoint);
        let (known, added) = learned.parts();
        if !added.is_empty() {
            self.index.insert_until(added, slot, learned.number);
        }
        if !known.is_empty() {
            self.index.refresh(known, slot);
        }
    }

    /// The endpoint that was picked responded: it has the blocks, too, that it was only believed to have.
    pub(crate) fn confirm(&self, learned: &Learned, endpoint: &Endpoint) {
        let (known, _) = learned.parts();
        if !known.is_empty() {
            let slot = cache_slot(endpoint);
            self.index.insert_until(known, slot, learned.number);
        }
    }

    /// Another endpoint than the picked one serves the request: it has all of these blocks.
    pub(crate) fn learn_all(&self, learned: &Learned, endpoint: &Endpoint) {
        let Learned { chain, number, .. } = learned;
        self.index
            .insert_until(chain, cache_slot(endpoint), *number);
    }

    /// How many blocks of the chain the endpoint has cached, from the first on.
    pub(crate) fn blocks_at(&self, chain: &[u64], endpoint: &Endpoint) -> u32 {
        let mut matched = Vec::new();
        self.matches(chain, &[cache_slot(endpoint)], &mut matched);
        matched.first().copied().unwrap_or(0)
    }

    /// The endpoint that the request was picked for did not get it: what it was to have of it beyond what it had before
    /// is not there, unless a later request put it there, too.
    pub(crate) fn unlearn(&self, learned: &Learned, first: &Endpoint) {
        let (_, added) = learned.parts();
        let slot = cache_slot(first);
        self.index.forget_until(added, slot, learned.number);
    }

    /// Follows the sizes of caches and the endpoints that are gone. To be called now and then.
    pub(crate) fn tend(&self, snapshot: &Snapshot, gone: &[Slot]) {
        let mut capacities = self.capacities.lock();
        for endpoint in snapshot.endpoints() {
            let capacity = self.capacity(endpoint.load().cache());
            let slot = cache_slot(endpoint);
            if capacities.insert(slot, capacity) != Some(capacity) {
                self.index.set_capacity(slot, capacity);
            }
        }
        capacities.retain(|slot, _| {
            let same = |one: &Slot| one.index == slot.index;
            let is_gone = gone
                .iter()
                .any(|gone| same(gone) && slot.life_of() == *gone);
            if is_gone {
                self.index.remove(*slot);
            }
            !is_gone
        });
        self.index.sweep(SWEEP);
    }

    pub(crate) fn stats(&self) -> prefix::Stats {
        self.index.stats()
    }

    fn capacity(&self, cache: Option<CacheLayout>) -> usize {
        let Prefix {
            block_tokens,
            lru_capacity_per_server,
            auto_tune,
            ..
        } = self.settings;
        match cache {
            Some(cache) if auto_tune => {
                let tokens = u64::from(cache.block_tokens) * u64::from(cache.blocks);
                let blocks = tokens / u64::from(block_tokens.max(1));
                usize::try_from(blocks).unwrap_or(usize::MAX).max(1)
            }
            _ => usize::try_from(lru_capacity_per_server).unwrap_or(usize::MAX),
        }
    }
}

// === impl Learned ===

impl Learned {
    /// The blocks that the first endpoint was believed to have before, and those that this request adds.
    fn parts(&self) -> (&[u64], &[u64]) {
        let known = self.known.min(self.chain.len());
        self.chain.split_at_checked(known).unwrap_or_default()
    }
}

/// The slot of the index for what the endpoint has cached since it last started.
fn cache_slot(endpoint: &Endpoint) -> Slot {
    endpoint.slot().after_restarts(endpoint.load().restarts())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use scheduling::{EndpointId, Member, Moment, Registry, Scraped};

    use super::*;
    use crate::body::Api;

    fn mk_snapshot(registry: &mut Registry, pods: &[&str]) -> Snapshot {
        let members = pods.iter().map(|pod| Member {
            id: EndpointId {
                namespace: "ns".into(),
                pod: (*pod).into(),
                rank: 0,
                uid: (*pod).into(),
            },
            address: format!("10.0.0.{}:80", pod.len()).parse().unwrap(),
            engine: "".into(),
            labels: Arc::default(),
        });
        registry.update(members.collect(), Moment::START)
    }

    fn mk_cache() -> PrefixCache {
        PrefixCache::new(Prefix {
            max_bytes: 1 << 20,
            shards: 2,
            ..Prefix::default()
        })
    }

    fn chain(cache: &PrefixCache, body: &str) -> Vec<u64> {
        let api = Api::for_path(b"/v1/completions").unwrap().unwrap();
        let body = Bytes::from(body.to_owned());
        let parsed = api.parse(&body).unwrap();
        cache.chain(&parsed.model, &parsed, &body)
    }

    fn matched(cache: &PrefixCache, chain: &[u64], snapshot: &Snapshot) -> Vec<u32> {
        let table = snapshot.read(Moment::START, scheduling::Freshness::default());
        let mut matched = vec![9; 7];
        cache.matches(chain, &table.cache_slots, &mut matched);
        matched
    }

    fn mk_body(model: &str, salt: &str, tail: &str) -> String {
        let prompt = "x".repeat(1000);
        format!(r#"{{"model":"{model}","cache_salt":"{salt}","prompt":"{prompt}{tail}"}}"#)
    }

    #[test]
    fn a_prompt_is_found_where_it_was_sent_and_only_for_its_model_and_salt() {
        let (cache, mut registry) = (mk_cache(), Registry::default());
        let snapshot = mk_snapshot(&mut registry, &["a", "bb"]);
        let sent = chain(&cache, &mk_body("m", "s", "one"));
        assert_eq!(sent.len(), 4, "1005 bytes in blocks of 256");
        let learned = cache.learned(sent.clone(), 0).unwrap();
        cache.learn(&learned, &snapshot.members()[0].endpoint);
        assert_eq!(matched(&cache, &sent, &snapshot), [4, 0]);
        let longer = chain(&cache, &mk_body("m", "s", "two and more"));
        assert_eq!(matched(&cache, &longer, &snapshot), [3, 0]);
        for other in [mk_body("n", "s", "one"), mk_body("m", "t", "one")] {
            assert_eq!(matched(&cache, &chain(&cache, &other), &snapshot), [0, 0]);
        }
        assert!(cache.learned(Vec::new(), 0).is_none());
    }

    /// Both requests were picked before either response was recorded. One was not served by the endpoint, the other
    /// was.
    #[test]
    fn blocks_that_another_request_put_there_stay() {
        let (cache, mut registry) = (mk_cache(), Registry::default());
        let snapshot = mk_snapshot(&mut registry, &["a"]);
        let endpoint = &snapshot.members()[0].endpoint;
        let sent = chain(&cache, &mk_body("m", "s", "one"));
        let moved = cache.learned(sent.clone(), 0).unwrap();
        let served = cache.learned(sent.clone(), 0).unwrap();
        cache.learn(&moved, endpoint);
        cache.learn(&served, endpoint);
        cache.unlearn(&moved, endpoint);
        assert_eq!(matched(&cache, &sent, &snapshot), [4]);
        cache.unlearn(&served, endpoint);
        assert_eq!(matched(&cache, &sent, &snapshot), [0]);
    }

    /// The second request is picked for the endpoint because the first one is believed to have gone there.
    #[rstest]
    #[case::neither_went_there(false, 0)]
    #[case::the_second_was_served_there(true, 4)]
    fn a_request_that_was_drawn_by_another_keeps_nothing_unless_it_is_served(
        #[case] is_served: bool,
        #[case] want: u32,
    ) {
        let (cache, mut registry) = (mk_cache(), Registry::default());
        let snapshot = mk_snapshot(&mut registry, &["a"]);
        let endpoint = &snapshot.members()[0].endpoint;
        let sent = chain(&cache, &mk_body("m", "s", "one"));
        let first = cache.learned(sent.clone(), 0).unwrap();
        cache.learn(&first, endpoint);
        let known = cache.blocks_at(&sent, endpoint);
        let drawn = cache.learned(sent.clone(), known).unwrap();
        cache.learn(&drawn, endpoint);
        if is_served {
            cache.confirm(&drawn, endpoint);
        }
        cache.unlearn(&first, endpoint);
        if !is_served {
            cache.unlearn(&drawn, endpoint);
        }
        assert_eq!(matched(&cache, &sent, &snapshot), [want]);
    }

    #[test]
    fn a_restarted_engine_and_one_that_is_gone_have_nothing_cached() {
        let (cache, mut registry) = (mk_cache(), Registry::default());
        let snapshot = mk_snapshot(&mut registry, &["a", "bb"]);
        let sent = chain(&cache, &mk_body("m", "s", "one"));
        let learned = cache.learned(sent.clone(), 0).unwrap();
        cache.tend(&snapshot, &[]);
        for endpoint in snapshot.endpoints() {
            cache.learn(&learned, endpoint);
        }
        let load = snapshot.members()[0].endpoint.load();
        for started in [1.0, 100.0] {
            let page = Scraped {
                waiting: Some(0.0),
                started: Some(started),
                ..Scraped::default()
            };
            load.scraped(load.scrape_starts(Moment::START), page)
                .unwrap();
        }
        assert_eq!(matched(&cache, &sent, &snapshot), [0, 4], "restarted");
        cache.tend(&snapshot, &[]);
        mk_snapshot(&mut registry, &["a"]);
        let later = Moment::START.plus(scheduling::LINGER);
        let gone = registry.sweep(later);
        assert_eq!(gone.len(), 1);
        cache.tend(&mk_snapshot(&mut registry, &["a"]), &gone);
        assert_eq!(matched(&cache, &sent, &snapshot), [0, 0], "gone");
    }

    #[test]
    fn the_cache_of_an_engine_is_as_large_as_it_tells() {
        let cache = mk_cache();
        let layout = |block_tokens, blocks| {
            Some(CacheLayout {
                block_tokens,
                blocks,
            })
        };
        assert_eq!(cache.capacity(None), 31_250);
        assert_eq!(cache.capacity(layout(16, 1024)), 256);
        let fixed = PrefixCache::new(Prefix {
            auto_tune: false,
            max_bytes: 1 << 20,
            shards: 2,
            ..Prefix::default()
        });
        assert_eq!(fixed.capacity(layout(16, 1024)), 31_250);
    }
}
