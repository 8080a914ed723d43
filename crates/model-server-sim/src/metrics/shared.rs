//! The LoRA series of a page that several API servers write together.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::engine::Snapshot;

/// Sets of adapters that are remembered; far more than a test runs.
const MAX_SETS: usize = 1000;

/// The adapters that ran and waited at a time, as a page lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AdapterSet {
    pub(crate) running: String,
    pub(crate) waiting: String,
}

/// When each API server last saw each set of adapters. As with vLLM, a page has all sets, and the sum of these times as the
/// value of each.
#[derive(Debug)]
pub(crate) struct SharedPage {
    /// Number of API servers.
    count: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The API server that the engine tells of its state next.
    next: usize,
    /// Seconds since 1970, by API server; 0 until it has seen the set.
    seen: BTreeMap<AdapterSet, Vec<f64>>,
}

// === impl AdapterSet ===

impl AdapterSet {
    /// What runs and waits now.
    pub(crate) fn of(engine: &Snapshot) -> Self {
        let list = |names: &BTreeSet<Arc<str>>| {
            let names: Vec<_> = names.iter().map(|name| &**name).collect();
            names.join(",")
        };
        Self {
            running: list(&engine.running_adapters),
            waiting: list(&engine.waiting_adapters),
        }
    }
}

// === impl SharedPage ===

impl SharedPage {
    /// Of `count` API servers, at least one.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            count: count.max(1),
            state: Mutex::default(),
        }
    }

    /// One API server sees `set` at `now`; then all sets with their sums.
    pub(crate) fn update(&self, set: AdapterSet, now: f64) -> Vec<(AdapterSet, f64)> {
        let mut state = self.state.lock();
        let State { next, seen } = &mut *state;
        if seen.len() >= MAX_SETS && !seen.contains_key(&set) {
            seen.clear();
        }
        let times = seen.entry(set).or_insert_with(|| vec![0.0; self.count]);
        if let Some(time) = times.get_mut(*next) {
            *time = now;
        }
        *next = (*next + 1) % self.count;
        let sums = seen.iter();
        sums.map(|(set, times)| (set.clone(), times.iter().sum()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_set(running: &str) -> AdapterSet {
        AdapterSet {
            running: running.to_owned(),
            ..AdapterSet::default()
        }
    }

    #[test]
    fn times_of_all_api_servers_are_added_up_and_no_set_leaves() {
        let page = SharedPage::new(2);
        let sums = |name: &str, now| page.update(mk_set(name), now);
        assert_eq!(sums("a", 100.0), [(mk_set("a"), 100.0)]);
        assert_eq!(sums("a", 101.0), [(mk_set("a"), 201.0)]);
        let both = [(mk_set("a"), 201.0), (mk_set("b"), 102.0)];
        assert_eq!(
            sums("b", 102.0),
            both,
            "the older set has the greater value"
        );
        assert_eq!(sums("b", 103.0)[1], (mk_set("b"), 205.0));
        assert_eq!(sums("b", 104.0)[1], (mk_set("b"), 207.0));
    }

    #[test]
    fn sets_are_bounded() {
        let page = SharedPage::new(2);
        for nth in 0..3 * MAX_SETS {
            let sets = page.update(mk_set(&nth.to_string()), 1.0);
            assert!(sets.len() <= MAX_SETS, "{}", sets.len());
        }
    }
}
