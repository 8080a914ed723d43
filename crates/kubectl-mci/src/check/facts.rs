//! What was seen. Each part that could not be read holds why.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use crate::{member::Right, status::Seen};

/// What was asked for and came, or why it did not.
pub(crate) type Read<T> = Result<T, String>;

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) now: Timestamp,
    pub(crate) home: HomeFacts,
    pub(crate) clusters: Vec<ClusterFacts>,
    /// Pools and imports of the same clusters.
    pub(crate) seen: Vec<Seen>,
}

/// The cluster of the controller.
#[derive(Clone, Debug)]
pub(crate) struct HomeFacts {
    pub(crate) context: String,
    pub(crate) namespace: String,
    pub(crate) clusterset: String,
    /// None: there is no Deployment of it.
    pub(crate) controller: Read<Option<Workload>>,
    /// When the leader renewed its Lease last; none: there is no Lease.
    pub(crate) renewed: Read<Option<Timestamp>>,
    pub(crate) members: Read<Vec<MemberFacts>>,
    /// What the controller says of its members; none: it was not asked, since none runs.
    pub(crate) view: Option<Read<View>>,
}

/// A Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) available: i32,
    pub(crate) wanted: i32,
    /// Tag of its first image; empty where it has none.
    pub(crate) version: String,
}

/// A member, by home.
#[derive(Clone, Debug)]
pub(crate) struct MemberFacts {
    pub(crate) name: String,
    pub(crate) source: String,
    /// None: its credentials are not in a Secret.
    pub(crate) credentials: Option<Read<TokenFacts>>,
}

/// What the controller would use.
#[derive(Clone, Debug)]
pub(crate) struct TokenFacts {
    pub(crate) server: String,
    /// Of a token that says so.
    pub(crate) life: Option<Life>,
    /// The uid of the cluster that it leads to.
    pub(crate) tried: Tried,
}

/// From when to when a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// A call with a member's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// They are good; with the cluster's uid, if they may see it.
    Works(Option<String>),
    Refused(String),
    /// Not from here: the controller may reach what we do not.
    Unreached(String),
}

/// `/debug/clusters`, as far as it is read here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct View {
    #[serde(default)]
    pub(crate) guard: bool,
    #[serde(default)]
    pub(crate) clusters: Vec<MemberView>,
    #[serde(default)]
    pub(crate) unused: Vec<UnusedView>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) active: ActiveView,
    #[serde(default)]
    pub(crate) detail: Option<String>,
    #[serde(default)]
    pub(crate) denied: Option<String>,
}

/// An object that should name a member and does not.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct UnusedView {
    pub(crate) source: String,
    pub(crate) active: ActiveView,
    pub(crate) detail: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ActiveView {
    pub(crate) status: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A cluster that is, or is to be, a member.
#[derive(Clone, Debug)]
pub(crate) struct ClusterFacts {
    pub(crate) name: String,
    pub(crate) context: Option<String>,
    pub(crate) inside: Read<Inside>,
}

#[derive(Clone, Debug)]
pub(crate) struct Inside {
    /// Uid of `kube-system`; none: not allowed to see it.
    pub(crate) uid: Option<String>,
    /// Major and minor version, and the whole text.
    pub(crate) version: Read<Version>,
    /// By name.
    pub(crate) definitions: Read<BTreeMap<String, Definition>>,
    /// Rights that the controller's account lacks there.
    pub(crate) denied: Read<Vec<Right>>,
    /// None: there is no GatewayClass of ours.
    pub(crate) gateway_class: Read<Option<ClassFacts>>,
    /// None: there is no Deployment of it.
    pub(crate) gateway: Read<Option<Workload>>,
    /// Services of exported pools' endpoint pickers, by namespace and name of the pool.
    pub(crate) pickers: BTreeMap<(String, String), Read<Picker>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) text: String,
}

/// A CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) established: bool,
    pub(crate) served: Vec<String>,
    /// The release that it says it is of.
    pub(crate) bundle: Option<String>,
    /// Whether its status has `clusters`: ours, for imports.
    pub(crate) has_clusters: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassFacts {
    pub(crate) name: String,
    /// None where nobody has said so.
    pub(crate) accepted: Option<bool>,
    pub(crate) message: String,
}

/// The Service of an endpoint picker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Picker {
    NotNamed,
    NoService(String),
    Service {
        name: String,
        kind: ServiceKind,
        /// Addresses that other clusters get.
        addresses: Vec<String>,
        /// Ready endpoints.
        ready: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceKind {
    Headless,
    LoadBalancer,
    /// A cluster's own virtual address.
    Virtual,
    ExternalName,
}
