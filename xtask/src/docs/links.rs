//! The Markdown pages of a checkout: what they link to, and whether it is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::read;

/// The table of contents of the site.
pub(super) const SUMMARY: &str = "docs/SUMMARY.md";
/// The pages below it are all on the site.
const DOCS: &str = "docs";

/// All pages, by their paths from the root of the checkout.
pub(super) struct Pages {
    root: PathBuf,
    pages: BTreeMap<PathBuf, Page>,
}

#[derive(Default)]
struct Page {
    /// Of its headings, as forges and mdBook make them.
    anchors: BTreeSet<String>,
    links: Vec<Link>,
}

struct Link {
    line: usize,
    /// As it is written.
    to: String,
}

/// What a link within the checkout leads to.
struct Destination {
    path: PathBuf,
    anchor: Option<String>,
}

// === impl Pages ===

impl Pages {
    /// Reads the Markdown files of a checkout, without hidden and build directories.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut pages = BTreeMap::new();
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let full = root.join(&directory);
            let entries =
                fs::read_dir(&full).with_context(|| format!("reading {}", full.display()))?;
            for entry in entries {
                let entry = entry.with_context(|| format!("reading {}", full.display()))?;
                let (name, kind) = (entry.file_name(), entry.file_type()?);
                let path = directory.join(&name);
                let text = name.to_string_lossy();
                if kind.is_dir() && !text.starts_with('.') && text != "target" {
                    directories.push(path);
                } else if kind.is_file() && is_page(&path) {
                    let page = Page::parse(&read(&root.join(&path))?);
                    pages.insert(path, page);
                }
            }
        }
        let root = root.to_owned();
        Ok(Self { root, pages })
    }

    /// What is wrong, a line each: links that lead nowhere, and pages that the site would lack.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (path, page) in &self.pages {
            for link in &page.links {
                if let Some(fault) = self.fault(path, link) {
                    let (path, line, to) = (path.display(), link.line, &link.to);
                    faults.push(format!("{path}:{line}: {to}: {fault}"));
                }
            }
        }
        let on_site = self.on_site();
        let below = self.pages.keys().filter(|path| path.starts_with(DOCS));
        for path in below.filter(|path| *path != Path::new(SUMMARY)) {
            if !on_site.contains(path) {
                faults.push(format!("{}: not in {SUMMARY}", path.display()));
            }
        }
        faults
    }

    /// The pages of the site.
    pub(super) fn on_site(&self) -> BTreeSet<PathBuf> {
        self.linked_from(Path::new(SUMMARY))
            .filter(|path| is_page(path))
            .collect()
    }

    /// Files that pages of the site link to and that are no pages: pictures, manifests.
    pub(super) fn beside_site(&self) -> BTreeSet<PathBuf> {
        let pages = self.on_site();
        pages
            .iter()
            .flat_map(|page| self.linked_from(page))
            .filter(|path| !is_page(path))
            .collect()
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn linked_from<'a>(&'a self, page: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let links = self.pages.get(page).map(|page| page.links.iter());
        links
            .into_iter()
            .flatten()
            .filter_map(move |link| Some(destination(page, &link.to)?.path))
    }

    fn fault(&self, from: &Path, link: &Link) -> Option<String> {
        let Destination { path, anchor } = destination(from, &link.to)?;
        if path.starts_with("..") {
            return Some("outside of the repository".to_owned());
        }
        let Some(page) = self.pages.get(&path) else {
            let full = self.root.join(&path);
            return match anchor {
                _ if full.is_dir() => Some("a directory: link to a file in it".to_owned()),
                _ if !full.is_file() => Some("no such file".to_owned()),
                Some(_) => Some("an anchor in a file that is no page".to_owned()),
                None => None,
            };
        };
        if let Some(anchor) = anchor
            && !page.anchors.contains(&anchor)
        {
            return Some(format!("{} has no such heading", path.display()));
        }
        let from_site = from != Path::new(SUMMARY) && self.on_site().contains(from);
        (from_site && !self.on_site().contains(&path))
            .then(|| format!("the site lacks it: name it in {SUMMARY}"))
    }
}

// === impl Page ===

