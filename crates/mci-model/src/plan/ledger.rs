//! One book of transition times, so that the same content has the same bytes for every importer.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use crd::{Condition, ImportedCluster};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Audience, PlannedImport};
use crate::{
    index::{
        entry::{Entry, ImportStatus},
        flavour::Flavour,
    },
    name::{ClusterName, Key},
};

/// When each condition got the status that it has. Bound: twice the conditions of all planned imports; a key's records
/// go with its plan.
#[derive(Debug, Default)]
pub struct Ledger {
    keys: BTreeMap<Key, Book>,
}

/// The records of one key.
#[derive(Debug, Default)]
struct Book {
    records: Records,
    /// How many were left by the last [`Ledger::prune`].
    kept: usize,
}

/// By whose condition it is, and its type.
type Records = BTreeMap<(Scope, String), Record>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Of an entry, by exporter.
    Entry(String),
    /// Of a parent in an entry: exporter, namespace, name.
    Parent(String, String, String),
    /// Of the import as a whole, by who reads it.
    Import(Flavour, Option<ClusterName>, u64),
}

#[derive(Debug)]
struct Record {
    status: String,
    since: Timestamp,
}

/// What the imports of a key say now, in every member: looked up where a condition is not in the book.
pub type Lives<'a, F> = LazyCell<Vec<&'a ImportStatus>, F>;

/// So many records more than twice those of the last pruning are let be: pruning costs as much as planning does.
const SLACK: usize = 64;

// === impl Ledger ===

impl Ledger {
    /// What a planned status says on top, with its times; no entries. A condition not in the book yet takes the middle
    /// one of the times of the live conditions that say the same, but none to come; else `now`.
    pub fn stamp_top<'a, E>(
        &mut self,
        key: &Key,
        planned: &PlannedImport,
        live: &Lives<'a, impl FnOnce() -> Vec<&'a ImportStatus>>,
        now: Timestamp,
    ) -> ImportStatus<E> {
        let PlannedImport {
            audience, status, ..
        } = planned;
        let mut conditions = status.conditions.clone();
        let mut controllers = status.controllers.clone();
        let book = self.book(key);
        let whole = Scope::of_import(audience);
        let ours = controllers.iter_mut();
        let ours = ours.flat_map(|controller| &mut controller.conditions);
        for condition in conditions.iter_mut().chain(ours) {
            let known = || live.iter().flat_map(|live| &live.conditions);
            stamp_one(book, whole.clone(), condition, known, now);
        }
        ImportStatus {
            observed_generation: status.observed_generation,
            conditions,
            controllers,
            clusters: Vec::new(),
        }
    }

    /// An entry with its times, which are the same for all importers.
    pub fn stamp_entry<'a>(
        &mut self,
        key: &Key,
        entry: &Entry,
        live: &Lives<'a, impl FnOnce() -> Vec<&'a ImportStatus>>,
        now: Timestamp,
    ) -> ImportedCluster {
        let mut stamped = ImportedCluster::clone(entry);
        let book = self.book(key);
        let lives = || {
            let entries = live.iter().flat_map(|live| &live.clusters);
            entries.filter(|one| one.name == entry.name)
        };
        for condition in &mut stamped.conditions {
            let known = || lives().flat_map(|one| &one.conditions);
            let scope = Scope::Entry(entry.name.clone());
            stamp_one(book, scope, condition, known, now);
        }
        for parent in &mut stamped.parents {
            let (namespace, name) = (parent.namespace.clone(), parent.name.clone());
            for condition in &mut parent.conditions {
                let known = || {
                    lives()
                        .flat_map(|one| &one.parents)
                        .filter(|one| one.namespace == namespace && one.name == name)
                        .flat_map(|one| &one.conditions)
                };
                let scope = Scope::Parent(entry.name.clone(), namespace.clone(), name.clone());
                stamp_one(book, scope, condition, known, now);
            }
        }
        Self::drop_parents(book, entry);
        stamped
    }

    /// The whole.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn stamp(
        &mut self,
        key: &Key,
        planned: &PlannedImport,
        live: &[&ImportStatus],
        now: Timestamp,
    ) -> ImportStatus {
        let live = LazyCell::new(|| live.to_vec());
        let mut status = self.stamp_top(key, planned, &live, now);
        let entries = planned.status.clusters.iter();
        let entries = entries.map(|entry| Entry::new(self.stamp_entry(key, entry, &live, now)));
        status.clusters = entries.collect();
        status
    }

    fn book(&mut self, key: &Key) -> &mut Records {
        &mut self.keys.entry(key.clone()).or_default().records
    }

    /// Forgets parents that have left their entry: Gateways come and go while a key stays.
    fn drop_parents(book: &mut Records, entry: &ImportedCluster) {
        let first = Scope::Parent(entry.name.clone(), String::new(), String::new());
        let noted = book.range((first, String::new())..);
        let noted = noted.map(|(place, _)| place);
        let of_entry = noted.map_while(|place| match &place.0 {
            Scope::Parent(exporter, namespace, name) if *exporter == entry.name => {
                Some((place, namespace, name))
            }
            _ => None,
        });
        let left = of_entry.filter(|(_, namespace, name)| {
            let mut parents = entry.parents.iter();
            !parents.any(|one| one.namespace == **namespace && one.name == **name)
        });
        let left: Vec<(Scope, String)> = left.map(|(place, _, _)| place.clone()).collect();
        for place in left {
            book.remove(&place);
        }
    }

    /// Forgets what no import of the key says any more, before it gets too much: what an import lends to its own plan is
    /// for its cluster to say, and may change without end.
    pub fn prune<'a>(&mut self, key: &Key, imports: impl Iterator<Item = &'a PlannedImport>) {
        let Some(book) = self.keys.get_mut(key) else {
            return;
        };
        if book.records.len() <= 2 * book.kept + SLACK {
            return;
        }
        // importers share their plans
        let by_audience: BTreeMap<&Audience, &PlannedImport> = imports
            .map(|planned| (&planned.audience, planned))
            .collect();
        let mut places = BTreeSet::new();
        for planned in by_audience.into_values() {
            note_places(planned, &mut places);
        }
        book.records.retain(|place, _| places.contains(place));
        book.kept = book.records.len();
    }

    /// Forgets a key that nothing is planned for.
    pub fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
    }
}

