//! Detects that somebody keeps undoing our writes (spec 4.6): imports, and our entries in the statuses of pools. It uses
//! the watch alone, never the writer: an object that was as planned and is not in its next version was undone.
//!
//! Once or twice is an edit, reverted at once. Three times in a minute is a conflict: the object is written ever more
//! rarely, until nobody has undone it for a while.

use std::{collections::BTreeMap, time::Duration};

use xxhash_rust::xxh3::Xxh3Default;

use super::{
    digest::digest_entry_in_pool,
    facts::{Claim, LiveImport, PoolFacts},
};
use crate::name::Key;
use moment::Moment;

/// The undo detector for one kind of object in one member.
#[derive(Clone, Debug)]
pub struct UndoDetector {
    /// One per object that something is planned for.
    observed: BTreeMap<Key, Observed>,
    /// Those that somebody keeps undoing.
    conflicts: BTreeMap<Key, Conflict>,
    waits: Waits,
}

/// The plan for an object.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Of what we write, see [`digest`](super::digest); none: the object should not exist.
    pub digest: Option<u64>,
    /// Whether the live object is as planned.
    pub is_shown: bool,
}

/// A version of the live object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Hash of uid, and of whatever changes with every write that matters.
    hash: u64,
    generation: i64,
}

/// How an object was last seen.
#[derive(Clone, Debug)]
struct Observed {
    /// Digest of what was planned then.
    wanted: Option<u64>,
    version: Option<Version>,
    /// Set while the object is as planned.
    shown: Option<Shown>,
    /// When it was undone, within [`WINDOW`]; at most [`ROUNDS`].
    undone: Vec<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    since: Moment,
    /// The object changed to be as planned. If the plan changed instead, a write of ours may still be in flight, and must
    /// not count as somebody else's.
    by_change: bool,
}

#[derive(Clone, Copy, Debug)]
struct Conflict {
    /// Not written before.
    not_before: Moment,
    wait: Duration,
}

/// How long an object in conflict is left alone: first `min`; each further round doubles it, up to `max`.
#[derive(Clone, Copy, Debug)]
struct Waits {
    min: Duration,
    max: Duration,
}

/// Of imports (spec 4.6).
const IMPORTS: Waits = Waits {
    min: Duration::from_secs(10),
    max: Duration::from_mins(10),
};
/// Of our entries in pools (spec 4.6): gateways share that list, and one that drops an entry may be about to be mended.
const POOLS: Waits = Waits {
    min: Duration::from_secs(1),
    max: Duration::from_mins(5),
};
/// So many undos within [`WINDOW`] begin a conflict (spec 4.6).
const ROUNDS: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);
/// A conflict ends after this time without an undo. No shorter than the longest wait, or each wait would end it.
const CALM: Duration = IMPORTS.max;

// === impl UndoDetector ===

impl UndoDetector {
    pub(super) const fn of_imports() -> Self {
        Self::new(IMPORTS)
    }

    pub(super) const fn of_pools() -> Self {
        Self::new(POOLS)
    }

    const fn new(waits: Waits) -> Self {
        Self {
            observed: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            waits,
        }
    }

    /// An object is compared with its plan; without a version it is not there. Returns whether a conflict begins.
    pub fn observe(
        &mut self,
        key: &Key,
        version: Option<Version>,
        wanted: Wanted,
        now: Moment,
    ) -> bool {
        let is_planned = wanted.digest.is_some();
        let observed = self.observed.get_mut(key);
        let Some(observed) = observed.filter(|observed| observed.wanted.is_some() == is_planned)
        else {
            // an object that is planned to go, or to exist again, starts a new count: the end of an export does not wait
            self.forget(key);
            if is_planned || !wanted.is_shown {
                let observed = Observed::first(version, wanted, now);
                self.observed.insert(key.clone(), observed);
            }
            return false;
        };
        let moved = observed.version != version;
        // if its generation grew, the plan follows, since it contains the generation
        let versions = observed.version.zip(version);
        let grew = versions.is_some_and(|(old, new)| old.generation < new.generation);
        observed.wanted = wanted.digest;
        observed.version = version;
        if wanted.is_shown {
            let shown = observed.shown.get_or_insert(Shown {
                since: now,
                by_change: false,
            });
            shown.by_change |= moved;
            return false;
        }
        let shown = observed.shown.take();
        let undone = moved && !grew && shown.is_some_and(|shown| shown.by_change);
        undone && self.count(key, now)
    }

