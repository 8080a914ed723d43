//! The objects that a watch has reported, so that a list is whole and an odd object is not a missing one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use watch::{OddObject, Update};

/// Objects by name, each as the source reads it.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    items: BTreeMap<String, T>,
    /// Reported as odd since the last complete list began, or as part of it.
    odd: BTreeSet<String>,
    listed: bool,
}

// === impl Objects ===

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            odd: BTreeSet::new(),
            listed: false,
        }
    }
}

impl<T> Objects<T> {
    /// Applies an update; returns whether the objects, or their content, may have changed. An object that cannot be read
    /// keeps its last content; one that was never read gets what `unreadable` makes of it.
    pub(crate) fn apply<K>(
        &mut self,
        update: Update<K>,
        mut read: impl FnMut(K) -> (String, T),
        unreadable: impl Fn(&OddObject) -> T,
    ) -> bool {
        match update {
            Update::Reset(objects) => {
                let mut items: BTreeMap<String, T> = objects.into_iter().map(&mut read).collect();
                for name in std::mem::take(&mut self.odd) {
                    if let Some(kept) = self.items.remove(&name) {
                        items.entry(name).or_insert(kept);
                    }
                }
                self.items = items;
                self.listed = true;
                true
            }
            Update::Apply(object) => {
                let (name, item) = read(object);
                self.odd.remove(&name);
                self.items.insert(name, item);
                true
            }
            Update::Delete(object) => self.items.remove(&read(object).0).is_some(),
            Update::Odd(odd) => {
                self.odd.insert(odd.name.clone());
                if self.items.contains_key(&odd.name) {
                    return false;
                }
                let item = unreadable(&odd);
                self.items.insert(odd.name, item);
                self.listed
            }
            Update::OddDelete(odd) => {
                self.odd.remove(&odd.name);
                self.items.remove(&odd.name).is_some()
            }
            // proves nothing of any object
            Update::Failed(_) => false,
        }
    }

    /// All of them; none before the first complete list.
    pub(crate) fn all(&self) -> Option<&BTreeMap<String, T>> {
        self.listed.then_some(&self.items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Object = (&'static str, u32);

    fn apply(objects: &mut Objects<u32>, update: Update<Object>) -> bool {
        objects.apply(update, |(name, content)| (name.to_owned(), content), |_| 0)
    }

    fn odd(name: &str) -> OddObject {
        OddObject {
            namespace: String::new(),
            name: name.to_owned(),
            error: String::new(),
        }
    }

    fn all(objects: &Objects<u32>) -> Vec<(&str, u32)> {
        let items = objects.all().expect("listed").iter();
        items
            .map(|(name, content)| (name.as_str(), *content))
            .collect()
    }

    #[test]
    fn before_a_complete_list_there_is_none() {
        let mut objects = Objects::default();
        apply(&mut objects, Update::Apply(("a", 1)));
        assert!(objects.all().is_none());
        apply(&mut objects, Update::Reset(vec![("b", 2)]));
        assert_eq!(all(&objects), [("b", 2)], "what a list lacks is gone");
    }

    #[test]
    fn an_odd_object_keeps_its_last_content() {
        let mut objects = Objects::default();
        apply(&mut objects, Update::Reset(vec![("a", 1), ("b", 2)]));
        assert!(!apply(&mut objects, Update::Odd(odd("a"))));
        assert_eq!(all(&objects), [("a", 1), ("b", 2)]);
        // odd in a list, too; and one that was never read
        apply(&mut objects, Update::Odd(odd("a")));
        apply(&mut objects, Update::Odd(odd("c")));
        apply(&mut objects, Update::Reset(vec![("b", 3)]));
        assert_eq!(all(&objects), [("a", 1), ("b", 3), ("c", 0)]);
        apply(&mut objects, Update::Reset(vec![("b", 3)]));
        assert_eq!(
            all(&objects),
            [("b", 3)],
            "no longer on the list, odd or not"
        );
    }

    #[test]
    fn deletions_are_gone_and_failures_are_not() {
        let mut objects = Objects::default();
        apply(&mut objects, Update::Reset(vec![("a", 1), ("b", 2)]));
        assert!(apply(&mut objects, Update::Delete(("a", 1))));
        assert!(apply(&mut objects, Update::OddDelete(odd("b"))));
        assert_eq!(all(&objects), [("", 0); 0]);
    }
}
