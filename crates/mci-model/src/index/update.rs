//! The reports of a member's tasks to the index.

use std::collections::BTreeSet;

use super::{
    facts::{
        CrdCheck, GatewayFacts, LiveImport, NamespaceFacts, PoolFacts, RouteFacts, ServiceFacts,
        SliceFacts,
    },
    flavour::ImportCrd,
    interest::Scope,
    member::{Fault, Refusal},
};
use crate::name::Key;

/// One report.
#[derive(Clone, Debug)]
pub enum Update {
    /// The server answered, and its cluster is known.
    Connected {
        /// Uid of its `kube-system` namespace.
        uid: String,
        /// The ClusterSet that it belongs to; none: not set there.
        clusterset: Option<String>,
    },
    /// The probe passed, and every kind has been listed since the connection was made.
    Live,
    /// One probe failed.
    Suspect,
    /// Contact is lost, which proves nothing about any object.
    Lost(Fault),
    /// Its credentials are not used, or its cluster is known under another name.
    Refused(Refusal),
    /// Why the newest credentials are not used, while older ones work; none: they are used.
    NewCredentials(Option<String>),
    /// All kinds that we may not read (403).
    Denied(BTreeSet<Kind>),
    /// The server does not know this kind (404 on the list).
    NotServed(Kind),
    /// The import CRD was added or changed.
    ImportCrd(ImportCrd),
    /// A complete list of pools, and the CRD after it.
    PoolsListed {
        /// Those that could be read.
        pools: Vec<PoolFacts>,
        /// Pools on the list that could not be read.
        odd: BTreeSet<Key>,
        /// Read after the list: a list proves absence only while the CRD exists.
        crd: CrdCheck,
    },
    /// A pool was added or modified.
    PoolApplied(PoolFacts),
    /// A pool that could not be read: it exists, so what is known of it stays.
    PoolOdd(Key),
    /// A watch sent DELETED for a pool.
    PoolDeleted {
        /// The deleted pool.
        key: Key,
        /// Read after the event: a CRD that is deleted sends DELETED for all its objects first.
        crd: CrdCheck,
    },
    /// A list or an event of Services.
    Services(Change<ServiceFacts>),
    /// An event of EndpointSlices, or a list of all of them.
    Slices(Change<SliceFacts>),
    /// A complete list of the EndpointSlices in a scope; the changes that follow are of the same.
    SlicesListed {
        /// All slices in `scope`.
        slices: Vec<SliceFacts>,
        /// The Services whose slices are known from now on.
        scope: Scope,
    },
    /// A list or an event of namespaces.
    Namespaces(Change<NamespaceFacts>),
    /// A list or an event of imports.
    Imports(Change<LiveImport>),
    /// A list or an event of Gateways.
    Gateways(Change<GatewayFacts>),
    /// A list or an event of HTTPRoutes.
    Routes(Change<RouteFacts>),
    /// The server does not know this kind (404 on the list), or denies it to us.
    ParentsHidden(ParentKind),
    /// Gateways and HTTPRoutes are not watched any more.
    ParentsUnwatched,
    /// A list of the kind was aborted: it takes more memory than one member may.
    OverLimit(AnyKind),
}

/// A list or an event of one kind.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// A complete list: what is not in it is gone.
    Listed(Vec<T>),
    /// An object was added or modified: its newest state.
    Applied(T),
    /// For a Namespace, only the name counts.
    Deleted(Key),
}

/// The kinds that a member must list before it is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The `InferencePool`s.
    Pools,
    /// Core Services.
    Services,
    /// EndpointSlices, of a scope that follows from the exported pools.
    Slices,
    /// Namespaces.
    Namespaces,
    /// The `InferencePoolImport`s.
    Imports,
}

/// Any kind that is watched in a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnyKind {
    /// One that every member must list.
    Kind(Kind),
    /// One that ParentMode alone needs.
    Parent(ParentKind),
}

/// The kinds that are watched only while a member exports in ParentMode; without them it is no less live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParentKind {
    /// Gateways of Gateway API.
    Gateways,
    /// HTTPRoutes of Gateway API.
    Routes,
}

// === impl Update ===

impl Update {
    /// Whether it may change the member's pools.
    pub fn concerns_pools(&self) -> bool {
        matches!(
            self,
            Self::PoolsListed { .. }
                | Self::PoolApplied(_)
                | Self::PoolDeleted { .. }
                | Self::NotServed(Kind::Pools)
                | Self::OverLimit(AnyKind::Kind(Kind::Pools))
        )
    }
}

// === impl AnyKind ===

impl AnyKind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let parents = [ParentKind::Gateways, ParentKind::Routes];
        let kinds = Kind::ALL.into_iter().map(Self::Kind);
        kinds.chain(parents.into_iter().map(Self::Parent))
    }

    /// As in URLs and RBAC rules.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.plural(),
            Self::Parent(kind) => kind.plural(),
        }
    }
}

impl From<Kind> for AnyKind {
    fn from(kind: Kind) -> Self {
        Self::Kind(kind)
    }
}

impl From<ParentKind> for AnyKind {
    fn from(kind: ParentKind) -> Self {
        Self::Parent(kind)
    }
}

// === impl ParentKind ===

impl ParentKind {
    /// As in URLs and RBAC rules.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Gateways => "gateways",
            Self::Routes => "httproutes",
        }
    }
}

// === impl Kind ===

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pools,
        Self::Services,
        Self::Slices,
        Self::Namespaces,
        Self::Imports,
    ];

    /// As in URLs and RBAC rules.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Pools => "inferencepools",
            Self::Services => "services",
            Self::Slices => "endpointslices",
            Self::Namespaces => "namespaces",
            Self::Imports => "inferencepoolimports",
        }
    }
}