    /// The watch shows an import. Planning may not see this version, if the next one, which undoes it, arrives first. So a
    /// version that is as last planned is recorded at once; other versions are compared by the plan.
    pub(super) fn observe_live(&mut self, live: &LiveImport, now: Moment) {
        let digest = live.status.digest();
        let wanted = self.observed.get(&live.key).map(|observed| observed.wanted);
        if live.claim == Claim::Ours && digest.is_some() && wanted == Some(digest) {
            let wanted = Wanted {
                digest,
                is_shown: true,
            };
            self.observe(&live.key, Some(Version::of_import(live)), wanted, now);
        }
    }

    /// Whether somebody keeps undoing it.
    pub fn is_in_conflict(&self, key: &Key) -> bool {
        self.conflicts.contains_key(key)
    }

    /// When an object in conflict may be written again.
    pub fn not_before(&self, key: &Key) -> Option<Moment> {
        self.conflicts.get(key).map(|conflict| conflict.not_before)
    }

    /// Nothing is known of it, or it cannot be there.
    pub fn forget(&mut self, key: &Key) {
        self.observed.remove(key);
        self.conflicts.remove(key);
    }

    /// The leader changed: the record is about writes of another controller. Returns the keys that were in conflict.
    pub fn clear(&mut self) -> Vec<Key> {
        self.observed.clear();
        std::mem::take(&mut self.conflicts).into_keys().collect()
    }

    /// Forgets objects that should not exist and do not, unless in conflict. To be called rarely: an object that somebody
    /// recreates must be counted in between.
    pub fn prune(&mut self) {
        let conflicts = &self.conflicts;
        self.observed.retain(|key, observed| {
            let is_over = observed.wanted.is_none() && observed.shown.is_some();
            !is_over || conflicts.contains_key(key)
        });
    }

    /// Ends conflicts that are over; returns their keys.
    pub fn tick(&mut self, now: Moment) -> Vec<Key> {
        let observed = &self.observed;
        let is_over = |key: &Key| {
            let shown = observed.get(key).and_then(|observed| observed.shown);
            shown.is_some_and(|shown| now.since(shown.since) >= CALM)
        };
        let over = self.conflicts.extract_if(.., |key, _| is_over(key));
        over.map(|(key, _)| key).collect()
    }

    /// Counts a write that was undone; returns whether a conflict begins.
    fn count(&mut self, key: &Key, now: Moment) -> bool {
        let Waits { min, max } = self.waits;
        if let Some(conflict) = self.conflicts.get_mut(key) {
            conflict.wait = conflict.wait.saturating_mul(2).min(max);
            conflict.not_before = now + conflict.wait;
            return false;
        }
        let Some(observed) = self.observed.get_mut(key) else {
            return false;
        };
        observed.undone.retain(|at| now.since(*at) < WINDOW);
        observed.undone.push(now);
        if observed.undone.len() < ROUNDS {
            return false;
        }
        observed.undone.clear();
        let conflict = Conflict {
            not_before: now + min,
            wait: min,
        };
        self.conflicts.insert(key.clone(), conflict);
        true
    }
}

// === impl Observed ===

impl Observed {
    fn first(version: Option<Version>, wanted: Wanted, now: Moment) -> Self {
        let Wanted { digest, is_shown } = wanted;
        let shown = Shown {
            since: now,
            by_change: true,
        };
        Self {
            wanted: digest,
            version,
            shown: is_shown.then_some(shown),
            undone: Vec::new(),
        }
    }
}

// === impl Version ===

impl Version {
    /// Any change of it is another version.
    pub fn of_import(live: &LiveImport) -> Self {
        Self {
            hash: hash(&live.uid, live.resource_version.as_bytes()),
            generation: live.generation,
        }
    }

    /// What others write into it is no other version.
    pub fn of_pool(facts: &PoolFacts) -> Self {
        let ours = digest_entry_in_pool(facts.exported.as_deref());
        Self {
            hash: hash(&facts.uid, &ours.to_le_bytes()),
            // our entry changes with the plan
            generation: 0,
        }
    }
}

