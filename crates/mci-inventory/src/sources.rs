//! Where members come from, as the operator sets it.

use std::path::PathBuf;

use crate::{provider::ProviderFile, reading::Reading, statements::Statements};
use mci_model::{index::origin::SourceKind, name::ClusterName};

/// Where members come from. The default is nowhere.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Home is a member under this name.
    pub self_name: Option<ClusterName>,
    /// The rights of the home cluster as a member.
    pub self_statements: Statements,
    /// Directory of kubeconfig files, one per member; none: no files.
    pub kubeconfig_dir: Option<PathBuf>,
    /// Labelled Secrets in home's namespace.
    pub secrets: bool,
    /// None: no ClusterProfiles are read.
    pub profiles: Option<ProfileSource>,
    /// How the objects of all sources are read.
    pub reading: Reading,
}

/// ClusterProfiles, and what may be run for them.
#[derive(Clone, Debug)]
pub struct ProfileSource {
    /// Namespace of home that holds the profiles.
    pub namespace: String,
    /// The programs that may be run.
    pub providers: ProviderFile,
    /// Profiles may add arguments and variables, where the provider file has a policy for it.
    pub allow_extensions: bool,
}

// === impl Sources ===

impl Sources {
    /// The kinds that are read, in the order in which they win a name. `home`: there is a home cluster, without which no
    /// Secrets are read.
    pub fn kinds(&self, home: bool) -> Vec<SourceKind> {
        [
            (SourceKind::Home, self.self_name.is_some()),
            (SourceKind::File, self.kubeconfig_dir.is_some()),
            (SourceKind::Secret, self.secrets && home),
            (SourceKind::ClusterProfile, self.profiles.is_some()),
        ]
        .into_iter()
        .filter_map(|(kind, used)| used.then_some(kind))
        .collect()
    }
}
