//! How often the status of an import follows its shares (pure).

use std::collections::BTreeMap;
use std::time::Duration;

use moment::Moment;

use crate::world::Key;

use super::Wanted;

/// Least time between two writes that differ in words alone: shares move each second, and everybody who watches the import
/// is sent the whole object.
const PACE: Duration = Duration::from_secs(5);

/// What was wanted last of each import, and since when.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: BTreeMap<Key, (Moment, Wanted)>,
    is_waiting: bool,
}

// === impl Pace ===

impl Pace {
    /// What is to be written now: `wanted`, or what was wanted before, where only words differ and that is too new.
    pub(crate) fn pick(&mut self, import: &Key, wanted: Wanted, now: Moment) -> Wanted {
        match self.last.get(import) {
            Some((_, last)) if *last == wanted => return wanted,
            Some((at, last)) if without_words(last) == without_words(&wanted) => {
                if now.since(*at) < PACE {
                    self.is_waiting = true;
                    return last.clone();
                }
            }
            _ => {}
        }
        self.last.insert(import.clone(), (now, wanted.clone()));
        wanted
    }

    /// Forgets imports that are gone.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&Key) -> bool) {
        self.last.retain(|import, _| is_there(import));
    }

    /// Whether words were held back since the last call.
    pub(crate) fn take_waiting(&mut self) -> bool {
        std::mem::take(&mut self.is_waiting)
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
    fn words_alone_are_written_once_in_five_seconds() {
        let mut pace = Pace::default();
        let mut pick = |reason, message, millis| {
            let now = Moment::from_millis(millis);
            let picked = pace.pick(&key("llm"), mk(reason, message), now);
            (picked, pace.take_waiting())
        };
        assert_eq!(pick("a", "east 500", 0), (mk("a", "east 500"), false));
        assert_eq!(pick("a", "east 600", 1000), (mk("a", "east 500"), true));
        assert_eq!(pick("a", "east 700", 4999), (mk("a", "east 500"), true));
        assert_eq!(pick("a", "east 700", 5000), (mk("a", "east 700"), false));
        // What says more than words goes at once.
        assert_eq!(pick("b", "none", 5001), (mk("b", "none"), false));
        assert_eq!(pick("b", "none", 5002), (mk("b", "none"), false));
    }
}
