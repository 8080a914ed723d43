//! A pod's volumes as directories, kept in step with the objects they show, each changed as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, timeout};

use self::directory::leaves;
use super::environment::{EnvironmentError, Facts, Lookup};

mod directory;

pub use self::directory::write_volume;

/// One `TokenRequest`.
const TOKEN_LIMIT: Duration = Duration::from_secs(5);
/// What a kubelet asks for when the projection does not say.
const TOKEN_LIFETIME_S: i64 = 3600;

/// Relative path → content.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Volumes {
    directory: PathBuf,
    written: BTreeMap<String, Files>,
    tokens: BTreeMap<(String, String), Token>,
    generation: u64,
}

#[derive(Debug)]
struct Token {
    value: String,
    renew_at: Instant,
}

/// Why a volume cannot be made; the pod waits until it can.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("volume {volume}: {kind} \"{name}\" not found")]
    NoObject {
        volume: String,
        kind: &'static str,
        name: String,
    },
    #[error("volume {volume}: {kind} \"{name}\" has no key {key}")]
    NoKey {
        volume: String,
        kind: &'static str,
        name: String,
        key: String,
    },
    #[error(
        "volume {0}: only secret, configMap, emptyDir, downwardAPI and projected are supported here"
    )]
    Unsupported(String),
    #[error("volume {volume}: path {path:?} leaves the volume")]
    Path { volume: String, path: String },
    #[error("volume {volume}: {source}")]
    Field {
        volume: String,
        source: EnvironmentError,
    },
    #[error("volume {volume}: token: {problem}")]
    Token { volume: String, problem: String },
    #[error("volume {volume}: {source}")]
    File { volume: String, source: io::Error },
}

// === impl Volumes ===

impl Volumes {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            written: BTreeMap::new(),
            tokens: BTreeMap::new(),
            generation: 0,
        }
    }

    /// Where a volume's files are.
    pub(crate) fn path(&self, volume: &str) -> PathBuf {
        self.directory.join(volume)
    }

    /// Brings every volume of the pod up to date; writes only what has changed.
    pub(crate) async fn update(
        &mut self,
        client: &Client,
        facts: Facts<'_>,
        lookup: &impl Lookup,
    ) -> Result<(), VolumeError> {
        for volume in facts
            .pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten())
        {
            let directory = self.path(&volume.name);
            let failed = |source| VolumeError::File {
                volume: volume.name.clone(),
                source,
            };
            fs::create_dir_all(&directory).map_err(failed)?;
            if volume.empty_dir.is_some() {
                continue;
            }
            let files = self.files(volume, client, facts, lookup).await?;
            if let Some(path) = files.keys().find(|path| leaves(path)) {
                return Err(VolumeError::Path {
                    volume: volume.name.clone(),
                    path: path.clone(),
                });
            }
            if self.written.get(&volume.name) != Some(&files) {
                self.generation += 1;
                write_volume(&directory, self.generation, &files).map_err(failed)?;
                self.written.insert(volume.name.clone(), files);
            }
        }
        Ok(())
    }

    async fn files(
        &mut self,
        volume: &Volume,
        client: &Client,
        facts: Facts<'_>,
        lookup: &impl Lookup,
    ) -> Result<Files, VolumeError> {
        let name = volume.name.as_str();
        if let Some(source) = &volume.secret {
            let object = source.secret_name.as_deref().unwrap_or_default();
            let found = lookup.secret(object).map(|secret| secret_data(&secret));
            return pick(
                name,
                "secret",
                object,
                found,
                source.items.as_deref(),
                source.optional,
            );
        }
        if let Some(source) = &volume.config_map {
            let found = lookup
                .config_map(&source.name)
                .map(|map| config_map_data(&map));
            return pick(
                name,
                "configmap",
                &source.name,
                found,
                source.items.as_deref(),
                source.optional,
            );
        }
        if let Some(source) = &volume.downward_api {
            return fields(name, source.items.as_deref(), facts);
        }
        let Some(projected) = &volume.projected else {
            return Err(VolumeError::Unsupported(name.to_owned()));
        };
        let mut files = Files::new();
        for source in projected.sources.iter().flatten() {
            files.extend(self.projection(name, source, client, facts, lookup).await?);
        }
        Ok(files)
    }

    async fn projection(
        &mut self,
        volume: &str,
        source: &VolumeProjection,
        client: &Client,
        facts: Facts<'_>,
        lookup: &impl Lookup,
    ) -> Result<Files, VolumeError> {
        if let Some(source) = &source.service_account_token {
            let token = self.token(volume, source, client, facts.pod).await?;
            return Ok(Files::from([(source.path.clone(), token.into_bytes())]));
        }
        if let Some(source) = &source.config_map {
            let found = lookup
                .config_map(&source.name)
                .map(|map| config_map_data(&map));
            return pick(
                volume,
                "configmap",
                &source.name,
                found,
                source.items.as_deref(),
                source.optional,
            );
        }
        if let Some(source) = &source.secret {
            let found = lookup
                .secret(&source.name)
                .map(|secret| secret_data(&secret));
            return pick(
                volume,
                "secret",
                &source.name,
                found,
                source.items.as_deref(),
                source.optional,
            );
        }
        if let Some(source) = &source.downward_api {
            return fields(volume, source.items.as_deref(), facts);
        }
        Err(VolumeError::Unsupported(volume.to_owned()))
    }

    /// A token bound to the pod, asked for anew at four fifths of its life.
    async fn token(
        &mut self,
        volume: &str,
        source: &ServiceAccountTokenProjection,
        client: &Client,
        pod: &Pod,
    ) -> Result<String, VolumeError> {
        let key = (volume.to_owned(), source.path.clone());
        if let Some(token) = self
            .tokens
            .get(&key)
            .filter(|token| Instant::now() < token.renew_at)
        {
            return Ok(token.value.clone());
        }
        let failed = |problem: String| VolumeError::Token {
            volume: volume.to_owned(),
            problem,
        };
        let lifetime_s = source.expiration_seconds.unwrap_or(TOKEN_LIFETIME_S);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: source.audience.iter().cloned().collect(),
                expiration_seconds: Some(lifetime_s),
                bound_object_ref: Some(
                    k8s_openapi::api::authentication::v1::BoundObjectReference {
                        api_version: Some("v1".to_owned()),
                        kind: Some("Pod".to_owned()),
                        name: pod.metadata.name.clone(),
                        uid: pod.metadata.uid.clone(),
                    },
                ),
            },
            ..TokenRequest::default()
        };
        let account = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref());
        let accounts: Api<ServiceAccount> =
            Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let params = PostParams::default();
        let asked = accounts.create_token_request(account.unwrap_or("default"), &params, &request);
        let answer = timeout(TOKEN_LIMIT, asked)
            .await
            .map_err(|elapsed| failed(elapsed.to_string()))?
            .map_err(|error| failed(error.to_string()))?;
        let value = answer.status.map(|status| status.token).unwrap_or_default();
        let lifetime = Duration::from_secs(u64::try_from(lifetime_s).unwrap_or_default());
        let token = Token {
            value: value.clone(),
            renew_at: Instant::now() + lifetime * 4 / 5,
        };
        self.tokens.insert(key, token);
        Ok(value)
    }
}

