//! One exporter's pool as an entry of its imports (spec 4.1).

use crd::{
    Condition, EndpointPicker, ImportedCluster, Parent, RoutingMode, TargetPort,
    conditions::{self, Status},
    networks::Cidr,
};

use self::shed::shed;
use super::{Policy, address::Rejection, parent};
use crate::export::{ExportRequest, SecretSelector};
use crate::{
    index::{
        facts::PoolFacts,
        member::{Member, PoolRecord, Reach},
    },
    name::ClusterName,
};

mod picker;
mod pods;
mod shed;

pub(super) use self::shed::services_of;

/// An entry, and what was left out of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Derived {
    pub entry: ImportedCluster,
    pub rejected: Vec<Rejection>,
    /// Annotations that name a port which the EPP's Service lacks; each is treated as absent.
    pub ignored: Vec<&'static str>,
    /// Bytes of JSON.
    pub size: usize,
}

/// The resolved EPP reference, or in ParentMode the parents.
struct Resolution {
    mode: RoutingMode,
    /// EndpointMode only.
    picker: Option<EndpointPicker>,
    /// ParentMode only.
    parents: Vec<Parent>,
    /// Blocks `Accepted`: reason and message.
    refused: Option<(&'static str, String)>,
    /// Blocks `ResolvedRefs`.
    unresolved: Option<(&'static str, String)>,
    /// Blocks `Ready`.
    unready: Option<(&'static str, String)>,
    rejected: Vec<Rejection>,
    /// See [`Derived::ignored`].
    ignored: Vec<&'static str>,
    truncated: bool,
    /// Endpoints of a headless Service that are left out, for they listen on other ports than the others.
    other_ports: usize,
}

/// Derives the entry of a pool that is exported from `exporter`.
pub(super) fn derive_entry(
    policy: &Policy,
    exporter: &ClusterName,
    member: &Member,
    record: &PoolRecord,
    request: &ExportRequest,
    reach: Reach,
) -> Derived {
    let pool = &record.facts;
    let mode = request.mode.unwrap_or(member.default_mode);
    let mut resolution = match mode {
        RoutingMode::EndpointMode => picker::resolve(policy, member, pool, request),
        RoutingMode::ParentMode => Resolution::of_parents(parent::publish(member, pool)),
    };
    // parents have no health or metrics port
    let cross_namespace = mode == RoutingMode::EndpointMode
        && [&request.health, &request.metrics]
            .iter()
            .any(|port| port.secret == Some(SecretSelector::CrossNamespace));
    let target_ports: Vec<TargetPort> = pool
        .target_ports
        .iter()
        .take(8)
        .map(|&number| TargetPort { number })
        .collect();
    let mut entry = ImportedCluster {
        name: exporter.to_string(),
        routing_mode: mode,
        target_port_number: pool.target_ports.first().copied().unwrap_or_default(),
        target_ports,
        app_protocol: pool.app_protocol.clone(),
        labels: member.origin.labels.clone(),
        drain_until: None,
        pod_cidrs: pod_cidrs(member.origin.pod_cidrs.known()),
        endpoint_picker: resolution.picker.take(),
        parents: std::mem::take(&mut resolution.parents),
        conditions: Vec::new(),
    };
    entry.conditions = resolution.conditions(pool, cross_namespace);
    set_reach(&mut entry, reach, record.is_crd_missing());
    let (cut, size) = shed(&mut entry);
    if cut && !resolution.truncated {
        resolution.truncated = true;
        entry.conditions = resolution.conditions(pool, cross_namespace);
        set_reach(&mut entry, reach, record.is_crd_missing());
    }
    Derived {
        entry,
        rejected: resolution.rejected,
        ignored: resolution.ignored,
        size,
    }
}

/// The networks of a member's pods for its entries; empty where its inventory object states none.
pub(super) fn pod_cidrs(known: Option<&Vec<Cidr>>) -> Vec<String> {
    known
        .into_iter()
        .flatten()
        .map(ToString::to_string)
        .collect()
}

/// Sets the conditions that show the contact to the exporter: `Reachable`, and `Ready=Unknown` once it is stale. A pool
/// whose CRD vanished keeps its readiness.
pub(super) fn set_reach(entry: &mut ImportedCluster, reach: Reach, crd_missing: bool) {
    let generation = entry
        .conditions
        .first()
        .and_then(|condition| condition.observed_generation);
    let (status, reason, message) = match reach {
        Reach::Reachable if crd_missing => (
            Status::False,
            "CRDMissing",
            "the InferencePool CRD of the exporting cluster is missing or new: this is the last known state",
        ),
        Reach::Reachable => (
            Status::True,
            "Reachable",
            "in contact with the exporting cluster",
        ),
        Reach::Lost(fault) | Reach::Stale(fault) => {
            (Status::False, fault.reason(), fault.message())
        }
    };
    put(
        &mut entry.conditions,
        conditions::make(conditions::REACHABLE, status, reason, message, generation),
    );
    if let Reach::Stale(_) = reach {
        let message =
            "no contact with the exporting cluster for so long that its readiness is unknown";
        put(
            &mut entry.conditions,
            conditions::make(
                conditions::READY,
                Status::Unknown,
                "Stale",
                message,
                generation,
            ),
        );
    }
}

/// Replaces the condition of the same type, or adds it.
pub(super) fn put(conditions: &mut Vec<Condition>, wanted: Condition) {
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == wanted.type_)
    {
        Some(condition) => *condition = wanted,
        None => conditions.push(wanted),
    }
}

// === impl Resolution ===

impl Resolution {
    /// No EPP, no parents, no problem.
    fn empty(mode: RoutingMode) -> Self {
        Self {
            mode,
            picker: None,
            parents: Vec::new(),
            refused: None,
            unresolved: None,
            unready: None,
            rejected: Vec::new(),
            ignored: Vec::new(),
            truncated: false,
            other_ports: 0,
        }
    }

    /// For ParentMode, which refers to no EPP.
    fn of_parents(published: parent::Published) -> Self {
        let parent::Published {
            parents,
            refused,
            unready,
            rejected,
            truncated,
        } = published;
        Self {
            parents,
            refused,
            unready,
            rejected,
            truncated,
            ..Self::empty(RoutingMode::ParentMode)
        }
    }

    /// `Accepted`, `ResolvedRefs` and `Ready`, in this order.
    fn conditions(&self, pool: &PoolFacts, cross_namespace: bool) -> Vec<Condition> {
        let generation = Some(pool.generation);
        let other_ports = format!(
            "the exported pool is valid; endpoints of its headless endpoint picker that are left out, \
             for an entry has one number of each port and most listen on others: {}",
            self.other_ports
        );
        let accepted = match (&self.refused, self.truncated, self.other_ports) {
            (Some((reason, message)), _, _) => (Status::False, *reason, message.as_str()),
            (None, true, _) => (
                Status::True,
                "Truncated",
                "the entry was too large: some of it is left out",
            ),
            (None, false, 0) => (Status::True, "Accepted", "the exported pool is valid"),
            (None, false, _) => (Status::True, "Accepted", other_ports.as_str()),
        };
        let resolved = match (&self.unresolved, cross_namespace) {
            (Some((reason, message)), _) => (Status::False, *reason, message.as_str()),
            (None, true) => (
                Status::False,
                "RefNotPermitted",
                "a Secret of another namespace is not passed on",
            ),
            (None, false) => (
                Status::True,
                "ResolvedRefs",
                match self.mode {
                    RoutingMode::EndpointMode => "the endpoint picker's Service exists",
                    RoutingMode::ParentMode => "ParentMode refers to no endpoint picker",
                },
            ),
        };
        let blocking = self
            .refused
            .as_ref()
            .or(self.unresolved.as_ref())
            .or(self.unready.as_ref());
        let ready = match blocking {
            Some((reason, message)) => (Status::False, *reason, message.as_str()),
            None => (
                Status::True,
                "Ready",
                match self.mode {
                    RoutingMode::EndpointMode => {
                        "the endpoint picker has an address and a ready endpoint"
                    }
                    RoutingMode::ParentMode => "a Gateway is programmed and has an address",
                },
            ),
        };
        [
            (conditions::ACCEPTED, accepted),
            (conditions::RESOLVED_REFS, resolved),
            (conditions::READY, ready),
        ]
        .into_iter()
        .map(|(type_, (status, reason, message))| {
            conditions::make(type_, status, reason, message, generation)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