impl Page {
    fn parse(text: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let before = text.get(..range.start).unwrap_or_default();
                    page.links.push(Link {
                        line: before.matches('\n').count() + 1,
                        to: dest_url.into_string(),
                    });
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    page.add_anchor(anchor);
                }
                _ => {}
            }
        }
        page
    }

    /// A heading that was there before gets a number.
    fn add_anchor(&mut self, anchor: String) {
        if self.anchors.contains(&anchor) {
            let unused = (1..).find_map(|number| {
                let numbered = format!("{anchor}-{number}");
                (!self.anchors.contains(&numbered)).then_some(numbered)
            });
            self.anchors.extend(unused);
        } else {
            self.anchors.insert(anchor);
        }
    }
}

pub(super) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "md")
}

/// Where a link of this page leads, from the root; `None` for one that leaves the checkout for the network.
pub(super) fn resolve(from: &Path, to: &str) -> Option<PathBuf> {
    destination(from, to).map(|destination| destination.path)
}

fn destination(from: &Path, to: &str) -> Option<Destination> {
    if to.contains("://") || to.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match to.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (to, None),
    };
    if path.is_empty() {
        let path = from.to_owned();
        return Some(Destination { path, anchor });
    }
    let mut resolved = from.parent().map(Path::to_owned).unwrap_or_default();
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir if resolved.file_name().is_some() => {
                resolved.pop();
            }
            Component::CurDir => {}
            // an absolute path replaces all, and is then not in the checkout
            other => resolved.push(other),
        }
    }
    let path = resolved;
    Some(Destination { path, anchor })
}

/// Letters, digits, `-` and `_` of a heading, in lower case, and a `-` for each space.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkout of these files.
    struct Checkout(PathBuf);

    impl Checkout {
        fn of(name: &str, files: &[(&str, &str)]) -> Self {
            let root = workspace_scratch().join(name);
            let _ = fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn faults(&self) -> Vec<String> {
            Pages::read(&self.0).unwrap().faults()
        }
    }

    impl Drop for Checkout {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn workspace_scratch() -> PathBuf {
        std::env::temp_dir().join(format!("isthmus-docs-{}", std::process::id()))
    }

    #[test]
    fn links_that_lead_somewhere_have_no_fault() {
        let checkout = Checkout::of(
            "whole",
            &[
                ("docs/SUMMARY.md", "[A](a.md) [R](../README.md)"),
                (
                    "docs/a.md",
                    "# The `x` flag\n[up](../README.md#it-s-here) ![p](p.svg)\n\
                     [own](#the-x-flag) [net](https://example.com/none)\n## Twice\n## Twice\n[t](#twice-1)",
                ),
                ("docs/p.svg", "<svg/>"),
                ("README.md", "## It s here\n```\n[code](nowhere.md)\n```\n"),
                (".hidden/b.md", "[x](nowhere.md)"),
            ],
        );
        assert_eq!(checkout.faults(), Vec::<String>::new());
    }

    #[test]
    fn each_broken_link_is_named_with_its_line_and_its_fault() {
        let checkout = Checkout::of(
            "broken",
            &[
                ("docs/SUMMARY.md", "[A](a.md)"),
                (
                    "docs/a.md",
                    "# A\n\n[f](b.md)\n![p](p.svg)\n[h](#b)\n[o](../../x)\n[d](../config)\n\
                     [s](../README.md)\n[l](../config/c.yaml#L1)",
                ),
                ("docs/orphan.md", ""),
                ("config/c.yaml", ""),
                ("README.md", ""),
            ],
        );
        assert_eq!(
            checkout.faults(),
            [
                "docs/a.md:3: b.md: no such file",
                "docs/a.md:4: p.svg: no such file",
                "docs/a.md:5: #b: docs/a.md has no such heading",
                "docs/a.md:6: ../../x: outside of the repository",
                "docs/a.md:7: ../config: a directory: link to a file in it",
                "docs/a.md:8: ../README.md: the site lacks it: name it in docs/SUMMARY.md",
                "docs/a.md:9: ../config/c.yaml#L1: an anchor in a file that is no page",
                "docs/orphan.md: not in docs/SUMMARY.md",
            ]
        );
    }
}