/// The middle one. Any importer may tell any time, and all are told what is chosen here: as long as most are honest, so
/// is the middle, and nobody can pull it beyond what they say.
fn middle(mut times: Vec<Timestamp>) -> Option<Timestamp> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Adds where each condition of an import is in the book.
fn note_places(planned: &PlannedImport, places: &mut BTreeSet<(Scope, String)>) {
    let PlannedImport {
        audience, status, ..
    } = planned;
    let mut note = |scope: Scope, conditions: &[Condition]| {
        let types = conditions.iter().map(|condition| condition.type_.clone());
        places.extend(types.map(|type_| (scope.clone(), type_)));
    };
    let whole = Scope::of_import(audience);
    note(whole.clone(), &status.conditions);
    for controller in &status.controllers {
        note(whole.clone(), &controller.conditions);
    }
    for entry in &status.clusters {
        note(Scope::Entry(entry.name.clone()), &entry.conditions);
        for parent in &entry.parents {
            let (namespace, name) = (parent.namespace.clone(), parent.name.clone());
            let scope = Scope::Parent(entry.name.clone(), namespace, name);
            note(scope, &parent.conditions);
        }
    }
}

fn stamp_one<'a, I: Iterator<Item = &'a Condition>>(
    book: &mut Records,
    scope: Scope,
    condition: &mut Condition,
    live: impl FnOnce() -> I,
    now: Timestamp,
) {
    let place = (scope, condition.type_.clone());
    let since = match book.get(&place) {
        Some(record) if record.status == condition.status => record.since,
        Some(_) => now,
        None => {
            let same =
                live().filter(|one| one.type_ == condition.type_ && one.status == condition.status);
            let told = same.map(|one| one.last_transition_time.0);
            middle(told.collect()).map_or(now, |since| {
                since.clamp(Timestamp::UNIX_EPOCH, now.max(Timestamp::UNIX_EPOCH))
            })
        }
    };
    condition.last_transition_time = Time(since);
    let status = condition.status.clone();
    book.insert(place, Record { status, since });
}

// === impl Scope ===