fn hash(uid: &str, rest: &[u8]) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(uid.as_bytes());
    hash.update(b" ");
    hash.update(rest);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{fixtures::*, index::digest::LiveStatus};

    const fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn mk_import(version: u64, generation: i64) -> LiveImport {
        LiveImport {
            key: mk_key("llm"),
            uid: "uid".to_owned(),
            resource_version: version.to_string(),
            generation,
            claim: Claim::Ours,
            owned_entries: Arc::default(),
            status: LiveStatus::new(crd::InferencePoolImportStatus::default(), "us"),
        }
    }

    /// A plan for [`mk_import`]. The digest is arbitrary: `is_shown` alone matters.
    const fn mk_wanted(is_shown: bool) -> Wanted {
        Wanted {
            digest: Some(0),
            is_shown,
        }
    }

    /// Three rounds at once.
    const CONFLICT: [(u64, u64, bool); 6] = [
        (0, 1, true),
        (0, 2, false),
        (0, 3, true),
        (0, 4, false),
        (0, 5, true),
        (0, 6, false),
    ];

    /// Observes a version of the import, and whether it is as planned; without it at version 0.
    fn observe(detector: &mut UndoDetector, second: u64, version: u64, as_planned: bool) -> bool {
        let live = Some(mk_import(version, 1)).filter(|_| version > 0);
        let live = live.as_ref().map(Version::of_import);
        detector.observe(&mk_key("llm"), live, mk_wanted(as_planned), at(second))
    }

    fn observe_all(detector: &mut UndoDetector, seen: &[(u64, u64, bool)]) {
        for (second, version, as_planned) in seen {
            observe(detector, *second, *version, *as_planned);
        }
    }

    fn run(seen: &[(u64, u64, bool)]) -> UndoDetector {
        let mut detector = UndoDetector::of_imports();
        observe_all(&mut detector, seen);
        detector
    }

    #[rstest::rstest]
    #[case::reverted_twice(&[(0, 1, true), (1, 2, false), (2, 3, true), (3, 4, false), (4, 5, true)], false)]
    #[case::three_times(&[(0, 1, true), (1, 2, false), (2, 3, true), (3, 4, false), (4, 5, true), (5, 6, false)], true)]
    #[case::deleted_three_times(&[(0, 1, true), (1, 0, false), (2, 3, true), (3, 0, false), (4, 5, true), (5, 0, false)], true)]
    #[case::over_two_minutes(&[(0, 1, true), (1, 2, false), (2, 3, true), (62, 4, false), (63, 5, true), (123, 6, false)], false)]
    // others' changes that we did not answer are one
    #[case::one_answer(&[(0, 1, true), (1, 2, false), (2, 3, false), (3, 4, false), (4, 5, false), (5, 6, true)], false)]
    // a creation shows without its status first
    #[case::creation(&[(0, 0, false), (1, 1, false), (2, 2, true), (3, 3, false), (4, 4, true), (5, 5, false)], false)]
    // the plan changes, and what we write follows
    #[case::own_changes(&[(0, 1, true), (1, 1, false), (2, 2, true), (3, 2, false), (4, 3, true), (5, 3, false), (6, 4, true)], false)]
    // the plan flips while a slow write is on its way: the echo is ours
    #[case::flips(&[(0, 1, true), (1, 1, false), (2, 1, true), (3, 2, false), (4, 2, true), (5, 3, false), (6, 3, true), (7, 4, false)], false)]
    // a gateway writes its own part meanwhile
    #[case::harmless(&[(0, 1, true), (1, 2, true), (2, 3, true), (3, 4, true), (4, 5, true)], false)]
    fn three_rounds_in_a_minute_are_a_conflict(
        #[case] seen: &[(u64, u64, bool)],
        #[case] conflict: bool,
    ) {
        assert_eq!(run(seen).is_in_conflict(&mk_key("llm")), conflict);
    }

    #[test]
    fn a_growing_generation_is_not_undoing() {
        let mut detector = UndoDetector::of_imports();
        for n in 0..10 {
            let live = mk_import(u64::try_from(n).expect("small"), n / 2);
            let version = Some(Version::of_import(&live));
            detector.observe(&mk_key("llm"), version, mk_wanted(n % 2 == 1), at(0));
        }
        assert!(!detector.is_in_conflict(&mk_key("llm")));
    }

    #[rstest::rstest]
    #[case::an_import(UndoDetector::of_imports(), &[10, 20, 40, 80, 160, 320, 600, 600])]
    #[case::a_pool(UndoDetector::of_pools(), &[1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300])]
    fn a_conflict_waits_ever_longer_and_ends_in_ten_minutes_of_peace(
        #[case] mut detector: UndoDetector,
        #[case] waits: &[u64],
    ) {
        let key = mk_key("llm");
        observe_all(&mut detector, &CONFLICT);
        let mut second = 0;
        let mut version = 7;
        for wait in waits {
            assert_eq!(detector.not_before(&key), Some(at(second + wait)));
            second += wait;
            assert!(!observe(&mut detector, second, version, true));
            assert!(detector.tick(at(second)).is_empty());
            let again = observe(&mut detector, second, version + 1, false);
            assert!(!again, "it begins once");
            version += 2;
        }
        // nobody wrote what is planned: that is no peace
        assert!(detector.tick(at(second + 6000)).is_empty());
        second += 6000;
        observe(&mut detector, second, version, true);
        assert!(detector.tick(at(second + 599)).is_empty());
        assert_eq!(detector.tick(at(second + 600)), std::slice::from_ref(&key));
        assert!(!detector.is_in_conflict(&key));
        // and the next edit is one again
        observe(&mut detector, second + 601, version + 1, false);
        assert!(!detector.is_in_conflict(&key));
    }

    #[test]
    fn what_is_gone_as_planned_is_forgotten_in_time() {
        let gone = Wanted {
            digest: None,
            is_shown: true,
        };
        let there = Wanted {
            is_shown: false,
            ..gone
        };
        let key = mk_key("llm");
        let mut detector = UndoDetector::of_imports();
        detector.observe(&key, None, gone, at(0));
        assert!(detector.observed.is_empty(), "nothing was ever there");
        for version in 1..=4 {
            let live = Some(Version::of_import(&mk_import(version, 1)));
            let begins = detector.observe(&key, live, there, at(0));
            assert_eq!(begins, version == 4, "made again three times");
            detector.prune();
            detector.observe(&key, None, gone, at(0));
        }
        detector.prune();
        assert_eq!(detector.tick(at(600)), std::slice::from_ref(&key));
        detector.prune();
        assert!(detector.observed.is_empty());
    }

    #[test]
    fn of_a_pool_only_our_entry_is_another_version() {
        let mut facts = mk_pool("llm", Some("ClusterSet"));
        let bare = Version::of_pool(&facts);
        facts.status_full = true;
        facts.generation += 1;
        assert_eq!(Version::of_pool(&facts), bare);
        facts.exported = Some(Vec::new());
        assert_ne!(Version::of_pool(&facts), bare);
    }

    #[test]
    fn a_version_that_planning_does_not_see_counts_too() {
        let key = mk_key("llm");
        let planned = |live: &LiveImport| live.status.digest();
        let mut edited = mk_import(0, 1);
        let changed = crd::InferencePoolImportStatus {
            observed_generation: Some(7),
            ..crd::InferencePoolImportStatus::default()
        };
        edited.status = LiveStatus::new(changed, "us");
        let mut detector = UndoDetector::of_imports();
        for version in (1..7).step_by(2) {
            let ours = mk_import(version, 1);
            let digest = planned(&ours);
            detector.observe_live(&ours, at(0));
            edited.resource_version = (version + 1).to_string();
            detector.observe_live(&edited, at(0));
            let wanted = Wanted {
                digest,
                is_shown: false,
            };
            detector.observe(&key, Some(Version::of_import(&edited)), wanted, at(0));
        }
        // the first version was not expected yet
        assert!(!detector.is_in_conflict(&key));
        detector.observe_live(&mk_import(7, 1), at(0));
        edited.resource_version = "8".to_owned();
        let wanted = Wanted {
            digest: planned(&mk_import(7, 1)),
            is_shown: false,
        };
        assert!(detector.observe(&key, Some(Version::of_import(&edited)), wanted, at(0)));
    }

    #[test]
    fn what_is_forgotten_counts_from_zero() {
        let key = mk_key("llm");
        let mut detector = run(&CONFLICT);
        assert_eq!(detector.clear(), std::slice::from_ref(&key));
        let mut detector = run(&CONFLICT);
        detector.forget(&key);
        assert!(!detector.is_in_conflict(&key) && detector.not_before(&key).is_none());
    }
}
