//! The keys that are planned, by name, and which of them have holes: the planner keeps it as plans change, the page reads it.
//!
//! A reader walks a few keys at a time and yields in between: it costs the planner no more than the wait for one slice.

use std::{cmp::Ordering, collections::BTreeMap, fmt::Write, ops::Bound, sync::Arc};

use parking_lot::RwLock;

use super::{Filter, Listing, PAGE_SIZE};
use crate::name::Key;

/// Its clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory(Arc<RwLock<Keys>>);

#[derive(Debug, Default)]
struct Keys {
    /// Whether each has holes. Bound: the plans.
    by_name: BTreeMap<ByName, bool>,
    with_holes: usize,
}

/// A key in the order that people read: [`Key`] has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ByName(Key);

/// A page that is being filled.
#[derive(Debug)]
struct Walk<'a> {
    filter: &'a Filter,
    listing: Listing,
    /// The last key that was seen.
    last: Option<ByName>,
    text: String,
}

/// Keys read under one lock: some 10 µs.
const SLICE: usize = 128;

// === impl Directory ===

impl Directory {
    /// A key was planned.
    pub(crate) fn set(&self, key: &Key, has_holes: bool) {
        let mut keys = self.0.write();
        let before = keys.by_name.insert(ByName(key.clone()), has_holes);
        keys.with_holes -= usize::from(before == Some(true));
        keys.with_holes += usize::from(has_holes);
    }

    /// Nothing is planned for a key any more.
    pub(crate) fn remove(&self, key: &Key) {
        let mut keys = self.0.write();
        let before = keys.by_name.remove(&ByName(key.clone()));
        keys.with_holes -= usize::from(before == Some(true));
    }

    /// A page. Each key is as it was at some moment of the call.
    pub(crate) async fn list(&self, filter: &Filter) -> Listing {
        let mut walk = Walk::new(filter);
        while walk.read(&self.0.read()) {
            tokio::task::yield_now().await;
        }
        walk.finish()
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(filter: &'a Filter) -> Self {
        Self {
            filter,
            listing: Listing {
                page: 1,
                ..Listing::default()
            },
            last: None,
            text: String::new(),
        }
    }

    /// Reads the next slice; false: there is none after it.
    fn read(&mut self, keys: &Keys) -> bool {
        self.listing.total = keys.by_name.len();
        self.listing.with_holes = keys.with_holes;
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut slice = keys.by_name.range((after, Bound::Unbounded)).take(SLICE);
        let mut last = None;
        let mut read = 0;
        for (key, has_holes) in &mut slice {
            if (*has_holes || !self.filter.only_holes) && self.holds(&key.0) {
                self.add(&key.0);
            }
            last = Some(key);
            read += 1;
        }
        self.last = last.cloned().or(self.last.take());
        read == SLICE
    }

    /// Whether `namespace/name` contains the text.
    fn holds(&mut self, key: &Key) -> bool {
        let part = &self.filter.text;
        part.is_empty() || {
            self.text.clear();
            // writing into a String cannot fail
            let _ = write!(self.text, "{key}");
            self.text.contains(part)
        }
    }

    /// The keys of the page asked for, or else of the last page.
    fn add(&mut self, key: &Key) {
        let listing = &mut self.listing;
        let page = listing.matching / PAGE_SIZE + 1;
        if page <= self.filter.page.max(1) {
            if page > listing.page {
                listing.page = page;
                listing.keys.clear();
            }
            listing.keys.push(key.clone());
        }
        listing.matching += 1;
    }

    fn finish(mut self) -> Listing {
        self.listing.pages = self.listing.matching.div_ceil(PAGE_SIZE).max(1);
        self.listing
    }
}

// === impl ByName ===

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.text().cmp(&other.0.text())
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn names(listing: &Listing) -> Vec<String> {
        listing.keys.iter().map(ToString::to_string).collect()
    }

    fn mk_directory(names: impl IntoIterator<Item = (String, bool)>) -> Directory {
        let directory = Directory::default();
        for (name, has_holes) in names {
            directory.set(&Key::new("ml", &name), has_holes);
        }
        directory
    }

    #[tokio::test]
    async fn a_filter_lets_through_what_contains_it() {
        let directory = mk_directory(["llama", "qwen"].map(|name| (name.to_owned(), false)));
        for (text, found, matching) in [("l/qw", vec!["ml/qwen"], 1), ("other", vec![], 0)] {
            let filter = Filter {
                text: text.to_owned(),
                ..Filter::default()
            };
            let listing = directory.list(&filter).await;
            assert_eq!(names(&listing), found);
            assert_eq!(
                (listing.matching, listing.total, listing.pages),
                (matching, 2, 1)
            );
        }
    }

    /// Over the ends of slices and pages: as a sorted list of all says.
    #[tokio::test]
    async fn keys_are_listed_by_name_a_page_at_a_time() {
        let all: Vec<String> = (0..SLICE * 2 + 3).map(|n| format!("llm-{n:03}")).collect();
        let pages = all.len().div_ceil(PAGE_SIZE);
        let directory = mk_directory(all.iter().map(|name| (name.clone(), false)));
        let mut listed = Vec::new();
        for page in 1..=pages {
            let filter = Filter {
                page,
                ..Filter::default()
            };
            let listing = directory.list(&filter).await;
            assert_eq!(
                (listing.page, listing.pages, listing.matching),
                (page, pages, all.len())
            );
            listed.extend(names(&listing));
        }
        let all: Vec<String> = all.iter().map(|name| format!("ml/{name}")).collect();
        assert_eq!(listed, all);
        for (page, shown) in [(0, 1), (pages + 1, pages)] {
            let filter = Filter {
                page,
                ..Filter::default()
            };
            let listing = directory.list(&filter).await;
            assert_eq!(listing.page, shown, "what is out of range is the nearest");
            assert!(all.chunks(PAGE_SIZE).nth(shown - 1) == Some(&names(&listing)[..]));
        }
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_recount(
            steps in prop::collection::vec((0..6_usize, prop::option::of(any::<bool>())), 0..40)
        ) {
            let directory = Directory::default();
            let mut all = BTreeMap::new();
            for (n, step) in steps {
                let key = Key::new("ml", &format!("llm-{n}"));
                if let Some(has_holes) = step {
                    directory.set(&key, has_holes);
                    all.insert(n, has_holes);
                } else {
                    directory.remove(&key);
                    all.remove(&n);
                }
            }
            let holes: BTreeSet<_> = all.iter().filter(|(_, has)| **has).map(|(n, _)| n).collect();
            let only = Filter { only_holes: true, ..Filter::default() };
            let mut walk = Walk::new(&only);
            walk.read(&directory.0.read());
            let listing = walk.finish();
            prop_assert_eq!((listing.total, listing.with_holes), (all.len(), holes.len()));
            prop_assert_eq!(listing.keys.len(), holes.len());
        }
    }
}
