//! Hostnames of Gateway API's listeners and routes: which covers which, which is more specific.

use std::cmp::Ordering;
use std::fmt;

/// A host pattern, lower case. `*.a.b` covers one or more labels before `.a.b`, and not `a.b`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hostname {
    /// This host alone.
    Exact(String),
    /// What follows the `*.`.
    Suffix(String),
    /// Every host.
    Any,
}

// === impl Hostname ===

impl Hostname {
    /// `None` and `*` mean any host.
    pub fn parse(text: Option<&str>) -> Self {
        let text = text
            .unwrap_or("")
            .trim_end_matches('.')
            .to_ascii_lowercase();
        match text.strip_prefix("*.") {
            Some(suffix) => Self::Suffix(suffix.to_owned()),
            None if text.is_empty() || text == "*" => Self::Any,
            None => Self::Exact(text),
        }
    }

    /// Whether every host of `other` is also one of `self`.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Any) | (Self::Exact(_), Self::Suffix(_)) => false,
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Suffix(a), Self::Suffix(b)) => a == b || ends_with_label(b, a),
            (Self::Suffix(a), Self::Exact(b)) => ends_with_label(b, a),
        }
    }

    /// The hosts both have: the narrower of the two, or none.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }

    /// `Less`: `self` is the more specific, and is asked first.
    pub fn compare_specificity(&self, other: &Self) -> Ordering {
        fn rank(host: &Hostname) -> (u8, usize) {
            match host {
                Hostname::Exact(h) => (2, h.len()),
                Hostname::Suffix(h) => (1, h.len()),
                Hostname::Any => (0, 0),
            }
        }
        rank(other).cmp(&rank(self))
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Suffix(suffix) => write!(f, "*.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// Whether `host` is `<labels>.<suffix>`.
fn ends_with_label(host: &str, suffix: &str) -> bool {
    host.strip_suffix(suffix)
        .and_then(|rest| rest.strip_suffix('.'))
        .is_some_and(|labels| !labels.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk(text: &str) -> Hostname {
        Hostname::parse(Some(text))
    }

    #[test]
    fn wildcard_covers_whole_labels_only() {
        for (wide, narrow, covers) in [
            ("*.a.b", "x.a.b", true),
            ("*.a.b", "x.y.a.b", true),
            ("*.a.b", "*.x.a.b", true),
            ("*.a.b", "a.b", false),
            ("*.a.b", "xa.b", false),
            ("*", "a.b", true),
            ("a.b", "*", false),
            ("A.b", "a.B", true),
        ] {
            assert_eq!(mk(wide).covers(&mk(narrow)), covers, "{wide} {narrow}");
        }
    }

    #[test]
    fn what_both_have_is_the_narrower_of_the_two() {
        for (one, other, both) in [
            ("*.a.b", "x.a.b", Some("x.a.b")),
            ("*.a.b", "*.x.a.b", Some("*.x.a.b")),
            ("*", "*.a.b", Some("*.a.b")),
            ("*", "*", Some("*")),
            ("a.b", "a.b", Some("a.b")),
            ("a.b", "*.a.b", None),
            ("*.a.b", "*.c.b", None),
            ("a.b", "c.b", None),
        ] {
            let both = both.map(mk);
            assert_eq!(mk(one).intersect(&mk(other)), both, "{one} {other}");
            assert_eq!(mk(other).intersect(&mk(one)), both, "{other} {one}");
        }
    }

    #[test]
    fn exact_is_more_specific_than_any_wildcard() {
        let mut hosts = ["*", "*.b", "a.b", "*.long.suffix.example"].map(mk);
        hosts.sort_by(Hostname::compare_specificity);
        let order = hosts.map(|h| h.to_string());
        assert_eq!(order, ["a.b", "*.long.suffix.example", "*.b", "*"]);
    }
}
