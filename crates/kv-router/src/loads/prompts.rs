//! The prompts of one worker: those it has now, and those it computed lately and may still have cached.

use std::{sync::Arc, time::Duration};

use moment::Moment;

use crate::{hash::Seq, ordered::Ordered};

/// Prompts as runs of blocks that no prompt leaves or joins in the middle; a run is cut in two where the next one does.
///
/// A name stands for all blocks before it, so runs lie in one flat map under their first names, and a prompt is found in
/// as many steps as it has runs, not blocks. Behind a run come only runs that were used no later than it.
#[derive(Debug)]
pub(super) struct Prompts {
    /// The one that was used least recently first.
    runs: Ordered<Run>,
    /// Blocks of all runs.
    blocks: usize,
    /// Of them, those of bookings.
    active: usize,
}

#[derive(Clone, Debug, Default)]
struct Run {
    /// A prompt that it is of; its blocks are those `from..to`.
    chain: Arc<[Seq]>,
    from: usize,
    to: usize,
    /// Bookings that have it.
    bookings: u32,
    /// Of them, those whose prompt is not computed yet.
    prefilling: u32,
    /// When a prompt with it was computed last.
    computed: Option<Moment>,
}

/// How much of a prompt a worker has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depth {
    /// Blocks from the beginning that bookings have.
    pub(super) active: usize,
    /// Blocks from the beginning that are or will be cached, as far as can be told.
    pub(super) predicted: usize,
}

/// A run keeps its prompt alive; one that is smaller than this part of it has a copy of its own.
const SMALL: usize = 4;

// === impl Prompts ===

impl Prompts {
    pub(super) fn new(secret: u64) -> Self {
        Self {
            runs: Ordered::new(secret),
            blocks: 0,
            active: 0,
        }
    }

    /// Different blocks of all prompts.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Different blocks of bookings.
    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// What computed within `keep` before `now` counts as cached.
    pub(super) fn depth(&self, chain: &[Seq], now: Moment, keep: Duration) -> Depth {
        let mut depth = Depth::default();
        let mut at = 0;
        while let Some(run) = chain.get(at).and_then(|first| self.runs.get(first.get())) {
            let same = run.same(&chain[at..]);
            if depth.active == at && run.bookings > 0 {
                depth.active += same;
            }
            if depth.predicted == at && run.is_predicted(now, keep) {
                depth.predicted += same;
            }
            at += same;
            if same < run.len() || depth.active.max(depth.predicted) < at {
                break;
            }
        }
        depth
    }

    /// A booking has this prompt; until it is computed others may count on it.
    pub(super) fn book(&mut self, chain: &Arc<[Seq]>, is_computed: bool) {
        let mut at = 0;
        while let Some(first) = chain.get(at).map(|it| it.get()) {
            let made = || Run {
                chain: Arc::clone(chain),
                from: at,
                to: chain.len(),
                ..Run::default()
            };
            let (run, is_new) = self.runs.or_insert_with(first, made);
            let same = run.same(&chain[at..]);
            let rest = run.split(same);
            run.bookings += 1;
            run.prefilling += u32::from(!is_computed);
            if run.bookings == 1 {
                self.active += same;
            }
            if is_new {
                self.blocks += same;
            }
            if let Some(rest) = rest {
                let first = rest.chain[rest.from].get();
                self.runs.or_insert_with(first, || rest);
            }
            at += same;
        }
        self.touch(chain);
    }

    /// The prompt of a booking was computed.
    pub(super) fn computed(&mut self, chain: &[Seq], now: Moment) {
        self.each(chain, |run| {
            run.prefilling = run.prefilling.saturating_sub(1);
            run.computed = run.computed.max(Some(now));
            0
        });
        self.touch(chain);
    }

