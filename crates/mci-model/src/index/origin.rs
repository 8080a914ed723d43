//! Where a member comes from, and what its inventory object says of it.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;

use crate::networks::Allowed;

/// What the inventory says of a member, besides how to reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The inventory object that won the name.
    pub source: Source,
    /// Go into the member's entries.
    pub labels: BTreeMap<String, String>,
    /// What the member's addresses are narrowed to.
    pub allowed: Allowed,
    /// Uid of a cluster that may take this member's name over from the one that had it.
    pub accepted_identity: Option<String>,
    /// What else whoever keeps the object says of the cluster, for people: nothing follows from it.
    pub hint: Option<String>,
}

/// The object that names a member. The order is that in which sources win: by kind, age, name.
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

/// Kinds of sources, the one that wins first.
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
    /// As people read it; a Kubernetes kind where it is one.
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
