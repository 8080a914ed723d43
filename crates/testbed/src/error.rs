//! Why a testbed could not be started or used.

use std::path::PathBuf;
use std::time::Duration;

use crate::apply::ApplyError;
use crate::eventually::NotInTime;
use crate::netns::NetworkError;
use crate::tools::MissingTools;

/// Why a testbed could not be started or used; each text says what to look at.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// A binary is missing.
    #[error(transparent)]
    Tools(#[from] MissingTools),
    /// There is no Redis.
    #[error(transparent)]
    Redis(#[from] redis_server::MissingRedis),
    /// A network could not be made or changed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The builder was given something it cannot use.
    #[error("cluster {name:?}: {problem}")]
    Cluster {
        /// The cluster's name.
        name: String,
        /// What is wrong with it, and what was expected.
        problem: &'static str,
    },
    /// A file or directory could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// Certificates could not be made.
    #[error("certificates of cluster {cluster}: {source}")]
    Certificates {
        /// The cluster.
        cluster: String,
        /// What the library answered.
        source: rcgen::Error,
    },
    /// A process could not be started.
    #[error("cannot start {name} ({program}): {source}")]
    Start {
        /// The process.
        name: String,
        /// Its executable.
        program: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A process of the control plane ended by itself.
    #[error("{name} ended with {status}; log: {log}\n{tail}")]
    Ended {
        /// The process.
        name: String,
        /// Exit code or signal.
        status: String,
        /// Where its log is.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// Something was not ready in time.
    #[error("{what}: not ready after {limit:?}: {last}; log: {log}\n{tail}")]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What was seen last.
        last: String,
        /// The log that may say why.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// A kubeconfig could not be used.
    #[error("kubeconfig of cluster {cluster}: {problem}")]
    Kubeconfig {
        /// The cluster.
        cluster: String,
        /// What is wrong.
        problem: String,
    },
    /// The manifests of the foreign CRDs could not be found.
    #[error("CRD manifests: {0}; run `cargo xtask tools`")]
    Manifests(String),
    /// Objects could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// One of our programs is not built.
    #[error("{0}: not built; `cargo xtask` builds it before it starts a testbed")]
    Program(PathBuf),
    /// A file of `config/standalone` is not as it was expected.
    #[error("config/standalone: {0}")]
    Sample(String),
    /// Something did not come about in time.
    #[error(transparent)]
    NotInTime(#[from] NotInTime),
    /// A request to an API server failed or had no answer in time.
    #[error("cluster {cluster}: {what}: {problem}")]
    Request {
        /// The cluster.
        cluster: String,
        /// What was asked.
        what: String,
        /// What was answered.
        problem: String,
    },
    /// kubectl ended with an error.
    #[error("kubectl {arguments} (cluster {cluster}): {problem}")]
    Kubectl {
        /// The cluster.
        cluster: String,
        /// Its arguments.
        arguments: String,
        /// Its standard error, or why it did not run.
        problem: String,
    },
    /// There is no such cluster in this testbed.
    #[error("no cluster {0:?} in this testbed")]
    NoSuchCluster(String),
    /// There is no such pod running on the cluster's node.
    #[error("no pod {name} in namespace {namespace} on the node of cluster {cluster}")]
    NoSuchPod {
        /// The cluster.
        cluster: String,
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
}

// === impl TestbedError ===

impl TestbedError {
    /// Stable and short.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Tools(_) | Self::Redis(_) => "ToolsMissing",
            Self::Network(_) => "NetworkFailed",
            Self::Cluster { .. } => "InvalidCluster",
            Self::File { .. } => "FileFailed",
            Self::Certificates { .. } => "CertificatesFailed",
            Self::Start { .. } => "StartFailed",
            Self::Ended { .. } => "ProcessEnded",
            Self::NotReady { .. } => "NotReady",
            Self::Kubeconfig { .. } => "InvalidKubeconfig",
            Self::Manifests(_) => "ManifestsMissing",
            Self::Apply(error) => error.reason(),
            Self::Program(_) => "ProgramMissing",
            Self::Sample(_) => "InvalidSample",
            Self::NotInTime(_) => "NotInTime",
            Self::Request { .. } => "RequestFailed",
            Self::Kubectl { .. } => "KubectlFailed",
            Self::NoSuchCluster(_) => "NoSuchCluster",
            Self::NoSuchPod { .. } => "NoSuchPod",
        }
    }
}
