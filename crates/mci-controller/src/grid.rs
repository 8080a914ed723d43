//! The page at `/` of the admin port: pools × clusters, with the reason of each hole, and the members.
//!
//! It has no model of its own: members are those of the [`Overview`](crate::overview::Overview), each row is an
//! [`Explanation`](crate::explain::Explanation).
//!
//! ```text
//!  browser ── GET / ──► handler ── Explain per row ──► the world's loop
//!                          │ ▲                              │ set, remove
//!                          │ └─ Listing ─ Directory ◄───────┘
//!                          ▼
//!                       cells ─► html (escaped) ─► page.html
//! ```

mod cells;
mod directory;
mod handler;
mod html;
mod reasons;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use crate::name::Key;

pub(crate) use self::{directory::Directory, handler::router};

/// Which keys are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Part of `namespace/name`; empty: all.
    pub(crate) text: String,
    /// Only those that are not everywhere as they should be.
    pub(crate) only_holes: bool,
    /// The first is 1; one past the last is the last.
    pub(crate) page: usize,
}

/// The keys of one page, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) keys: Vec<Key>,
    /// The page that this is.
    pub(crate) page: usize,
    /// At least 1.
    pub(crate) pages: usize,
    /// Keys that the filter lets through.
    pub(crate) matching: usize,
    /// All that are planned.
    pub(crate) total: usize,
    /// Those of all that are not everywhere as they should be.
    pub(crate) with_holes: usize,
}

/// Where the documentation is published as a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocsUrl(String);

/// Pools on a page. With [`MAX_CLUSTERS`] a page then has 4000 cells, some 300 KB.
const PAGE_SIZE: usize = 20;
/// Clusters on a page: more are narrowed by name.
const MAX_CLUSTERS: usize = 200;

// === impl DocsUrl ===

impl DocsUrl {
    /// Where a heading of a page is.
    fn heading(&self, page: &str, anchor: &str) -> String {
        format!("{}/{page}.html#{anchor}", self.0)
    }
}

impl FromStr for DocsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_web = text.starts_with("https://") || text.starts_with("http://");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]@%+".contains(c);
        if is_web && text.chars().all(plain) {
            Ok(Self(text.trim_end_matches('/').to_owned()))
        } else {
            Err(format!(
                "{text:?} is no URL of pages: use https://docs.example.com/isthmus"
            ))
        }
    }
}
