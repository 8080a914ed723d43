//! How much a list may bring over all its pages. The server says when a list is complete, so a hostile one never has to;
//! and what it sends grows when decoded: an object of 3 bytes takes a kilobyte.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::Uri;
use parking_lot::Mutex;

/// The lists of one client that are under way, by path: a handful.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists(Arc<Mutex<BTreeMap<String, Arc<Volume>>>>);

/// What the pages of one list have brought so far.
#[derive(Debug, Default)]
pub(super) struct Volume {
    bytes: AtomicUsize,
    objects: AtomicUsize,
}

/// Reads along with a page and counts its objects.
#[derive(Debug, Default)]
pub(super) struct Page {
    list: Arc<Volume>,
    depth: u32,
    in_text: bool,
    escaped: bool,
}

/// The list is too long.
#[derive(Debug, thiserror::Error)]
pub(super) enum TooLong {
    #[error("a list has more than {0} objects")]
    Objects(usize),
    #[error("a list is larger than {0} bytes")]
    Bytes(usize),
}

/// Two and a half times the Services that a member may have.
const MAX_OBJECTS: usize = 50_000;
/// 20 000 Services of 6 KiB.
const MAX_BYTES: usize = 128 * 1024 * 1024;
/// Counted for a page at least, so that pages without objects come to an end too: 2048 of them.
const MIN_PAGE: usize = 64 * 1024;
/// Brackets around an object: those of the list, of its items, and its own.
const OBJECT_DEPTH: u32 = 3;

// === impl Lists ===

impl Lists {
    /// The page that is asked for. One that continues nothing begins a new list.
    pub(super) fn page(&self, uri: &Uri) -> Page {
        let mut pairs = uri.query().unwrap_or_default().split('&');
        let goes_on = pairs.any(|pair| pair.split('=').next() == Some("continue"));
        let mut lists = self.0.lock();
        let list = lists.entry(uri.path().to_owned()).or_default();
        if !goes_on {
            *list = Arc::default();
        }
        list.bytes.fetch_add(MIN_PAGE, Ordering::Relaxed);
        Page {
            list: list.clone(),
            ..Page::default()
        }
    }
}

// === impl Page ===

impl Page {
    /// Takes in the next bytes of the page.
    /// # Errors
    /// When the list grows too long.
    pub(super) fn take(&mut self, data: &[u8]) -> Result<(), TooLong> {
        let before = self.list.bytes.fetch_add(data.len(), Ordering::Relaxed);
        if before + data.len() > MAX_BYTES {
            return Err(TooLong::Bytes(MAX_BYTES));
        }
        let found = self.objects(data);
        let before = self.list.objects.fetch_add(found, Ordering::Relaxed);
        if before + found > MAX_OBJECTS {
            return Err(TooLong::Objects(MAX_OBJECTS));
        }
        Ok(())
    }

    /// Objects that begin in these bytes. What is no JSON is counted somehow and does not decode later.
    fn objects(&mut self, data: &[u8]) -> usize {
        let mut found = 0;
        let mut rest = data;
        while !rest.is_empty() {
            rest = if self.in_text {
                self.skip_text(rest)
            } else {
                self.skip_brackets(rest, &mut found)
            };
        }
        found
    }

    /// Up to behind the end of a text, most of what there is.
    fn skip_text<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        if std::mem::take(&mut self.escaped) {
            return data.get(1..).unwrap_or_default();
        }
        let Some(at) = memchr::memchr2(b'"', b'\\', data) else {
            return &[];
        };
        self.escaped = data.get(at) == Some(&b'\\');
        self.in_text = self.escaped;
        data.get(at + 1..).unwrap_or_default()
    }

    /// Up to behind the beginning of a text.
    fn skip_brackets<'a>(&mut self, data: &'a [u8], found: &mut usize) -> &'a [u8] {
        for (at, byte) in data.iter().enumerate() {
            match byte {
                b'"' => {
                    self.in_text = true;
                    return data.get(at + 1..).unwrap_or_default();
                }
                b'{' | b'[' => {
                    self.depth = self.depth.saturating_add(1);
                    *found += usize::from(*byte == b'{' && self.depth == OBJECT_DEPTH);
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "/api/v1/services?limit=500";

    fn next() -> Uri {
        Uri::from_static("/api/v1/services?limit=500&continue=x")
    }

    #[test]
    fn the_objects_of_a_page_are_counted_however_it_is_cut() {
        let text = r#"{"metadata": {"continue": "{\"[{"}, "items": [{"a": {"b": [{}, {}]}, "c": "}]{"}, {}, {"\\": 1}]}"#;
        for size in [1, 7, text.len()] {
            let mut page = Page::default();
            let found: usize = text
                .as_bytes()
                .chunks(size)
                .map(|part| page.objects(part))
                .sum();
            assert_eq!((found, page.depth), (3, 0), "{size}");
        }
    }

    #[test]
    fn one_page_of_tiny_objects_ends() {
        let lists = Lists::default();
        let mut page = lists.page(&Uri::from_static(FIRST));
        page.take(br#"{"items": ["#).expect("short");
        page.take("{},".repeat(MAX_OBJECTS).as_bytes())
            .expect("as many as there may be");
        let error = page.take(b"{},").expect_err("too many");
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn pages_without_end_end_and_the_next_list_begins_at_nothing() {
        for body in [b"{}".to_vec(), vec![b' '; 1024 * 1024]] {
            let lists = Lists::default();
            lists
                .page(&Uri::from_static(FIRST))
                .take(&body)
                .expect("one page");
            let mut pages = (0..10_000).map(|_| lists.page(&next()).take(&body));
            let error = pages.find_map(Result::err).expect("they end");
            assert!(error.to_string().contains("larger"), "{error}");
            assert!(lists.page(&next()).take(&body).is_err(), "it goes on");
            lists
                .page(&Uri::from_static(FIRST))
                .take(&body)
                .expect("a new list");
        }
    }
}
