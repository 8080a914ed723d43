//! The inventory object of a member, and what it has about the member.

use std::{collections::BTreeMap, fmt};

use crd::networks::Cidr;
use jiff::Timestamp;

use super::grant::{ExportNamespaces, Stated};
use crate::networks::Allowed;

/// What the inventory has about a member, besides its credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The inventory object that the name belongs to.
    pub source: Source,
    /// Copied into the member's entries.
    pub labels: BTreeMap<String, String>,
    /// The networks that the member's addresses are limited to.
    pub allowed: Allowed,
    /// Networks of the member's pods, which are copied into its entries.
    pub pod_cidrs: Stated<Vec<Cidr>>,
    /// The namespaces whose pools it may export.
    pub export_namespaces: Stated<ExportNamespaces>,
    /// Errors about values of the object that cannot be read.
    pub complaints: Vec<String>,
    /// Uid of a cluster that may replace the one that had this name before.
    pub accepted_identity: Option<String>,
    /// The inventory's own status of the cluster, only for display.
    pub hint: Option<String>,
}

/// The object that names a member. Of two sources with the same name the lesser wins: by kind, age, name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Compared first.
    pub kind: SourceKind,
    /// None: the object has no time.
    pub created: Option<Timestamp>,
    /// Empty for home and files.
    pub namespace: String,
    /// A file's name, with its extension.
    pub name: String,
    /// Empty for home and files.
    pub uid: String,
}

/// Kinds of sources, by precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKind {
    /// The home cluster itself.
    Home,
    /// A kubeconfig in the directory.
    #[default]
    File,
    /// A labelled Secret of its own in the home cluster.
    Secret,
    /// A ClusterProfile in the home cluster.
    ClusterProfile,
}

// === impl Source ===

impl Source {
    /// Whether the object is the same, or replaced the other one.
    pub(super) fn is_same_place(&self, other: &Self) -> bool {
        (self.kind, &self.namespace, &self.name) == (other.kind, &other.namespace, &other.name)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name();
        match self.kind {
            SourceKind::Home => f.write_str(kind),
            SourceKind::File => write!(f, "{kind} {}", self.name),
            SourceKind::Secret | SourceKind::ClusterProfile => {
                write!(f, "{kind} {}/{}", self.namespace, self.name)
            }
        }
    }
}

// === impl SourceKind ===

impl SourceKind {
    /// Name for people; the Kubernetes kind if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::File => "file",
            Self::Secret => "Secret",
            Self::ClusterProfile => "ClusterProfile",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