    /// A booking is over.
    pub(super) fn free(&mut self, chain: &[Seq], was_computed: bool) {
        let ended = self.each(chain, |run| {
            run.bookings = run.bookings.saturating_sub(1);
            run.prefilling = run.prefilling.saturating_sub(u32::from(!was_computed));
            if run.bookings == 0 { run.len() } else { 0 }
        });
        self.active -= ended;
        self.touch(chain);
    }

    /// Forgets what was not computed within `keep`, and the least recently used above `most` blocks; looks at up to
    /// `steps` runs. Those of bookings stay.
    pub(super) fn expire(&mut self, now: Moment, keep: Duration, most: usize, steps: usize) {
        for _ in 0..steps.min(self.runs.len()) {
            let Some(oldest) = self.runs.oldest() else {
                break;
            };
            let Some(run) = self.runs.get_mut(oldest) else {
                break;
            };
            let over = self.blocks.saturating_sub(most);
            if run.bookings > 0 {
                // in the way of those behind it
                self.runs.touch(oldest);
            } else if !run.is_predicted(now, keep) || run.len() <= over {
                self.blocks -= run.len();
                self.runs.remove(oldest);
            } else if over > 0 {
                run.to -= over;
                run.fit();
                self.blocks -= over;
            } else {
                break;
            }
        }
    }

    /// Calls `change` for each run of a booked prompt; the sum of what it returns.
    fn each(&mut self, chain: &[Seq], mut change: impl FnMut(&mut Run) -> usize) -> usize {
        let (mut at, mut sum) = (0, 0);
        while let Some(run) = chain.get(at).and_then(|it| self.runs.get_mut(it.get())) {
            sum += change(run);
            at += run.len();
        }
        sum
    }

    /// Its runs are the last used, the first of them the very last: what is left of a prompt is its beginning.
    fn touch(&mut self, chain: &[Seq]) {
        let mut firsts = smallvec::SmallVec::<[u64; 16]>::new();
        let mut at = 0;
        while let Some((first, run)) = chain
            .get(at)
            .and_then(|it| Some((it.get(), self.runs.get(it.get())?)))
        {
            firsts.push(first);
            at += run.len();
        }
        for first in firsts.into_iter().rev() {
            self.runs.touch(first);
        }
    }
}

// === impl Run ===

impl Run {
    fn len(&self) -> usize {
        self.to - self.from
    }

    fn names(&self) -> &[Seq] {
        &self.chain[self.from..self.to]
    }

    /// How many blocks are the same; the first is. A name stands for all before it, so this needs few comparisons.
    fn same(&self, chain: &[Seq]) -> usize {
        let names = self.names();
        let most = names.len().min(chain.len());
        if names[..most].last() == chain[..most].last() {
            return most;
        }
        let (mut same, mut other) = (1, most);
        while same < other {
            let middle = usize::midpoint(same, other);
            if names[middle] == chain[middle] {
                same = middle + 1;
            } else {
                other = middle;
            }
        }
        same
    }

    fn is_predicted(&self, now: Moment, keep: Duration) -> bool {
        !keep.is_zero()
            && (self.prefilling > 0 || self.computed.is_some_and(|at| now.since(at) < keep))
    }

    /// Cuts off what is behind the first `len` blocks.
    fn split(&mut self, len: usize) -> Option<Self> {
        let middle = self.from + len;
        if middle >= self.to {
            return None;
        }
        let mut rest = Self {
            from: middle,
            ..self.clone()
        };
        self.to = middle;
        self.fit();
        rest.fit();
        Some(rest)
    }

