//! Names that travel between clusters, checked once, where they enter.

use std::{borrow::Borrow, fmt, sync::Arc};

use serde::{Serialize, Serializer};

/// A member's name in the inventory: an RFC-1123 label, so it fits a URL, a label value and a list key unescaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClusterName(Arc<str>);

/// Namespace and name of a pool, and so of its imports (R4); also of Services and EndpointSlices.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

/// Longest uid or resource version that is kept, in bytes: three times the 36 of a UUID, and some.
const MAX_OPAQUE: usize = 128;

/// A text that is no RFC-1123 label.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no cluster name: use at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
)]
pub(crate) struct NameError(String);

/// Whether `text` is an RFC-1123 label.
pub(crate) fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
}

/// Whether `text` is an RFC-1123 subdomain: labels joined by dots, at most 253 bytes.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A uid or a resource version: a text without a meaning, today of 36 bytes at most. None for one that is longer than any
/// server makes it: it is as good as absent.
pub(crate) fn opaque(text: Option<String>) -> Option<String> {
    text.filter(|text| text.len() <= MAX_OPAQUE)
}

// === impl ClusterName ===

impl ClusterName {
    /// # Errors
    /// [`NameError`] when it is no RFC-1123 label.
    pub(crate) fn new(name: &str) -> Result<Self, NameError> {
        if is_label(name) {
            Ok(Self(name.into()))
        } else {
            Err(NameError(name.to_owned()))
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ClusterName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for ClusterName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Key ===

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key as it may enter a URL or another cluster: a label and a subdomain; none for anything else, such as `../x`.
    pub(crate) fn checked(namespace: &str, name: &str) -> Option<Self> {
        (is_label(namespace) && is_subdomain(name)).then(|| Self::new(namespace, name))
    }

    /// Sorts before every key of the namespace.
    pub(crate) fn first_of(namespace: &str) -> Self {
        Self::new(namespace, "")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("east", true)]
    #[case("a", true)]
    #[case("9-b", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("East", false)]
    #[case("a.b", false)]
    #[case("../x", false)]
    #[case("a b", false)]
    fn cluster_names_are_labels(#[case] name: &str, #[case] good: bool) {
        assert_eq!(ClusterName::new(name).is_ok(), good);
    }

    #[test]
    fn labels_end_at_63_bytes() {
        assert!(is_label(&"a".repeat(63)));
        assert!(!is_label(&"a".repeat(64)));
    }

    #[test]
    fn keys_that_would_leave_their_url_are_refused() {
        assert!(Key::checked("ns", "a.b").is_some());
        assert!(Key::checked("ns", "../x").is_none());
        assert!(Key::checked("ns/x", "a").is_none());
        assert!(Key::checked("", "a").is_none());
    }
}
