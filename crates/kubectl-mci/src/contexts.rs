//! What a kubeconfig says of its contexts. Pure, but for the reading of the file.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use kube::config::{Cluster, Context, Kubeconfig, KubeconfigError};

use crate::cause::cause;

/// A kubeconfig that was read, merged as kubectl does.
#[derive(Clone, Debug)]
pub(crate) struct Contexts(Kubeconfig);

/// Number of names listed in an error.
const MAX_NAMED: usize = 12;

/// A context that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContextError {
    #[error(
        "the kubeconfig has no context {name:?}: {known}; pass one of them with {flag}, or see `kubectl config get-contexts`"
    )]
    Unknown {
        name: String,
        known: String,
        flag: &'static str,
    },
    #[error(
        "the kubeconfig has no current context: choose one with {flag} or `kubectl config use-context`; {known}"
    )]
    NoCurrent { known: String, flag: &'static str },
    #[error("context {0:?} names no cluster of the kubeconfig, or one without a server")]
    NoCluster(String),
}

// === impl Contexts ===

impl Contexts {
    /// `file`, else what `KUBECONFIG` names, else `~/.kube/config`.
    pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let list = std::env::var_os("KUBECONFIG").unwrap_or_default();
        let read = match file {
            Some(file) => Kubeconfig::read_from(file),
            None => match merged(std::env::split_paths(&list)) {
                Ok(Some(merged)) => Ok(merged),
                Ok(None) => Kubeconfig::read(),
                Err(error) => Err(error),
            },
        };
        read.map(Self).map_err(|error| {
            anyhow!(
                "cannot read the kubeconfig: {}; pass --kubeconfig FILE, or set KUBECONFIG",
                cause(&error)
            )
        })
    }

    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Self {
        Self(Kubeconfig::from_yaml(text).expect("a kubeconfig"))
    }

    /// All of it, to make a client of.
    pub(crate) fn kubeconfig(&self) -> &Kubeconfig {
        &self.0
    }

    /// This context, else the current one; `flag` is how the user would have named it.
    pub(crate) fn choose(
        &self,
        name: Option<&str>,
        flag: &'static str,
    ) -> Result<String, ContextError> {
        let current = self.0.current_context.as_deref();
        let Some(name) = name.or(current.filter(|name| !name.is_empty())) else {
            let known = self.known();
            return Err(ContextError::NoCurrent { known, flag });
        };
        if self.get(name).is_some() {
            Ok(name.to_owned())
        } else {
            Err(ContextError::Unknown {
                name: name.to_owned(),
                known: self.known(),
                flag,
            })
        }
    }

    /// Whether there is a context of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The only context that leads to this server; none where two do, for who knows which is meant.
    pub(crate) fn leading_to(&self, server: &str) -> Option<&str> {
        let wanted = server.trim_end_matches('/');
        let mut found = self.0.contexts.iter().filter(|context| {
            let cluster = self.cluster(&context.name).ok();
            let server = cluster.and_then(|cluster| cluster.server.as_deref());
            server.is_some_and(|server| server.trim_end_matches('/') == wanted)
        });
        let first = found.next()?;
        found.next().is_none().then_some(first.name.as_str())
    }

    /// The cluster that a context leads to.
    pub(crate) fn cluster(&self, context: &str) -> Result<&Cluster, ContextError> {
        let none = || ContextError::NoCluster(context.to_owned());
        let name = &self.get(context).ok_or_else(none)?.cluster;
        let named = self.0.clusters.iter().find(|named| named.name == *name);
        let cluster = named.and_then(|named| named.cluster.as_ref());
        cluster
            .filter(|cluster| cluster.server.is_some())
            .ok_or_else(none)
    }

    /// The namespace that a context is set to, else `default`.
    pub(crate) fn namespace(&self, context: &str) -> &str {
        let namespace = self.get(context).and_then(|one| one.namespace.as_deref());
        namespace
            .filter(|name| !name.is_empty())
            .unwrap_or("default")
    }

    fn get(&self, name: &str) -> Option<&Context> {
        let mut contexts = self.0.contexts.iter();
        contexts.find(|one| one.name == name)?.context.as_ref()
    }

    /// Names of all contexts, in their order.
    pub(crate) fn names(&self) -> Vec<String> {
        let contexts = self.0.contexts.iter();
        contexts.map(|one| one.name.clone()).collect()
    }

    fn known(&self) -> String {
        let names = self.names();
        match names.len() {
            0 => "it has none".to_owned(),
            all @ 1..=MAX_NAMED => format!("it has {all}: {}", names.join(", ")),
            all => format!("it has {all}, such as {}", names[..MAX_NAMED].join(", ")),
        }
    }
}

