//! Keys of which an import changed. Most are what we wrote, as the watch of one member after the other brings it back; and
//! a key is planned for all members. Were each echo planned as it comes, one event would cost the square of the members:
//! so they are gathered, and those of a burst are planned together. A lone change, somebody's edit, is planned at once.

use std::{collections::BTreeSet, time::Duration};

use crate::{name::Key, write::ECHO};
use moment::Moment;

/// What waits, in two rounds.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    /// Something else than what is planned was seen, and no write of ours explains it.
    changed: Round,
    /// What is planned was seen, or a step on the way to it: nothing is to be written, only how far an export has come is
    /// to be told.
    expected: Round,
}

/// Keys that wait. Bound: the keys.
#[derive(Debug, Default)]
struct Round {
    keys: BTreeSet<Key>,
    /// Arrival of the oldest.
    since: Option<Moment>,
    /// When the next may be planned.
    free_from: Moment,
}

/// Between two rounds: a member's writes to one object are as far apart.
const PAUSE: Duration = Duration::from_millis(50);
/// Per import that a round compared: some fifty times what comparing takes, so that echoes leave the planner its time.
const PER_IMPORT: Duration = Duration::from_micros(100);
/// However much there was: half of the time for which a write that is asked for again waits for its echo, so that the echo
/// is seen in time to take it back.
const PAUSE_MAX: Duration = Duration::from_millis(250);
const _: () = assert!(2 * PAUSE_MAX.as_millis() <= ECHO.as_millis());
/// What is expected is gathered for so long: about as long as one event takes through a hundred members.
const GATHER: Duration = Duration::from_millis(100);
/// Nobody is told later than this for what is expected, however much there is: as of a thousand pools in a hundred members.
const GATHER_MAX: Duration = Duration::from_secs(10);

// === impl Echoes ===

impl Echoes {
    /// Imports of this changed, and not by a write of ours that we know of.
    pub(super) fn hear_change(&mut self, key: Key, now: Moment) {
        self.changed.hear(key, now);
    }

    /// An import of this changed as planned.
    pub(super) fn hear_expected(&mut self, key: Key, now: Moment) {
        self.expected.hear(key, now);
    }

    /// When there is something to plan; none: not before something is heard.
    pub(super) fn due(&self) -> Option<Moment> {
        let due = self.changed.due().into_iter().chain(self.expected_due());
        due.min()
    }

    /// What is heard so far counts as heard when it is taken: it waited for something else.
    pub(super) fn refresh(&mut self) {
        self.changed.since = None;
        self.expected.since = None;
    }

    /// Planned for another reason.
    pub(super) fn forget(&mut self, key: &Key) {
        self.changed.forget(key);
        self.expected.forget(key);
    }

    /// What is to be planned now, each with since when it waits; changes come first. `members` is what planning one key
    /// compares.
    pub(super) fn take(
        &mut self,
        members: usize,
        now: Moment,
    ) -> impl Iterator<Item = (BTreeSet<Key>, Moment)> + use<> {
        let is_due = |due: Option<Moment>| due.is_some_and(|due| due <= now);
        let changed = is_due(self.changed.due()).then(|| self.changed.take(now));
        if let Some((keys, _)) = &changed {
            let work = work(keys, members);
            self.changed.free_from = now + PAUSE.saturating_add(work).min(PAUSE_MAX);
            for key in keys {
                self.expected.forget(key);
            }
        }
        let expected = is_due(self.expected_due()).then(|| self.expected.take(now));
        if let Some((keys, _)) = &expected {
            self.expected.free_from = now + work(keys, members).min(GATHER_MAX);
        }
        changed.into_iter().chain(expected)
    }

    fn expected_due(&self) -> Option<Moment> {
        let due = self.expected.due()?;
        let gathered = self.expected.since.map(|since| since + GATHER);
        Some(gathered.map_or(due, |gathered| gathered.max(due)))
    }
}

fn work(keys: &BTreeSet<Key>, members: usize) -> Duration {
    let imports = keys.len().saturating_mul(members);
    PER_IMPORT.saturating_mul(u32::try_from(imports).unwrap_or(u32::MAX))
}

// === impl Round ===

impl Round {
    fn hear(&mut self, key: Key, now: Moment) {
        self.since.get_or_insert(now);
        self.keys.insert(key);
    }

    fn due(&self) -> Option<Moment> {
        (!self.keys.is_empty()).then_some(self.free_from)
    }

    fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
        if self.keys.is_empty() {
            self.since = None;
        }
    }

    fn take(&mut self, now: Moment) -> (BTreeSet<Key>, Moment) {
        let keys = std::mem::take(&mut self.keys);
        (keys, self.since.take().unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::mk_key;

    const MEMBERS: usize = 100;

    const fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn keys(names: &[&str]) -> BTreeSet<Key> {
        names.iter().map(|name| mk_key(name)).collect()
    }

    /// What is taken, where it is one round at most.
    fn take(echoes: &mut Echoes, now: Moment) -> Option<(BTreeSet<Key>, Moment)> {
        let mut rounds = echoes.take(MEMBERS, now);
        let first = rounds.next();
        assert_eq!(rounds.next(), None);
        first
    }

    fn hear(echoes: &mut Echoes, names: &[&str], now: Moment) {
        for name in names {
            echoes.hear_change(mk_key(name), now);
        }
    }

    #[test]
    fn what_is_expected_waits_for_more_of_it() {
        let mut echoes = Echoes::default();
        echoes.hear_expected(mk_key("a"), at(0));
        echoes.hear_expected(mk_key("b"), at(50));
        assert_eq!(echoes.due(), Some(at(100)));
        assert_eq!(take(&mut echoes, at(99)), None);
        // a change is not held up by it, and what is planned for one is planned
        hear(&mut echoes, &["b"], at(60));
        assert_eq!(take(&mut echoes, at(60)), Some((keys(&["b"]), at(60))));
        let taken = take(&mut echoes, at(100));
        assert_eq!(taken, Some((keys(&["a"]), at(0))));
        assert_eq!(echoes.due(), None);
    }

    #[test]
    fn a_change_goes_first_and_is_no_older_than_it_is() {
        let mut echoes = Echoes::default();
        echoes.hear_expected(mk_key("a"), at(0));
        echoes.hear_expected(mk_key("b"), at(0));
        hear(&mut echoes, &["b"], at(200));
        let rounds: Vec<_> = echoes.take(MEMBERS, at(200)).collect();
        assert_eq!(rounds, [(keys(&["b"]), at(200)), (keys(&["a"]), at(0))]);
    }

    #[test]
    fn what_is_expected_never_takes_the_planners_time() {
        for (members, pause) in [(100, 100), (10_000, 1_000), (1_000_000, 10_000)] {
            let mut echoes = Echoes::default();
            echoes.hear_expected(mk_key("a"), at(0));
            assert_eq!(echoes.take(members, at(100)).count(), 1);
            echoes.hear_expected(mk_key("b"), at(100));
            assert_eq!(echoes.due(), Some(at(100 + pause)), "{members} members");
        }
    }

    #[test]
    fn the_first_is_planned_at_once_and_a_burst_together() {
        let mut echoes = Echoes::default();
        assert_eq!(echoes.due(), None);
        hear(&mut echoes, &["a"], at(100));
        assert_eq!(take(&mut echoes, at(100)), Some((keys(&["a"]), at(100))));
        hear(&mut echoes, &["a"], at(101));
        hear(&mut echoes, &["a", "b"], at(110));
        assert_eq!(take(&mut echoes, at(110)), None);
        // 50 ms, and 100 µs for each of the 100 imports
        assert_eq!(echoes.due(), Some(at(160)));
        let both = Some((keys(&["a", "b"]), at(101)));
        assert_eq!(take(&mut echoes, at(160)), both);
        assert_eq!(echoes.due(), None);
    }

    #[test]
    fn much_work_makes_a_longer_pause_with_a_limit() {
        for (members, pause) in [(0, 50), (1_000, 150), (1_000_000, 250)] {
            let mut echoes = Echoes::default();
            hear(&mut echoes, &["a"], at(0));
            assert_eq!(echoes.take(members, at(0)).count(), 1);
            hear(&mut echoes, &["b"], at(1));
            assert_eq!(echoes.due(), Some(at(pause)), "{members} members");
        }
    }

    #[test]
    fn what_waited_for_something_else_is_not_old() {
        let mut echoes = Echoes::default();
        hear(&mut echoes, &["a"], at(0));
        echoes.refresh();
        let taken = take(&mut echoes, at(30_000));
        assert_eq!(taken, Some((keys(&["a"]), at(30_000))));
    }

    #[test]
    fn what_was_planned_meanwhile_is_not_planned_again() {
        let mut echoes = Echoes::default();
        hear(&mut echoes, &["a"], at(0));
        take(&mut echoes, at(0));
        hear(&mut echoes, &["a"], at(1));
        echoes.forget(&mk_key("a"));
        assert_eq!(take(&mut echoes, at(1_000)), None);
        // nor does its age count for the next
        hear(&mut echoes, &["b"], at(2_000));
        assert_eq!(
            take(&mut echoes, at(2_000)),
            Some((keys(&["b"]), at(2_000)))
        );
    }
}
