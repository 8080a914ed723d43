//! How inventory objects are read, whatever their kind.

use std::{collections::BTreeMap, sync::Arc};

use crd::annotations::{ACCEPT_IDENTITY, ALLOWED_ADDRESSES};
use kube::core::ObjectMeta;

use mci_model::{
    index::origin::{Origin, Source, SourceKind},
    networks::{Allowed, Networks},
};

/// What the operator allows inventory objects to ask for.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Kubeconfigs may have http:// servers.
    pub allow_plain_http: bool,
    /// What every member's addresses are narrowed to.
    pub allowed: Allowed,
    /// Labels that go into the members' entries, at most [`MAX_ENTRY_LABELS`].
    pub entry_labels: Vec<String>,
}

/// As many labels as the CRD admits in an entry.
pub const MAX_ENTRY_LABELS: usize = 8;

// === impl Reading ===

impl Reading {
    /// Of an object without metadata, or with such as cannot be read. Only an object at home has a namespace.
    pub(crate) fn plain(&self, kind: SourceKind, namespace: &str, name: &str) -> Arc<Origin> {
        Arc::new(Origin {
            source: Source {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..Source::default()
            },
            allowed: self.allowed.clone(),
            ..Origin::default()
        })
    }

    /// Of an object with metadata.
    pub(crate) fn origin(&self, kind: SourceKind, metadata: &ObjectMeta) -> Arc<Origin> {
        let annotation = |name: &str| metadata.annotations.as_ref()?.get(name);
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let source = Source {
            kind,
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
        };
        let allowed = match annotation(ALLOWED_ADDRESSES).map(|text| text.parse::<Networks>()) {
            None => self.allowed.clone(),
            Some(Ok(networks)) => self.allowed.clone().and(Arc::new(networks)),
            Some(Err(error)) => {
                // what was meant to narrow must not widen because of a slip
                tracing::warn!(%source, %error, "bad annotation {ALLOWED_ADDRESSES}: no address of the member passes");
                self.allowed.clone().and(Arc::new(Networks::none()))
            }
        };
        let labels: BTreeMap<String, String> = metadata
            .labels
            .iter()
            .flatten()
            .filter(|(label, _)| self.entry_labels.contains(label))
            .take(MAX_ENTRY_LABELS)
            .map(|(label, value)| (label.clone(), value.clone()))
            .collect();
        Arc::new(Origin {
            source,
            labels,
            allowed,
            accepted_identity: annotation(ACCEPT_IDENTITY).cloned(),
            hint: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> ObjectMeta {
        let map = |pairs: &[(&str, &str)]| {
            let owned = pairs.iter();
            Some(
                owned
                    .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                    .collect(),
            )
        };
        ObjectMeta {
            name: Some("east".to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some("u-1".to_owned()),
            labels: map(labels),
            annotations: map(annotations),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn only_the_wanted_labels_go_on() {
        let reading = Reading {
            entry_labels: vec!["region".to_owned(), "zone".to_owned()],
            ..Reading::default()
        };
        let metadata = mk(&[("region", "eu"), ("secret", "x")], &[]);
        let origin = reading.origin(SourceKind::Secret, &metadata);
        assert_eq!(
            origin.labels,
            BTreeMap::from([("region".to_owned(), "eu".to_owned())])
        );
        assert_eq!(origin.source.to_string(), "Secret ns/east");
        assert_eq!(origin.source.uid, "u-1");
    }

    #[test]
    fn a_members_networks_narrow_those_of_all() {
        let reading = Reading {
            allowed: Allowed::default().and(Arc::new("10.0.0.0/8".parse().expect("a network"))),
            ..Reading::default()
        };
        let admits = |annotation: &str, ip: &str| {
            let metadata = mk(&[], &[(ALLOWED_ADDRESSES, annotation)]);
            let origin = reading.origin(SourceKind::Secret, &metadata);
            origin.allowed.admits(ip.parse().expect("an address"))
        };
        assert!(admits("10.1.0.0/16", "10.1.2.3"));
        assert!(!admits("10.1.0.0/16", "10.2.2.3"));
        assert!(!admits("0.0.0.0/0", "192.0.2.1"), "it cannot widen");
        assert!(!admits("10.1.0.0/160", "10.1.2.3"), "a slip admits nothing");
    }

    #[test]
    fn the_accepted_identity_is_read() {
        let metadata = mk(&[], &[(ACCEPT_IDENTITY, "u-2")]);
        let origin = Reading::default().origin(SourceKind::ClusterProfile, &metadata);
        assert_eq!(origin.accepted_identity.as_deref(), Some("u-2"));
    }
}
