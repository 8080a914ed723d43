//! What was seen. Each part that could not be read holds why.

use std::{collections::BTreeMap, net::IpAddr};

use crd::annotations::MCI_CONTROLLER;
use jiff::Timestamp;
use mci_inventory::client::CertificateProblem;

use crate::{
    controller::View,
    export::exported_condition,
    known::Granted,
    member::{Right, Subject},
    membership::Place,
    status::Seen,
};

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

// === impl Facts ===

impl Facts {
    /// The `kubectl mci join` command that creates or renews a membership.
    pub(super) fn join(&self, name: &str) -> String {
        let member = self.home.members.iter().find(|one| one.name == name);
        let join = self.join_command(name);
        match member.and_then(|one| one.held.as_ref()) {
            Some(held) => format!(
                "{}, or make it a member by join: {}; then {join}{}",
                held.renewal,
                held.removal,
                held.granted.flags()
            ),
            None => join,
        }
    }

    fn join_command(&self, name: &str) -> String {
        let cluster = self.clusters.iter().find(|one| one.name == name);
        let context = cluster.and_then(|one| one.context.as_deref());
        format!(
            "kubectl mci join {name} --context {} {}",
            context.unwrap_or("CONTEXT"),
            self.home.flags()
        )
    }

    /// Whether `kubectl mci join` would refuse the name, since another object than its Secret holds it.
    pub(super) fn is_held(&self, name: &str) -> bool {
        let mut members = self.home.members.iter();
        members.any(|one| one.name == name && one.held.is_some())
    }

    /// Whether a controller writes pools or imports here, and nothing at home is one's: home is probably another cluster, and
    /// a member made here would be that of a second home.
    pub(super) fn is_home_elsewhere(&self) -> bool {
        let home = &self.home;
        let is_nobodys = matches!(home.controller, Ok(None))
            && matches!(home.renewed, Ok(None))
            && home.members.is_empty();
        let seen = self.seen.iter().filter_map(|one| one.facts.as_ref().ok());
        is_nobodys
            && seen.into_iter().any(|facts| {
                let mut pools = facts.pools.iter().flatten();
                let mut imports = facts.imports.iter().flatten();
                pools.any(|pool| exported_condition(pool).is_some())
                    || imports.any(|import| import.controller(MCI_CONTROLLER).is_some())
            })
    }
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
    pub(crate) members: Vec<MemberFacts>,
    /// Why members of some source may be missing.
    pub(crate) unseen: Vec<String>,
    /// What the controller says of its members; none: it was not asked, since no pod of it is ready here.
    pub(crate) view: Option<Read<View>>,
}

// === impl HomeFacts ===

impl HomeFacts {
    /// The flags that select this cluster.
    pub(super) fn flags(&self) -> String {
        let place = Place {
            context: &self.context,
            namespace: &self.namespace,
            clusterset: &self.clusterset,
        };
        place.flags()
    }
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
    /// The other object that holds the name; none where `kubectl mci join` renews the membership.
    pub(crate) held: Option<Held>,
    pub(crate) credentials: CredentialFacts,
    /// Annotations of its object that have no effect.
    pub(crate) ignored: Vec<String>,
}

/// A name that another object than the Secret of `kubectl mci join` holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// How its credentials are renewed at their source.
    pub(crate) renewal: String,
    /// How the name is released at its source.
    pub(crate) removal: String,
    /// The rights that are recorded there, and go with it.
    pub(crate) granted: Granted,
}

/// How the controller comes into a member.
#[derive(Clone, Debug)]
pub(crate) enum CredentialFacts {
    /// It is the home cluster, which the controller reaches without.
    OfHome,
    /// In a Secret.
    InSecret(Read<TokenFacts>),
    /// Elsewhere: they were not looked at.
    Elsewhere,
}

/// What the controller would use.
#[derive(Clone, Debug)]
pub(crate) struct TokenFacts {
    pub(crate) server: String,
    /// Of a token that says so.
    pub(crate) life: Option<Life>,
    /// The uid of the cluster that it leads to.
    pub(crate) tried: Tried,
    /// Whose it is; none: that is not known.
    pub(crate) subject: Option<Subject>,
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
    /// The server answers with a certificate that is rejected, for any client.
    BadCertificate(CertificateProblem, String),
    /// Not from here: the controller may reach what we do not.
    Unreached(String),
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
    /// Rights that the controller lacks there; none: it is not known by which account it comes, or the cluster is no member.
    pub(crate) denied: Option<Read<Denied>>,
    /// None: there is no GatewayClass of ours.
    pub(crate) gateway_class: Read<Option<ClassFacts>>,
    /// None: there is no Deployment of it.
    pub(crate) gateway: Read<Option<Workload>>,
    /// Services of exported pools' endpoint pickers, by namespace and name of the pool.
    pub(crate) pickers: BTreeMap<(String, String), Read<Picker>>,
    /// Addresses of the ready pods of the same pools, limited to some where there are many.
    pub(crate) pods: BTreeMap<(String, String), Read<Vec<IpAddr>>>,
}

/// Rights that an account lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) subject: Subject,
    pub(crate) rights: Vec<Right>,
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
    /// Whether its entries have the networks of their pods; those of an earlier release have none.
    pub(crate) has_networks: bool,
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
        /// Annotations of it, or about it, that have no effect.
        ignored: Vec<String>,
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
