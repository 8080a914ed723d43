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
    /// The planned status with its times. A condition not in the book yet takes the earliest time among the live
    /// conditions that say the same, else `now`.
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
        live.filter(|_| first)
            .filter(|one| one.type_ == condition.type_ && one.status == condition.status)
            .map(|one| one.last_transition_time.0)
            .min()
            .unwrap_or(now)
    });
    condition.last_transition_time = Time(since);
    let status = condition.status.clone();
    book.insert(place, Record { status, since });
}