/// The files of a Secret or ConfigMap: all keys, or those of `items` under their paths.
fn pick(
    volume: &str,
    kind: &'static str,
    name: &str,
    found: Option<Files>,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
) -> Result<Files, VolumeError> {
    let Some(data) = found else {
        if optional == Some(true) {
            return Ok(Files::new());
        }
        return Err(VolumeError::NoObject {
            volume: volume.to_owned(),
            kind,
            name: name.to_owned(),
        });
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data);
    };
    let mut files = Files::new();
    for item in items {
        match data.get(&item.key) {
            Some(content) => {
                files.insert(item.path.clone(), content.clone());
            }
            None if optional == Some(true) => {}
            None => {
                return Err(VolumeError::NoKey {
                    volume: volume.to_owned(),
                    kind,
                    name: name.to_owned(),
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(files)
}

fn fields(
    volume: &str,
    items: Option<&[DownwardAPIVolumeFile]>,
    facts: Facts<'_>,
) -> Result<Files, VolumeError> {
    let mut files = Files::new();
    for item in items.unwrap_or_default() {
        let Some(field) = &item.field_ref else {
            return Err(VolumeError::Unsupported(volume.to_owned()));
        };
        let value = facts
            .field(&field.field_path)
            .map_err(|source| VolumeError::Field {
                volume: volume.to_owned(),
                source,
            })?;
        files.insert(item.path.clone(), value.into_bytes());
    }
    Ok(files)
}

fn secret_data(secret: &Secret) -> Files {
    let data = secret.data.iter().flatten();
    data.map(|(key, ByteString(value))| (key.clone(), value.clone()))
        .collect()
}

fn config_map_data(map: &ConfigMap) -> Files {
    let text = map.data.iter().flatten();
    let text = text.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten();
    text.chain(binary.map(|(key, ByteString(value))| (key.clone(), value.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_files(files: &[(&str, &str)]) -> Files {
        let owned =
            |&(path, content): &(&str, &str)| (path.to_owned(), content.as_bytes().to_vec());
        files.iter().map(owned).collect()
    }

    #[test]
    fn items_choose_keys_and_name_paths() {
        let items = [KeyToPath {
            key: "k".to_owned(),
            path: "dir/name".to_owned(),
            mode: None,
        }];
        let data = mk_files(&[("k", "1"), ("other", "2")]);
        let files = pick("v", "secret", "s", Some(data), Some(&items), None).unwrap();
        assert_eq!(files, mk_files(&[("dir/name", "1")]));

        let missing = pick("v", "secret", "s", Some(Files::new()), Some(&items), None);
        assert!(matches!(missing, Err(VolumeError::NoKey { .. })));
        assert!(
            pick("v", "secret", "s", None, None, Some(true))
                .unwrap()
                .is_empty()
        );
    }
}
