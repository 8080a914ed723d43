//! What one Envoy wants and has of one resource type.

use std::collections::{BTreeMap, BTreeSet};

use crate::xds::Kind;
use moment::Moment;

#[derive(Clone, Debug, Default)]
pub(super) struct TypeState {
    opened: bool,
    /// The subscription to all there are has had no response yet. Envoy waits for one, even an empty one, before it
    /// goes on to the next type and gets ready.
    pub(super) unanswered: bool,
    /// All there are, also later ones.
    pub(super) wildcard: bool,
    pub(super) subscribed: BTreeSet<String>,
    /// Acknowledged version by name; `None`: told that there is none.
    pub(super) known: BTreeMap<String, Option<u64>>,
    pub(super) in_flight: Option<InFlight>,
    /// One of these was refused and Envoy did not say which.
    pub(super) one_by_one: BTreeSet<String>,
}

/// A response without ACK yet.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) nonce: u64,
    pub(super) resources: BTreeMap<String, u64>,
    pub(super) removed: Vec<String>,
    pub(super) at: Moment,
}

// === impl TypeState ===

impl TypeState {
    pub(super) fn subscribe(
        &mut self,
        kind: Kind,
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        initial: BTreeMap<String, u64>,
    ) {
        let first = !self.opened;
        self.opened = true;
        let has_wildcard = matches!(kind, Kind::Cluster | Kind::Listener);
        if has_wildcard && (first && subscribe.is_empty() || subscribe.iter().any(|n| n == "*")) {
            self.unanswered |= !self.wildcard;
            self.wildcard = true;
        }
        if first {
            let held = initial
                .into_iter()
                .map(|(name, version)| (name, Some(version)));
            self.known.extend(held);
        }
        for name in subscribe {
            // Asking again means not having it: Envoy wants it, changed or not.
            if !first {
                self.known.remove(&name);
                if let Some(sent) = &mut self.in_flight {
                    sent.resources.remove(&name);
                }
            }
            if name != "*" {
                self.subscribed.insert(name);
            }
        }
        for name in unsubscribe {
            if name == "*" {
                self.wildcard = false;
            }
            self.subscribed.remove(&name);
            if !self.wildcard {
                self.known.remove(&name);
            }
        }
    }

    /// Envoy has some version of it, or will when it has read all we sent.
    pub(super) fn has(&self, name: &str) -> bool {
        let sent = self.in_flight.as_ref();
        let known = self.known.get(name).is_some_and(Option::is_some);
        known || sent.is_some_and(|sent| sent.resources.contains_key(name))
    }

    pub(super) fn acknowledge(&mut self, name: String, version: u64) {
        if self.wildcard || self.subscribed.contains(&name) {
            self.known.insert(name, Some(version));
        }
    }

    /// Envoy knows that there is none.
    pub(super) fn forget(&mut self, name: String) {
        if !self.wildcard && self.subscribed.contains(&name) {
            self.known.insert(name, None);
        } else {
            self.known.remove(&name);
        }
    }

    /// The resources that the message names; a lone one needs no name.
    pub(super) fn refused(sent: &InFlight, message: &str) -> BTreeSet<String> {
        let named: BTreeSet<String> = sent
            .resources
            .keys()
            .filter(|name| names(message, name))
            .cloned()
            .collect();
        let mut all = sent.resources.keys();
        match (named.is_empty(), all.next(), all.next()) {
            (true, Some(only), None) => BTreeSet::from([only.clone()]),
            _ => named,
        }
    }
}

/// Whether `text` has `name` as a whole word: `pool/a/b` is not in `pool/a/bc`.
fn names(text: &str, name: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '@');
    // A full stop may end a sentence as well.
    let ends = |after: Option<char>, then: Option<char>| {
        after.is_none_or(|c| !part(c) || c == '.' && then.is_none_or(|c| !part(c)))
    };
    text.match_indices(name).any(|(at, found)| {
        let before = text.get(..at).and_then(|t| t.chars().next_back());
        let mut rest = text.get(at + found.len()..).unwrap_or("").chars();
        before.is_none_or(|c| !part(c)) && ends(rest.next(), rest.next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_words() {
        let text = "Error adding/updating cluster(s) pool/a/bc: bad, epp/a/b. import/a: no";
        assert!(names(text, "pool/a/bc"));
        assert!(names(text, "epp/a/b"));
        assert!(names(text, "import/a"));
        assert!(!names(text, "pool/a/b"));
        assert!(!names(text, "a/b"));
    }
}
