//! The status of one import, from its entries (spec 4.2).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crd::{
    ClusterName as ExportingCluster, Condition, ControllerStatus, ImportedCluster,
    conditions::{self, Status},
};
use jiff::Timestamp;

use super::{
    Audience, Hold, ImportInExporter, ImportPlan, PlannedImport, Policy, carry_over::CarriedOver,
};
use crate::{
    index::{
        digest::digest,
        entry::{Entry, ImportStatus},
        flavour::Flavour,
        grant::MayExport,
        member::{Member, PoolRecord},
    },
    name::{ClusterName, Key},
};

/// The entries of all that export a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Exports {
    /// In the order of names.
    entries: Vec<(ClusterName, ExportedEntry)>,
    /// Indexes of those that fit, in the order of names.
    admitted: Vec<usize>,
    /// The same, by age of the pool, oldest first.
    admitted_by_age: Vec<usize>,
    /// All exporters, oldest pool first; also those whose entries are carried over because they cannot be derived now.
    all_by_age: Vec<ClusterName>,
}

/// The entry of one exporter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExportedEntry {
    pub(super) entry: Entry,
    /// Bytes of JSON.
    pub(super) size: usize,
    /// Creation of the pool.
    pub(super) created: Timestamp,
}

/// Maximum number of entries in the CRD; beyond it, the oldest pools stay.
const MAX_ENTRIES: usize = 256;
/// Maximum size of all entries of an import, in bytes of JSON: etcd accepts 1.5 MiB, which includes the managed fields.
const MAX_ENTRIES_BYTES: usize = 1024 * 1024;
/// Number of names in a message; the others are only counted.
const MAX_NAMES: usize = 8;

/// Plans the import for an audience; absent if it would be empty. Exporters whose entries have no room beside those carried
/// over are added to `cut`.
pub(super) fn make(
    policy: &Policy,
    audience: &Audience,
    exports: &Exports,
    carried_over: CarriedOver,
    cut: &mut BTreeSet<ClusterName>,
) -> ImportPlan {
    let names = carried_over.names;
    if audience.flavour != Flavour::Upstream && !names.is_empty() {
        // only their names are known, and an apply without their entries would remove those (K3): the import stays as
        // it is until they are seen
        return ImportPlan::Hold(Hold::Unreachable);
    }
    let mut bytes = 0_usize;
    let mut clusters = Vec::new();
    for entry in carried_over.entries.into_iter().take(MAX_ENTRIES) {
        bytes += serde_json::to_vec(&entry).map_or(0, |json| json.len());
        clusters.push(for_crd(audience.flavour, Entry::new(entry)));
    }
    let mut full = false;
    // without entries carried over, all admitted ones fit
    let order = if clusters.is_empty() {
        &exports.admitted
    } else {
        &exports.admitted_by_age
    };
    let others = order.iter().filter_map(|at| exports.entries.get(*at));
    for (name, export) in others {
        if audience.excluded.as_ref() == Some(name) {
            continue;
        }
        bytes = bytes.saturating_add(export.size);
        full |= clusters.len() >= MAX_ENTRIES || bytes > MAX_ENTRIES_BYTES;
        if full {
            cut.insert(name.clone());
        } else {
            clusters.push(for_crd(audience.flavour, export.entry.clone()));
        }
    }
    if clusters.is_empty() && names.is_empty() {
        let alone =
            audience.excluded.is_some() && policy.import_in_exporter == ImportInExporter::Always;
        if !alone {
            return ImportPlan::Absent;
        }
    }
    clusters.sort_by(|a, b| a.name.cmp(&b.name));
    let consistent = consistency(&clusters, exports, audience.generation);

    let mut exporting: Vec<String> = clusters.iter().map(|entry| entry.name.clone()).collect();
    exporting.extend(audience.excluded.iter().map(ToString::to_string));
    exporting.extend(names);
    exporting.sort_unstable();
    exporting.dedup();
    // a summary without the entries of all that are named would differ, and its write would remove those entries (K6)
    let shared = if carried_over.conditions.is_empty() {
        summary(&clusters, audience.generation)
    } else {
        carried_over.conditions
    };
    let mut top = shared.clone();
    top.extend(consistent);
    let ours = ControllerStatus {
        name: policy.controller_name.clone(),
        exporting_clusters: exporting
            .into_iter()
            .map(|name| ExportingCluster { name })
            .collect(),
        parents: Vec::new(),
        conditions: shared,
    };
    let status = match audience.flavour {
        Flavour::Upstream => ImportStatus {
            controllers: vec![ours],
            ..ImportStatus::default()
        },
        Flavour::Superset | Flavour::Earlier | Flavour::Absent => ImportStatus {
            observed_generation: Some(audience.generation),
            conditions: top,
            controllers: vec![ours],
            clusters,
        },
    };
    ImportPlan::Present(Arc::new(PlannedImport {
        audience: audience.clone(),
        digest: digest(&status, &policy.controller_name),
        status,
    }))
}

