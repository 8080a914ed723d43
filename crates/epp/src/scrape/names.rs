//! Finds the few wanted names among the many lines of a page.
//!
//! Names that begin with the same byte form a group and share its prefix. Most lines are rejected by their first byte
//! or by the one behind the prefix; the few others are compared with the names that have both.

use std::collections::BTreeMap;

/// The names of one engine's metrics, each with what it means: a `T` for each spec that has the name.
#[derive(Debug)]
pub(super) struct Names<T> {
    groups: Vec<Group<T>>,
}

/// Names that begin with the same byte.
#[derive(Debug)]
struct Group<T> {
    first: u8,
    /// What all begin with, shorter than each of them.
    prefix: Box<[u8]>,
    /// For each byte whether a name has it behind the prefix.
    next: Box<[bool; 256]>,
    names: Vec<Name<T>>,
}

#[derive(Debug)]
struct Name<T> {
    /// Behind the group's prefix; not empty.
    rest: Box<[u8]>,
    wanted: Vec<T>,
}

// === impl Names ===

impl<T> Names<T> {
    /// An empty name matches nothing and is left out.
    pub(super) fn new(wanted: impl IntoIterator<Item = (String, T)>) -> Self {
        let mut names: BTreeMap<String, Vec<T>> = BTreeMap::new();
        for (name, meaning) in wanted {
            names.entry(name).or_default().push(meaning);
        }
        let mut groups: BTreeMap<u8, Vec<(String, Vec<T>)>> = BTreeMap::new();
        for (name, meanings) in names {
            if let Some(&first) = name.as_bytes().first() {
                groups.entry(first).or_default().push((name, meanings));
            }
        }
        Self {
            groups: groups
                .into_iter()
                .map(|(first, names)| Group::new(first, names))
                .collect(),
        }
    }

    /// What is wanted of `line`, and what follows the name there.
    pub(super) fn find<'l>(&self, line: &'l [u8]) -> Option<(&[T], &'l [u8])> {
        let start = line.first()?;
        let group = self.groups.iter().find(|group| group.first == *start)?;
        // Rejects most lines, and costs less than comparing the prefix.
        let next = line.get(group.prefix.len())?;
        if !*group.next.get(usize::from(*next))? {
            return None;
        }
        let rest = line.strip_prefix(&*group.prefix)?;
        group.names.iter().find_map(|name| {
            if name.rest.first() != Some(next) {
                return None;
            }
            let behind = rest.strip_prefix(&*name.rest)?;
            // Another byte belongs to a longer name.
            let ended = matches!(behind.first(), Some(b'{' | b' ' | b'\t'));
            ended.then_some((&*name.wanted, behind))
        })
    }

    /// False when no line that begins with `head` is wanted.
    pub(super) fn may_begin(&self, head: &[u8]) -> bool {
        self.groups.iter().any(|group| {
            let Some(rest) = head.strip_prefix(&*group.prefix) else {
                return group.prefix.starts_with(head);
            };
            group
                .names
                .iter()
                .any(|name| rest.starts_with(&name.rest) || name.rest.starts_with(rest))
        })
    }
}

// === impl Group ===

impl<T> Group<T> {
    /// Of sorted names that begin with `first`.
    fn new(first: u8, names: Vec<(String, Vec<T>)>) -> Self {
        let shortest = names.iter().map(|(name, _)| name.len()).min();
        let common = match (names.first(), names.last()) {
            // In sorted order, what these two share is shared by all between.
            (Some((least, _)), Some((last, _))) => least
                .bytes()
                .zip(last.bytes())
                .take_while(|(one, other)| one == other)
                .count(),
            _ => 0,
        };
        let common = common.min(shortest.unwrap_or_default().saturating_sub(1));
        let prefix = names
            .first()
            .and_then(|(name, _)| name.as_bytes().get(..common))
            .unwrap_or_default()
            .into();
        let names: Vec<Name<T>> = names
            .into_iter()
            .map(|(name, wanted)| Name {
                rest: name.as_bytes().get(common..).unwrap_or_default().into(),
                wanted,
            })
            .collect();
        let is_next = |byte: usize| {
            let first = |name: &Name<T>| name.rest.first().map(|first| usize::from(*first));
            names.iter().any(|name| first(name) == Some(byte))
        };
        Self {
            first,
            prefix,
            next: Box::new(std::array::from_fn(is_next)),
            names,
        }
    }
}

#[cfg(test)]
mod tests;
