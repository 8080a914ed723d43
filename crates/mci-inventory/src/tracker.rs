//! From scans of the directory to the files that are there. Pure.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    listing::{Listing, Listings},
    statements::Statements,
};

/// One file of a scan whose content is new.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// File name, without the directory.
    pub(crate) file: String,
    pub(crate) hash: u64,
    /// Of the files beside it.
    pub(crate) statements: Statements,
    pub(crate) listing: Arc<Listing>,
}

/// What earlier scans found.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    files: BTreeMap<String, Tracked>,
}

#[derive(Debug)]
struct Tracked {
    hash: u64,
    statements: Statements,
    misses: u32,
    listing: Arc<Listing>,
}

/// A file is gone when this many scans in a row lack it: a directory that is being replaced is no removal.
const MISSES: u32 = 2;

/// The member's name: the file's, without its extension.
pub(crate) fn member_name(file: &str) -> &str {
    match file.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => file,
    }
}

// === impl Tracker ===

impl Tracker {
    /// Whether a file has the same content as at the last scan, so that it need not be parsed again.
    pub(crate) fn knows(&self, file: &str, hash: u64) -> bool {
        self.files
            .get(file)
            .is_some_and(|tracked| tracked.hash == hash)
    }

    /// What the files beside a file said at the last scan.
    pub(crate) fn statements(&self, file: &str) -> Statements {
        let tracked = self.files.get(file);
        tracked
            .map(|tracked| tracked.statements.clone())
            .unwrap_or_default()
    }

    /// Applies a complete scan: every file there is, and the content of those that [`Tracker::knows`] did not know. Returns
    /// the files that count.
    pub(crate) fn scan(&mut self, files: &[String], found: Vec<Found>) -> Listings {
        for Found {
            file,
            hash,
            statements,
            listing,
        } in found
        {
            let tracked = Tracked {
                hash,
                statements,
                misses: 0,
                listing,
            };
            self.files.insert(file, tracked);
        }
        self.files.retain(|file, tracked| {
            tracked.misses = if files.contains(file) {
                0
            } else {
                tracked.misses + 1
            };
            tracked.misses < MISSES
        });
        let listing =
            |(file, tracked): (&String, &Tracked)| (file.clone(), tracked.listing.clone());
        self.files.iter().map(listing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::Access;

    fn mk_found(file: &str, hash: u64) -> Found {
        let listing = Listing {
            member: member_name(file).to_owned(),
            origin: Arc::default(),
            access: Access::Pending,
        };
        Found {
            file: file.to_owned(),
            hash,
            statements: Statements::default(),
            listing: Arc::new(listing),
        }
    }

    fn names(listings: &Listings) -> Vec<&str> {
        listings.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_file_is_gone_after_two_scans_without_it() {
        let mut tracker = Tracker::default();
        let all = ["east.yaml".to_owned()];
        let found = vec![mk_found("east.yaml", 1)];
        assert_eq!(names(&tracker.scan(&all, found)), ["east.yaml"]);
        assert!(tracker.knows("east.yaml", 1));
        assert!(!tracker.knows("east.yaml", 2));
        assert_eq!(names(&tracker.scan(&[], Vec::new())), ["east.yaml"]);
        assert_eq!(names(&tracker.scan(&all, Vec::new())), ["east.yaml"]);
        assert_eq!(names(&tracker.scan(&[], Vec::new())), ["east.yaml"]);
        assert_eq!(names(&tracker.scan(&[], Vec::new())), [""; 0]);
        assert!(!tracker.knows("east.yaml", 1));
    }

    #[test]
    fn the_extension_is_no_part_of_the_name() {
        assert_eq!(member_name("east.yaml"), "east");
        assert_eq!(member_name("east"), "east");
        assert_eq!(member_name("a.b.yaml"), "a.b");
    }
}
