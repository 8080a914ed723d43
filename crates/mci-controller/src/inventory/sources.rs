//! Where members come from, as the operator sets it.

use std::path::PathBuf;

use super::{provider::ProviderFile, reading::Reading};
use crate::{index::origin::SourceKind, name::ClusterName};

/// Where members come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Home is a member under this name.
    pub(crate) self_name: Option<ClusterName>,
    pub(crate) kubeconfig_dir: Option<PathBuf>,
    /// Labelled Secrets in home's namespace.
    pub(crate) secrets: bool,
    pub(crate) profiles: Option<ProfileSource>,
    pub(crate) reading: Reading,
}

/// ClusterProfiles, and what may be run for them.
#[derive(Clone, Debug)]
pub(crate) struct ProfileSource {
    pub(crate) namespace: String,
    pub(crate) providers: ProviderFile,
    /// Profiles may add arguments and variables, where the provider file says how.
    pub(crate) allow_extensions: bool,
}

// === impl Sources ===

impl Sources {
    /// The kinds that are read, in the order in which they win a name. Without a home cluster no Secrets are.
    pub(crate) fn kinds(&self, home: bool) -> Vec<SourceKind> {
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
