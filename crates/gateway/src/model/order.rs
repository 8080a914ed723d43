//! Which of several matching rules answers: Gateway API's precedence.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

use crate::world::PathMatch;

use super::Rule;

#[cfg(test)]
mod tests;

/// Which of two rules goes before the other, so that the first one that matches a request answers it.
///
/// Path (exact, then the longest prefix), method, number of header matches, number of query matches, oldest route, its name,
/// then the order inside it. A regular expression is not supported, and stands for the paths that begin as it does: its rule
/// answers more requests than it is meant for. Those of rules of other namespaces that are as specific must not be among them,
/// so all rules of such a namespace go after those of the others that are as specific.
pub(crate) struct Order<'r> {
    /// Namespaces with rules that are widened, with how specific these are.
    widened: BTreeSet<(Specificity, &'r str)>,
}

/// The lowest is the most specific.
type Specificity = ((u8, Reverse<usize>), bool, Reverse<usize>, Reverse<usize>);

// === impl Order ===

impl<'r> Order<'r> {
    pub(crate) fn of(rules: impl IntoIterator<Item = &'r Rule>) -> Self {
        let widened = rules.into_iter().filter(|rule| rule.is_widened());
        Self {
            widened: widened
                .map(|rule| (specificity(rule), rule.id.route.namespace.as_str()))
                .collect(),
        }
    }

    pub(crate) fn compare(&self, a: &Rule, b: &Rule) -> Ordering {
        self.key(a).cmp(&self.key(b))
    }

    fn key<'a>(&self, rule: &'a Rule) -> impl Ord + use<'a> {
        let specificity = specificity(rule);
        let namespace = rule.id.route.namespace.as_str();
        let is_widened = self.widened.contains(&(specificity, namespace));
        // Within a namespace the longer start goes first, with the slash at its end: what one rule denies must not fall to
        // another that allows it.
        let start = match &rule.matcher.path {
            PathMatch::Regex(regex) => literal_start(regex).len(),
            PathMatch::Exact(path) => path.len(),
            PathMatch::Prefix(prefix) => prefix_of(prefix).len(),
        };
        let place = is_widened.then_some((namespace, Reverse(start)));
        (specificity, place, rule.created, &rule.id)
    }
}

fn specificity(rule: &Rule) -> Specificity {
    let matcher = &rule.matcher;
    let path = match &matcher.path {
        PathMatch::Exact(path) => (0_u8, Reverse(path.len())),
        PathMatch::Regex(regex) => (1, Reverse(prefix_of(literal_start(regex)).len())),
        PathMatch::Prefix(prefix) => (1, Reverse(prefix_of(prefix).len())),
    };
    (
        path,
        matcher.method.is_none(),
        Reverse(matcher.headers.len()),
        Reverse(matcher.query.len()),
    )
}

/// Without the slash at the end, which means nothing in a prefix: `/` becomes empty.
pub(crate) fn prefix_of(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// How all paths begin that the expression matches as a whole; empty where that is not clear.
pub(crate) fn literal_start(regex: &str) -> &str {
    if has_alternatives(regex) {
        return "";
    }
    let text = regex.strip_prefix('^').unwrap_or(regex);
    let is_special = |c: char| r"\.+*?()|[]{}^$".contains(c);
    let (literal, rest) = text.split_at(text.find(is_special).unwrap_or(text.len()));
    // The character before these may be missing.
    let literal = if rest.starts_with(['*', '?', '{']) {
        let mut chars = literal.chars();
        chars.next_back();
        chars.as_str()
    } else {
        literal
    };
    if literal.starts_with('/') {
        literal
    } else {
        ""
    }
}

/// Whether the whole expression may be one of several.
fn has_alternatives(regex: &str) -> bool {
    if regex.contains('|') && regex.contains(['[', '\\']) {
        return true; // what is a group there is not plain to see
    }
    let mut depth = 0_usize;
    for c in regex.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}
