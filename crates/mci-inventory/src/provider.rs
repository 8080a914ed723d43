//! The file of credential providers, and what it means for one ClusterProfile. Pure but for reading the file.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use crd::cluster_profile::{AccessProvider, ClusterProfileStatus};
use foreign_text::{Limits, read};
use kube::config::Cluster;
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::{credential::API_VERSIONS, kubeconfig::check_cluster, listing::Refused};
use mci_model::index::member::Refusal;

/// The credential providers, in the order of the file. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProviderFile(Arc<Vec<Provider>>);

/// Why the file is not used. Quotes none of its values: a variable may hold a secret.
#[derive(Debug, thiserror::Error)]
pub enum ProviderFileError {
    /// The file cannot be opened or read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// Not the JSON that is expected.
    #[error(
        "it does not read at line {line}, column {column}: JSON with providers, each of name and execConfig, is expected"
    )]
    Malformed {
        /// The first is 1.
        line: usize,
        /// In bytes; 0 where the line before is incomplete.
        column: usize,
    },
    /// It names no provider.
    #[error("providers is empty: name at least one")]
    Empty,
    /// Two providers have this name.
    #[error("provider {0:?} is there twice")]
    Twice(String),
    /// The provider of this name names no program.
    #[error("provider {0:?} has no command")]
    NoCommand(String),
    /// The provider of this name asks for a version of the protocol that is not spoken here.
    #[error("provider {0:?} speaks {1:?}: client.authentication.k8s.io/v1 or v1beta1 is expected")]
    Version(String, String),
}

/// A program that issues credentials.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Provider {
    name: String,
    exec_config: ExecConfig,
    #[serde(default, rename = "profileSourcedCLIArgsPolicy")]
    args_policy: ArgsPolicy,
    #[serde(default, rename = "profileSourcedEnvVarsPolicy")]
    env_policy: EnvPolicy,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecConfig {
    api_version: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    provide_cluster_info: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// What becomes of arguments that a profile brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum ArgsPolicy {
    Append,
    #[default]
    Ignore,
}

/// What becomes of variables that a profile brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum EnvPolicy {
    AppendIfNotExists,
    Replace,
    #[default]
    Ignore,
}

/// What to run for one profile. Its own copy: no other profile's arguments are in it.
#[derive(Clone, Debug)]
pub(super) struct ExecPlan {
    pub(super) provider: String,
    pub(super) api_version: String,
    pub(super) command: String,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) provide_cluster_info: bool,
    pub(super) cluster: Cluster,
}

/// What a plugin gets of our environment.
pub(super) const INHERITED: [&str; 2] = ["PATH", "HOME"];
/// Fields that mean something to us or, in kubectl's own files, to others.
const KNOWN: [(&str, &[&str]); 3] = [
    ("", &["providers"]),
    (
        "/providers",
        &[
            "name",
            "execConfig",
            "profileSourcedCLIArgsPolicy",
            "profileSourcedEnvVarsPolicy",
        ],
    ),
    (
        "/providers/execConfig",
        &[
            "apiVersion",
            "command",
            "args",
            "env",
            "provideClusterInfo",
            "installHint",
            "interactiveMode",
        ],
    ),
];
/// Extensions of a profile's cluster; each may be the value itself or YAML text of it.
const ARGS_EXTENSION: &str = "clusterprofiles.multicluster.x-k8s.io/exec/additional-args";
const ENVS_EXTENSION: &str = "clusterprofiles.multicluster.x-k8s.io/exec/additional-envs";

/// The limits of such an extension: the arguments of a program are far shorter.
const EXTENSION_LIMITS: Limits = Limits::of_text(64 << 10);

// === impl ProviderFile ===

