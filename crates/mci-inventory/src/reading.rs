//! How inventory objects are read, whatever their kind.

use std::{collections::BTreeMap, sync::Arc};

use crd::annotations::{ACCEPT_IDENTITY, ALLOWED_ADDRESSES};
use kube::core::ObjectMeta;

use crate::statements::Statements;
use mci_model::{
    index::{
        grant::Stated,
        origin::{Origin, Source, SourceKind},
    },
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
    /// The origin of a member without an object with metadata, with the rights that `statements` grant it.
    pub(crate) fn plain(
        &self,
        kind: SourceKind,
        name: &str,
        statements: &Statements,
    ) -> Arc<Origin> {
        let mut origin = self.bare(kind, "", name);
        statements.read_into(&mut origin);
        Arc::new(origin)
    }

    /// The origin of a member whose object at home cannot be read: the rights that it grants are not known.
    pub(crate) fn unreadable(&self, kind: SourceKind, namespace: &str, name: &str) -> Arc<Origin> {
        Arc::new(Origin {
            pod_cidrs: Stated::Unreadable,
            export_namespaces: Stated::Unreadable,
            ..self.bare(kind, namespace, name)
        })
    }

    fn bare(&self, kind: SourceKind, namespace: &str, name: &str) -> Origin {
        Origin {
            source: Source {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..Source::default()
            },
            allowed: self.allowed.clone(),
            ..Origin::default()
        }
    }

    /// The origin of a member from an object with metadata. Rights that its annotations do not state are read by
    /// `property`; where a fleet manager copies properties from the member itself, the member cannot change the
    /// annotations.
    pub(crate) fn origin<'a>(
        &self,
        kind: SourceKind,
        metadata: &'a ObjectMeta,
        property: impl Fn(&str) -> Option<&'a str>,
    ) -> Arc<Origin> {
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
        let mut origin = Origin {
            source,
            labels,
            allowed,
            accepted_identity: annotation(ACCEPT_IDENTITY).cloned(),
            ..Origin::default()
        };
        let stated =
            |name: &str| annotation(name).map_or_else(|| property(name), |text| Some(text));
        Statements::of(stated).read_into(&mut origin);
        Arc::new(origin)
    }
}

#[cfg(test)]
mod tests {
    use crd::annotations::{EXPORT_NAMESPACES, POD_CIDRS};

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
        let origin = reading.origin(SourceKind::Secret, &metadata, |_| None);
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
            let origin = reading.origin(SourceKind::Secret, &metadata, |_| None);
            origin.allowed.admits(ip.parse().expect("an address"))
        };
        assert!(admits("10.1.0.0/16", "10.1.2.3"));
        assert!(!admits("10.1.0.0/16", "10.2.2.3"));
        assert!(!admits("0.0.0.0/0", "192.0.2.1"), "it cannot widen");
        assert!(!admits("10.1.0.0/160", "10.1.2.3"), "a slip admits nothing");
    }

    #[test]
    fn annotations_win_over_properties() {
        let metadata = mk(&[], &[(POD_CIDRS, "10.2.0.0/16")]);
        let property = |name: &str| match name {
            POD_CIDRS => Some("10.3.0.0/16"),
            EXPORT_NAMESPACES => Some("llm"),
            _ => None,
        };
        let origin = Reading::default().origin(SourceKind::ClusterProfile, &metadata, property);
        let networks = origin.pod_cidrs.known().expect("networks");
        assert_eq!(networks[0].to_string(), "10.2.0.0/16");
        let namespaces = origin.export_namespaces.known().expect("namespaces");
        assert_eq!(namespaces.to_string(), "llm");
    }

    #[test]
    fn the_accepted_identity_is_read() {
        let metadata = mk(&[], &[(ACCEPT_IDENTITY, "u-2")]);
        let origin = Reading::default().origin(SourceKind::ClusterProfile, &metadata, |_| None);
        assert_eq!(origin.accepted_identity.as_deref(), Some("u-2"));
    }
}
