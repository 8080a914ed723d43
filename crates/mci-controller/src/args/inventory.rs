//! Flags that define the members.

use std::{path::PathBuf, sync::Arc};

use crd::networks::parse_pod_cidrs;
use process::ConfigError;

use crate::{
    index::grant::ExportNamespaces,
    name::{ClusterName, is_label},
    networks::{Allowed, Networks},
};
use mci_inventory::{MAX_ENTRY_LABELS, ProfileSource, ProviderFile, Reading, Sources, Statements};

/// The sources of members.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InventoryArgs {
    /// The home cluster is a member of this name. Default: it is none.
    #[arg(long, env = "SELF_NAME", value_name = "NAME")]
    self_name: Option<String>,

    /// Networks of the home cluster's pods, comma-separated, where it is a member: what isthmus.dev/pod-cidrs of a Secret
    /// is for others. Default: not said, so other clusters send no requests to its endpoints.
    #[arg(long, env = "SELF_POD_CIDRS", value_name = "CIDRS")]
    self_pod_cidrs: Option<String>,

    /// Namespaces that the home cluster may export, where it is a member: what isthmus.dev/export-namespaces of a Secret
    /// is for others. Default: all but those of the system.
    #[arg(long, env = "SELF_EXPORT_NAMESPACES", value_name = "NAMES")]
    self_export_namespaces: Option<String>,

    /// Directory of kubeconfig files, one per member; the file name without its extension is the member's name. Beside
    /// them, .NAME.pod-cidrs and .NAME.export-namespaces say what the annotations of a Secret do. Read every 2 s; a
    /// kubeconfig that two readings in a row do not find removes its member and all that it exported. Default: none.
    #[arg(long, env = "KUBECONFIG_DIR", value_name = "DIR")]
    kubeconfig_dir: Option<PathBuf>,

    /// Members are also the Secrets in --namespace of the home cluster that have the label isthmus.dev/member=true or
    /// sigs.k8s.io/multicluster-runtime-kubeconfig=true, and hold a kubeconfig under kubeconfig, value, config or Config.
    #[arg(
        long,
        env = "MEMBER_SECRETS",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    member_secrets: bool,

    /// Members are also the ClusterProfiles in this namespace of the home cluster. Default: none.
    #[arg(long, env = "CLUSTERPROFILE_NAMESPACE", value_name = "NAME")]
    clusterprofile_namespace: Option<String>,

    /// JSON file of the programs that issue credentials for ClusterProfiles.
    #[arg(long, env = "CLUSTERPROFILE_PROVIDER_FILE", value_name = "FILE")]
    clusterprofile_provider_file: Option<PathBuf>,

    /// ClusterProfiles may add arguments and variables to those programs, where the provider file has a policy for it.
    #[arg(long, env = "CLUSTERPROFILE_ALLOW_EXTENSIONS")]
    clusterprofile_allow_extensions: bool,

    /// Labels of members' Secrets and ClusterProfiles that go into the entries of what they export; at most 8,
    /// comma-separated.
    #[arg(
        long,
        env = "ENTRY_LABELS",
        value_name = "LABELS",
        default_value = "topology.kubernetes.io/region,topology.kubernetes.io/zone"
    )]
    entry_labels: String,

    /// Networks, comma-separated in CIDR notation, that members' addresses must lie in; others are left out, host names
    /// too. Default: all addresses that other clusters may reach.
    #[arg(long, env = "ALLOWED_ADDRESSES", value_name = "CIDRS")]
    allowed_addresses: Option<Networks>,

    /// Accept kubeconfigs with http:// servers. For tests: credentials travel in clear.
    #[arg(long, env = "ALLOW_PLAIN_HTTP")]
    allow_plain_http: bool,
}

const LABEL: &str = "at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit";

// === impl InventoryArgs ===

