//! The objects at home that name a member. Pure.

use crd::{
    annotations::{ACCEPT_IDENTITY, CLUSTER_NAME, EXPORT_NAMESPACES, POD_CIDRS},
    cluster_profile::{CLUSTER_NAME_PROPERTY, ClusterProfile, JOINED},
};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use mci_inventory::{Credentials, SECRET_KEYS, is_no_kubeconfig, statement_files};
use mci_model::index::origin::SourceKind;

use super::Granted;
use crate::ignored::{self, Kind};

/// The object that names a member; in the order in which they win a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// `--self-name`.
    Home,
    /// A key of the Secret that the controller mounts.
    Key {
        namespace: String,
        secret: String,
        key: String,
    },
    /// A labelled Secret.
    Secret {
        namespace: String,
        name: String,
    },
    Profile {
        namespace: String,
        name: String,
    },
    /// Seen in the controller's record alone, which says what the controller has it by.
    Met(String),
}

/// A member, and what names it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// What the controller reaches it with; a text where that would be refused, none where it is not in a Secret.
    pub(crate) credentials: Option<Result<Box<Credentials>, String>>,
    /// Uid of the cluster that it leads to, once that was tried.
    pub(crate) uid: Option<String>,
    /// Uid of a cluster that may take the name over.
    pub(crate) accepts: Option<String>,
    /// The rights that its object records.
    pub(crate) granted: Granted,
    /// Annotations of the object that have no effect.
    pub(crate) ignored: Vec<String>,
}

// === impl Source ===

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Home => f.write_str("--self-name of the controller"),
            Self::Key {
                namespace,
                secret,
                key,
            } => write!(f, "key {key} of Secret {namespace}/{secret}"),
            Self::Secret { namespace, name } => write!(f, "Secret {namespace}/{name}"),
            Self::Profile { namespace, name } => write!(f, "ClusterProfile {namespace}/{name}"),
            Self::Met(by) => write!(f, "the controller's record, which has it by {by}"),
        }
    }
}

impl Source {
    /// How it is taken away; `home` is the context that leads to it.
    pub(crate) fn removal(&self, home: &str) -> String {
        match self {
            Self::Home => {
                "run the controller without --self-name (the chart's controller.selfName)"
                    .to_owned()
            }
            Self::Key {
                namespace,
                secret,
                key,
            } => {
                // otherwise its networks and namespaces would apply to the next member of this name
                let [networks, namespaces] = statement_files(name_of(key));
                format!(
                    "kubectl --context {home} -n {namespace} patch secret {secret} --type=merge -p '{{\"data\": {{\"{key}\": null, \"{networks}\": null, \"{namespaces}\": null}}}}'"
                )
            }
            Self::Secret { namespace, name } => {
                format!("kubectl --context {home} -n {namespace} delete secret {name}")
            }
            Self::Profile { namespace, name } => {
                format!("have its fleet manager take ClusterProfile {namespace}/{name} away")
            }
            Self::Met(by) => format!("take {by} away"),
        }
    }
}

pub(super) fn of_keys(secret: &Secret) -> Vec<Definition> {
    let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
    let text = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        Some(String::from_utf8_lossy(&bytes.0))
    };
    let keys = secret.data.iter().flatten();
    // the Secret also has the networks and namespaces of the members, beside their kubeconfigs
    let keys = keys.filter(|(key, _)| !is_no_kubeconfig(key));
    let keys = keys.map(|(key, bytes)| Definition {
        name: name_of(key).to_owned(),
        source: Source::Key {
            namespace: namespace.clone(),
            secret: name.clone(),
            key: key.clone(),
        },
        credentials: Some(read(&bytes.0)),
        uid: None,
        accepts: None,
        granted: {
            let [networks, namespaces] = statement_files(name_of(key)).map(|file| text(&file));
            Granted::of(networks.as_deref(), namespaces.as_deref())
        },
        ignored: Vec::new(),
    });
    keys.collect()
}

/// The name of a member, from the key of its kubeconfig.
fn name_of(key: &str) -> &str {
    key.rsplit_once('.').map_or(key, |(name, _)| name)
}

pub(crate) fn of_secret(secret: &Secret) -> Definition {
    let annotation = |key: &str| secret.annotations().get(key).cloned();
    let data = secret.data.as_ref();
    let bytes = data.and_then(|data| SECRET_KEYS.iter().find_map(|key| data.get(*key)));
    Definition {
        name: annotation(CLUSTER_NAME).unwrap_or_else(|| secret.name_any()),
        source: Source::Secret {
            namespace: secret.namespace().unwrap_or_default(),
            name: secret.name_any(),
        },
        credentials: Some(bytes.map_or_else(
            || {
                Err(format!(
                    "it has none of the keys {}",
                    SECRET_KEYS.join(", ")
                ))
            },
            |bytes| read(&bytes.0),
        )),
        uid: None,
        accepts: annotation(ACCEPT_IDENTITY),
        granted: Granted::of_annotations(secret.annotations()),
        ignored: ignored::of_member(Kind::Secret, &secret.metadata),
    }
}

