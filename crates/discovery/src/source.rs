//! Which of the sources the flags of a program name.

use std::path::{Path, PathBuf};

use kube::Client;
use process::ConfigError;

use crate::{
    file::FileDiscovery, optional::ObjectDiscovery, pool::PoolDiscovery, ports::TargetPorts,
    selector::LabelSelector, standalone::SelectorDiscovery, update::Discovery,
};

/// Where the members come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An InferencePool of this namespace.
    Pool {
        /// Of the pool and its pods.
        namespace: String,
        /// Of the pool.
        name: String,
    },
    /// The pods of this namespace that match.
    Selector {
        /// Of the pods.
        namespace: String,
        /// Which pods.
        selector: LabelSelector,
        /// Where they serve.
        ports: TargetPorts,
    },
    /// A file; no Kubernetes.
    File {
        /// The file.
        path: PathBuf,
        /// It is read again when it changes.
        watch: bool,
    },
}

/// The flags that name a source, which are the same in each program that has one.
#[derive(Clone, Copy, Debug)]
pub struct SourceFlags<'a> {
    /// `--pool-name`.
    pub pool_name: Option<&'a str>,
    /// `--endpoint-selector`.
    pub endpoint_selector: Option<&'a LabelSelector>,
    /// `--endpoint-target-ports`.
    pub endpoint_target_ports: Option<&'a TargetPorts>,
    /// `--endpoints-file`.
    pub endpoints_file: Option<&'a Path>,
    /// Of the pool and its pods.
    pub namespace: &'a str,
}

/// A source that can be followed.
pub struct Opened {
    /// The members.
    pub members: Box<dyn Discovery>,
    /// Objects that name the pool; absent: there is none to name.
    pub objects: Option<ObjectDiscovery>,
}

// === impl SourceFlags ===

impl SourceFlags<'_> {
    /// # Errors
    /// For ports that nothing uses.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.endpoint_selector.is_none() && self.endpoint_target_ports.is_some() {
            return Err(ConfigError::new(
                "--endpoint-target-ports without --endpoint-selector",
                "both or none: an InferencePool and a file have ports of their own",
                "--endpoint-selector app=llama --endpoint-target-ports 8000",
            ));
        }
        Ok(())
    }
}

// === impl Source ===

impl Source {
    /// The one source that is named.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn of(flags: SourceFlags<'_>) -> Result<Self, ConfigError> {
        flags.check()?;
        let SourceFlags {
            pool_name,
            endpoint_selector,
            endpoint_target_ports,
            endpoints_file,
            namespace,
        } = flags;
        let namespace = namespace.to_owned();
        match (endpoints_file, endpoint_selector, pool_name) {
            // the pool's name is that of the metrics
            (Some(path), None, _) => Ok(Self::File {
                path: path.to_owned(),
                watch: true,
            }),
            (Some(_), Some(_), _) => Err(Self::one_of("--endpoints-file and --endpoint-selector")),
            (None, Some(_), Some(_)) => Err(Self::one_of("--pool-name and --endpoint-selector")),
            (None, Some(selector), None) => {
                let ports = endpoint_target_ports.cloned().ok_or_else(|| {
                    ConfigError::new(
                        "--endpoint-selector without --endpoint-target-ports",
                        "the 1 to 8 ports on which each of the pods serves",
                        "--endpoint-selector app=llama --endpoint-target-ports 8000",
                    )
                })?;
                Ok(Self::Selector {
                    namespace,
                    selector: selector.clone(),
                    ports,
                })
            }
            (None, None, Some(name)) => Ok(Self::Pool {
                namespace,
                name: name.to_owned(),
            }),
            (None, None, None) => Err(Self::one_of("no source of endpoints")),
        }
    }

    /// The error for flags that name none or several.
    pub fn one_of(value: &str) -> ConfigError {
        ConfigError::new(
            value,
            "exactly one of --pool-name, --endpoint-selector and --endpoints-file",
            "--pool-name llama",
        )
    }

    /// Opens it. `connect` makes the client of the API server, for those that need one.
    ///
    /// # Errors
    /// What `connect` returns, and a [`ConfigError`] for a file that cannot be used.
    pub async fn open<E: From<ConfigError>>(
        self,
        connect: impl AsyncFnOnce() -> Result<Client, E>,
    ) -> Result<Opened, E> {
        let mut objects = None;
        let members: Box<dyn Discovery> = match self {
            Self::Pool { namespace, name } => {
                let client = connect().await?;
                objects = Some(ObjectDiscovery {
                    client: client.clone(),
                    namespace: namespace.clone(),
                    pool: name.clone(),
                });
                Box::new(PoolDiscovery {
                    client,
                    namespace,
                    name,
                })
            }
            Self::Selector {
                namespace,
                selector,
                ports,
            } => Box::new(SelectorDiscovery {
                client: connect().await?,
                namespace,
                selector,
                ports,
            }),
            Self::File { path, watch } => {
                let file = FileDiscovery::new(&path, watch).map_err(|error| {
                    ConfigError::new(
                        format!("the file of endpoints {}: {error}", path.display()),
                        "YAML or JSON of at most 1 MiB with a list of endpoints",
                        "{endpoints: [{name: a, address: 10.0.0.1, port: 8000}]}",
                    )
                })?;
                Box::new(file)
            }
        };
        Ok(Opened { members, objects })
    }
}
