//! One book of transition times, so that the same content has the same bytes for every importer.

use std::collections::BTreeMap;

use crd::{Condition, ImportedCluster, InferencePoolImportStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Audience, PlannedImport};
use crate::{
    index::flavour::Flavour,
    name::{ClusterName, Key},
};

/// When each condition got the status that it has. Bound: the conditions of all planned imports; a key's records go
/// with its plan.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    keys: BTreeMap<Key, BTreeMap<(Scope, String), Record>>,
}

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

// === impl Ledger ===

impl Ledger {
    /// The planned status with its times. A condition not in the book yet takes the middle one of the times of the
    /// live conditions that say the same, but none to come; else `now`.
    pub(crate) fn stamp(
        &mut self,
        key: &Key,
        planned: &PlannedImport,
        live: &[&InferencePoolImportStatus],
        now: Timestamp,
    ) -> InferencePoolImportStatus {
        let mut status = planned.status.clone();
        let book = self.keys.entry(key.clone()).or_default();
        let Audience {
            flavour,
            excluded,
            lent,
            ..
        } = &planned.audience;
        let whole = Scope::Import(*flavour, excluded.clone(), *lent);
        let top = status.conditions.iter_mut();
        let ours = status
            .controllers
            .iter_mut()
            .flat_map(|controller| &mut controller.conditions);
        for condition in top.chain(ours) {
            let known = live.iter().flat_map(|live| &live.conditions);
            stamp_one(book, whole.clone(), condition, known, now);
        }
        for entry in &mut status.clusters {
            for condition in &mut entry.conditions {
                let known = live
                    .iter()
                    .flat_map(|live| &live.clusters)
                    .filter(|one| one.name == entry.name)
                    .flat_map(|one| &one.conditions);
                let scope = Scope::Entry(entry.name.clone());
                stamp_one(book, scope, condition, known, now);
            }
            for parent in &mut entry.parents {
                let (namespace, name) = (parent.namespace.clone(), parent.name.clone());
                for condition in &mut parent.conditions {
                    let known = live
                        .iter()
                        .flat_map(|live| &live.clusters)
                        .filter(|one| one.name == entry.name)
                        .flat_map(|one| &one.parents)
                        .filter(|one| one.namespace == namespace && one.name == name)
                        .flat_map(|one| &one.conditions);
                    let scope = Scope::Parent(entry.name.clone(), namespace.clone(), name.clone());
                    stamp_one(book, scope, condition, known, now);
                }
            }
        }
        Self::prune(book, &status.clusters);
        status
    }

    /// Forgets parents that have left their entry: Gateways come and go while a key stays.
    fn prune(book: &mut BTreeMap<(Scope, String), Record>, entries: &[ImportedCluster]) {
        book.retain(|(scope, _), _| {
            let Scope::Parent(exporter, namespace, name) = scope else {
                return true;
            };
            let mut entries = entries.iter();
            let entry = entries.find(|entry| entry.name == *exporter);
            entry.is_none_or(|entry| {
                let mut parents = entry.parents.iter();
                parents.any(|one| one.namespace == *namespace && one.name == *name)
            })
        });
    }

    /// Forgets a key that nothing is planned for.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
    }
}

/// The middle one. Any importer may tell any time, and all are told what is chosen here: as long as most are honest, so
/// is the middle, and nobody can pull it beyond what they say.
fn middle(mut times: Vec<Timestamp>) -> Option<Timestamp> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn stamp_one<'a>(
    book: &mut BTreeMap<(Scope, String), Record>,
    scope: Scope,
    condition: &mut Condition,
    live: impl Iterator<Item = &'a Condition>,
    now: Timestamp,
) {
    let place = (scope, condition.type_.clone());
    let known = book
        .get(&place)
        .filter(|record| record.status == condition.status)
        .map(|record| record.since);
    let since = known.unwrap_or_else(|| {
        let first = !book.contains_key(&place);
        let live = live.filter(|_| first);
        let same =
            live.filter(|one| one.type_ == condition.type_ && one.status == condition.status);
        let told = same.map(|one| one.last_transition_time.0);
        middle(told.collect()).map_or(now, |since| {
            since.clamp(Timestamp::UNIX_EPOCH, now.max(Timestamp::UNIX_EPOCH))
        })
    });
    condition.last_transition_time = Time(since);
    let status = condition.status.clone();
    book.insert(place, Record { status, since });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

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
        let live: Vec<InferencePoolImportStatus> = times
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
        let live: Vec<&InferencePoolImportStatus> = live.iter().collect();
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
}
