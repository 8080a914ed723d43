//! The annotations of a pool (R15, R16).

use std::{collections::BTreeMap, time::Duration};

use crd::{RoutingMode, annotations};

use crate::{evidence::Evidence, text::clipped};

/// What the annotations of a pool mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    /// No `export` annotation.
    NotRequested {
        /// There is an `export-mode` only, which is ignored.
        mode_alone: bool,
    },
    /// An illegal value: nothing is exported, and nothing is defaulted.
    Invalid(InvalidExport),
    /// Export in this mode.
    Requested(Box<ExportRequest>),
}

/// A legal request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// None: the operator's `--default-export-mode` (C15).
    pub mode: Option<RoutingMode>,
    /// How long its entry stays after the export has ended; none: the operator's `--drain-seconds`.
    pub drain: Option<Duration>,
    /// Overrides for the port of gRPC health.
    pub health: PortOverride,
    /// Overrides for the port of metrics.
    pub metrics: PortOverride,
    /// Annotations with illegal values; each is treated as absent.
    pub ignored: Vec<&'static str>,
}

/// Overrides for one auxiliary port of the EPP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortOverride {
    /// None: the port of a usual name, if the Service has one.
    pub port: Option<PortSelector>,
    /// None: no Secret is needed.
    pub secret: Option<SecretSelector>,
}

/// Which port of the EPP Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSelector {
    /// 1 to 65 535.
    Number(u16),
    /// An RFC-1123 label; it may name no port of the Service.
    Name(String),
}

/// A Secret that importing gateways may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSelector {
    /// In the import's namespace.
    Local(String),
    /// `namespace/name`: another namespace's, which is never passed on (C24).
    CrossNamespace,
}

/// An annotation value that makes the export illegal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation} has the value {value:?}: use {expected}")]
pub struct InvalidExport {
    /// Key of the annotation.
    pub annotation: &'static str,
    /// What it holds, cut to 64 characters.
    pub value: String,
    /// Legal values, for the user.
    pub expected: &'static str,
}

/// Annotations of a pool that control its export.
pub const ANNOTATIONS: [&str; 7] = [
    annotations::EXPORT,
    annotations::EXPORT_MODE,
    annotations::DRAIN_SECONDS,
    annotations::HEALTH_PORT,
    annotations::METRICS_PORT,
    annotations::HEALTH_SECRET,
    annotations::METRICS_SECRET,
];
/// Largest legal `drain-seconds`.
const MAX_DRAIN_SECONDS: u16 = 3600;
/// Length of a bad value in a message, in characters.
const MAX_VALUE: usize = 64;

/// Reads the annotations of a pool.
pub fn parse_export(annotations: &BTreeMap<String, String>) -> Export {
    let Some(export) = annotations.get(annotations::EXPORT) else {
        return Export::NotRequested {
            mode_alone: annotations.contains_key(annotations::EXPORT_MODE),
        };
    };
    if export != annotations::EXPORT_CLUSTER_SET {
        return Export::Invalid(InvalidExport {
            annotation: annotations::EXPORT,
            value: clipped(export, MAX_VALUE).to_owned(),
            expected: "ClusterSet",
        });
    }
    let mode = match annotations
        .get(annotations::EXPORT_MODE)
        .map(String::as_str)
    {
        None => None,
        Some("EndpointMode") => Some(RoutingMode::EndpointMode),
        Some("ParentMode") => Some(RoutingMode::ParentMode),
        Some(other) => {
            return Export::Invalid(InvalidExport {
                annotation: annotations::EXPORT_MODE,
                value: clipped(other, MAX_VALUE).to_owned(),
                expected: "EndpointMode or ParentMode",
            });
        }
    };
    let mut ignored = Vec::new();
    let mut take = |annotation: &'static str, good: fn(&str) -> bool| {
        let value = annotations.get(annotation)?;
        if good(value) {
            Some(value.as_str())
        } else {
            ignored.push(annotation);
            None
        }
    };
    let drain = take(annotations::DRAIN_SECONDS, is_drain_seconds)
        .and_then(|seconds| seconds.parse().ok())
        .map(Duration::from_secs);
    let health = PortOverride {
        port: take(annotations::HEALTH_PORT, is_port).map(PortSelector::parse),
        secret: take(annotations::HEALTH_SECRET, is_secret).map(SecretSelector::parse),
    };
    let metrics = PortOverride {
        port: take(annotations::METRICS_PORT, is_port).map(PortSelector::parse),
        secret: take(annotations::METRICS_SECRET, is_secret).map(SecretSelector::parse),
    };
    Export::Requested(Box::new(ExportRequest {
        mode,
        drain,
        health,
        metrics,
        ignored,
    }))
}

