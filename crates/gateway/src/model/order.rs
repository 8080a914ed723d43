//! Which of several matching rules answers: Gateway API's precedence.

use std::cmp::{Ordering, Reverse};

use crate::world::PathMatch;

use super::Rule;

#[cfg(test)]
mod tests;

/// Sorts so that the first rule that matches a request is the one that answers it.
///
/// Path (exact, then regular expression, then the longest prefix), method, number of header
/// matches, number of query matches, oldest route, its name, then the order inside it.
pub(crate) fn compare(a: &Rule, b: &Rule) -> Ordering {
    key(a).cmp(&key(b))
}

fn key(rule: &Rule) -> impl Ord + use<'_> {
    let matcher = &rule.matcher;
    let path = match &matcher.path {
        PathMatch::Exact(path) => (0_u8, Reverse(path.len())),
        PathMatch::Regex(regex) => (1, Reverse(regex.len())),
        PathMatch::Prefix(prefix) => (2, Reverse(prefix_of(prefix).len())),
    };
    (
        path,
        matcher.method.is_none(),
        Reverse(matcher.headers.len()),
        Reverse(matcher.query.len()),
        rule.created,
        &rule.id,
    )
}

/// Without the slash at the end, which means nothing in a prefix: `/` becomes empty.
pub(crate) fn prefix_of(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}