/// The entry in the form that the importer's CRD accepts.
fn for_crd(flavour: Flavour, entry: Entry) -> Entry {
    if flavour != Flavour::Earlier || entry.pod_cidrs.is_empty() {
        return entry;
    }
    Entry::new(ImportedCluster {
        pod_cidrs: Vec::new(),
        ..ImportedCluster::clone(&entry)
    })
}

/// Names, sorted by the caller: the first 8, then how many more.
pub fn join_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let text = names.take(MAX_NAMES).collect::<Vec<_>>().join(",");
    if more == 0 {
        text
    } else {
        format!("{text} +{more} more")
    }
}

/// `Accepted` and `Ready` of the import as a whole.
fn summary(clusters: &[Entry], generation: i64) -> Vec<Condition> {
    let names_with = |type_: &str| -> Vec<&str> {
        clusters
            .iter()
            .filter(|entry| conditions::is_true(&entry.conditions, type_))
            .map(|entry| entry.name.as_str())
            .collect()
    };
    let fraction = |names: &[&str], what: &str| {
        let head = format!("{}/{} {what}", names.len(), clusters.len());
        if names.is_empty() {
            head
        } else {
            format!("{head}: {}", join_names(names.iter().copied()))
        }
    };
    let accepted = names_with(conditions::ACCEPTED);
    let ready = names_with(conditions::READY);
    let all_stale = !clusters.is_empty()
        && clusters.iter().all(|entry| {
            conditions::find(&entry.conditions, conditions::READY)
                .is_some_and(|condition| condition.status == Status::Unknown.as_str())
        });
    let (accepted_status, accepted_reason) = if accepted.is_empty() && !clusters.is_empty() {
        (Status::False, "NoValidCluster")
    } else {
        (Status::True, "Accepted")
    };
    let (ready_status, ready_reason) = if !ready.is_empty() {
        (Status::True, "Ready")
    } else if clusters.is_empty() {
        (Status::False, "NoRemoteCluster")
    } else if all_stale {
        (Status::Unknown, "AllStale")
    } else {
        (Status::False, "NoReadyCluster")
    };
    vec![
        conditions::make(
            conditions::ACCEPTED,
            accepted_status,
            accepted_reason,
            fraction(&accepted, "accepted"),
            Some(generation),
        ),
        conditions::make(
            conditions::READY,
            ready_status,
            ready_reason,
            fraction(&ready, "ready"),
            Some(generation),
        ),
    ]
}

