//! When an entry may go, said as simply as possible: from what the controller was told, never from what it made of it.

use jiff::Timestamp;

use super::{POOLS, bench::wall, clusters::Cluster};
use crate::index::{
    drain::{MAX_DRAIN, later},
    rules::Rules,
};
use moment::Moment;

/// What the controller was last told of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    /// Nothing since it started.
    Nothing,
    Exported,
    /// It is there, and asks for no export, or for an illegal one.
    NotExported,
    /// The watch said that it was deleted, under a CRD that stood.
    Deleted,
    /// It was not on a complete list, under the CRD that it was on a list of before.
    Absent,
    /// It is gone, but so was its CRD, or it is another.
    Doubted,
}

pub(super) struct Oracle {
    rules: Rules,
    members: Vec<Seen>,
    guard_since: Option<Moment>,
    calm_since: Option<Moment>,
}

#[derive(Clone)]
struct Seen {
    told: Vec<Told>,
    /// Of the CRD at its last complete list under one that stood.
    uid: Option<u32>,
    /// Since when a CRD has stood that may yet bring back what is doubted.
    stands_since: Option<Moment>,
    lost_at: Option<Moment>,
    left_at: Option<Moment>,
    fresh_loss: Option<Moment>,
    silent_since: Option<Moment>,
}

impl Oracle {
    pub(super) fn new(members: usize, rules: Rules) -> Self {
        let seen = Seen {
            told: vec![Told::Nothing; POOLS.len()],
            uid: None,
            stands_since: None,
            lost_at: None,
            left_at: None,
            fresh_loss: None,
            silent_since: None,
        };
        Self {
            rules,
            members: vec![seen; members],
            guard_since: None,
            calm_since: None,
        }
    }

    /// A new controller knows nothing of what the old one was told.
    pub(super) fn restarted(&mut self, recorded: usize, gone: usize, now: Moment) {
        self.guard_since =
            (self.rules.isolation_guard && gone >= 2 && gone * 2 > recorded).then_some(now);
        self.calm_since = None;
        for m in 0..self.members.len() {
            self.unheard(m);
            let seen = &mut self.members[m];
            seen.lost_at = None;
            seen.fresh_loss = None;
            seen.silent_since = Some(now);
        }
    }

    pub(super) fn unheard(&mut self, m: usize) {
        let seen = &mut self.members[m];
        seen.told = vec![Told::Nothing; POOLS.len()];
        seen.uid = None;
        seen.stands_since = None;
    }

    pub(super) fn showed(&mut self, m: usize, p: usize, cluster: &Cluster) {
        self.members[m].told[p] = if cluster.exports(POOLS[p]) {
            Told::Exported
        } else {
            Told::NotExported
        };
    }

    pub(super) fn deleted(&mut self, m: usize, p: usize, cluster: &Cluster) {
        let seen = &mut self.members[m];
        let proven = cluster.crd_stands() && seen.uid == Some(cluster.crd_uid());
        if proven {
            seen.told[p] = Told::Deleted;
        } else if !matches!(seen.told[p], Told::Deleted | Told::NotExported) {
            seen.told[p] = Told::Doubted;
        }
    }

    pub(super) fn listed(&mut self, m: usize, cluster: &Cluster, now: Moment) {
        let stands = cluster.crd_stands();
        let same = stands && self.members[m].uid == Some(cluster.crd_uid());
        let seen = &mut self.members[m];
        if stands {
            if !same {
                seen.stands_since = Some(now);
            }
            seen.stands_since.get_or_insert(now);
            seen.uid = Some(cluster.crd_uid());
        } else {
            seen.stands_since = None;
        }
        for (p, pool) in POOLS.iter().enumerate() {
            if cluster.has_pool(pool) {
                self.showed(m, p, cluster);
                continue;
            }
            let told = &mut self.members[m].told[p];
            *told = match *told {
                // it had ended before
                Told::Deleted | Told::NotExported => Told::Deleted,
                Told::Absent => Told::Absent,
                Told::Exported if same => Told::Absent,
                Told::Exported | Told::Doubted | Told::Nothing => Told::Doubted,
            };
        }
    }

    pub(super) fn crd_gone(&mut self, m: usize) {
        self.members[m].stands_since = None;
    }

    pub(super) fn lost(&mut self, m: usize, now: Moment) {
        let seen = &mut self.members[m];
        seen.lost_at = Some(now);
        seen.fresh_loss = Some(now);
        seen.silent_since.get_or_insert(now);
        self.count(now);
    }

    pub(super) fn back(&mut self, m: usize, now: Moment) {
        let seen = &mut self.members[m];
        seen.lost_at = None;
        seen.silent_since = None;
        if seen.left_at.is_none() {
            seen.fresh_loss = None;
        }
        self.count(now);
    }

    pub(super) fn left(&mut self, m: usize, now: Moment) {
        self.members[m].left_at = Some(now);
        self.members[m].fresh_loss = Some(now);
        self.count(now);
    }

    pub(super) fn back_in_inventory(&mut self, m: usize) {
        self.members[m].left_at = None;
        self.members[m].fresh_loss = None;
    }

    pub(super) fn ticked(&mut self, lost: usize, now: Moment) {
        self.count(now);
        for seen in &mut self.members {
            let stood = seen
                .stands_since
                .is_some_and(|since| now.since(since) >= self.rules.stale_after);
            if stood && seen.silent_since.is_none() && self.guard_since.is_none() {
                let doubts = seen.told.iter_mut();
                doubts
                    .filter(|told| **told == Told::Doubted)
                    .for_each(|told| *told = Told::Absent);
            }
        }
        let all = self.members.len();
        if self.guard_since.is_some() {
            if lost >= 2 && lost * 2 > all {
                self.calm_since = None;
            } else {
                let since = *self.calm_since.get_or_insert(now);
                if now.since(since).as_secs() >= 30 {
                    self.guard_since = None;
                    self.calm_since = None;
                }
            }
        }
    }

    /// More members than there are at most, so that it turns on late rather than early.
    fn count(&mut self, now: Moment) {
        let fresh = self.members.iter().filter(|seen| {
            let loss = seen.fresh_loss;
            loss.is_some_and(|at| now.since(at).as_secs() < 10)
        });
        let fresh = fresh.count();
        if self.rules.isolation_guard && fresh >= 2 && fresh * 2 > self.members.len() {
            self.guard_since.get_or_insert(now);
        }
    }

    /// Whether an importer may lose the entry of this exporter's pool now.
    pub(super) fn may_go(
        &self,
        m: usize,
        p: usize,
        drains: Option<Timestamp>,
        now: Moment,
    ) -> bool {
        let seen = &self.members[m];
        let guarded = self.guard_since.is_some_and(|since| since < now);
        // removed, and not just now among most others: then it is as if it had stayed
        if let Some(left) = seen.left_at
            && !(guarded && now.since(left) < self.rules.removal_hold)
        {
            return true;
        }
        if let (Some(after), Some(since)) = (self.rules.withdraw_after, seen.silent_since)
            && now.since(since) >= after
        {
            return true;
        }
        let ended = match seen.told[p] {
            Told::Nothing | Told::Exported => false,
            Told::NotExported | Told::Deleted | Told::Absent => true,
            Told::Doubted => seen
                .stands_since
                .is_some_and(|since| now.since(since) >= self.rules.stale_after),
        };
        // one past any that we write is forged
        let forged = later(wall(now), MAX_DRAIN * 2);
        let drained = drains.is_none_or(|until| until <= wall(now) || until > forged);
        ended && drained
    }
}
