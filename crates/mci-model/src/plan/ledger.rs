//! One record of transition times, so that the same content has the same bytes for every importer.

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

/// When each condition got its current status. Bound: twice the conditions of all planned imports; the records of a key
/// are removed with its plan.
#[derive(Debug, Default)]
pub struct Ledger {
    keys: BTreeMap<Key, KeyRecords>,
}

/// The records of one key.
#[derive(Debug, Default)]
struct KeyRecords {
    records: Records,
    /// Number of records after the last [`Ledger::prune`].
    kept: usize,
}

/// By the owner and the type of the condition.
type Records = BTreeMap<(Owner, String), Transition>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// Of an entry, by exporter.
    Entry(String),
    /// Of a parent in an entry: exporter, namespace, name.
    Parent(String, String, String),
    /// Of the import as a whole, by who reads it.
    Import(Flavour, Option<ClusterName>, u64),
}

#[derive(Debug)]
struct Transition {
    status: String,
    since: Timestamp,
}

/// The live statuses of a key's imports, in every member; read where a condition has no record.
pub type LiveStatuses<'a, F> = LazyCell<Vec<&'a ImportStatus>, F>;

/// Records of a key above twice those of the last pruning that do not cause another: pruning costs as much as planning.
const SLACK: usize = 64;

// === impl Ledger ===

impl Ledger {
    /// A planned status without its entries, with times. A condition without a record takes the median time of the live
    /// conditions that have the same status, but no future one; `now` if there is none.
    pub fn stamp_top<'a, E>(
        &mut self,
        key: &Key,
        planned: &PlannedImport,
        live: &LiveStatuses<'a, impl FnOnce() -> Vec<&'a ImportStatus>>,
        now: Timestamp,
    ) -> ImportStatus<E> {
        let PlannedImport {
            audience, status, ..
        } = planned;
        let mut conditions = status.conditions.clone();
        let mut controllers = status.controllers.clone();
        let records = self.records(key);
        let whole = Owner::of_import(audience);
        let ours = controllers.iter_mut().flat_map(|one| &mut one.conditions);
        for condition in conditions.iter_mut().chain(ours) {
            let known = || live.iter().flat_map(|live| &live.conditions);
            stamp_condition(records, whole.clone(), condition, known, now);
        }
        ImportStatus {
            observed_generation: status.observed_generation,
            conditions,
            controllers,
            clusters: Vec::new(),
        }
    }

    /// An entry with times, which are the same for all importers.
    pub fn stamp_entry<'a>(
        &mut self,
        key: &Key,
        entry: &Entry,
        live: &LiveStatuses<'a, impl FnOnce() -> Vec<&'a ImportStatus>>,
        now: Timestamp,
    ) -> ImportedCluster {
        let mut stamped = ImportedCluster::clone(entry);
        let records = self.records(key);
        let lives = || {
            let entries = live.iter().flat_map(|live| &live.clusters);
            entries.filter(|one| one.name == entry.name)
        };
        for condition in &mut stamped.conditions {
            let known = || lives().flat_map(|one| &one.conditions);
            let owner = Owner::Entry(entry.name.clone());
            stamp_condition(records, owner, condition, known, now);
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
                let owner = Owner::Parent(entry.name.clone(), namespace.clone(), name.clone());
                stamp_condition(records, owner, condition, known, now);
            }
        }
        Self::drop_parents(records, entry);
        stamped
    }

    /// A planned status with its entries and times.
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
        for entry in &planned.status.clusters {
            let stamped = self.stamp_entry(key, entry, &live, now);
            status.clusters.push(Entry::new(stamped));
        }
        status
    }

    fn records(&mut self, key: &Key) -> &mut Records {
        &mut self.keys.entry(key.clone()).or_default().records
    }

    /// Removes the records of parents that are no longer in the entry.
    fn drop_parents(records: &mut Records, entry: &ImportedCluster) {
        let first = |exporter: String| {
            let owner = Owner::Parent(exporter, String::new(), String::new());
            (owner, String::new())
        };
        let of_entry = first(entry.name.clone())..first(format!("{}\0", entry.name));
        let is_gone = |(owner, _): &(Owner, String), _: &mut Transition| {
            let mut parents = entry.parents.iter();
            matches!(owner, Owner::Parent(_, namespace, name)
                if !parents.any(|one| one.namespace == *namespace && one.name == *name))
        };
        records.extract_if(of_entry, is_gone).for_each(drop);
    }

    /// Removes records that no planned import of the key needs, once there are too many: entries carried over are under
    /// the control of the importing cluster, which may change them without end.
    pub fn prune<'a>(&mut self, key: &Key, imports: impl Iterator<Item = &'a PlannedImport>) {
        let Some(records) = self.keys.get_mut(key) else {
            return;
        };
        if records.records.len() <= 2 * records.kept + SLACK {
            return;
        }
        // importers share their plans
        let by_audience: BTreeMap<&Audience, &PlannedImport> = imports
            .map(|planned| (&planned.audience, planned))
            .collect();
        let mut places = BTreeSet::new();
        for planned in by_audience.into_values() {
            add_places(planned, &mut places);
        }
        records.records.retain(|place, _| places.contains(place));
        records.kept = records.records.len();
    }

    /// Removes a key that nothing is planned for.
    pub fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
    }
}

