//! What one Envoy wants and has of one resource type.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::xds::{Kind, Resource};
use moment::Moment;

use super::view::{larger, size};

/// The first wait before a listener is sent again, then doubled: another one's removal, which makes
/// its port free, takes Envoy a few milliseconds.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Doublings at most: 51 s between tries.
const MOST_DOUBLINGS: u32 = 9;

#[derive(Clone, Debug, Default)]
pub(super) struct TypeState {
    pub(super) opened: bool,
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
    /// Changes with what Envoy has and asks for.
    pub(super) revision: u64,
}

/// A response without ACK yet.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) nonce: u64,
    pub(super) resources: BTreeMap<String, u64>,
    pub(super) removed: BTreeSet<String>,
    pub(super) at: Moment,
}

/// Listeners that Envoy could not bind, to be sent again unchanged.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(BTreeMap<String, Retry>);

#[derive(Clone, Debug)]
struct Retry {
    version: u64,
    /// In a row.
    failures: u32,
    /// When to send it again; none: now.
    at: Option<Moment>,
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
        if !(subscribe.is_empty() && unsubscribe.is_empty() && initial.is_empty()) {
            self.revision += 1;
        }
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

    /// How many names are kept, and their bytes: most names are in both.
    pub(super) fn names(&self) -> (usize, usize) {
        larger(size(self.subscribed.iter()), size(self.known.keys()))
    }

    /// Envoy has acknowledged some version of it, and is not told that it is gone.
    pub(super) fn holds(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(Option::is_some) && !self.is_leaving(name)
    }

    /// Envoy has some version of it, or will when it has read all we sent.
    pub(super) fn has(&self, name: &str) -> bool {
        let sent = self.in_flight.as_ref();
        self.holds(name) || sent.is_some_and(|sent| sent.resources.contains_key(name))
    }

    /// Envoy is told that it is gone, and has not answered.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        let sent = self.in_flight.as_ref();
        sent.is_some_and(|sent| sent.removed.contains(name))
    }

    pub(super) fn acknowledge(&mut self, name: String, version: u64) {
        if self.wildcard || self.subscribed.contains(&name) {
            self.revision += 1;
            self.known.insert(name, Some(version));
        }
    }

    /// Envoy knows that there is none.
    pub(super) fn forget(&mut self, name: String) {
        self.revision += 1;
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

// === impl Retries ===

impl Retries {
    pub(super) fn failed(&mut self, name: String, version: u64, now: Moment) {
        let before = self.0.get(&name).filter(|retry| retry.version == version);
        let failures = before.map_or(0, |retry| retry.failures);
        let wait = FIRST_RETRY * 2_u32.pow(failures.min(MOST_DOUBLINGS));
        let retry = Retry {
            version,
            failures: failures.saturating_add(1),
            at: Some(now.plus(wait)),
        };
        self.0.insert(name, retry);
    }

    /// Whether it had failed.
    pub(super) fn recovered(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// A changed listener is sent at once.
    pub(super) fn keep(&mut self, listeners: &BTreeMap<String, Arc<Resource>>) {
        self.0.retain(|name, retry| {
            let now = listeners.get(name);
            now.is_some_and(|listener| listener.version == retry.version)
        });
    }

    pub(super) fn pass(&mut self, now: Moment) {
        for retry in self.0.values_mut() {
            retry.at = retry.at.filter(|at| *at > now);
        }
    }

    /// It is not to be sent yet.
    pub(super) fn holds(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|retry| retry.at.is_some())
    }

    pub(super) fn due(&self) -> impl Iterator<Item = Moment> + '_ {
        self.0.values().filter_map(|retry| retry.at)
    }
}

/// Whether Envoy took the resources of a refused response that the message does not name. Clusters
/// and listeners it takes one after the other; what breaks a rule of the schema spoils the response.
pub(super) fn applies_the_rest(kind: Kind, message: &str) -> bool {
    let schema = message.contains("Proto constraint validation failed");
    matches!(kind, Kind::Cluster | Kind::Listener) && !schema
}

/// Whether the same resource may be taken later: its port may get free.
pub(super) fn is_passing(kind: Kind, message: &str) -> bool {
    let reasons = ["duplicate address", "cannot bind", "Address already in use"];
    kind == Kind::Listener && reasons.iter().any(|reason| message.contains(reason))
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