    fn fit(&mut self) {
        if self.len() * SMALL < self.chain.len() {
            self.chain = self.names().into();
            (self.from, self.to) = (0, self.chain.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    const KEEP: Duration = Duration::from_secs(10);

    /// Block by block.
    #[derive(Default)]
    struct Model {
        bookings: Vec<(Arc<[Seq]>, bool)>,
        computed: HashMap<Seq, Moment>,
    }

    impl Model {
        fn depth(&self, chain: &[Seq], now: Moment) -> Depth {
            let active = |seq: &&Seq| self.bookings.iter().any(|it| it.0.contains(*seq));
            let prefilling = |seq: &Seq| self.bookings.iter().any(|it| !it.1 && it.0.contains(seq));
            let fresh = |seq: &Seq| {
                self.computed
                    .get(seq)
                    .is_some_and(|at| now.since(*at) < KEEP)
            };
            let predicted = |seq: &&Seq| prefilling(seq) || fresh(seq);
            Depth {
                active: chain.iter().take_while(active).count(),
                predicted: chain.iter().take_while(predicted).count(),
            }
        }
    }

    /// Prompts that share beginnings: each block is one of two, and its name stands for all before it.
    fn mk_chain(number: u64, blocks: usize) -> Arc<[Seq]> {
        (0..blocks)
            .map(|at| Seq::from_u64((number & ((2 << at) - 1)) * 64 + at as u64 + 1))
            .collect()
    }

    proptest! {
        #[test]
        fn runs_are_blocks(ops in prop::collection::vec(
            (0..8, 0_u64..64, 1_usize..7, any::<prop::sample::Index>()), 1..300)
        ) {
            let (mut real, mut model) = (Prompts::new(5), Model::default());
            for (second, (op, number, blocks, which)) in (0..).zip(ops) {
                let now = Moment::from_millis(second * 700);
                let chain = mk_chain(number, blocks);
                let at = (!model.bookings.is_empty()).then(|| which.index(model.bookings.len()));
                match (op, at) {
                    (0..=2, _) => {
                        real.book(&chain, op == 0);
                        model.bookings.push((Arc::clone(&chain), op == 0));
                    }
                    (3 | 4, Some(at)) if !model.bookings[at].1 => {
                        model.bookings[at].1 = true;
                        let chain = Arc::clone(&model.bookings[at].0);
                        real.computed(&chain, now);
                        for seq in &*chain {
                            model.computed.insert(*seq, now);
                        }
                    }
                    (5 | 6, Some(at)) => {
                        let (chain, was_computed) = model.bookings.swap_remove(at);
                        real.free(&chain, was_computed);
                    }
                    _ => real.expire(now, KEEP, usize::MAX, 100),
                }
                prop_assert_eq!(real.depth(&chain, now, KEEP), model.depth(&chain, now));
                let active: HashSet<Seq> =
                    model.bookings.iter().flat_map(|it| it.0.iter().copied()).collect();
                prop_assert_eq!(real.active(), active.len());
                prop_assert!(real.blocks >= active.len());
            }
            for (chain, was_computed) in model.bookings {
                real.free(&chain, was_computed);
            }
            real.expire(Moment::from_millis(10_000_000), KEEP, usize::MAX, 1000);
            prop_assert_eq!((real.active(), real.blocks, real.runs.len()), (0, 0, 0));
        }
    }

    #[test]
    fn above_the_most_blocks_the_least_recently_used_end_goes_first() {
        let mut real = Prompts::new(5);
        let now = Moment::from_millis(1);
        let chains = [0_u64, 1000, 2000].map(|start| -> Arc<[Seq]> {
            (start..start + 100)
                .map(|it| Seq::from_u64(it + 1))
                .collect()
        });
        for chain in &chains {
            real.book(chain, false);
            real.computed(chain, now);
            real.free(chain, true);
        }
        // the first is used again
        real.book(&chains[0], true);
        real.expire(now, KEEP, 230, 100);
        let depth = |chain: &Arc<[Seq]>| real.depth(chain, now, KEEP).predicted;
        assert_eq!(chains.each_ref().map(depth), [100, 30, 100]);
        assert_eq!(real.blocks, 230);
        // what a booking has stays, whatever the bound
        real.expire(now, KEEP, 0, 100);
        assert_eq!((real.blocks, real.active()), (100, 100));
    }
}
