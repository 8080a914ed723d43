//! The objects that a watch has told, so that a list is whole and an odd object is not a missing one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use watch::{OddObject, Update};

/// Objects by name, each as the source reads it.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    items: BTreeMap<String, T>,
    /// Told as odd since the last complete list began, or as part of it.
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
    /// Takes an update in; returns whether the objects, or what they say, may have changed. An object that cannot be read
    /// keeps what it last said; one that never said anything says what `unreadable` makes of it.
    pub(crate) fn take<K>(
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

    type Said = (&'static str, u32);

    fn take(objects: &mut Objects<u32>, update: Update<Said>) -> bool {
        objects.take(update, |(name, said)| (name.to_owned(), said), |_| 0)
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
        items.map(|(name, said)| (name.as_str(), *said)).collect()
    }

    #[test]
    fn before_a_complete_list_there_is_none() {
        let mut objects = Objects::default();
        take(&mut objects, Update::Apply(("a", 1)));
        assert!(objects.all().is_none());
        take(&mut objects, Update::Reset(vec![("b", 2)]));
        assert_eq!(all(&objects), [("b", 2)], "what a list lacks is gone");
    }

    #[test]
    fn an_odd_object_keeps_what_it_last_said() {
        let mut objects = Objects::default();
        take(&mut objects, Update::Reset(vec![("a", 1), ("b", 2)]));
        assert!(!take(&mut objects, Update::Odd(odd("a"))));
        assert_eq!(all(&objects), [("a", 1), ("b", 2)]);
        // odd in a list, too; and one that was never read
        take(&mut objects, Update::Odd(odd("a")));
        take(&mut objects, Update::Odd(odd("c")));
        take(&mut objects, Update::Reset(vec![("b", 3)]));
        assert_eq!(all(&objects), [("a", 1), ("b", 3), ("c", 0)]);
        take(&mut objects, Update::Reset(vec![("b", 3)]));
        assert_eq!(
            all(&objects),
            [("b", 3)],
            "no longer on the list, odd or not"
        );
    }

    #[test]
    fn deletions_are_gone_and_failures_are_not() {
        let mut objects = Objects::default();
        take(&mut objects, Update::Reset(vec![("a", 1), ("b", 2)]));
        assert!(take(&mut objects, Update::Delete(("a", 1))));
        assert!(take(&mut objects, Update::OddDelete(odd("b"))));
        assert_eq!(all(&objects), [("", 0); 0]);
    }
}
