//! Which of the sources the flags name.

use std::path::PathBuf;

use discovery::{
    Discovery, FileDiscovery, LabelSelector, ObjectDiscovery, PoolDiscovery, SelectorDiscovery,
    TargetPorts,
};
use kube::Client;
use process::ConfigError;

use crate::{args::PoolArgs, config::FileDiscovery as ConfiguredFile};

/// Where the members come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
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

/// A source that can be followed.
pub(crate) struct Opened {
    /// The members.
    pub(crate) members: Box<dyn Discovery>,
    /// Objects that name the pool; absent: there is none to name.
    pub(crate) objects: Option<ObjectDiscovery>,
}

// === impl Source ===

impl Source {
    /// The one source that is named, by flags or as the configuration's `file-discovery`.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub(crate) fn of(args: &PoolArgs, file: Option<&ConfiguredFile>) -> Result<Self, ConfigError> {
        let PoolArgs {
            pool_name,
            endpoint_selector,
            endpoint_target_ports,
            endpoints_file,
            ..
        } = args;
        let namespace = args.namespace().to_owned();
        let one_of = |value: &str| {
            ConfigError::new(
                value,
                "exactly one of --pool-name, --endpoint-selector and --endpoints-file",
                "--pool-name llama",
            )
        };
        if endpoint_selector.is_none() && endpoint_target_ports.is_some() {
            return Err(ConfigError::new(
                "--endpoint-target-ports without --endpoint-selector",
                "both or none: an InferencePool and a file have ports of their own",
                "--endpoint-selector app=llama --endpoint-target-ports 8000",
            ));
        }
        if let Some(file) = file {
            if endpoints_file.is_some() || endpoint_selector.is_some() {
                return Err(one_of(
                    "file-discovery of the configuration beside another source",
                ));
            }
            // the pool's name is that of the metrics
            return Ok(Self::File {
                path: file.path.clone(),
                watch: file.watch,
            });
        }
        match (endpoints_file, endpoint_selector, pool_name) {
            // the pool's name is that of the metrics
            (Some(path), None, _) => Ok(Self::File {
                path: path.clone(),
                watch: true,
            }),
            (Some(_), Some(_), _) => Err(one_of("--endpoints-file and --endpoint-selector")),
            (None, Some(_), Some(_)) => Err(one_of("--pool-name and --endpoint-selector")),
            (None, Some(selector), None) => {
                let ports = endpoint_target_ports.clone().ok_or_else(|| {
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
                name: name.clone(),
            }),
            (None, None, None) => Err(one_of("no source of endpoints")),
        }
    }

    /// Opens it. `connect` makes the client of the API server, for those that need one.
    ///
    /// # Errors
    /// What `connect` returns, and a [`ConfigError`] for a file that cannot be used.
    pub(crate) async fn open(
        self,
        connect: impl AsyncFnOnce() -> anyhow::Result<Client>,
    ) -> anyhow::Result<Opened> {
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::args::Args;

    fn args(flags: &[&str]) -> PoolArgs {
        let words = ["epp"].iter().chain(flags);
        Args::try_parse_from(words).unwrap().pool
    }

    fn mk_selector(namespace: &str) -> Source {
        Source::Selector {
            namespace: namespace.to_owned(),
            selector: "app=x,!old".parse().unwrap(),
            ports: "8000,8001".parse().unwrap(),
        }
    }

    fn mk_pool() -> Source {
        Source::Pool {
            namespace: "default".to_owned(),
            name: "llm".to_owned(),
        }
    }

    fn mk_file() -> Source {
        Source::File {
            path: "e.yaml".into(),
            watch: true,
        }
    }

    #[rstest]
    #[case(&["--pool-name", "llm"], mk_pool())]
    #[case(&["--endpoint-selector", "app=x,!old", "--endpoint-target-ports", "8000,8001"], mk_selector("default"))]
    #[case(&["--pool-namespace", "ml", "--endpoint-selector=app=x,!old", "--endpoint-target-ports=8000,8001"], mk_selector("ml"))]
    #[case(&["--endpoints-file", "e.yaml"], mk_file())]
    #[case(&["--endpoints-file", "e.yaml", "--pool-name", "llm"], mk_file())]
    fn one_source_is_named(#[case] flags: &[&str], #[case] expected: Source) {
        assert_eq!(Source::of(&args(flags), None).unwrap(), expected);
    }

    #[rstest]
    #[case(&[], "no source of endpoints: expected exactly one of")]
    #[case(&["--pool-name", "llm", "--endpoint-selector", "a", "--endpoint-target-ports", "1"], "--pool-name and --endpoint-selector: ")]
    #[case(&["--endpoints-file", "e", "--endpoint-selector", "a", "--endpoint-target-ports", "1"], "--endpoints-file and --endpoint-selector: ")]
    #[case(&["--endpoint-selector", "a"], "--endpoint-selector without --endpoint-target-ports: ")]
    #[case(&["--pool-name", "llm", "--endpoint-target-ports", "1"], "--endpoint-target-ports without --endpoint-selector: ")]
    fn none_and_two_are_refused(#[case] flags: &[&str], #[case] text: &str) {
        let error = Source::of(&args(flags), None).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }

    async fn open_file(text: &str) -> anyhow::Result<Opened> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.yaml");
        std::fs::write(&path, text).unwrap();
        let source = Source::File { path, watch: false };
        source
            .open(async || Err(anyhow::anyhow!("Kubernetes is not needed")))
            .await
    }

    #[tokio::test]
    async fn a_file_needs_no_kubernetes() {
        let text = "endpoints: [{name: a, address: 10.0.0.1, port: 8000}]";
        let opened = open_file(text).await.expect("it opens");
        assert!(opened.objects.is_none());
    }

    #[tokio::test]
    async fn a_bad_file_is_a_configuration_error() {
        let error = open_file("endpoints: 5").await.err().expect("refused");
        assert!(error.downcast_ref::<ConfigError>().is_some());
        assert!(
            error
                .to_string()
                .contains("e.yaml: it is no list of endpoints"),
            "{error}"
        );
    }

    #[test]
    fn a_file_of_the_configuration_is_the_only_source() {
        let file = ConfiguredFile {
            path: "/e.yaml".into(),
            watch: false,
        };
        let expected = Source::File {
            path: "/e.yaml".into(),
            watch: false,
        };
        for flags in [&[][..], &["--pool-name", "llm"]] {
            assert_eq!(Source::of(&args(flags), Some(&file)).unwrap(), expected);
        }
        let both = Source::of(&args(&["--endpoints-file", "f"]), Some(&file));
        assert!(both.unwrap_err().to_string().contains("file-discovery"));
    }
}