impl ProviderFile {
    /// Reads and checks the file; blocks while it does.
    /// # Errors
    /// Why it is not used.
    pub fn read(path: &Path) -> Result<Self, ProviderFileError> {
        let text = std::fs::read(path).map_err(ProviderFileError::Unreadable)?;
        Self::parse(&text)
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, ProviderFileError> {
        #[derive(Deserialize)]
        struct File {
            providers: Vec<Provider>,
        }
        let malformed = |error: serde_json::Error| ProviderFileError::Malformed {
            line: error.line(),
            column: error.column(),
        };
        let File { providers } = serde_json::from_slice(text).map_err(malformed)?;
        let value: Value = serde_json::from_slice(text).map_err(malformed)?;
        for field in unknown_fields(&value) {
            tracing::warn!(field, "unknown field in the file of credential providers");
        }
        if providers.is_empty() {
            return Err(ProviderFileError::Empty);
        }
        for (at, provider) in providers.iter().enumerate() {
            let Provider {
                name, exec_config, ..
            } = provider;
            let version = &exec_config.api_version;
            if providers.iter().take(at).any(|other| other.name == *name) {
                return Err(ProviderFileError::Twice(name.clone()));
            }
            if exec_config.command.is_empty() {
                return Err(ProviderFileError::NoCommand(name.clone()));
            }
            if !API_VERSIONS.contains(&version.as_str()) {
                return Err(ProviderFileError::Version(name.clone(), version.clone()));
            }
        }
        Ok(Self(Arc::new(providers)))
    }

    /// What to run for a profile: the first provider of the file that it names.
    /// # Errors
    /// Why nothing is run.
    pub(super) fn plan(
        &self,
        status: &ClusterProfileStatus,
        allow_extensions: bool,
        allow_plain_http: bool,
    ) -> Result<ExecPlan, Refused> {
        let refused = |refusal, detail: String| Refused { refusal, detail };
        let named = |provider: &Provider| {
            let mut offers = status.providers();
            offers.find(|offer| offer.name == provider.name)
        };
        let found = self.0.iter().find_map(|one| Some((one, named(one)?)));
        let Some((provider, offer)) = found else {
            let known: Vec<&str> = self.0.iter().map(|one| one.name.as_str()).collect();
            let detail = format!("status.accessProviders names none of {}", known.join(", "));
            return Err(refused(Refusal::NoAccessProvider, detail));
        };
        let cluster: Cluster = serde_json::from_value(offer.cluster.clone()).map_err(|_| {
            let detail = format!(
                "the cluster of access provider {} is none as in a kubeconfig",
                offer.name
            );
            refused(Refusal::BadCredentials, detail)
        })?;
        check_cluster(&cluster, allow_plain_http)
            .map_err(|error| refused(error.refusal(), error.to_string()))?;
        let plan = provider.plan_for(cluster);
        if allow_extensions {
            return Ok(provider.extend(plan, offer));
        }
        Ok(plan)
    }
}

// === impl Provider ===

impl Provider {
    fn plan_for(&self, cluster: Cluster) -> ExecPlan {
        let exec = &self.exec_config;
        let env = exec.env.iter().flatten();
        ExecPlan {
            provider: self.name.clone(),
            api_version: exec.api_version.clone(),
            command: exec.command.clone(),
            args: exec.args.clone().unwrap_or_default(),
            env: env
                .map(|one| (one.name.clone(), one.value.clone()))
                .collect(),
            provide_cluster_info: exec.provide_cluster_info,
            cluster,
        }
    }

    /// With what the profile adds, as far as the policies let it.
    fn extend(&self, mut plan: ExecPlan, offer: &AccessProvider) -> ExecPlan {
        let extension = |wanted: &str| {
            let mut extensions = plan.cluster.extensions.iter().flatten();
            extensions
                .find(|one| one.name == wanted)
                .map(|one| one.extension.clone())
        };
        let bad = |name: &str| {
            tracing::warn!(
                provider = offer.name,
                extension = name,
                "ignoring an extension of a ClusterProfile that does not read"
            );
        };
        let args = extension(ARGS_EXTENSION).filter(|_| self.args_policy == ArgsPolicy::Append);
        let envs = extension(ENVS_EXTENSION).filter(|_| self.env_policy != EnvPolicy::Ignore);
        if let Some(value) = args {
            match in_yaml::<Vec<String>>(value) {
                Some(args) => plan.args.extend(args),
                None => bad(ARGS_EXTENSION),
            }
        }
        if let Some(value) = envs {
            match in_yaml::<BTreeMap<String, String>>(value) {
                Some(envs) if self.env_policy == EnvPolicy::Replace => plan.env.extend(envs),
                Some(envs) => {
                    // what the plugin gets of our environment is there as well
                    let inherited = |name: &String| INHERITED.contains(&name.as_str());
                    for (name, value) in envs.into_iter().filter(|(name, _)| !inherited(name)) {
                        plan.env.entry(name).or_insert(value);
                    }
                }
                None => bad(ENVS_EXTENSION),
            }
        }
        plan
    }
}

// === impl ExecPlan ===

impl ExecPlan {
    /// Equal for plans that would run the same for the same cluster.
    pub(super) fn fingerprint(&self) -> u64 {
        let fields = serde_json::json!([
            self.provider,
            self.api_version,
            self.command,
            self.args,
            self.env,
            self.provide_cluster_info,
            self.cluster,
        ]);
        xxh3_64(fields.to_string().as_bytes())
    }
}

/// The value, or what it reads as if it is YAML text.
fn in_yaml<T: serde::de::DeserializeOwned>(value: Value) -> Option<T> {
    match value {
        Value::String(text) => read(&text, EXTENSION_LIMITS).ok(),
        value => serde_json::from_value(value).ok(),
    }
}

fn unknown_fields(value: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut check = |place: &str, value: &Value| {
        let known = KNOWN
            .iter()
            .find(|(at, _)| *at == place)
            .map_or(&[][..], |(_, fields)| fields);
        let fields = value.as_object().into_iter().flatten();
        let strange = fields.filter(|(field, _)| !known.contains(&field.as_str()));
        unknown.extend(strange.map(|(field, _)| format!("{place}/{field}")));
    };
    check("", value);
    for provider in value["providers"].as_array().into_iter().flatten() {
        check("/providers", provider);
        check("/providers/execConfig", &provider["execConfig"]);
    }
    unknown
}

#[cfg(test)]
mod tests;
