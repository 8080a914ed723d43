//! Annotations that have no effect: misspelt keys, illegal values, labels in their place, and keys on objects of which
//! nothing reads them. Pure.

use std::{collections::BTreeMap, fmt};

use crd::{
    InferencePoolImport,
    annotations::{
        ACCEPT_IDENTITY, ALLOWED_ADDRESSES, CLUSTER_NAME, EXPORT_NAMESPACES, HEALTH_PORT,
        METRICS_PORT, POD_CIDRS, POOL_GROUP,
    },
    inference_pool::InferencePool,
};
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use mci_model::{
    export::{ANNOTATIONS, Export, PortSelector, parse_export},
    text::clipped,
};
use serde::Serialize;

/// An annotation that has no effect, and the object that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ignored {
    pub(crate) cluster: String,
    pub(crate) kind: &'static str,
    /// Empty: the object has no namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) message: String,
}

/// A kind of objects whose annotations are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool,
    /// InferencePool of the group before v1, which is not exported.
    OldPool,
    Import,
    Namespace,
    Service,
    /// A Secret that is a member.
    Secret,
    Profile,
}

/// Annotations of a member's object at home.
const OF_MEMBERS: [&str; 5] = [
    ACCEPT_IDENTITY,
    ALLOWED_ADDRESSES,
    CLUSTER_NAME,
    EXPORT_NAMESPACES,
    POD_CIDRS,
];
/// The prefix of annotations that nobody else defines.
const OURS: &str = "isthmus.dev";
/// Prefixes that are easily taken for one another.
const PREFIXES: [&str; 3] = [OURS, "inference.networking.x-k8s.io", POOL_GROUP];
/// Most letters by which a misspelt prefix or name differs from what is meant.
const MAX_TYPOS: usize = 2;
/// Longest key in a message, in characters: the longest that is read has 41.
const MAX_KEY: usize = 80;
/// Most messages about one object.
const MAX_MESSAGES: usize = 8;

// === impl Ignored ===

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cluster,
            kind,
            namespace,
            name,
            message,
        } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        write!(f, "{kind} {namespace}{slash}{name} in {cluster}: {message}")
    }
}

// === impl Kind ===

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "InferencePool",
            Self::OldPool => "InferencePool.inference.networking.x-k8s.io",
            Self::Import => "InferencePoolImport",
            Self::Namespace => "Namespace",
            Self::Service => "Service",
            Self::Secret => "Secret",
            Self::Profile => "ClusterProfile",
        }
    }

    fn reads(self, key: &str) -> bool {
        match self {
            Self::Pool => ANNOTATIONS.contains(&key),
            Self::Secret => OF_MEMBERS.contains(&key),
            // its name is a property
            Self::Profile => OF_MEMBERS.contains(&key) && key != CLUSTER_NAME,
            Self::OldPool | Self::Import | Self::Namespace | Self::Service => false,
        }
    }

    /// Whether a key with our prefix that nobody knows can only be a mistake.
    fn is_annotated_by_users(self) -> bool {
        matches!(self, Self::Pool | Self::Secret | Self::Profile)
    }
}

/// What of a pool's annotations has no effect, apart from illegal values that the condition `Exported` reports.
pub(crate) fn of_pool(cluster: &str, pool: &InferencePool) -> Vec<Ignored> {
    let export = parse_export(pool.annotations());
    let mut messages = match export {
        Export::Invalid(_) => Vec::new(),
        Export::NotRequested { .. } | Export::Requested(_) => export.complaints([]),
    };
    messages.extend(unread(Kind::Pool, &pool.metadata));
    about(Kind::Pool, cluster, &pool.metadata, messages)
}

/// What of an import's annotations has no effect.
pub(crate) fn of_import(cluster: &str, import: &InferencePoolImport) -> Vec<Ignored> {
    of_other(Kind::Import, cluster, &import.metadata)
}

/// What of the annotations of an object has no effect, where only their keys are judged.
pub(crate) fn of_other(kind: Kind, cluster: &str, metadata: &ObjectMeta) -> Vec<Ignored> {
    about(kind, cluster, metadata, unread(kind, metadata))
}

