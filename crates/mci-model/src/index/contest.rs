//! Imports of ours that somebody keeps undoing (spec 4.6). Told by the watch alone, never by the writer: an import that
//! said what is planned, and says something else in its next version, was undone.
//!
//! Once or twice is an edit, to be reverted at once. Three times in a minute is a fight, which nobody wins by speed: the
//! import counts as somebody else's, and is tried again ever more rarely until it has been left alone for a while.

use std::{collections::BTreeMap, time::Duration};

use xxhash_rust::xxh3::Xxh3Default;

use super::facts::{Claim, LiveImport};
use crate::name::Key;
use moment::Moment;

/// The imports of one member that should be there.
#[derive(Clone, Debug, Default)]
pub struct Contests {
    /// One per planned import.
    looks: BTreeMap<Key, Look>,
    /// Those that are contested.
    fights: BTreeMap<Key, Fight>,
}

/// What is planned of an import.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Of the status; see [`digest`](super::digest::digest()).
    pub digest: u64,
    /// Whether it says so.
    pub is_shown: bool,
}

/// How an import was last seen.
#[derive(Clone, Debug)]
struct Look {
    /// Digest of what was planned then.
    wanted: u64,
    version: Option<Version>,
    /// Since when it says what is planned; none: it does not.
    planned: Option<Moment>,
    /// It came to say so by a change of itself. Where the plan came back to it instead, a write of ours may still be on
    /// its way, and must not pass for somebody else's.
    came: bool,
    /// When it was undone, within [`WINDOW`]; at most [`ROUNDS`].
    undone: Vec<Moment>,
}

/// A state of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// Hash of uid and resource version.
    hash: u64,
    generation: i64,
}

#[derive(Clone, Copy, Debug)]
struct Fight {
    /// Not written before.
    retry: Moment,
    wait: Duration,
}

/// So often within [`WINDOW`] is no accident (spec 4.6).
const ROUNDS: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);
/// First wait of a fight; each further round doubles it.
const RETRY_MIN: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_mins(10);
/// Left alone for so long, an import is not contested any more. No shorter than the longest wait, or each would look like
/// peace.
const PEACE: Duration = RETRY_MAX;

// === impl Contests ===

impl Contests {
    /// One look at an import that should be there. Returns whether it has just become contested.
    pub fn look(
        &mut self,
        key: &Key,
        live: Option<&LiveImport>,
        wanted: Wanted,
        now: Moment,
    ) -> bool {
        let version = live.map(Version::of);
        let Some(look) = self.looks.get_mut(key) else {
            let look = Look::first(version, wanted, now);
            self.looks.insert(key.clone(), look);
            return false;
        };
        look.wanted = wanted.digest;
        let moved = look.version != version;
        if wanted.is_shown {
            look.came |= moved;
            look.planned.get_or_insert(now);
            look.version = version;
            return false;
        }
        // where its generation grew, the plan has to follow: it names the generation
        let grew = look.generation() < version.map(|version| version.generation);
        let undone = moved && look.came && look.planned.is_some() && (version.is_none() || !grew);
        look.version = version;
        look.planned = None;
        look.came = false;
        undone && self.undone(key, now)
    }

    /// The watch shows an import. Planning may not see this version: the next, which undoes it, may be here before. So
    /// that it says what was last planned is noted at once; all else is for the plan to tell.
    pub(super) fn shown(&mut self, live: &LiveImport, now: Moment) {
        let look = self.looks.get(&live.key);
        if live.claim == Claim::Ours
            && let Some(digest) = look.map(|look| look.wanted)
            && live.status.digest() == Some(digest)
        {
            let wanted = Wanted {
                digest,
                is_shown: true,
            };
            self.look(&live.key, Some(live), wanted, now);
        }
    }

    /// Whether somebody keeps undoing it.
    pub fn is_contested(&self, key: &Key) -> bool {
        self.fights.contains_key(key)
    }

    /// When a contested import may be written again.
    pub fn retry(&self, key: &Key) -> Option<Moment> {
        self.fights.get(key).map(|fight| fight.retry)
    }

    /// It should not be there any more, or cannot.
    pub fn forget(&mut self, key: &Key) {
        self.looks.remove(key);
        self.fights.remove(key);
    }

    /// Another begins to write, or this one again: what was seen meanwhile was not about its writes. Returns the keys that
    /// were contested.
    pub fn clear(&mut self) -> Vec<Key> {
        self.looks.clear();
        std::mem::take(&mut self.fights).into_keys().collect()
    }

    /// Ends fights that are over; returns their keys.
    pub fn tick(&mut self, now: Moment) -> Vec<Key> {
        let planned = |key: &Key| self.looks.get(key).and_then(|look| look.planned);
        let calm = self.fights.keys();
        let calm = calm.filter(|key| planned(key).is_some_and(|since| now.since(since) >= PEACE));
        let calm: Vec<Key> = calm.cloned().collect();
        for key in &calm {
            self.fights.remove(key);
        }
        calm
    }

    fn undone(&mut self, key: &Key, now: Moment) -> bool {
        if let Some(fight) = self.fights.get_mut(key) {
            fight.wait = fight.wait.saturating_mul(2).min(RETRY_MAX);
            fight.retry = now + fight.wait;
            return false;
        }
        let Some(look) = self.looks.get_mut(key) else {
            return false;
        };
        look.undone.retain(|at| now.since(*at) < WINDOW);
        look.undone.push(now);
        if look.undone.len() < ROUNDS {
            return false;
        }
        look.undone.clear();
        let fight = Fight {
            retry: now + RETRY_MIN,
            wait: RETRY_MIN,
        };
        self.fights.insert(key.clone(), fight);
        true
    }
}