/// None where the cluster is not joined to its fleet.
pub(super) fn of_profile(profile: &ClusterProfile) -> Option<Definition> {
    let status = profile.status.as_ref();
    let mut conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    if conditions.any(|one| one.type_ == JOINED && one.status == "False") {
        return None;
    }
    let properties = status
        .and_then(|status| status.properties.as_ref())
        .into_iter()
        .flatten();
    let property = |name: &str| {
        let mut properties = properties.clone();
        let found = properties.find(|property| property.name == name)?;
        Some(found.value.clone())
    };
    let annotation = |name: &str| profile.annotations().get(name).cloned();
    let stated = |name: &str| annotation(name).or_else(|| property(name));
    Some(Definition {
        name: property(CLUSTER_NAME_PROPERTY).unwrap_or_else(|| profile.name_any()),
        source: Source::Profile {
            namespace: profile.namespace().unwrap_or_default(),
            name: profile.name_any(),
        },
        credentials: None,
        uid: None,
        accepts: annotation(ACCEPT_IDENTITY),
        ignored: ignored::of_member(Kind::Profile, &profile.metadata),
        granted: Granted::of(
            stated(POD_CIDRS).as_deref(),
            stated(EXPORT_NAMESPACES).as_deref(),
        ),
    })
}

fn read(bytes: &[u8]) -> Result<Box<Credentials>, String> {
    let credentials = Credentials::parse(bytes, false);
    credentials.map(Box::new).map_err(|error| error.to_string())
}

/// The kind of a source, as the controller writes it.
pub(crate) fn kind_of(source: &str) -> Option<SourceKind> {
    let kinds = [
        SourceKind::Home,
        SourceKind::File,
        SourceKind::Secret,
        SourceKind::ClusterProfile,
    ];
    let word = source.split(' ').next().unwrap_or_default();
    kinds.into_iter().find(|kind| kind.name() == word)
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    pub(crate) fn mk_secret(name: &str, server: &str) -> Secret {
        let kubeconfig = json!({
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        });
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.namespace = Some("isthmus-system".to_owned());
        let bytes = ByteString(kubeconfig.to_string().into_bytes());
        secret.data = Some([("kubeconfig".to_owned(), bytes)].into());
        secret
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_a_member_all_the_same() {
        let mut secret = mk_secret("east", "http://10.0.0.1");
        let refused = of_secret(&secret).credentials.expect("read");
        assert!(refused.expect_err("refused").contains("http://"));
        secret.data = None;
        let refused = of_secret(&secret).credentials.expect("read");
        assert!(refused.expect_err("refused").contains("kubeconfig"));
        secret.metadata.annotations = Some([(CLUSTER_NAME.to_owned(), "north".to_owned())].into());
        assert_eq!(of_secret(&secret).name, "north");
    }

    #[test]
    fn a_key_is_a_member_of_its_name_without_the_extension() {
        let mut secret = mk_secret("isthmus-members", "https://10.0.0.1");
        let data = secret.data.take().unwrap_or_default();
        let bytes = data.into_values().next().expect("a kubeconfig");
        secret.data = Some(
            [
                ("east.yaml".to_owned(), bytes.clone()),
                ("west".to_owned(), bytes),
                (
                    ".east.pod-cidrs".to_owned(),
                    ByteString(b"10.2.0.0/16\n".to_vec()),
                ),
                (
                    ".east.export-namespaces".to_owned(),
                    ByteString(b"llm".to_vec()),
                ),
            ]
            .into(),
        );
        let found = of_keys(&secret).into_iter();
        let found: Vec<_> = found.map(|one| (one.name, one.granted.flags())).collect();
        let rights = " --pod-cidr 10.2.0.0/16 --namespaces llm";
        assert_eq!(
            found,
            [("east", rights), ("west", "")]
                .map(|(name, flags)| (name.to_owned(), flags.to_owned()))
        );
    }

    #[test]
    fn a_profile_has_the_name_of_its_property_unless_it_is_not_joined() {
        let mut profile: ClusterProfile = serde_json::from_value(json!({
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
            "metadata": {"name": "p", "namespace": "fleet", "annotations": {"isthmus.dev/pod-cidrs": "10.3.0.0/16"}}, "spec": {},
            "status": {"properties": [{"name": "cluster.clusterset.k8s.io", "value": "east"},
                {"name": "isthmus.dev/export-namespaces", "value": "llm"}],
                "conditions": [{"type": "Joined", "status": "True", "reason": "", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .expect("a profile");
        let east = of_profile(&profile).expect("joined");
        assert_eq!(east.name, "east");
        assert_eq!(
            east.granted.flags(),
            " --pod-cidr 10.3.0.0/16 --namespaces llm"
        );
        let status = profile.status.as_mut().expect("a status");
        status.conditions.as_mut().expect("conditions")[0].status = "False".to_owned();
        assert_eq!(of_profile(&profile), None);
    }

    #[test]
    fn the_controllers_words_for_a_source_are_understood() {
        let kinds = [
            "home",
            "file east.yaml",
            "Secret a/b",
            "ClusterProfile a/b",
            "",
        ]
        .map(kind_of);
        let [home, file, secret, profile, none] = kinds;
        assert_eq!(home, Some(SourceKind::Home));
        assert_eq!(file, Some(SourceKind::File));
        assert_eq!(secret, Some(SourceKind::Secret));
        assert_eq!(profile, Some(SourceKind::ClusterProfile));
        assert_eq!(none, None);
    }
}