fn about(kind: Kind, cluster: &str, metadata: &ObjectMeta, messages: Vec<String>) -> Vec<Ignored> {
    let ignored = messages.into_iter().map(|message| Ignored {
        cluster: cluster.to_owned(),
        kind: kind.name(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        message,
    });
    ignored.take(MAX_MESSAGES).collect()
}

/// The same of the endpoint picker's Service, and of the pool's annotations that name a port which it has not got.
pub(crate) fn of_picker(pool: &InferencePool, service: &Service) -> Vec<String> {
    let Export::Requested(request) = parse_export(pool.annotations()) else {
        return Vec::new();
    };
    let spec = service.spec.as_ref();
    let is_headless = spec.is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"));
    let has = |wanted: &PortSelector| {
        let ports = spec.and_then(|spec| spec.ports.as_ref());
        let mut ports = ports.into_iter().flatten();
        match wanted {
            PortSelector::Number(_) if is_headless => true,
            PortSelector::Number(number) => ports.any(|port| port.port == i32::from(*number)),
            PortSelector::Name(name) => ports.any(|port| port.name.as_ref() == Some(name)),
        }
    };
    let ports = [
        (HEALTH_PORT, &request.health.port),
        (METRICS_PORT, &request.metrics.port),
    ];
    let unmet: Vec<&'static str> = ports
        .into_iter()
        .filter(|(_, port)| port.as_ref().is_some_and(|port| !has(port)))
        .map(|(annotation, _)| annotation)
        .collect();
    // what does not depend on the Service is reported of the pool
    let known = parse_export(pool.annotations()).complaints([]);
    let mut messages = Export::Requested(request).complaints(&unmet);
    messages.retain(|message| !known.contains(message));
    let name = service.name_any();
    let of_service = unread(Kind::Service, &service.metadata);
    messages.extend(
        of_service
            .into_iter()
            .map(|message| format!("its Service {name}: {message}")),
    );
    messages.truncate(MAX_MESSAGES);
    messages
}

/// What of the annotations of a member's object at home has no effect.
pub(crate) fn of_member(kind: Kind, metadata: &ObjectMeta) -> Vec<String> {
    let mut messages = unread(kind, metadata);
    messages.truncate(MAX_MESSAGES);
    messages
}

/// Keys that are not read of this kind, though they look as if they were.
fn unread(kind: Kind, metadata: &ObjectMeta) -> Vec<String> {
    let mut messages = Vec::new();
    for key in keys(metadata.annotations.as_ref()) {
        messages.extend(misplaced(kind, key));
    }
    for key in keys(metadata.labels.as_ref()) {
        if kind.reads(key) {
            messages.push(format!(
                "label {key} has no effect: it is read as an annotation alone"
            ));
        }
    }
    messages
}

fn keys(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = &str> {
    map.into_iter()
        .flat_map(|map| map.keys().map(String::as_str))
}

fn misplaced(kind: Kind, key: &str) -> Option<String> {
    if kind.reads(key) {
        return None;
    }
    let shown = clipped(key, MAX_KEY);
    let all = || ANNOTATIONS.iter().chain(&OF_MEMBERS).copied();
    if let Some(known) = all().find(|known| *known == key) {
        return Some(format!(
            "annotation {known} has no effect on this kind: set it on {}",
            place(known)
        ));
    }
    let near = all().filter_map(|known| Some((typos(key, known)?, known)));
    if let Some((_, known)) = near.min() {
        let place = if kind.reads(known) {
            String::new()
        } else {
            format!(" on {}", place(known))
        };
        return Some(format!(
            "annotation {shown} has no effect: use {known}{place}"
        ));
    }
    let is_ours = key
        .split_once('/')
        .is_some_and(|(prefix, _)| prefix == OURS);
    (is_ours && kind.is_annotated_by_users()).then(|| {
        format!(
            "annotation {shown} has no effect: docs/reference.md lists the annotations that are read"
        )
    })
}

/// The object that an annotation belongs to.
fn place(known: &str) -> &'static str {
    if known == CLUSTER_NAME {
        "the member's Secret at home"
    } else if OF_MEMBERS.contains(&known) {
        "the member's Secret or ClusterProfile at home"
    } else {
        "the InferencePool of group inference.networking.k8s.io"
    }
}

/// In how many letters a key differs from one that is read; none: it is another one.
fn typos(key: &str, known: &str) -> Option<usize> {
    let (prefix, name) = key.split_once('/')?;
    let (known_prefix, known_name) = known.split_once('/')?;
    let distance = |a: &str, b: &str| strsim::damerau_levenshtein(&a.to_lowercase(), b);
    let in_prefix = if PREFIXES.contains(&prefix) {
        usize::from(prefix != known_prefix)
    } else {
        distance(prefix, known_prefix)
    };
    let in_name = distance(name, known_name);
    (in_prefix <= MAX_TYPOS && in_name <= MAX_TYPOS).then_some(in_prefix + in_name)
}

#[cfg(test)]
mod tests {
    use crd::annotations::{DRAIN_SECONDS, EXPORT, EXPORT_MODE};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn mk_metadata(annotations: &[(&str, &str)]) -> ObjectMeta {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        ObjectMeta {
            name: Some("llama".to_owned()),
            namespace: Some("llm".to_owned()),
            annotations: Some(annotations.iter().map(owned).collect()),
            ..ObjectMeta::default()
        }
    }

    fn mk_pool(annotations: &[(&str, &str)]) -> InferencePool {
        let mut pool: InferencePool = serde_json::from_value(json!({
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
            "metadata": {}, "spec": {"selector": {"matchLabels": {}}, "targetPorts": []},
        }))
        .expect("a pool");
        pool.metadata = mk_metadata(annotations);
        pool
    }

    /// Each message has its text, in their order.
    fn says(messages: &[String], expected: &[&str]) {
        assert_eq!(messages.len(), expected.len(), "{messages:?}");
        for (message, expected) in messages.iter().zip(expected) {
            assert!(message.contains(expected), "{message} has not {expected}");
        }
    }

    fn messages(ignored: Vec<Ignored>) -> Vec<String> {
        ignored.into_iter().map(|one| one.message).collect()
    }

    #[rstest]
    #[case::what_is_read(&[(EXPORT, "ClusterSet"), (EXPORT_MODE, "ParentMode"), (DRAIN_SECONDS, "30")], &[])]
    #[case::of_others(&[("example.com/health-port", "1"), ("kubectl.kubernetes.io/last-applied-configuration", "{}")], &[])]
    #[case::illegal_value(&[(EXPORT, "ClusterSet"), (HEALTH_PORT, "0")], &["isthmus.dev/health-port is ignored: use"])]
    #[case::mode_alone(&[(EXPORT_MODE, "ParentMode")], &["has no effect without inference.networking.x-k8s.io/export"])]
    #[case::typo(&[("isthmus.dev/helth-port", "9003")], &["isthmus.dev/helth-port has no effect: use isthmus.dev/health-port"])]
    #[case::case(&[("isthmus.dev/Drain-Seconds", "9")], &["use isthmus.dev/drain-seconds"])]
    #[case::typo_of_export(&[("inference.networking.x-k8s.io/exprot", "ClusterSet")], &["use inference.networking.x-k8s.io/export"])]
    #[case::group_of_the_pool(&[("inference.networking.k8s.io/export", "ClusterSet")], &["use inference.networking.x-k8s.io/export"])]
    #[case::our_prefix(&[("isthmus.dev/export-mode", "ParentMode")], &["use inference.networking.x-k8s.io/export-mode"])]
    #[case::typo_of_the_prefix(&[("istmus.dev/metrics-port", "9")], &["use isthmus.dev/metrics-port"])]
    #[case::unknown(&[("isthmus.dev/weight", "9")], &["isthmus.dev/weight has no effect: docs/reference.md"])]
    #[case::of_a_member(&[(POD_CIDRS, "10.0.0.0/8")], &["set it on the member's Secret or ClusterProfile at home"])]
    #[case::typo_of_a_members(&[("isthmus.dev/pod-cidr", "10.0.0.0/8")], &["use isthmus.dev/pod-cidrs on the member's Secret"])]
    fn annotations_of_a_pool_without_effect_are_reported(
        #[case] annotations: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        says(&messages(of_pool("east", &mk_pool(annotations))), expected);
    }

    #[test]
    fn an_illegal_export_is_left_to_the_condition_and_a_label_is_none() {
        let mut pool = mk_pool(&[(EXPORT, "Mars")]);
        assert_eq!(of_pool("east", &pool), []);
        pool.metadata.labels = Some([(EXPORT.to_owned(), "ClusterSet".to_owned())].into());
        let found = messages(of_pool("east", &pool));
        says(&found, &["it is read as an annotation alone"]);
    }

    #[test]
    fn messages_about_one_object_are_bounded() {
        let keys: Vec<String> = (0..20)
            .map(|n| format!("isthmus.dev/{}{n}", "x".repeat(1000)))
            .collect();
        let annotations: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "")).collect();
        let found = messages(of_pool("east", &mk_pool(&annotations)));
        assert_eq!(found.len(), MAX_MESSAGES);
        assert!(found.iter().all(|message| message.len() < 200), "{found:?}");
    }

    #[rstest]
    #[case::import(Kind::Import)]
    #[case::namespace(Kind::Namespace)]
    #[case::old_pool(Kind::OldPool)]
    #[case::secret(Kind::Secret)]
    fn an_export_on_another_kind_is_reported(#[case] kind: Kind) {
        let metadata = mk_metadata(&[(EXPORT, "ClusterSet")]);
        let found = messages(of_other(kind, "east", &metadata));
        let expected = "no effect on this kind: set it on the InferencePool of group inference.networking.k8s.io";
        says(&found, &[expected]);
        // keys of other programs of ours
        let metadata = mk_metadata(&[("isthmus.dev/config-hash", "9")]);
        let is_members = kind == Kind::Secret;
        assert_eq!(of_other(kind, "east", &metadata).is_empty(), !is_members);
    }

    #[test]
    fn a_misspelt_annotation_of_a_member_is_reported() {
        let metadata = mk_metadata(&[(EXPORT_NAMESPACES, "*"), ("isthmus.dev/pod_cidrs", "")]);
        for kind in [Kind::Secret, Kind::Profile] {
            says(&of_member(kind, &metadata), &["use isthmus.dev/pod-cidrs"]);
        }
        let named = mk_metadata(&[(CLUSTER_NAME, "east")]);
        says(&of_member(Kind::Secret, &named), &[]);
        let expected = "set it on the member's Secret at home";
        says(&of_member(Kind::Profile, &named), &[expected]);
    }

    #[rstest]
    #[case::a_port_that_is_there("9003", &json!("10.0.0.1"), &[])]
    #[case::its_name("health", &json!("10.0.0.1"), &[])]
    #[case::a_port_that_is_not_there("9004", &json!("10.0.0.1"), &["health-port is ignored, since the endpoint picker's Service has no such port"])]
    #[case::of_pods("9004", &json!("None"), &[])]
    #[case::a_name_that_is_not_there("nosuchport", &json!("None"), &["health-port is ignored, since"])]
    fn a_port_that_the_service_lacks_is_reported(
        #[case] port: &str,
        #[case] cluster_ip: &Value,
        #[case] expected: &[&str],
    ) {
        let service = json!({"metadata": {"name": "llama-epp"},
            "spec": {"clusterIP": cluster_ip, "ports": [{"name": "health", "port": 9003}]}});
        let mut service: Service = serde_json::from_value(service).expect("a Service");
        let pool = mk_pool(&[
            (EXPORT, "ClusterSet"),
            (HEALTH_PORT, port),
            (DRAIN_SECONDS, "x"),
        ]);
        says(&of_picker(&pool, &service), expected);
        service.metadata.annotations = mk_metadata(&[(HEALTH_PORT, "9003")]).annotations;
        let expected: Vec<&str> = expected
            .iter()
            .copied()
            .chain(["its Service llama-epp: annotation isthmus.dev/health-port has no effect"])
            .collect();
        says(&of_picker(&pool, &service), &expected);
    }
}