impl InventoryArgs {
    pub(super) fn validate(self) -> Result<Sources, ConfigError> {
        let Self {
            self_name,
            self_pod_cidrs,
            self_export_namespaces,
            kubeconfig_dir,
            member_secrets,
            clusterprofile_namespace,
            clusterprofile_provider_file,
            clusterprofile_allow_extensions,
            entry_labels,
            allowed_addresses,
            allow_plain_http,
        } = self;
        let self_name = self_name.map(|name| {
            ClusterName::new(&name).map_err(|_| {
                ConfigError::new(format!("--self-name {name}"), LABEL, "--self-name hub")
            })
        });
        if let Some(directory) = kubeconfig_dir.as_ref().filter(|path| !path.is_dir()) {
            return Err(ConfigError::new(
                format!("--kubeconfig-dir {}", directory.display()),
                "a directory of kubeconfig files",
                "--kubeconfig-dir /var/run/isthmus/members",
            ));
        }
        let arguments = entry_labels.split(',').map(str::trim);
        let entry_labels: Vec<String> = arguments
            .filter(|label| !label.is_empty())
            .map(ToOwned::to_owned)
            .collect();
        if entry_labels.len() > MAX_ENTRY_LABELS {
            return Err(ConfigError::new(
                format!("--entry-labels with {} labels", entry_labels.len()),
                "at most 8 labels",
                "--entry-labels topology.kubernetes.io/region",
            ));
        }
        let allowed = match allowed_addresses {
            Some(networks) => Allowed::default().and(Arc::new(networks)),
            None => Allowed::default(),
        };
        Ok(Sources {
            self_name: self_name.transpose()?,
            self_statements: self_statements(self_pod_cidrs, self_export_namespaces)?,
            kubeconfig_dir,
            secrets: member_secrets,
            profiles: profiles(
                clusterprofile_namespace,
                clusterprofile_provider_file,
                clusterprofile_allow_extensions,
            )?,
            reading: Reading {
                allow_plain_http,
                allowed,
                entry_labels,
            },
        })
    }
}

fn self_statements(
    pod_cidrs: Option<String>,
    export_namespaces: Option<String>,
) -> Result<Statements, ConfigError> {
    if let Some(text) = &pod_cidrs {
        parse_pod_cidrs(text).map_err(|error| {
            let example = "--self-pod-cidrs 10.2.0.0/16";
            let expected = "the networks of the home cluster's pods";
            ConfigError::new(format!("--self-pod-cidrs: {error}"), expected, example)
        })?;
    }
    if let Some(text) = &export_namespaces {
        text.parse::<ExportNamespaces>().map_err(|error| {
            let example = "--self-export-namespaces 'llm,team-*'";
            let expected = "names of namespaces";
            ConfigError::new(
                format!("--self-export-namespaces: {error}"),
                expected,
                example,
            )
        })?;
    }
    Ok(Statements {
        pod_cidrs: pod_cidrs.map(Ok),
        export_namespaces: export_namespaces.map(Ok),
    })
}

/// Whether there is any source, and a home for those that need one.
/// # Errors
/// What is missing.
pub(crate) fn check_sources(sources: &Sources, home: bool) -> Result<(), ConfigError> {
    let wanting = [
        (sources.self_name.is_some(), "--self-name"),
        (sources.profiles.is_some(), "--clusterprofile-namespace"),
    ];
    if let Some((_, flag)) = wanting.iter().find(|(given, _)| *given && !home) {
        return Err(ConfigError::new(
            *flag,
            "a home cluster",
            "--home-kubeconfig /etc/isthmus/home.kubeconfig",
        ));
    }
    if sources.kinds(home).is_empty() {
        return Err(ConfigError::new(
            "no source of members",
            "--kubeconfig-dir, or a home cluster with --member-secrets, --self-name or --clusterprofile-namespace",
            "--kubeconfig-dir /var/run/isthmus/members",
        ));
    }
    Ok(())
}

