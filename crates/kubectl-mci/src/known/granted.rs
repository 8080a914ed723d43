//! The rights that an object records of its member: advice to run `kubectl mci join` again repeats them. Pure.

use std::collections::BTreeMap;

use crd::{
    annotations::{EXPORT_NAMESPACES, POD_CIDRS},
    networks::{Cidr, parse_pod_cidrs},
};
use mci_model::index::grant::ExportNamespaces;

/// The rights that an object records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    pod_cidrs: Recorded,
    export_namespaces: Recorded,
}

/// One right, as the object has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Recorded {
    /// The object was not read, or its text cannot be read.
    #[default]
    Unknown,
    /// The object does not record it.
    Nothing,
    As(String),
}

// === impl Granted ===

impl Granted {
    /// By the texts of an object that was read.
    pub(crate) fn of(pod_cidrs: Option<&str>, export_namespaces: Option<&str>) -> Self {
        let networks = |text: &str| {
            let networks = parse_pod_cidrs(text).ok()?;
            let texts = networks.iter().map(Cidr::to_string);
            Some(texts.collect::<Vec<_>>().join(","))
        };
        let namespaces = |text: &str| {
            let namespaces: ExportNamespaces = text.trim().parse().ok()?;
            Some(namespaces.to_string())
        };
        Self {
            pod_cidrs: Recorded::of(pod_cidrs, networks),
            export_namespaces: Recorded::of(export_namespaces, namespaces),
        }
    }

    pub(super) fn of_annotations(annotations: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| annotations.get(name).map(String::as_str);
        Self::of(text(POD_CIDRS), text(EXPORT_NAMESPACES))
    }

    /// The flags by which `kubectl mci join` records the same, each after a space. What is not known has to be filled in;
    /// what the object does not record, `join` has a default for that grants no more.
    pub(crate) fn flags(&self) -> String {
        let pod_cidrs = self.pod_cidrs.flag("--pod-cidr", "CIDR");
        let namespaces = self.export_namespaces.flag("--namespaces", "NAMES");
        pod_cidrs + &namespaces
    }
}

// === impl Recorded ===

impl Recorded {
    fn of(text: Option<&str>, parse: impl Fn(&str) -> Option<String>) -> Self {
        match text.map(parse) {
            None => Self::Nothing,
            Some(None) => Self::Unknown,
            Some(Some(text)) => Self::As(text),
        }
    }

    fn flag(&self, flag: &str, unknown: &str) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Unknown => format!(" {flag} {unknown}"),
            // a shell would look for files of such names
            Self::As(text) if text.contains('*') => format!(" {flag} '{text}'"),
            Self::As(text) => format!(" {flag} {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::both(
        Granted::of(Some("10.2.0.0/16, fd00:2::/56\n"), Some("llm")),
        " --pod-cidr 10.2.0.0/16,fd00:2::/56 --namespaces llm"
    )]
    #[case::a_pattern(Granted::of(None, Some("llm,team-*")), " --namespaces 'llm,team-*'")]
    #[case::nothing(Granted::of(None, None), "")]
    #[case::unreadable(
        Granted::of(Some("everywhere"), Some("LLM; rm")),
        " --pod-cidr CIDR --namespaces NAMES"
    )]
    #[case::empty(Granted::of(Some(" "), None), " --pod-cidr CIDR")]
    #[case::not_read(Granted::default(), " --pod-cidr CIDR --namespaces NAMES")]
    fn join_is_told_what_an_object_records(#[case] granted: Granted, #[case] flags: &str) {
        assert_eq!(granted.flags(), flags);
    }
}