/// The legal values of an annotation.
fn expected(annotation: &str) -> &'static str {
    match annotation {
        annotations::DRAIN_SECONDS => "seconds from 0 to 3600",
        annotations::HEALTH_PORT | annotations::METRICS_PORT => {
            "the number or name of a port of the endpoint picker's Service"
        }
        annotations::HEALTH_SECRET | annotations::METRICS_SECRET => "the name of a Secret",
        _ => "a value that the reference lists",
    }
}

fn is_drain_seconds(value: &str) -> bool {
    value
        .parse::<u16>()
        .is_ok_and(|seconds| seconds <= MAX_DRAIN_SECONDS)
}

fn is_port(value: &str) -> bool {
    match value.parse::<u64>() {
        Ok(number) => (1..=u64::from(u16::MAX)).contains(&number),
        Err(_) => crate::name::is_label(value),
    }
}

fn is_secret(value: &str) -> bool {
    match value.split_once('/') {
        Some((namespace, name)) => {
            crate::name::is_label(namespace) && crate::name::is_subdomain(name)
        }
        None => crate::name::is_subdomain(value),
    }
}

// === impl Export ===

impl Export {
    /// The request.
    /// # Errors
    /// The evidence that there is no legal one.
    pub fn requested(&self) -> Result<&ExportRequest, Evidence> {
        match self {
            Self::NotRequested { .. } => Err(Evidence::AnnotationGone),
            Self::Invalid(_) => Err(Evidence::AnnotationInvalid),
            Self::Requested(request) => Ok(request),
        }
    }

    /// Whether there is a legal request.
    pub fn is_requested(&self) -> bool {
        self.requested().is_ok()
    }

    /// A sentence for each bad annotation; `unmet` are those that name a port which the Service lacks.
    pub fn complaints<'a>(&self, unmet: impl IntoIterator<Item = &'a &'static str>) -> Vec<String> {
        let request = match self {
            Self::NotRequested { mode_alone: true } => {
                return vec![format!(
                    "annotation {} has no effect without {}: set that to ClusterSet",
                    annotations::EXPORT_MODE,
                    annotations::EXPORT
                )];
            }
            Self::NotRequested { mode_alone: false } => return Vec::new(),
            Self::Invalid(invalid) => return vec![invalid.to_string()],
            Self::Requested(request) => request,
        };
        let bad = request.ignored.iter().map(|annotation| {
            let expected = expected(annotation);
            format!("annotation {annotation} is ignored: use {expected}")
        });
        let unmet = unmet.into_iter().map(|annotation| {
            let expected = expected(annotation);
            format!(
                "annotation {annotation} is ignored, since the endpoint picker's Service has no such port: use {expected}"
            )
        });
        let ports = [
            (annotations::HEALTH_SECRET, &request.health),
            (annotations::METRICS_SECRET, &request.metrics),
        ];
        let is_elsewhere =
            |port: &PortOverride| port.secret == Some(SecretSelector::CrossNamespace);
        let elsewhere = ports.into_iter().filter(|(_, port)| is_elsewhere(port)).map(|(annotation, _)| {
            format!(
                "annotation {annotation} names a Secret of another namespace, which is not passed on: use the name of one in the pool's"
            )
        });
        bad.chain(unmet).chain(elsewhere).collect()
    }
}

// === impl PortSelector ===

impl PortSelector {
    fn parse(value: &str) -> Self {
        value
            .parse()
            .map_or_else(|_| Self::Name(value.to_owned()), Self::Number)
    }
}

// === impl SecretSelector ===

