//! Which of several matching rules answers: Gateway API's precedence.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use crate::world::PathMatch;

use super::{Rule, RuleId};

#[cfg(test)]
mod tests;

/// Which of two rules goes before the other, so that the first one that matches a request answers it.
///
/// Path (exact, then the longest prefix), method, number of header matches, number of query matches, oldest route, its name,
/// then the order inside it. A regular expression is not supported, and stands for the paths that begin as it does: its rule
/// is widened, and answers more requests than it is meant for. Those of rules of other namespaces that are as specific must not
/// be among them. So a widened rule goes after all that are as specific, and with it the plain rules of its namespace that are
/// younger, for what it denies must not fall to them. Where a plain rule of its namespace takes all its requests, it goes right
/// before that one instead, and takes them from no other namespace.
pub(crate) struct Order<'r> {
    /// The rules that do not stay where the API has them.
    moved: BTreeMap<&'r RuleId, Place<'r>>,
}

/// The lowest is the most specific.
type Specificity = ((u8, Reverse<usize>), bool, Reverse<usize>, Reverse<usize>);

/// The lowest goes first of those that are as specific.
type Age<'r> = (i64, &'r RuleId);

/// Whether it goes after all others that are as specific; the rule whose place it takes, and whether it is that rule; of several
/// that take one place the longest start, then the oldest.
type Place<'r> = (bool, Age<'r>, bool, Reverse<usize>, Age<'r>);

/// Rules of one namespace that are as specific, for the same path.
#[derive(Default)]
struct Group<'r> {
    plain: Vec<&'r Rule>,
    widened: Vec<&'r Rule>,
}

// === impl Order ===

impl<'r> Order<'r> {
    pub(crate) fn of(rules: impl IntoIterator<Item = &'r Rule> + Clone) -> Self {
        let id = |rule: &'r Rule| {
            let namespace = rule.id.route.namespace.as_str();
            (specificity(rule), namespace, prefix_of(start(rule)))
        };
        let widened = rules.clone().into_iter().filter(|rule| rule.is_widened());
        let mut groups: BTreeMap<_, Group<'r>> =
            widened.map(|rule| (id(rule), Group::default())).collect();
        let mut moved = BTreeMap::new();
        if groups.is_empty() {
            return Self { moved };
        }
        for rule in rules {
            if let Some(group) = groups.get_mut(&id(rule)) {
                group.add(rule);
            }
        }
        for group in groups.into_values() {
            group.place(&mut moved);
        }
        Self { moved }
    }

    pub(crate) fn compare(&self, a: &Rule, b: &Rule) -> Ordering {
        let specific = specificity(a).cmp(&specificity(b));
        specific.then_with(|| self.place(a).cmp(&self.place(b)))
    }

    fn place<'a>(&'a self, rule: &'a Rule) -> Place<'a> {
        let moved = self.moved.get(&rule.id);
        moved.copied().unwrap_or_else(|| place(false, rule))
    }
}

// === impl Group ===

impl<'r> Group<'r> {
    fn add(&mut self, rule: &'r Rule) {
        if rule.is_widened() {
            self.widened.push(rule);
        } else {
            self.plain.push(rule);
        }
    }

    fn place(mut self, moved: &mut BTreeMap<&'r RuleId, Place<'r>>) {
        self.plain.sort_by_key(|rule| age(rule));
        let mut before = Vec::new();
        let mut last = Vec::new();
        for widened in &self.widened {
            match self.covering(widened) {
                Some(covering) => before.push((*widened, covering)),
                None => last.push(*widened),
            }
        }
        let oldest = last.iter().map(|widened| age(widened)).min();
        let is_last = |plain: &Rule| oldest.is_some_and(|oldest| oldest < age(plain));
        for (widened, covering) in before {
            let length = Reverse(start(widened).len());
            let (at, own) = (age(covering), age(widened));
            moved.insert(&widened.id, (is_last(covering), at, false, length, own));
        }
        let younger = self.plain.into_iter().filter(|plain| is_last(plain));
        let last = last.into_iter().chain(younger);
        moved.extend(last.map(|rule| (&rule.id, place(true, rule))));
    }

    /// The oldest plain rule that takes all requests of the widened one, unless another follows that one before it.
    fn covering(&self, widened: &Rule) -> Option<&'r Rule> {
        let next = self
            .plain
            .partition_point(|plain| age(plain) < age(widened));
        let next = self.plain.get(next);
        let covering = self.plain.iter().find(|plain| covers(plain, widened))?;
        let is_first = next.is_none_or(|next| age(covering) <= age(next));
        is_first.then_some(*covering)
    }
}

fn age(rule: &Rule) -> Age<'_> {
    (rule.created, &rule.id)
}

/// The place of its own.
fn place(is_last: bool, rule: &Rule) -> Place<'_> {
    (is_last, age(rule), true, Reverse(0), age(rule))
}

/// Whether the plain rule matches all that the widened one answers. Both are for the same path.
fn covers(plain: &Rule, widened: &Rule) -> bool {
    let (plain, widened) = (&plain.matcher, &widened.matcher);
    let (PathMatch::Prefix(_), PathMatch::Regex(regex)) = (&plain.path, &widened.path) else {
        return false;
    };
    let start = literal_start(regex);
    let mut values = widened.headers.iter().chain(&widened.query);
    (start.is_empty() || start.ends_with('/'))
        && !values.any(|value| value.inexact)
        && plain.method == widened.method
        && plain.headers == widened.headers
        && plain.query == widened.query
}

/// How all its paths begin.
fn start(rule: &Rule) -> &str {
    match &rule.matcher.path {
        PathMatch::Exact(path) | PathMatch::Prefix(path) => path,
        PathMatch::Regex(regex) => literal_start(regex),
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
