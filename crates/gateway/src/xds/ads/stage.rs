//! The order of a stream: each resource has a stage, by its type and name, and a stage waits for those that it leads to.
//!
//! Waiting has an end. Nothing is sent before what it leads to is sent, and no acknowledgement is waited for longer than
//! [`super::ACK_LIMIT`]. What is waited for is known from the start ([`super::goal`]): new clusters and hops that come later are
//! waited for by what leads to them, later. Other versions of a cluster, and other hosts, hold back nothing: an Envoy serves on
//! with what it has of a cluster until it can use the new version.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::xds::{Kind, Resource};

/// What is to be sent, by stage; none where there is nothing.
pub(super) type Due = BTreeMap<Stage, BTreeMap<String, Option<Arc<Resource>>>>;

/// What the names of clusters begin with whose hosts are hops.
const HOPPED: [&str; 2] = ["import/", "hopped/"];

/// In the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Cluster,
    /// The hosts of a cluster; also the first ones of a cluster that leads to hops, which Envoy waits for.
    Assignment,
    /// A certificate.
    Secret,
    /// The internal listener of a hop.
    HopListener,
    EdgeListener,
    /// The routes of a hop; also the first ones of an edge, which waits for them.
    Table,
    /// Other hops than before, for a cluster that leads to hops.
    HopAssignment,
    /// Other routes than before, for an edge.
    EdgeTable,
}

/// What later stages wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// New clusters with their first assignments: listeners and tables lead to them.
    Backends,
    /// Hops with their tables: assignments lead to them.
    Hops,
    /// Assignments of hops: tables of edges lead to their clusters.
    HopAssignments,
}

impl Gate {
    pub(super) const ALL: [Self; 3] = [Self::Backends, Self::Hops, Self::HopAssignments];
}

impl Stage {
    pub(super) const ALL: [Self; 8] = [
        Self::Cluster,
        Self::Assignment,
        Self::Secret,
        Self::HopListener,
        Self::EdgeListener,
        Self::Table,
        Self::HopAssignment,
        Self::EdgeTable,
    ];

    /// That of a resource, which is an update where Envoy has one of its name.
    pub(super) fn of(kind: Kind, name: &str, is_update: bool) -> Self {
        match kind {
            Kind::Cluster => Self::Cluster,
            Kind::Endpoints if is_update && leads_to_hops(name) => Self::HopAssignment,
            Kind::Endpoints => Self::Assignment,
            Kind::Secret => Self::Secret,
            Kind::Listener if is_edge(name) => Self::EdgeListener,
            Kind::Listener => Self::HopListener,
            Kind::Routes if is_update && is_edge(name) => Self::EdgeTable,
            Kind::Routes => Self::Table,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Cluster => Kind::Cluster,
            Self::Assignment | Self::HopAssignment => Kind::Endpoints,
            Self::Secret => Kind::Secret,
            Self::HopListener | Self::EdgeListener => Kind::Listener,
            Self::Table | Self::EdgeTable => Kind::Routes,
        }
    }

    /// No later stage is of its type.
    pub(super) fn is_last(self) -> bool {
        let mut later = Self::ALL.into_iter().filter(|one| *one > self);
        !later.any(|one| one.kind() == self.kind())
    }

    /// What is open before it is sent.
    pub(super) fn waits_for(self) -> &'static [Gate] {
        match self {
            Self::Cluster | Self::Assignment | Self::Secret => &[],
            Self::HopListener | Self::EdgeListener | Self::Table => &[Gate::Backends],
            Self::HopAssignment => &[Gate::Hops],
            Self::EdgeTable => &[Gate::Backends, Gate::Hops, Gate::HopAssignments],
        }
    }
}

/// Listeners that clients reach, and their tables.
pub(super) fn is_edge(name: &str) -> bool {
    name.starts_with("edge/")
}

/// Clusters whose hosts are hops.
pub(super) fn leads_to_hops(name: &str) -> bool {
    HOPPED.iter().any(|kind| name.starts_with(kind))
}

/// What the names of all hops of this cluster begin with; none for a cluster whose hosts are not hops.
pub(super) fn hops_of(cluster: &str) -> Option<String> {
    let mut rest = HOPPED.iter().filter_map(|kind| cluster.strip_prefix(kind));
    rest.next().map(|rest| format!("hop/{rest}/"))
}
