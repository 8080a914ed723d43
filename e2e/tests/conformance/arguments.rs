//! What to run against, from flags or their variables.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Parser, ValueEnum};
use libtest_mimic::Arguments;

/// What the suite was asked to do.
pub(crate) struct Args {
    pub(crate) target: Target,
    pub(crate) tests: Arguments,
}

/// Whose behaviour is looked at.
pub(crate) enum Target {
    /// Our controller, in clusters that the suite starts.
    Testbed,
    /// Whatever serves these clusters.
    Clusters(Given),
}

/// Clusters that run already.
pub(crate) struct Given {
    pub(crate) kubeconfigs: Vec<Kubeconfig>,
    pub(crate) implementation: Implementation,
    pub(crate) reading: Option<Reading>,
    pub(crate) served: Option<Served>,
}

/// What a gateway in the last of the clusters serves: the import of a pool of the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// Scheme and authority of the gateway.
    pub(crate) url: String,
    pub(crate) namespace: String,
    pub(crate) pool: String,
    /// The model that requests name.
    pub(crate) model: String,
}

/// A kubeconfig file and the name that its cluster has in the ClusterSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kubeconfig {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Who wrote the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Implementation {
    Isthmus,
    Other,
}

/// The proposal says "all clusters except the exporting one" in one place and "each member" in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reading {
    /// A cluster that alone exports has no import.
    WhenRemote,
    /// It has one that lists nothing.
    Always,
}

#[derive(Debug, Parser)]
#[command(name = "conformance")]
struct Flags {
    /// Clusters that a controller already serves, two or more: their kubeconfigs, each with the name that its cluster
    /// has in the ClusterSet (default: the file's name without extension). Without this, three clusters with our
    /// controller are started
    #[arg(
        long,
        env = "ISTHMUS_KUBECONFIGS",
        value_delimiter = ',',
        value_name = "[NAME=]PATH"
    )]
    kubeconfigs: Vec<Kubeconfig>,

    /// Whose controller serves those clusters: `isthmus` adds what is ours alone
    #[arg(
        long,
        env = "ISTHMUS_IMPLEMENTATION",
        value_enum,
        default_value = "other"
    )]
    implementation: Implementation,

    /// Whether that controller keeps an import in a cluster that alone exports; unset: either will do
    #[arg(long, env = "ISTHMUS_IMPORT_IN_EXPORTER", value_enum)]
    import_in_exporter: Option<Reading>,

    /// Adds the tests `gateway::…`: scheme and authority of a gateway in the last of those clusters, whose route leads to the import
    /// of `--pool`
    #[arg(
        long,
        env = "ISTHMUS_GATEWAY",
        value_name = "URL",
        requires = "kubeconfigs"
    )]
    gateway: Option<String>,

    /// The pool of the first of those clusters that these tests export and withdraw
    #[arg(
        long,
        env = "ISTHMUS_POOL",
        value_name = "NAMESPACE/NAME",
        default_value = "llm/llama",
        value_parser = namespace_and_name
    )]
    pool: (String, String),

    /// The model that requests of these tests name
    #[arg(
        long,
        env = "ISTHMUS_MODEL",
        value_name = "NAME",
        default_value = "llama"
    )]
    model: String,

    #[command(flatten)]
    tests: Arguments,
}

/// Reads the command line and the environment.
pub(crate) fn parse() -> Result<Args, clap::Error> {
    let Flags {
        kubeconfigs,
        implementation,
        import_in_exporter,
        gateway,
        pool: (namespace, pool),
        model,
        tests,
    } = Flags::try_parse()?;
    let target = match kubeconfigs.len() {
        0 => Target::Testbed,
        1 => {
            return Err(clap::Error::raw(
                clap::error::ErrorKind::TooFewValues,
                "one cluster is no ClusterSet: give two kubeconfigs or more, as in east=/tmp/east.yaml,west=/tmp/west.yaml\n",
            ));
        }
        _ => Target::Clusters(Given {
            kubeconfigs,
            implementation,
            reading: import_in_exporter,
            served: gateway.map(|url| Served {
                url: url.trim_end_matches('/').to_owned(),
                namespace,
                pool,
                model,
            }),
        }),
    };
    Ok(Args { target, tests })
}

fn namespace_and_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("use NAMESPACE/NAME, as in llm/llama".to_owned()),
    }
}

// === impl Kubeconfig ===

impl FromStr for Kubeconfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, path) = text.split_once('=').unwrap_or_else(|| {
            let stem = Path::new(text).file_stem().and_then(|stem| stem.to_str());
            (stem.unwrap_or_default(), text)
        });
        let (name, path) = (name.to_owned(), PathBuf::from(path));
        if name.is_empty() {
            return Err(format!(
                "{text:?} names no cluster: use NAME=PATH, as in east=/tmp/east.yaml"
            ));
        }
        if !path.is_file() {
            return Err(format!("{} is no file", path.display()));
        }
        Ok(Self { name, path })
    }
}