/// The files of a list as one, without those that are missing, as kubectl does; none where the list is empty.
/// # Errors
/// When one of them cannot be read, or all are missing.
fn merged(files: impl Iterator<Item = PathBuf>) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let mut merged: Option<Kubeconfig> = None;
    let mut missing = None;
    for file in files.filter(|file| !file.as_os_str().is_empty()) {
        let mut next = match Kubeconfig::read_from(&file) {
            Err(KubeconfigError::ReadConfig(error, path))
                if error.kind() == ErrorKind::NotFound =>
            {
                missing = Some(KubeconfigError::ReadConfig(error, path));
                continue;
            }
            read => read?,
        };
        // an empty one is none
        next.current_context = next.current_context.filter(|name| !name.is_empty());
        merged = Some(match merged {
            Some(before) => before.merge(next)?,
            None => next,
        });
    }
    match (merged, missing) {
        (None, Some(error)) => Err(error),
        (merged, _) => Ok(merged),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TWO: &str = r"
clusters:
- {name: e, cluster: {server: 'https://east.example.com:6443'}}
- {name: w, cluster: {server: 'https://west.example.com:6443/'}}
contexts:
- {name: east, context: {cluster: e, user: u, namespace: llm}}
- {name: west, context: {cluster: w, user: u}}
- {name: west-admin, context: {cluster: w, user: admin}}
- {name: lost, context: {cluster: none, user: u}}
current-context: west
";

    #[rstest]
    #[case(Some("east"), Ok("east"))]
    #[case(None, Ok("west"))]
    #[case(
        Some("north"),
        Err("it has 4: east, west, west-admin, lost; pass one of them with --context")
    )]
    fn a_context_is_named_or_the_current_one(
        #[case] name: Option<&str>,
        #[case] expected: Result<&str, &str>,
    ) {
        let chosen = Contexts::parse(TWO).choose(name, "--context");
        match expected {
            Ok(expected) => assert_eq!(chosen.expect("a context"), expected),
            Err(words) => {
                let error = chosen.expect_err("no context").to_string();
                assert!(error.contains(words), "{error}");
            }
        }
    }

    #[test]
    fn a_kubeconfig_without_a_current_context_asks_for_one() {
        let error = Contexts::parse("contexts: []").choose(None, "--home-context");
        let error = error.expect_err("no context").to_string();
        assert!(error.contains("--home-context") && error.contains("it has none"));
    }

    #[test]
    fn a_server_names_a_context_if_no_other_leads_there() {
        let contexts = Contexts::parse(TWO);
        let found = contexts.leading_to("https://east.example.com:6443/");
        assert_eq!(found, Some("east"));
        assert_eq!(contexts.leading_to("https://west.example.com:6443"), None);
        assert_eq!(contexts.leading_to("https://south.example.com"), None);
    }

    #[test]
    fn a_context_has_a_cluster_and_a_namespace() {
        let contexts = Contexts::parse(TWO);
        assert_eq!(contexts.namespace("east"), "llm");
        assert_eq!(contexts.namespace("west"), "default");
        assert!(contexts.cluster("lost").is_err());
    }

    #[test]
    fn a_missing_file_of_the_list_is_skipped_and_a_list_of_missing_ones_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let empty = file("empty", "current-context: ''\n");
        let two = file("two", TWO);
        let missing = directory.path().join("missing");
        let read = |list: &[&PathBuf]| {
            let list = list.iter().map(|path| (*path).clone());
            merged(list).map(|found| found.map(|one| one.current_context))
        };
        let found = read(&[&missing, &empty, &PathBuf::new(), &two]).expect("read");
        assert_eq!(found, Some(Some("west".to_owned())));
        assert_eq!(read(&[]).expect("nothing to read"), None);
        let error = read(&[&missing]).expect_err("all are missing");
        assert!(cause(&error).contains("/missing: No such file"), "{error}");
    }
}