// === impl Look ===

impl Look {
    fn first(version: Option<Version>, wanted: Wanted, now: Moment) -> Self {
        let Wanted { digest, is_shown } = wanted;
        Self {
            wanted: digest,
            version,
            planned: is_shown.then_some(now),
            came: is_shown,
            undone: Vec::new(),
        }
    }

    fn generation(&self) -> Option<i64> {
        self.version.map(|version| version.generation)
    }
}

// === impl Version ===

impl Version {
    fn of(live: &LiveImport) -> Self {
        let mut hash = Xxh3Default::new();
        hash.update(live.uid.as_bytes());
        hash.update(b" ");
        hash.update(live.resource_version.as_bytes());
        Self {
            hash: hash.digest(),
            generation: live.generation,
        }
    }
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

    /// What [`mk_import`] says is not what is planned here: only `is_shown` tells.
    const fn mk_wanted(is_shown: bool) -> Wanted {
        Wanted {
            digest: 0,
            is_shown,
        }
    }

    /// Three rounds at once.
    const FIGHT: [(u64, u64, bool); 6] = [
        (0, 1, true),
        (0, 2, false),
        (0, 3, true),
        (0, 4, false),
        (0, 5, true),
        (0, 6, false),
    ];

    /// Looks at versions of the import, each at a second: whether each is as planned.
    fn run(looks: &[(u64, u64, bool)]) -> Contests {
        let mut contests = Contests::default();
        for (second, version, as_planned) in looks {
            let live = Some(mk_import(*version, 1)).filter(|_| *version > 0);
            contests.look(
                &mk_key("llm"),
                live.as_ref(),
                mk_wanted(*as_planned),
                at(*second),
            );
        }
        contests
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
    fn three_rounds_in_a_minute_are_a_fight(
        #[case] looks: &[(u64, u64, bool)],
        #[case] contested: bool,
    ) {
        assert_eq!(run(looks).is_contested(&mk_key("llm")), contested);
    }

    #[test]
    fn a_growing_generation_is_not_undoing() {
        let mut contests = Contests::default();
        for n in 0..10 {
            let live = mk_import(u64::try_from(n).expect("small"), n / 2);
            contests.look(&mk_key("llm"), Some(&live), mk_wanted(n % 2 == 1), at(0));
        }
        assert!(!contests.is_contested(&mk_key("llm")));
    }

    #[test]
    fn a_fight_waits_ever_longer_and_ends_in_ten_minutes_of_peace() {
        let key = mk_key("llm");
        let mut contests = run(&FIGHT);
        let mut second = 0;
        let mut version = 7;
        for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
            assert_eq!(contests.retry(&key), Some(at(second + wait)));
            second += wait;
            contests.look(
                &key,
                Some(&mk_import(version, 1)),
                mk_wanted(true),
                at(second),
            );
            assert!(contests.tick(at(second)).is_empty());
            let again = contests.look(
                &key,
                Some(&mk_import(version + 1, 1)),
                mk_wanted(false),
                at(second),
            );
            assert!(!again, "told once");
            version += 2;
        }
        // nobody wrote what is planned: that is no peace
        assert!(contests.tick(at(second + 6000)).is_empty());
        second += 6000;
        contests.look(
            &key,
            Some(&mk_import(version, 1)),
            mk_wanted(true),
            at(second),
        );
        assert!(contests.tick(at(second + 599)).is_empty());
        assert_eq!(contests.tick(at(second + 600)), std::slice::from_ref(&key));
        assert!(!contests.is_contested(&key));
        // and the next edit is one again
        contests.look(
            &key,
            Some(&mk_import(version + 1, 1)),
            mk_wanted(false),
            at(second + 601),
        );
        assert!(!contests.is_contested(&key));
    }

    #[test]
    fn a_version_that_planning_does_not_see_counts_too() {
        let key = mk_key("llm");
        let planned = |live: &LiveImport| live.status.digest().expect("known");
        let mut edited = mk_import(0, 1);
        let said = crd::InferencePoolImportStatus {
            observed_generation: Some(7),
            ..crd::InferencePoolImportStatus::default()
        };
        edited.status = LiveStatus::new(said, "us");
        let mut contests = Contests::default();
        for version in (1..7).step_by(2) {
            let ours = mk_import(version, 1);
            let digest = planned(&ours);
            contests.shown(&ours, at(0));
            edited.resource_version = (version + 1).to_string();
            contests.shown(&edited, at(0));
            let wanted = Wanted {
                digest,
                is_shown: false,
            };
            contests.look(&key, Some(&edited), wanted, at(0));
        }
        // the first version was not expected yet
        assert!(!contests.is_contested(&key));
        contests.shown(&mk_import(7, 1), at(0));
        edited.resource_version = "8".to_owned();
        let wanted = Wanted {
            digest: planned(&mk_import(7, 1)),
            is_shown: false,
        };
        assert!(contests.look(&key, Some(&edited), wanted, at(0)));
    }

    #[test]
    fn what_is_forgotten_begins_anew() {
        let key = mk_key("llm");
        let mut contests = run(&FIGHT);
        assert_eq!(contests.clear(), std::slice::from_ref(&key));
        let mut contests = run(&FIGHT);
        contests.forget(&key);
        assert!(!contests.is_contested(&key) && contests.retry(&key).is_none());
    }
}