impl SecretSelector {
    fn parse(value: &str) -> Self {
        if value.contains('/') {
            Self::CrossNamespace
        } else {
            Self::Local(value.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[rstest]
    #[case::no_annotation(&[], false)]
    #[case::mode_alone(&[(annotations::EXPORT_MODE, "EndpointMode")], true)]
    #[case::mode_alone_and_odd(&[(annotations::EXPORT_MODE, "SideMode")], true)]
    fn without_the_export_annotation_nothing_is_asked(
        #[case] pairs: &[(&str, &str)],
        #[case] mode_alone: bool,
    ) {
        assert_eq!(
            parse_export(&mk(pairs)),
            Export::NotRequested { mode_alone }
        );
    }

    #[rstest]
    #[case::kebab("cluster-set")]
    #[case::lower("clusterset")]
    #[case::space("ClusterSet ")]
    #[case::empty("")]
    #[case::boolean("true")]
    fn only_the_exact_export_value_is_legal(#[case] value: &str) {
        let Export::Invalid(invalid) = parse_export(&mk(&[(annotations::EXPORT, value)])) else {
            panic!("{value:?} was taken");
        };
        assert_eq!(invalid.annotation, annotations::EXPORT);
        assert!(invalid.to_string().contains("use ClusterSet"));
    }

    #[rstest]
    #[case(None, None)]
    #[case(Some("EndpointMode"), Some(RoutingMode::EndpointMode))]
    #[case(Some("ParentMode"), Some(RoutingMode::ParentMode))]
    fn modes_are_read(#[case] mode: Option<&str>, #[case] expected: Option<RoutingMode>) {
        let mut pairs = vec![(annotations::EXPORT, "ClusterSet")];
        pairs.extend(mode.map(|mode| (annotations::EXPORT_MODE, mode)));
        let Export::Requested(request) = parse_export(&mk(&pairs)) else {
            panic!("not taken");
        };
        assert_eq!(request.mode, expected);
    }

    #[rstest]
    #[case("endpointmode")]
    #[case("parentmode")]
    #[case("")]
    #[case("Endpoint")]
    #[case("ParentMode ")]
    fn unknown_modes_are_never_defaulted(#[case] mode: &str) {
        let pairs = [
            (annotations::EXPORT, "ClusterSet"),
            (annotations::EXPORT_MODE, mode),
        ];
        assert!(matches!(
            parse_export(&mk(&pairs)),
            Export::Invalid(InvalidExport {
                annotation: annotations::EXPORT_MODE,
                ..
            })
        ));
    }

    #[test]
    fn overrides_are_read_and_bad_ones_ignored() {
        let pairs = [
            (annotations::EXPORT, "ClusterSet"),
            (annotations::HEALTH_PORT, "9003"),
            (annotations::METRICS_PORT, "0"),
            (annotations::DRAIN_SECONDS, "3601"),
            (annotations::HEALTH_SECRET, "other/creds"),
            (annotations::METRICS_SECRET, "creds"),
        ];
        let Export::Requested(request) = parse_export(&mk(&pairs)) else {
            panic!("not taken");
        };
        assert_eq!(request.health.port, Some(PortSelector::Number(9003)));
        assert_eq!(request.health.secret, Some(SecretSelector::CrossNamespace));
        assert_eq!(request.metrics.port, None);
        assert_eq!(
            request.metrics.secret,
            Some(SecretSelector::Local("creds".to_owned()))
        );
        assert_eq!(
            request.ignored,
            vec![annotations::DRAIN_SECONDS, annotations::METRICS_PORT]
        );
    }

    #[rstest]
    #[case::name("creds", true)]
    #[case::of_another_namespace("other/creds", true)]
    #[case::empty("", false)]
    #[case::no_namespace("/creds", false)]
    #[case::no_name("other/", false)]
    #[case::not_a_namespace("Other.ns/creds", false)]
    #[case::not_a_name("other/Creds", false)]
    #[case::two_slashes("a/b/c", false)]
    fn secrets_have_legal_names(#[case] value: &str, #[case] legal: bool) {
        let pairs = [
            (annotations::EXPORT, "ClusterSet"),
            (annotations::HEALTH_SECRET, value),
        ];
        let Export::Requested(request) = parse_export(&mk(&pairs)) else {
            panic!("not taken");
        };
        assert_eq!(request.health.secret.is_some(), legal);
        assert_eq!(request.ignored.is_empty(), legal);
    }

    #[rstest]
    #[case("0", Some(0))]
    #[case("3600", Some(3600))]
    #[case("3601", None)]
    #[case("-1", None)]
    fn a_drain_lasts_an_hour_at_most(#[case] value: &str, #[case] seconds: Option<u64>) {
        let pairs = [
            (annotations::EXPORT, "ClusterSet"),
            (annotations::DRAIN_SECONDS, value),
        ];
        let Export::Requested(request) = parse_export(&mk(&pairs)) else {
            panic!("not taken");
        };
        assert_eq!(request.drain, seconds.map(Duration::from_secs));
    }

    #[test]
    fn a_long_value_is_clipped_in_the_message() {
        let long = "x".repeat(10_000);
        let Export::Invalid(invalid) = parse_export(&mk(&[(annotations::EXPORT, &long)])) else {
            panic!("taken");
        };
        assert!(invalid.to_string().len() < 200);
    }
}