impl Scope {
    fn of_import(audience: &Audience) -> Self {
        let Audience {
            flavour,
            excluded,
            lent,
            ..
        } = audience;
        Self::Import(*flavour, excluded.clone(), *lent)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::{
        fixtures::*,
        plan::{ImportPlan, desired_for},
    };
    use moment::Moment;

    const NOW: i64 = 2_000_000_000;
    const HONEST: i64 = 1_900_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    /// What a new controller says of a key, where its importers' conditions have these times.
    fn stamped(times: &[i64]) -> Vec<Timestamp> {
        let mut world = mk_world(&["a", "b"]);
        export(&mut world, "a", "llm");
        let key = mk_key("llm");
        let plan = desired_for(&world, &mk_policy(), &key, Moment::default());
        let ImportPlan::Present(planned) = &plan.imports[&mk_name("b")] else {
            panic!("no import");
        };
        let live: Vec<ImportStatus> = times
            .iter()
            .map(|second| {
                let mut status = planned.status.clone();
                let entries = status.clusters.iter_mut();
                let of_entries = entries.flat_map(|entry| &mut entry.conditions);
                for condition in status.conditions.iter_mut().chain(of_entries) {
                    condition.last_transition_time = Time(at(*second));
                }
                status
            })
            .collect();
        let live: Vec<&ImportStatus> = live.iter().collect();
        let status = Ledger::default().stamp(&key, planned, &live, at(NOW));
        let entries = status.clusters.iter();
        let of_entries = entries.flat_map(|entry| &entry.conditions);
        let conditions = status.conditions.iter().chain(of_entries);
        let times = conditions.map(|condition| condition.last_transition_time.0);
        times.collect()
    }

    #[rstest]
    #[case::nobody_knows(&[], NOW)]
    #[case::one_knows(&[HONEST], HONEST)]
    #[case::one_lies_early(&[HONEST, 5, HONEST], HONEST)]
    #[case::one_lies_late(&[HONEST, NOW + 5, HONEST], HONEST)]
    #[case::no_time_is_to_come(&[NOW + 5], NOW)]
    #[case::no_time_is_before_time(&[-300_000_000_000], 0)]
    fn times_are_what_most_importers_say(#[case] times: &[i64], #[case] expected: i64) {
        for time in stamped(times) {
            assert_eq!(time, at(expected));
        }
    }

    #[test]
    fn an_import_that_keeps_changing_what_it_lends_fills_no_book() {
        let key = mk_key("llm");
        let mut world = mk_world(&["a", "b"]);
        export(&mut world, "a", "llm");
        let plan = desired_for(&world, &mk_policy(), &key, Moment::START);
        let ImportPlan::Present(planned) = &plan.imports[&mk_name("b")] else {
            panic!("not planned");
        };
        let mut planned = PlannedImport::clone(planned);
        let mut ledger = Ledger::default();
        let mut most = 0;
        let mut last = None;
        for second in 1..2_000 {
            planned.audience.lent = u64::try_from(second).expect("positive");
            planned.status.clusters[0].conditions[0].type_ = format!("Forged{second}");
            let now = Timestamp::from_second(second).expect("in range");
            last = Some(ledger.stamp(&key, &planned, &[], now));
            ledger.prune(&key, std::iter::once(&planned));
            most = most.max(ledger.keys[&key].records.len());
        }
        assert!(most <= 100, "{most} records");
        // what stays the same keeps its time
        let last = last.expect("stamped");
        let kept = &last.clusters[0].conditions[1].last_transition_time.0;
        assert_eq!(kept.as_second(), 1);
    }

    #[test]
    fn a_parent_that_left_its_entry_is_forgotten_and_no_other() {
        let entry = |name: &str, parents: &[&str]| {
            let parents = parents.iter().map(|parent| {
                json!({"name": parent, "namespace": "infra", "service": [], "conditions": [
                    {"type": "Programmed", "status": "True", "reason": "Good", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
            });
            let entry = json!({"name": name, "routingMode": "ParentMode", "targetPortNumber": 8000,
                "parents": parents.collect::<Vec<_>>()});
            Entry::new(serde_json::from_value(entry).expect("an entry"))
        };
        let key = mk_key("llm");
        let live = LazyCell::new(Vec::new);
        let mut ledger = Ledger::default();
        let mut stamp = |entry: &Entry| {
            ledger.stamp_entry(&key, entry, &live, at(NOW));
            let records = ledger.keys[&key].records.keys();
            let parents = records.filter_map(|(scope, _)| match scope {
                Scope::Parent(exporter, _, name) => Some(format!("{exporter}/{name}")),
                _ => None,
            });
            parents.collect::<Vec<String>>()
        };
        for name in ["a", "aa", "b"] {
            stamp(&entry(name, &["x", "y"]));
        }
        let left = stamp(&entry("aa", &["y"]));
        assert_eq!(left, ["a/x", "a/y", "aa/y", "b/x", "b/y"]);
        assert_eq!(stamp(&entry("a", &[])), ["aa/y", "b/x", "b/y"]);
    }
}