fn profiles(
    namespace: Option<String>,
    file: Option<PathBuf>,
    allow_extensions: bool,
) -> Result<Option<ProfileSource>, ConfigError> {
    let (namespace, file) = match (namespace, file) {
        (None, None) => return Ok(None),
        (Some(namespace), Some(file)) => (namespace, file),
        (namespace, _) => {
            let (given, missing) = match namespace {
                Some(_) => (
                    "--clusterprofile-namespace",
                    "--clusterprofile-provider-file",
                ),
                None => (
                    "--clusterprofile-provider-file",
                    "--clusterprofile-namespace",
                ),
            };
            return Err(ConfigError::new(
                format!("{given} without {missing}"),
                "both, or neither",
                "--clusterprofile-namespace fleet --clusterprofile-provider-file /etc/isthmus/providers.json",
            ));
        }
    };
    if !is_label(&namespace) {
        return Err(ConfigError::new(
            format!("--clusterprofile-namespace {namespace}"),
            LABEL,
            "--clusterprofile-namespace fleet",
        ));
    }
    let providers = ProviderFile::read(&file).map_err(|error| {
        ConfigError::new(
            format!("--clusterprofile-provider-file {}: {error}", file.display()),
            "a JSON file of credential providers",
            r#"{"providers": [{"name": "x", "execConfig": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/x"}}]}"#,
        )
    })?;
    Ok(Some(ProfileSource {
        namespace,
        providers,
        allow_extensions,
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        inventory: InventoryArgs,
    }

    fn parse(arguments: &[&str]) -> Result<Sources, String> {
        let arguments = ["x"].iter().chain(arguments);
        let only = Only::try_parse_from(arguments).map_err(|error| error.to_string())?;
        let sources = only.inventory.validate();
        sources.map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let sources = parse(&[]).expect("valid");
        assert!(sources.secrets && sources.profiles.is_none() && sources.self_name.is_none());
        assert_eq!(
            sources.reading.entry_labels,
            [
                "topology.kubernetes.io/region",
                "topology.kubernetes.io/zone"
            ]
        );
        assert!(!sources.reading.allowed.is_limited());
        assert!(
            !parse(&["--member-secrets", "false"])
                .expect("valid")
                .secrets
        );
    }

    #[rstest]
    #[case(&["--self-name", "Hub"], "--self-name Hub")]
    #[case(&["--kubeconfig-dir", "/nonexistent/members"], "/nonexistent/members")]
    #[case(&["--clusterprofile-namespace", "fleet"], "--clusterprofile-provider-file")]
    #[case(&["--clusterprofile-provider-file", "/x"], "--clusterprofile-namespace")]
    #[case(&["--clusterprofile-namespace", "fleet", "--clusterprofile-provider-file", "/nonexistent/file"], "/nonexistent/file")]
    #[case(&["--entry-labels", "a,b,c,d,e,f,g,h,i"], "9 labels")]
    #[case(&["--allowed-addresses", "10.0.0.0/64"], "10.0.0.0/64")]
    #[case(&["--self-pod-cidrs", "0.0.0.0/0"], "0.0.0.0/0")]
    #[case(&["--self-export-namespaces", "LLM"], "LLM")]
    fn bad_values_are_named(#[case] arguments: &[&str], #[case] named: &str) {
        let error = parse(arguments).expect_err("refused");
        assert!(error.contains(named), "{error}");
    }

    #[test]
    fn a_provider_file_without_providers_is_refused_at_the_start() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "{}").expect("written");
        let path = file.path().display().to_string();
        let arguments = [
            "--clusterprofile-namespace",
            "fleet",
            "--clusterprofile-provider-file",
            &path,
        ];
        let error = parse(&arguments).expect_err("refused");
        assert!(
            error.contains(&path) && error.contains("providers"),
            "{error}"
        );
        let good = r#"{"providers": [{"name": "x", "execConfig": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/x"}}]}"#;
        std::fs::write(file.path(), good).expect("written");
        assert!(parse(&arguments).expect("valid").profiles.is_some());
    }
}
