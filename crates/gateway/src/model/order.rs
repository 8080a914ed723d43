//! Which of several matching rules answers: Gateway API's precedence.

use std::cmp::{Ordering, Reverse};

use crate::world::PathMatch;

use super::Rule;

#[cfg(test)]
mod tests;

/// Sorts so that the first rule that matches a request is the one that answers it.
///
/// Path (exact, then the longest prefix), method, number of header matches, number of query matches, oldest route, its name,
/// then the order inside it. A regular expression is not supported, and stands for the paths that begin as it does.
pub(crate) fn compare(a: &Rule, b: &Rule) -> Ordering {
    key(a).cmp(&key(b))
}

fn key(rule: &Rule) -> impl Ord + use<'_> {
    let matcher = &rule.matcher;
    let path = match &matcher.path {
        PathMatch::Exact(path) => (0_u8, Reverse(path.len())),
        PathMatch::Regex(regex) => (1, Reverse(literal_start(regex).len())),
        PathMatch::Prefix(prefix) => (1, Reverse(prefix_of(prefix).len())),
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
