use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;

/// One shard, so that the least recently used go first in all of an endpoint: 1024 entries of up to 64 endpoints.
const ONE_SHARD: usize = 64 << 10;

fn cluster(number: u8) -> Cluster {
    format!("c{number}").parse().unwrap()
}

fn ip(number: u8) -> Address {
    format!("10.0.0.{number}").parse().unwrap()
}

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

const TTL: Duration = Duration::from_mins(1);

fn matched(cache: &CacheIndex, cluster: &Cluster, chain: &[u64], ip: Address) -> u32 {
    cache.matches(cluster, chain, [ip].into_iter())[0]
}

#[test]
fn where_there_are_too_many_endpoints_those_stay_that_last_longest() {
    let cache = CacheIndex::new(ONE_SHARD);
    let save = |number, seconds| {
        let ttl = Duration::from_secs(seconds);
        cache.save(&cluster(number % 2), ip(number), &[1, 2], ttl, None, at(0));
        matched(&cache, &cluster(number % 2), &[1, 2], ip(number))
    };
    for number in 0..64 {
        assert_eq!(save(number, 1000 - u64::from(number)), 2);
    }
    assert_eq!(cache.refusals(), 0);
    assert_eq!(save(100, 500), 0, "all others last longer");
    assert_eq!(save(100, 950), 2, "63 gives way");
    assert_eq!(matched(&cache, &cluster(1), &[1], ip(63)), 0);
    assert_eq!(save(101, 950), 2, "62 gives way");
    assert_eq!(cache.refusals(), 3);
    assert_eq!(cache.stats().endpoints, 64);
}

#[test]
fn endpoints_that_go_together_leave_their_places_to_others() {
    let cache = CacheIndex::new(1 << 20);
    let most = cache.index.max_endpoints();
    let address = |number: usize| {
        let number = u32::try_from(number).unwrap();
        Address::from(std::net::IpAddr::from(number.to_be_bytes()))
    };
    for round in 0..3 {
        let now = at(round * 1_000_000);
        for number in 0..most {
            cache.insert(&cluster(1), address(number), &[1], TTL, now);
        }
        assert_eq!(cache.locations(&cluster(1), &[1]).len(), most);
        if round == 0 {
            cache.purge_cluster(&cluster(1));
        } else {
            cache.sweep(now + TTL + Duration::from_secs(2));
        }
        assert!(!cache.has(&cluster(1)));
        assert_eq!(cache.stats().endpoints, 0);
    }
    assert_eq!(cache.refusals(), 0);
}

#[derive(Clone, Debug)]
enum Op {
    Save(Saved),
    Purge(u8, u8),
    PurgeCluster(u8),
    /// Begins a sweep, or goes on with the one that is under way.
    SweepStep,
    Wait(u64),
}

#[derive(Clone, Debug)]
struct Saved {
    cluster: u8,
    endpoint: u8,
    chain: Vec<u64>,
    ttl_s: u64,
    capacity: Option<u32>,
}

/// What an endpoint has, in the plainest form.
#[derive(Debug)]
struct Endpoint {
    /// Last used last. Some may be gone: past their time while a sweep is under way, or given way to others if these
    /// are not gone.
    entries: Vec<Entry>,
    capacity: usize,
    until: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    /// It ends between these seconds.
    ends: (u32, u32),
    sure: bool,
}

#[derive(Debug, Default)]
struct Oracle {
    endpoints: BTreeMap<(u8, u8), Endpoint>,
    /// The second of the sweep that is under way.
    sweep: Option<u32>,
    /// Entries of purged endpoints may be left, which go before those beyond a lowered capacity.
    left_over: bool,
}

const CLUSTERS: std::ops::Range<u8> = 0..2;
const ENDPOINTS: std::ops::Range<u8> = 0..3;
const MOST_CHUNKS: u64 = 6;

/// Two prompts that begin alike.
fn chain(other: bool, chunks: u64) -> Vec<u64> {
    let chunk = |at| if other && at > 1 { 100 + at } else { at };
    (0..chunks).map(chunk).collect()
}

// === impl Oracle ===

impl Oracle {
    fn save(&mut self, saved: &Saved, now: Moment) {
        let end = second(now) + u32::try_from(saved.ttl_s).unwrap() + 1;
        let key = (saved.cluster, saved.endpoint);
        let endpoint = self.endpoints.entry(key).or_insert(Endpoint {
            entries: Vec::new(),
            capacity: 0,
            until: 0,
        });
        endpoint.until = endpoint.until.max(end);
        if let Some(capacity) = saved.capacity {
            endpoint.capacity = capacity as usize;
        }
        for hash in saved.chain.iter().rev() {
            endpoint.touch(*hash, end);
        }
        if !self.left_over {
            endpoint.evict();
        }
    }

    fn purge(&mut self, gone: impl Fn(u8, u8) -> bool) {
        let before = self.endpoints.len();
        self.endpoints.retain(|it, _| !gone(it.0, it.1));
        self.left_over |= self.endpoints.len() < before;
    }

    fn begin_sweep(&mut self, now: u32) {
        self.sweep = Some(now);
        let entries = self.endpoints.values_mut().flat_map(|it| &mut it.entries);
        entries.for_each(|it| it.sure &= it.ends.0 > now);
    }

