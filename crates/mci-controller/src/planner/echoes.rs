//! Keys of which an import changed. Most are what we wrote, as the watch of one member after the other brings it back; and
//! a key is planned for all members. Were each echo planned as it comes, one event would cost the square of the members:
//! so they are gathered, and those of a burst are planned together. A lone change, somebody's edit, is planned at once.

use std::{collections::BTreeSet, time::Duration};

use crate::{name::Key, write::ECHO};
use moment::Moment;

/// Keys that wait. Bound: the keys.
#[derive(Debug, Default)]
pub(super) struct Echoes {
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

// === impl Echoes ===

impl Echoes {
    /// Imports of these changed.
    pub(super) fn hear(&mut self, keys: BTreeSet<Key>, now: Moment) {
        if !keys.is_empty() {
            self.since.get_or_insert(now);
            self.keys.extend(keys);
        }
    }

    /// When there is something to plan; none: not before something is heard.
    pub(super) fn due(&self) -> Option<Moment> {
        (!self.keys.is_empty()).then_some(self.free_from)
    }

    /// What is heard so far counts as heard when it is taken: it waited for something else.
    pub(super) fn refresh(&mut self) {
        self.since = None;
    }

    /// Planned for another reason.
    pub(super) fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
        if self.keys.is_empty() {
            self.since = None;
        }
    }

    /// What is to be planned now, and since when it waits. `members` is what planning one key compares.
    pub(super) fn take(&mut self, members: usize, now: Moment) -> Option<(BTreeSet<Key>, Moment)> {
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let keys = std::mem::take(&mut self.keys);
        let imports = keys.len().saturating_mul(members);
        let work = PER_IMPORT.saturating_mul(u32::try_from(imports).unwrap_or(u32::MAX));
        self.free_from = now + PAUSE.saturating_add(work).min(PAUSE_MAX);
        Some((keys, self.since.take().unwrap_or(now)))
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

    #[test]
    fn the_first_is_planned_at_once_and_a_burst_together() {
        let mut echoes = Echoes::default();
        assert_eq!(echoes.due(), None);
        echoes.hear(keys(&["a"]), at(100));
        assert_eq!(echoes.take(MEMBERS, at(100)), Some((keys(&["a"]), at(100))));
        echoes.hear(keys(&["a"]), at(101));
        echoes.hear(keys(&["a", "b"]), at(110));
        assert_eq!(echoes.take(MEMBERS, at(110)), None);
        // 50 ms, and 100 µs for each of the 100 imports
        assert_eq!(echoes.due(), Some(at(160)));
        let both = Some((keys(&["a", "b"]), at(101)));
        assert_eq!(echoes.take(MEMBERS, at(160)), both);
        assert_eq!(echoes.due(), None);
    }

    #[test]
    fn much_work_makes_a_longer_pause_with_a_limit() {
        for (members, pause) in [(0, 50), (1_000, 150), (1_000_000, 250)] {
            let mut echoes = Echoes::default();
            echoes.hear(keys(&["a"]), at(0));
            echoes.take(members, at(0));
            echoes.hear(keys(&["b"]), at(1));
            assert_eq!(echoes.due(), Some(at(pause)), "{members} members");
        }
    }

    #[test]
    fn what_waited_for_something_else_is_not_old() {
        let mut echoes = Echoes::default();
        echoes.hear(keys(&["a"]), at(0));
        echoes.refresh();
        let taken = echoes.take(MEMBERS, at(30_000));
        assert_eq!(taken, Some((keys(&["a"]), at(30_000))));
    }

    #[test]
    fn what_was_planned_meanwhile_is_not_planned_again() {
        let mut echoes = Echoes::default();
        echoes.hear(keys(&["a"]), at(0));
        echoes.take(MEMBERS, at(0));
        echoes.hear(keys(&["a"]), at(1));
        echoes.forget(&mk_key("a"));
        assert_eq!(echoes.take(MEMBERS, at(1_000)), None);
        // nor does its age count for the next
        echoes.hear(keys(&["b"]), at(2_000));
        assert_eq!(
            echoes.take(MEMBERS, at(2_000)),
            Some((keys(&["b"]), at(2_000)))
        );
    }
}
