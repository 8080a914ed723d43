//! How often the status of an import follows its shares (pure).

use std::collections::BTreeMap;
use std::time::Duration;

use moment::Moment;

use crate::world::Key;

use super::Wanted;

/// Least time between two writes that differ in words alone, and between two others: shares move each second, entries may
/// flap, and everybody who watches the import is sent the whole object.
const PACE: Duration = Duration::from_secs(5);

/// What was wanted last of each import.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: BTreeMap<Key, Last>,
    /// When the first of those that are held back may be written.
    due: Option<Moment>,
}

#[derive(Debug)]
struct Last {
    wanted: Wanted,
    /// When anything of it changed last.
    at: Moment,
    /// When more than words changed last; `None`: not since the first.
    flipped: Option<Moment>,
}

// === impl Pace ===

impl Pace {
    /// What is to be written now: `wanted`, or what was wanted before, where that is too new. What says more than words waits
    /// for its like alone: the first such change goes at once.
    pub(crate) fn pick(&mut self, import: &Key, wanted: Wanted, now: Moment) -> Wanted {
        let Some(last) = self.last.get_mut(import) else {
            let last = Last {
                wanted: wanted.clone(),
                at: now,
                flipped: None,
            };
            self.last.insert(import.clone(), last);
            return wanted;
        };
        if last.wanted == wanted {
            return wanted;
        }
        let is_flip = without_words(&last.wanted) != without_words(&wanted);
        let before = if is_flip { last.flipped } else { Some(last.at) };
        if let Some(at) = before
            && now.since(at) < PACE
        {
            let due = at.plus(PACE);
            self.due = Some(self.due.map_or(due, |other| other.min(due)));
            return last.wanted.clone();
        }
        last.wanted = wanted.clone();
        last.at = now;
        if is_flip {
            last.flipped = Some(now);
        }
        wanted
    }

    /// Forgets imports that are gone.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&Key) -> bool) {
        self.last.retain(|import, _| is_there(import));
    }

    /// Whether something that was held back may be written now.
    pub(crate) fn take_due(&mut self, now: Moment) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

fn without_words(wanted: &Wanted) -> Wanted {
    let mut wanted = wanted.clone();
    if let Wanted::Parents(parents) = &mut wanted {
        for condition in parents.iter_mut().flat_map(|one| &mut one.conditions) {
            condition.message.clear();
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::key;
    use crate::model::{Cond, ParentStatus, Truth};
    use crate::world::ParentRef;

    fn mk(reason: &str, message: &str) -> Wanted {
        Wanted::Parents(vec![ParentStatus {
            parent: ParentRef::default(),
            conditions: vec![Cond::new("Programmed", Truth::True, reason, message, 1)],
        }])
    }

    #[test]
    fn what_changes_is_written_once_in_five_seconds_and_more_than_words_at_once_the_first_time() {
        let mut pace = Pace::default();
        for (reason, message, millis, expected) in [
            ("a", "east 500", 0, ("a", "east 500")),
            ("a", "east 600", 1000, ("a", "east 500")),
            ("a", "east 700", 4999, ("a", "east 500")),
            ("a", "east 700", 5000, ("a", "east 700")),
            ("b", "none", 5001, ("b", "none")),
            ("b", "none", 5002, ("b", "none")),
            // It flaps.
            ("a", "east 700", 6000, ("b", "none")),
            ("b", "none", 7000, ("b", "none")),
            ("a", "east 700", 10_000, ("b", "none")),
            ("a", "east 700", 10_001, ("a", "east 700")),
            ("b", "none", 10_002, ("a", "east 700")),
            ("b", "none", 60_000, ("b", "none")),
        ] {
            let now = Moment::from_millis(millis);
            let picked = pace.pick(&key("llm"), mk(reason, message), now);
            assert_eq!(picked, mk(expected.0, expected.1), "at {millis} ms");
        }
    }

    #[test]
    fn what_waits_is_looked_at_again_when_it_is_due() {
        let mut pace = Pace::default();
        let at = Moment::from_millis;
        pace.pick(&key("llm"), mk("a", "east 500"), at(0));
        assert!(!pace.take_due(at(60_000)), "nothing waits");
        pace.pick(&key("llm"), mk("a", "east 600"), at(1000));
        pace.pick(&key("llm"), mk("a", "east 700"), at(3000));
        assert!(!pace.take_due(at(4999)));
        assert!(pace.take_due(at(5000)));
        assert!(!pace.take_due(at(5001)), "once");
    }
}
