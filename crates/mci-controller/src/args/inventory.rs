//! Flags that say who the members are.

use std::{path::PathBuf, sync::Arc};

use process::ConfigError;

use crate::{
    inventory::{MAX_ENTRY_LABELS, Reading, Sources},
    name::ClusterName,
    networks::{Allowed, Networks},
};

/// Who the members are.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InventoryArgs {
    /// The home cluster is a member of this name. Default: it is none.
    #[arg(long, env = "SELF_NAME", value_name = "NAME")]
    self_name: Option<String>,

    /// Directory of kubeconfig files, one per member; the file name without its extension is the member's name. Read
    /// every 2 s; a file that two readings in a row do not find removes its member and all that it exported. Default: none.
    #[arg(long, env = "KUBECONFIG_DIR", value_name = "DIR")]
    kubeconfig_dir: Option<PathBuf>,

    /// Members are also the Secrets in --namespace of the home cluster that bear the label isthmus.dev/member=true or
    /// sigs.k8s.io/multicluster-runtime-kubeconfig=true, and hold a kubeconfig under kubeconfig, value, config or Config.
    #[arg(
        long,
        env = "MEMBER_SECRETS",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    member_secrets: bool,

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
            kubeconfig_dir,
            member_secrets,
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
        let words = entry_labels.split(',').map(str::trim);
        let entry_labels: Vec<String> = words
            .filter(|word| !word.is_empty())
            .map(ToOwned::to_owned)
            .collect();
        if entry_labels.len() > MAX_ENTRY_LABELS {
            return Err(ConfigError::new(
                format!("--entry-labels with {} labels", entry_labels.len()),
                "at most 8 labels",
                "--entry-labels topology.kubernetes.io/region",
            ));
        }
        let allowed = allowed_addresses.into_iter();
        let allowed = allowed.fold(Allowed::default(), |allowed, networks| {
            allowed.and(Arc::new(networks))
        });
        Ok(Sources {
            self_name: self_name.transpose()?,
            kubeconfig_dir,
            secrets: member_secrets,
            reading: Reading {
                allow_plain_http,
                allowed,
                entry_labels,
            },
        })
    }
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

    fn parse(words: &[&str]) -> Result<Sources, String> {
        let words = ["x"].iter().chain(words);
        let only = Only::try_parse_from(words).map_err(|error| error.to_string())?;
        let sources = only.inventory.validate();
        sources.map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let sources = parse(&[]).expect("valid");
        assert!(sources.secrets && sources.self_name.is_none());
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
    #[case(&["--entry-labels", "a,b,c,d,e,f,g,h,i"], "9 labels")]
    #[case(&["--allowed-addresses", "10.0.0.0/64"], "10.0.0.0/64")]
    fn bad_values_are_named(#[case] words: &[&str], #[case] named: &str) {
        let error = parse(words).expect_err("refused");
        assert!(error.contains(named), "{error}");
    }
}
