//! Flags of the home cluster, and of leader election in it.

use std::path::PathBuf;

use process::ConfigError;

use crate::name::is_label;

/// Flags of the home cluster.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HomeArgs {
    /// Kubeconfig of the home cluster, where the controller keeps its lease and finds members. Default: the service account
    /// of the pod that it runs in, else the file that KUBECONFIG names.
    #[arg(long, env = "HOME_KUBECONFIG", value_name = "FILE")]
    home_kubeconfig: Option<PathBuf>,

    /// Namespace of the home cluster that holds the lease and the inventory. Default: that of the service account, else
    /// isthmus-system.
    #[arg(long, env = "NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,

    /// Write only while holding the Lease isthmus-mci-<clusterset> in --namespace of the home cluster, so that of several
    /// controllers one writes and the others stand by. Without it (false), run one controller per ClusterSet; it then
    /// needs no home cluster.
    #[arg(
        long,
        env = "LEADER_ELECT",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    leader_elect: bool,
}

/// How to find the home cluster, and whether leader election is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HomeSettings {
    pub(crate) kubeconfig: Option<PathBuf>,
    /// None: the default.
    pub(crate) namespace: Option<String>,
    /// Only the holder of the Lease writes.
    pub(crate) leader_elect: bool,
}

// === impl HomeArgs ===

impl HomeArgs {
    pub(super) fn validate(self) -> Result<HomeSettings, ConfigError> {
        let Self {
            home_kubeconfig,
            namespace,
            leader_elect,
        } = self;
        if let Some(name) = namespace.as_ref().filter(|name| !is_label(name)) {
            return Err(ConfigError::new(
                format!("--namespace {name}"),
                "at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
                "--namespace isthmus-system",
            ));
        }
        Ok(HomeSettings {
            kubeconfig: home_kubeconfig,
            namespace,
            leader_elect,
        })
    }
}
