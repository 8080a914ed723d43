//! Why objects of Gateways cannot be written, for the Gateways' status.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::world::Key;

use super::Part;

/// The newest of each object, until it is written or not wanted any more.
#[derive(Clone, Default)]
pub(crate) struct Problems {
    found: Arc<Mutex<BTreeMap<(Part, Key), Problem>>>,
    changed: Arc<Notify>,
}

/// Why one object is not as it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Whose object it is.
    pub(super) gateway: Key,
    pub(super) why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// An object of somebody else stands where it should be.
    Taken,
    /// What the API server says.
    Refused(String),
}

/// What to say of each Gateway.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// It cannot work so.
    pub(crate) taken: BTreeMap<Key, String>,
    /// It is as it was before.
    pub(crate) refused: BTreeMap<Key, String>,
}

// === impl Problems ===

impl Problems {
    /// Comes back when another thing is to be told.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn told(&self) -> Told {
        let mut told = Told::default();
        for ((part, key), problem) in self.found.lock().iter() {
            let (_, kind) = part.api();
            let (of, text) = match &problem.why {
                Why::Taken => (
                    &mut told.taken,
                    format!(
                        "{kind} {key} exists and the Gateway does not control it: delete it, or rename the Gateway"
                    ),
                ),
                Why::Refused(message) => (
                    &mut told.refused,
                    format!("{kind} {key} is refused: {message}"),
                ),
            };
            of.insert(problem.gateway.clone(), text);
        }
        told
    }

    /// Forgets objects that need no write any more.
    pub(crate) fn keep<V>(&self, differing: &BTreeMap<(Part, Key), V>) {
        let mut found = self.found.lock();
        let before = found.len();
        found.retain(|id, _| differing.contains_key(id));
        if found.len() != before {
            self.changed.notify_one();
        }
    }

    pub(super) fn note(&self, id: (Part, Key), problem: Problem) {
        let before = self.found.lock().insert(id, problem.clone());
        if before != Some(problem) {
            self.changed.notify_one();
        }
    }

    pub(super) fn free(&self, id: &(Part, Key)) {
        let before = self.found.lock().remove(id);
        if before.is_some() {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_told_until_the_object_is_written_or_not_wanted() {
        let problems = Problems::default();
        let id = (Part::Service, Key::new("ns", "gw-isthmus"));
        let note = |why: Why| {
            let gateway = Key::new("ns", "gw");
            problems.note(id.clone(), Problem { gateway, why });
            problems.told()
        };
        let gateway = Key::new("ns", "gw");
        let told = note(Why::Taken);
        assert!(told.taken[&gateway].contains("Service ns/gw-isthmus"));
        // the newest alone
        let told = note(Why::Refused("it may not change".into()));
        let refused = "Service ns/gw-isthmus is refused: it may not change";
        assert_eq!(told.refused[&gateway], refused);
        assert_eq!(told.taken, BTreeMap::new());
        problems.keep(&BTreeMap::from([(id.clone(), 1)]));
        assert_eq!(problems.told(), told);
        problems.keep(&BTreeMap::<_, u8>::new());
        assert_eq!(problems.told(), Told::default());
        note(Why::Taken);
        problems.free(&id);
        assert_eq!(problems.told(), Told::default());
    }
}
