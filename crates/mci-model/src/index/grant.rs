//! The rights that an inventory object grants its member: the networks of its pods, and the namespaces that it may
//! export. They are stated at home, never by the member.

use std::fmt;

use crate::name::is_label;

/// A value that an inventory object may state of its member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stated<T> {
    /// The object does not state the value.
    #[default]
    Absent,
    /// The value that the object states.
    Known(T),
    /// The object states a value that cannot be read: the earlier value stays in force.
    Unreadable,
}

/// The namespaces whose pools a member may export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportNamespaces(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// Every namespace except the system's.
    Any,
    /// Every namespace with this prefix, except the system's.
    Prefix(String),
    /// The namespace with this name, even if it is the system's.
    Name(String),
}

/// Whether a member may export the pools of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayExport {
    /// The member may export the pools of the namespace.
    Yes,
    /// The member may not export the pools of the namespace.
    No,
    /// The member's rights are not known: current exports stay as they are.
    Unknown,
}

/// The error for a text that is not a list of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportNamespacesError {
    /// The list is empty.
    #[error("it names no namespace: use names, beginnings such as team-*, or * for all")]
    Empty,
    /// The list has too many names.
    #[error("it has more than {MAX_PATTERNS} names: use beginnings such as team-*, or *")]
    TooMany,
    /// The list has a name that no namespace can have.
    #[error("{0:?} is no namespace: use names, beginnings such as team-*, or * for all")]
    NoNamespace(String),
}

/// Largest number of names and prefixes in one list.
const MAX_PATTERNS: usize = 256;
/// Longest part of a bad name in a message, in characters.
const MAX_SHOWN: usize = 64;

/// Namespaces of Kubernetes itself: their pools are exported only where they are named in full.
const SYSTEM_PREFIX: &str = "kube-";

// === impl Stated ===

impl<T> Stated<T> {
    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Absent | Self::Unreadable => None,
        }
    }
}

impl<T: Clone> Stated<T> {
    /// Replaces a value that cannot be read by the earlier one.
    pub(super) fn or_before(&mut self, before: &Self) {
        if matches!(self, Self::Unreadable) {
            *self = before.clone();
        }
    }
}

impl Stated<ExportNamespaces> {
    /// Whether the pools of the namespace may be exported. An object that states nothing allows all namespaces except
    /// the system's; `own` is the controller's own namespace, which is one of those.
    pub fn admits(&self, namespace: &str, own: &str) -> MayExport {
        let allowed = match self {
            Self::Unreadable => return MayExport::Unknown,
            Self::Absent => !is_system(namespace, own),
            Self::Known(namespaces) => namespaces.admit(namespace, own),
        };
        if allowed {
            MayExport::Yes
        } else {
            MayExport::No
        }
    }
}

// === impl ExportNamespaces ===

impl ExportNamespaces {
    fn admit(&self, namespace: &str, own: &str) -> bool {
        let system = is_system(namespace, own);
        self.0.iter().any(|pattern| match pattern {
            Pattern::Any => !system,
            Pattern::Prefix(prefix) => !system && namespace.starts_with(&**prefix),
            Pattern::Name(name) => namespace == name,
        })
    }
}

impl std::str::FromStr for ExportNamespaces {
    type Err = ExportNamespacesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let mut patterns = Vec::new();
        for part in parts {
            if patterns.len() == MAX_PATTERNS {
                return Err(ExportNamespacesError::TooMany);
            }
            let pattern = match part.strip_suffix('*') {
                Some("") => Pattern::Any,
                // a name that it could begin
                Some(prefix) if is_label(&format!("{prefix}x")) => {
                    Pattern::Prefix(prefix.to_owned())
                }
                None if is_label(part) => Pattern::Name(part.to_owned()),
                _ => {
                    let shown = part.chars().take(MAX_SHOWN).collect();
                    return Err(ExportNamespacesError::NoNamespace(shown));
                }
            };
            patterns.push(pattern);
        }
        if patterns.is_empty() {
            return Err(ExportNamespacesError::Empty);
        }
        Ok(Self(patterns))
    }
}

impl fmt::Display for ExportNamespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.0.iter().map(|pattern| match pattern {
            Pattern::Any => "*".to_owned(),
            Pattern::Prefix(prefix) => format!("{prefix}*"),
            Pattern::Name(name) => name.clone(),
        });
        f.write_str(&texts.collect::<Vec<_>>().join(","))
    }
}

/// Whether the namespace is one of Kubernetes itself or the controller's own.
fn is_system(namespace: &str, own: &str) -> bool {
    namespace.starts_with(SYSTEM_PREFIX) || namespace == own
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing_said(None, "llm", MayExport::Yes)]
    #[case::nothing_said_of_the_systems(None, "kube-system", MayExport::No)]
    #[case::nothing_said_of_our_own(None, "isthmus-system", MayExport::No)]
    #[case::default_is_nobodys_in_particular(None, "default", MayExport::Yes)]
    #[case::all(Some("*"), "llm", MayExport::Yes)]
    #[case::all_but_the_systems(Some("*"), "kube-public", MayExport::No)]
    #[case::all_but_our_own(Some("*"), "isthmus-system", MayExport::No)]
    #[case::the_systems_by_name(Some("*, kube-system"), "kube-system", MayExport::Yes)]
    #[case::our_own_by_name(Some("isthmus-system"), "isthmus-system", MayExport::Yes)]
    #[case::no_prefix_admits_the_systems(Some("kube-*"), "kube-node-lease", MayExport::No)]
    #[case::prefix(Some("team-*"), "team-a", MayExport::Yes)]
    #[case::another_prefix(Some("team-*"), "teams", MayExport::No)]
    #[case::name(Some("llm,chat"), "chat", MayExport::Yes)]
    #[case::another_name(Some("llm,chat"), "chat-2", MayExport::No)]
    #[case::unreadable(Some("LLM"), "llm", MayExport::Unknown)]
    fn a_member_exports_what_its_object_says(
        #[case] text: Option<&str>,
        #[case] namespace: &str,
        #[case] expected: MayExport,
    ) {
        let stated = match text.map(str::parse) {
            None => Stated::Absent,
            Some(Ok(namespaces)) => Stated::Known(namespaces),
            Some(Err(_)) => Stated::<ExportNamespaces>::Unreadable,
        };
        assert_eq!(stated.admits(namespace, "isthmus-system"), expected);
    }

    #[rstest]
    #[case("", "no namespace")]
    #[case(" , ", "no namespace")]
    #[case("llm chat", "\"llm chat\"")]
    #[case("Llm", "\"Llm\"")]
    #[case("*-llm", "\"*-llm\"")]
    #[case("a*b*", "\"a*b*\"")]
    #[case(&"a,".repeat(257), "more than 256")]
    #[case(&"x".repeat(64), "is no namespace")]
    fn what_is_no_list_of_namespaces_is_named(#[case] text: &str, #[case] said: &str) {
        let error = text.parse::<ExportNamespaces>().expect_err("refused");
        assert!(error.to_string().contains(said), "{error}");
    }

    #[test]
    fn a_list_is_shown_as_it_is_written() {
        let read: ExportNamespaces = " llm ,team-*,*".parse().expect("namespaces");
        assert_eq!(read.to_string(), "llm,team-*,*");
    }
}