/// `Consistent`, for two or more entries: whether they agree with that of the oldest pool. A pool that is not known has no
/// age: it is the reference only if no pool is known.
fn consistency(clusters: &[Entry], exports: &Exports, generation: i64) -> Option<Condition> {
    if clusters.len() < 2 {
        return None;
    }
    // in the order of names
    let find = |name: &ClusterName| {
        let at = clusters.binary_search_by(|entry| entry.name.as_str().cmp(name.as_str()));
        clusters.get(at.ok()?)
    };
    let mut by_age = exports.all_by_age.iter();
    let oldest = by_age.find_map(find).or(clusters.first())?;
    let others = clusters.iter().filter(|entry| entry.name != oldest.name);
    let differing = |differs: fn(&ImportedCluster, &ImportedCluster) -> bool| -> Vec<&str> {
        others
            .clone()
            .filter(|entry| differs(oldest, entry))
            .map(|entry| entry.name.as_str())
            .collect()
    };
    let ports = differing(|a, b| {
        a.target_port_number != b.target_port_number || a.target_ports != b.target_ports
    });
    let protocols = differing(|a, b| a.app_protocol != b.app_protocol);
    let (status, reason, message) = if !ports.is_empty() {
        let names = join_names(ports.iter().copied());
        let message = format!("target ports differ from those of {}: {names}", oldest.name);
        (Status::False, "TargetPortsDiffer", message)
    } else if !protocols.is_empty() {
        let names = join_names(protocols.iter().copied());
        let message = format!("appProtocol differs from that of {}: {names}", oldest.name);
        (Status::False, "AppProtocolDiffers", message)
    } else {
        let message = "the exported pools agree".to_owned();
        (Status::True, "Consistent", message)
    };
    Some(conditions::make(
        conditions::CONSISTENT,
        status,
        reason,
        message,
        Some(generation),
    ))
}

// === impl Exports ===

impl Exports {
    /// `entries` are all entries, in the order of names; the oldest that fit by number and size are admitted. `carried` is
    /// the creation time of pools whose entries are carried over.
    pub(super) fn new(
        entries: Vec<(ClusterName, ExportedEntry)>,
        carried: BTreeMap<&ClusterName, Timestamp>,
    ) -> Self {
        debug_assert!(entries.is_sorted_by(|(a, _), (b, _)| a <= b));
        let mut by_age: Vec<_> = entries.iter().enumerate().collect();
        by_age.sort_unstable_by_key(|(_, (name, export))| (export.created, name));
        let mut bytes = 0_usize;
        let fits = by_age
            .iter()
            .take(MAX_ENTRIES)
            .take_while(|(_, (_, export))| {
                bytes = bytes.saturating_add(export.size);
                bytes <= MAX_ENTRIES_BYTES
            });
        let admitted_by_age: Vec<usize> = fits.map(|(at, _)| *at).collect();
        let mut admitted = admitted_by_age.clone();
        admitted.sort_unstable();
        let known = entries.iter().map(|(name, export)| (export.created, name));
        let carried = carried.into_iter().map(|(name, created)| (created, name));
        let mut all_by_age: Vec<(Timestamp, &ClusterName)> = known.chain(carried).collect();
        all_by_age.sort_unstable();
        let all_by_age = all_by_age
            .into_iter()
            .map(|(_, name)| name.clone())
            .collect();
        Self {
            entries,
            admitted,
            admitted_by_age,
            all_by_age,
        }
    }

    /// Whether this member exports the key, or asks for that.
    pub(super) fn asks(&self, name: &ClusterName, member: &Member, key: &Key) -> bool {
        let asks = || {
            member.pools.get(key).is_some_and(PoolRecord::is_exported)
                && member.may_export(&key.namespace) != MayExport::No
        };
        let known = self.entries.binary_search_by(|(known, _)| known.cmp(name));
        known.is_ok() || (!member.withdrawn && asks())
    }

    /// Exporters whose entries do not fit.
    pub(super) fn crowded_out(&self) -> impl Iterator<Item = &ClusterName> {
        let entries = self.entries.iter().enumerate();
        entries
            .filter(|(at, _)| self.admitted.binary_search(at).is_err())
            .map(|(_, (name, _))| name)
    }
}
