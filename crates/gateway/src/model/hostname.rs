//! Hostnames of listeners and routes: which covers which, which is more specific.

use std::cmp::Ordering;
use std::fmt;

/// A host pattern, lower case. `*.a.b` covers one or more labels before `.a.b`, and not `a.b`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hostname {
    Exact(String),
    /// What follows the `*.`.
    Suffix(String),
    Any,
}

impl Hostname {
    /// `None` and `*` mean any host.
    pub(crate) fn parse(text: Option<&str>) -> Self {
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
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Any) | (Self::Exact(_), Self::Suffix(_)) => false,
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Suffix(a), Self::Suffix(b)) => a == b || ends_with_label(b, a),
            (Self::Suffix(a), Self::Exact(b)) => ends_with_label(b, a),
        }
    }

    /// The hosts both have: the narrower of the two, or none.
    pub(crate) fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }

    /// `Less`: `self` is the more specific, and is asked first.
    pub(crate) fn compare_specificity(&self, other: &Self) -> Ordering {
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
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("*.a.b", "x.a.b", true)]
    #[case("*.a.b", "x.y.a.b", true)]
    #[case("*.a.b", "*.x.a.b", true)]
    #[case("*.a.b", "a.b", false)]
    #[case("*.a.b", "xa.b", false)]
    #[case("*", "a.b", true)]
    #[case("a.b", "*", false)]
    #[case("A.b", "a.B", true)]
    fn wildcard_covers_whole_labels_only(
        #[case] wide: &str,
        #[case] narrow: &str,
        #[case] covers: bool,
    ) {
        let (wide, narrow) = (Hostname::parse(Some(wide)), Hostname::parse(Some(narrow)));
        assert_eq!(wide.covers(&narrow), covers);
    }

    #[test]
    fn exact_is_more_specific_than_any_wildcard() {
        let mut hosts =
            ["*", "*.b", "a.b", "*.long.suffix.example"].map(|h| Hostname::parse(Some(h)));
        hosts.sort_by(Hostname::compare_specificity);
        let order = hosts.map(|h| h.to_string());
        assert_eq!(order, ["a.b", "*.long.suffix.example", "*.b", "*"]);
    }
}
