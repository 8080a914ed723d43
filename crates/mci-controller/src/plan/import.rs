//! The status of one import, from its entries (spec 4.2).

use std::collections::BTreeMap;

use crd::{
    ClusterName as ExportingCluster, Condition, ControllerStatus, ImportedCluster,
    InferencePoolImportStatus,
    conditions::{self, Status},
};
use jiff::Timestamp;

use super::{Audience, PlannedImport, Policy};
use crate::name::ClusterName;

/// As many entries as the CRD admits; past it the oldest pools stay.
pub(crate) const MAX_ENTRIES: usize = 256;
/// Names in a message; the rest is counted.
const MAX_NAMES: usize = 8;

/// The import for an audience; none where it would be empty.
pub(super) fn make(
    policy: &Policy,
    audience: &Audience,
    entries: &BTreeMap<&ClusterName, ImportedCluster>,
    created: &BTreeMap<String, Timestamp>,
    carried: Vec<ImportedCluster>,
) -> Option<PlannedImport> {
    let others = entries
        .iter()
        .filter(|(name, _)| Some(**name) != audience.excluded.as_ref())
        .map(|(_, entry)| entry.clone());
    let mut clusters: Vec<ImportedCluster> = others.chain(carried).collect();
    if clusters.is_empty() {
        return None;
    }
    let age = |entry: &ImportedCluster| {
        let created = created.get(&entry.name).copied();
        (created.unwrap_or(Timestamp::MIN), entry.name.clone())
    };
    clusters.sort_by_key(age);
    clusters.truncate(MAX_ENTRIES);
    let consistent = consistency(&clusters, audience.generation);
    clusters.sort_by(|a, b| a.name.cmp(&b.name));

    let mut exporting: Vec<String> = clusters.iter().map(|entry| entry.name.clone()).collect();
    exporting.extend(audience.excluded.iter().map(ToString::to_string));
    exporting.sort();
    let shared = summary(&clusters, audience.generation);
    let mut top = shared.clone();
    top.extend(consistent);
    let status = InferencePoolImportStatus {
        observed_generation: Some(audience.generation),
        conditions: top,
        controllers: vec![ControllerStatus {
            name: policy.controller_name.clone(),
            exporting_clusters: exporting
                .into_iter()
                .map(|name| ExportingCluster { name })
                .collect(),
            parents: Vec::new(),
            conditions: shared,
        }],
        clusters,
    };
    Some(PlannedImport {
        audience: audience.clone(),
        status,
    })
}

/// Names, sorted by the caller: the first 8, then how many more.
pub(crate) fn join_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let text = names.take(MAX_NAMES).collect::<Vec<_>>().join(",");
    if more == 0 {
        text
    } else {
        format!("{text} +{more} more")
    }
}

/// `Accepted` and `Ready` of the import as a whole.
fn summary(clusters: &[ImportedCluster], generation: i64) -> Vec<Condition> {
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
    let all_stale = clusters.iter().all(|entry| {
        conditions::find(&entry.conditions, conditions::READY)
            .is_some_and(|condition| condition.status == Status::Unknown.as_str())
    });
    let (accepted_status, accepted_reason) = if accepted.is_empty() {
        (Status::False, "NoValidCluster")
    } else {
        (Status::True, "Accepted")
    };
    let (ready_status, ready_reason) = if !ready.is_empty() {
        (Status::True, "Ready")
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

/// `Consistent`, for two entries or more: whether they agree with the oldest pool, which is the first.
fn consistency(clusters: &[ImportedCluster], generation: i64) -> Option<Condition> {
    let (oldest, others) = clusters
        .split_first()
        .filter(|(_, rest)| !rest.is_empty())?;
    let differing = |differs: fn(&ImportedCluster, &ImportedCluster) -> bool| -> Vec<&str> {
        let mut names: Vec<&str> = others
            .iter()
            .filter(|entry| differs(oldest, entry))
            .map(|entry| entry.name.as_str())
            .collect();
        names.sort_unstable();
        names
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
