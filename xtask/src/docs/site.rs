//! What mdBook gets: the pages of the site and the files that they link to, where they stand in the checkout, so that
//! links from one to another hold, those out of `docs/` among them.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::{
    links::{Pages, SUMMARY, is_page, resolve},
    read,
};

/// mdBook's settings, and the style that they name; beside the pages there.
const SETTINGS: [&str; 2] = ["book.toml", "site.css"];

/// Lays out the source of the site in `target`, anew.
pub(super) fn stage(pages: &Pages, target: &Path) -> Result<()> {
    if target.exists() {
        fs::remove_dir_all(target).with_context(|| format!("clearing {}", target.display()))?;
    }
    let source = target.join("src");
    for path in pages.on_site().union(&pages.beside_site()) {
        copy(&pages.root().join(path), &source.join(path))?;
    }
    let summary = rooted(&read(&pages.root().join(SUMMARY))?);
    let path = source.join("SUMMARY.md");
    fs::write(&path, summary).with_context(|| format!("writing {}", path.display()))?;
    for name in SETTINGS {
        copy(&pages.root().join("docs").join(name), &target.join(name))?;
    }
    Ok(())
}

/// The table of contents with its links from the root of the checkout, where mdBook reads it.
fn rooted(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut rooted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rooted.push_str("](");
        let link = part.split_once(')');
        match link.and_then(|(to, rest)| Some((resolve(Path::new(SUMMARY), to)?, rest))) {
            Some((path, rest)) if is_page(&path) => {
                rooted.push_str(&path.to_string_lossy());
                rooted.push(')');
                rooted.push_str(rest);
            }
            _ => rooted.push_str(part),
        }
    }
    rooted
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(to);
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_leads_to_pages_from_the_root() {
        assert_eq!(
            rooted("# Isthmus\n- [A](a.md)\n  - [R](../README.md)\n"),
            "# Isthmus\n- [A](docs/a.md)\n  - [R](README.md)\n"
        );
    }
}
