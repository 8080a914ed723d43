//! Names that travel between clusters, checked once, where they enter.

use std::{borrow::Borrow, fmt, ops::Bound, sync::Arc};

use serde::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

/// A member's name in the inventory: an RFC-1123 label, so it fits a URL, a label value and a list key unescaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

/// Namespace and name of a pool, and so of its imports (R4); also of Services and EndpointSlices.
///
/// Ordered by a fixed hash, so that a lookup in a large map compares numbers. Keys of one namespace are adjacent, except
/// where the hashes of two namespaces collide. Output for people is sorted by [`Key::text`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Hash of the namespace in the upper half, of the name in the lower. The first field, since it is compared first.
    rank: u64,
    /// An RFC-1123 label where [`Key::checked`] made the key.
    pub namespace: Arc<str>,
    /// An RFC-1123 subdomain where [`Key::checked`] made the key.
    pub name: Arc<str>,
}

/// Longest uid or resource version that is kept, in bytes: three times the 36 of a UUID, and some.
const MAX_OPAQUE: usize = 128;

/// Bits of a key's rank that are its name's.
const LOWER: u64 = 0xffff_ffff;

/// A text that is no RFC-1123 label.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no cluster name: use at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
)]
pub struct NameError(String);

/// Whether `text` is an RFC-1123 label.
pub fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
}

/// Whether `text` is an RFC-1123 subdomain: labels joined by dots, at most 253 bytes.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A uid or a resource version: an opaque text, today of at most 36 bytes. None if it is longer than any server makes it:
/// it is then treated as absent.
pub fn opaque(text: Option<String>) -> Option<String> {
    text.filter(|text| text.len() <= MAX_OPAQUE)
}

// === impl ClusterName ===

impl ClusterName {
    /// # Errors
    /// [`NameError`] when it is no RFC-1123 label.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if is_label(name) {
            Ok(Self(name.into()))
        } else {
            Err(NameError(name.to_owned()))
        }
    }

    /// 1 to 63 bytes of a-z, 0-9 and '-'.
    pub fn as_str(&self) -> &str {
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
    /// Copies both names and checks neither; see [`Key::checked`].
    pub fn new(namespace: &str, name: &str) -> Self {
        Self::of(namespace.into(), name.into())
    }

    /// The same, from shared names.
    pub fn of(namespace: Arc<str>, name: Arc<str>) -> Self {
        let rank = rank_of(&namespace) | (xxh3_64(name.as_bytes()) & LOWER);
        Self {
            rank,
            namespace,
            name,
        }
    }

    /// The key as it may enter a URL or another cluster: a label and a subdomain; none for anything else, such as `../x`.
    pub fn checked(namespace: &str, name: &str) -> Option<Self> {
        (is_label(namespace) && is_subdomain(name)).then(|| Self::new(namespace, name))
    }

    /// Namespace and name, to sort output for people.
    pub fn text(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    /// A range that holds all keys of the namespace, and hardly any others.
    pub fn all_of(namespace: &str) -> (Bound<Self>, Bound<Self>) {
        // no key has empty names: it is before all of its rank
        let first = |rank| Self {
            rank,
            namespace: Arc::default(),
            name: Arc::default(),
        };
        let rank = rank_of(namespace);
        let next = rank.checked_add(LOWER + 1).map(first);
        (
            Bound::Included(first(rank)),
            next.map_or(Bound::Unbounded, Bound::Excluded),
        )
    }
}

/// The part of the rank that all keys of a namespace share.
fn rank_of(namespace: &str) -> u64 {
    xxh3_64(namespace.as_bytes()) & !LOWER
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
    use std::collections::BTreeSet;

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
    fn the_keys_of_a_namespace_are_found_among_others() {
        let keys: BTreeSet<Key> = (0..20)
            .flat_map(|ns| {
                (0..20).map(move |name| Key::new(&format!("ns-{ns}"), &name.to_string()))
            })
            .collect();
        assert_eq!(keys.len(), 400);
        for ns in 0..20 {
            let found: Vec<&Key> = keys.range(Key::all_of(&format!("ns-{ns}"))).collect();
            assert_eq!(found.len(), 20, "{found:?}");
        }
        assert_eq!(keys.range(Key::all_of("other")).count(), 0);
    }

    #[test]
    fn keys_whose_hashes_collide_are_distinct() {
        let key = Key::new("a", "b");
        for (namespace, name) in [("a", "c"), ("c", "b")] {
            let other = Key {
                rank: key.rank,
                ..Key::new(namespace, name)
            };
            assert_ne!(key, other);
            assert_ne!(key.cmp(&other), std::cmp::Ordering::Equal);
        }
    }

    #[test]
    fn keys_that_would_leave_their_url_are_refused() {
        assert!(Key::checked("ns", "a.b").is_some());
        assert!(Key::checked("ns", "../x").is_none());
        assert!(Key::checked("ns/x", "a").is_none());
        assert!(Key::checked("", "a").is_none());
    }
}
