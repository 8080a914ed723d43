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

/// What each Gateway's status says of its objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reports {
    /// The Gateway has no infrastructure.
    pub(crate) taken: BTreeMap<Key, String>,
    /// Its infrastructure stays as it was before.
    pub(crate) refused: BTreeMap<Key, String>,
}

// === impl Problems ===

impl Problems {
    /// Returns once the reports have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn reports(&self) -> Reports {
        let mut reports = Reports::default();
        for ((part, key), problem) in self.found.lock().iter() {
            let (_, kind) = part.api();
            let (of, text) = match &problem.why {
                Why::Taken => (
                    &mut reports.taken,
                    format!(
                        "{kind} {key} exists and the Gateway does not control it: delete it, or rename the Gateway"
                    ),
                ),
                Why::Refused(message) => (
                    &mut reports.refused,
                    format!("{kind} {key} is refused: {message}"),
                ),
            };
            of.entry(problem.gateway.clone())
                .and_modify(|texts: &mut String| {
                    texts.push_str("; ");
                    texts.push_str(&text);
                })
                .or_insert(text);
        }
        reports
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

    /// Another replica writes from now on, and meets its own problems.
    pub(crate) fn forget_all(&self) {
        let before = std::mem::take(&mut *self.found.lock());
        if !before.is_empty() {
            self.changed.notify_one();
        }
    }

    pub(super) fn note(&self, id: (Part, Key), problem: Problem) {
        let before = self.found.lock().insert(id, problem.clone());
        if before != Some(problem) {
            self.changed.notify_one();
        }
    }

    pub(super) fn forget(&self, id: &(Part, Key)) {
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
    fn problem_is_reported_until_the_object_is_written_or_not_wanted() {
        let problems = Problems::default();
        let id = (Part::Service, Key::new("ns", "gw-isthmus"));
        let note = |why: Why| {
            let gateway = Key::new("ns", "gw");
            problems.note(id.clone(), Problem { gateway, why });
            problems.reports()
        };
        let gateway = Key::new("ns", "gw");
        let reports = note(Why::Taken);
        assert!(reports.taken[&gateway].contains("Service ns/gw-isthmus"));
        // the newest alone
        let reports = note(Why::Refused("it may not change".into()));
        let refused = "Service ns/gw-isthmus is refused: it may not change";
        assert_eq!(reports.refused[&gateway], refused);
        assert_eq!(reports.taken, BTreeMap::new());
        problems.keep(&BTreeMap::from([(id.clone(), 1)]));
        assert_eq!(problems.reports(), reports);
        problems.keep(&BTreeMap::<_, u8>::new());
        assert_eq!(problems.reports(), Reports::default());
        // several of one Gateway are all reported
        problems.note(
            (Part::Deployment, Key::new("ns", "gw-isthmus")),
            Problem {
                gateway: gateway.clone(),
                why: Why::Taken,
            },
        );
        let reports = note(Why::Taken);
        assert!(reports.taken[&gateway].contains("Deployment ns/gw-isthmus"));
        assert!(reports.taken[&gateway].contains("; Service ns/gw-isthmus"));
        problems.keep(&BTreeMap::from([(id.clone(), 1)]));
        problems.forget(&id);
        assert_eq!(problems.reports(), Reports::default());
        note(Why::Taken);
        problems.forget_all();
        assert_eq!(problems.reports(), Reports::default());
    }
}