    fn end_sweep(&mut self) {
        let now = self.sweep.take().expect("a sweep is under way");
        self.endpoints.retain(|_, it| it.until > now);
        self.left_over = false;
        for endpoint in self.endpoints.values_mut() {
            endpoint.entries.retain(|it| it.ends.1 > now);
            endpoint.evict();
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn touch(&mut self, hash: u64, end: u32) {
        let before = self.entries.iter().position(|it| it.hash == hash);
        let ends = match before.map(|it| self.entries.remove(it)) {
            None => (end, end),
            Some(Entry { ends, sure, .. }) => {
                let least = if sure { ends.0.max(end) } else { end };
                (least, ends.1.max(end))
            }
        };
        let sure = true;
        self.entries.push(Entry { hash, ends, sure });
        let more = self.entries.len().saturating_sub(self.capacity);
        self.entries[..more]
            .iter_mut()
            .for_each(|it| it.sure = false);
    }

    /// Drops what is surely beyond the capacity.
    fn evict(&mut self) {
        let mut newer = 0;
        let mut entries = std::mem::take(&mut self.entries);
        entries.reverse();
        entries.retain(|it| {
            let kept = newer < self.capacity;
            newer += usize::from(it.sure);
            kept
        });
        entries.reverse();
        self.entries = entries;
    }

    /// How many chunks match at least and at most.
    fn matches(&self, chain: &[u64]) -> (u32, u32) {
        let run = |there: fn(&Entry) -> bool| {
            let has = |hash: &&u64| {
                let mut entries = self.entries.iter();
                entries.any(|it| it.hash == **hash && there(it))
            };
            u32::try_from(chain.iter().take_while(has).count()).unwrap()
        };
        (run(|it| it.sure), run(|_| true))
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let chain = (any::<bool>(), 1..=MOST_CHUNKS).prop_map(|(other, len)| chain(other, len));
    let capacity = proptest::option::of(1..12u32);
    let saved = (CLUSTERS, ENDPOINTS, chain, 0..20u64, capacity).prop_map(|it| Saved {
        cluster: it.0,
        endpoint: it.1,
        chain: it.2,
        ttl_s: it.3,
        capacity: it.4,
    });
    prop_oneof![
        8 => saved.prop_map(Op::Save),
        1 => (CLUSTERS, ENDPOINTS).prop_map(|(cluster, endpoint)| Op::Purge(cluster, endpoint)),
        1 => CLUSTERS.prop_map(Op::PurgeCluster),
        12 => Just(Op::SweepStep),
        4 => (0..6000u64).prop_map(Op::Wait),
    ]
}

/// All matches, in the order and the number that the callers see.
fn check(cache: &CacheIndex, oracle: &Oracle) -> Result<(), TestCaseError> {
    for number in CLUSTERS {
        let name = cluster(number);
        let ips: Vec<_> = ENDPOINTS.map(ip).collect();
        for other in [false, true] {
            let chain = chain(other, MOST_CHUNKS);
            let matches = cache.matches(&name, &chain, ips.iter().copied());
            for (endpoint, matched) in ENDPOINTS.zip(&matches) {
                let expected = oracle.endpoints.get(&(number, endpoint));
                let (least, most) = expected.map_or((0, 0), |it| it.matches(&chain));
                let is = (least..=most).contains(matched);
                prop_assert!(is, "{matched} of {endpoint} in {number}: {expected:?}");
            }
            let mut locations: Vec<_> = ips.iter().copied().zip(matches).collect();
            locations.retain(|it| it.1 > 0);
            locations.sort_by_key(|it| (std::cmp::Reverse(it.1), it.0));
            let found = cache.locations(&name, &chain).into_iter();
            let found: Vec<_> = found.map(|it| (it.ip, it.length)).collect();
            prop_assert_eq!(found, locations);
        }
        let of_cluster = || oracle.endpoints.range((number, 0)..(number + 1, 0));
        prop_assert_eq!(cache.has(&name), of_cluster().next().is_some());
        let entries = || of_cluster().flat_map(|(_, it)| &it.entries);
        let chunks = cache.chunks(&name);
        let sure = entries().filter(|it| it.sure).count();
        let (least, most) = (sure as u64, entries().count() as u64);
        prop_assert!(
            (least..=most).contains(&chunks),
            "{chunks} in {number}: {oracle:?}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn caches_are_as_the_oracle_says_also_between_the_steps_of_a_sweep(ops in vec(any_op(), 1..120)) {
        let cache = CacheIndex::new(ONE_SHARD);
        let mut oracle = Oracle::default();
        let mut cursor = Cursor::default();
        let mut now = at(500);
        for op in ops {
            match op {
                Op::Save(mut saved) => {
                    // Without it an endpoint has what all of them leave, of all memory.
                    if !oracle.endpoints.contains_key(&(saved.cluster, saved.endpoint)) {
                        saved.capacity = saved.capacity.or(Some(8));
                    }
                    let Saved { chain, capacity, .. } = &saved;
                    let ttl = Duration::from_secs(saved.ttl_s);
                    let (name, ip) = (cluster(saved.cluster), ip(saved.endpoint));
                    cache.save(&name, ip, chain, ttl, *capacity, now);
                    oracle.save(&saved, now);
                }
                Op::Purge(name, endpoint) => {
                    cache.purge(&cluster(name), ip(endpoint));
                    oracle.purge(|cluster, ip| (cluster, ip) == (name, endpoint));
                }
                Op::PurgeCluster(name) => {
                    cache.purge_cluster(&cluster(name));
                    oracle.purge(|cluster, _| cluster == name);
                }
                Op::SweepStep => {
                    if oracle.sweep.is_none() {
                        oracle.begin_sweep(second(now));
                    }
                    let begun = oracle.sweep.unwrap();
                    cache.index.expire(&mut cursor, begun, 8);
                    if cursor.is_done() {
                        cursor = Cursor::default();
                        while cache.index.sweep(STEP) > 0 {}
                        cache.forget(begun);
                        oracle.end_sweep();
                    }
                }
                Op::Wait(millis) => now = now + Duration::from_millis(millis),
            }
            check(&cache, &oracle)?;
        }
        prop_assert_eq!(cache.refusals(), 0);
    }
}