/// The median. Any importer may show a forged time, and all get the time chosen here: as long as most importers are
/// honest, the median lies between honest times.
fn median(mut times: Vec<Timestamp>) -> Option<Timestamp> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Adds the places of an import's conditions in the records.
fn add_places(planned: &PlannedImport, places: &mut BTreeSet<(Owner, String)>) {
    let PlannedImport {
        audience, status, ..
    } = planned;
    let mut note = |owner: Owner, conditions: &[Condition]| {
        let types = conditions.iter().map(|condition| condition.type_.clone());
        places.extend(types.map(|type_| (owner.clone(), type_)));
    };
    let whole = Owner::of_import(audience);
    note(whole.clone(), &status.conditions);
    for controller in &status.controllers {
        note(whole.clone(), &controller.conditions);
    }
    for entry in &status.clusters {
        note(Owner::Entry(entry.name.clone()), &entry.conditions);
        for parent in &entry.parents {
            let (namespace, name) = (parent.namespace.clone(), parent.name.clone());
            let owner = Owner::Parent(entry.name.clone(), namespace, name);
            note(owner, &parent.conditions);
        }
    }
}

fn stamp_condition<'a, I: Iterator<Item = &'a Condition>>(
    records: &mut Records,
    owner: Owner,
    condition: &mut Condition,
    live: impl FnOnce() -> I,
    now: Timestamp,
) {
    let place = (owner, condition.type_.clone());
    let since = match records.get(&place) {
        Some(record) if record.status == condition.status => record.since,
        Some(_) => now,
        None => {
            let same =
                |one: &&Condition| one.type_ == condition.type_ && one.status == condition.status;
            let times = live().filter(same).map(|one| one.last_transition_time.0);
            median(times.collect()).map_or(now, |since| {
                since.clamp(Timestamp::UNIX_EPOCH, now.max(Timestamp::UNIX_EPOCH))
            })
        }
    };
    condition.last_transition_time = Time(since);
    let status = condition.status.clone();
    records.insert(place, Transition { status, since });
}

// === impl Owner ===

impl Owner {
    fn of_import(audience: &Audience) -> Self {
        let Audience {
            flavour,
            excluded,
            carried_over,
            ..
        } = audience;
        Self::Import(*flavour, excluded.clone(), *carried_over)
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

    /// The times that a new controller writes where the live conditions have these.
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
    fn times_are_those_of_most_importers(#[case] times: &[i64], #[case] expected: i64) {
        for time in stamped(times) {
            assert_eq!(time, at(expected));
        }
    }

    #[test]
    fn an_import_that_keeps_changing_its_entries_adds_no_records_without_end() {
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
            planned.audience.carried_over = u64::try_from(second).expect("positive");
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
            let parents = records.filter_map(|(owner, _)| match owner {
                Owner::Parent(exporter, _, name) => Some(format!("{exporter}/{name}")),
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
