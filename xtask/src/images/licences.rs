//! The licences of what is in a program or its image: each part, and each text once.

mod texts;

use std::{collections::BTreeMap, fmt::Write};

use anyhow::{Context, Result};

use self::texts::texts;
use super::{
    sbom::{Component, Texts},
    toolchain::Toolchain,
};
use crate::workspace;

/// The name that the notices of one program have where there are several.
pub(super) const NOTICES: &str = "THIRD-PARTY.txt";
/// What Rust has of its standard library.
const RUST: &str = "COPYRIGHT-library.html";

const HEAD: &str = "\
What is of Isthmus is under the Apache License 2.0, in LICENSE. All else that is in the program, or beside it in its image, is listed here;
numbers are those of the licence texts below.

The source of a crate is what its package URL names; that of a package of Debian is what `apt-get source NAME=VERSION` fetches there.
A program that has the C library in it can be linked with another version of that: from its source, by `cargo xtask images`.
";

/// Files of licences, by their names.
pub(super) struct Licences {
    /// Of this program alone.
    pub(super) notices: String,
    /// The same for every program with such parts.
    pub(super) others: BTreeMap<&'static str, Vec<u8>>,
}

/// A component, and what its licences say.
struct Notice<'a> {
    component: &'a Component,
    texts: Vec<String>,
}

// === impl Licences ===

impl Licences {
    pub(super) fn read(components: &[Component], toolchain: &Toolchain) -> Result<Self> {
        let mut notices = Vec::new();
        let mut others = BTreeMap::new();
        for component in components {
            match component.texts {
                Texts::Ours => {
                    let licence = workspace::root().join("LICENSE");
                    others.insert("LICENSE", super::read(&licence)?);
                    continue;
                }
                Texts::Rust => {
                    let document = super::read(&toolchain.document(RUST));
                    let document = document.context("Rust as rustup installs it has this")?;
                    others.insert(RUST, document);
                }
                _ => (),
            }
            let texts = texts(component, toolchain)
                .with_context(|| format!("licences of {}", component.name))?;
            notices.push(Notice { component, texts });
        }
        Ok(Self {
            notices: render(&notices),
            others,
        })
    }
}

/// Texts of the same words are one text: how they are broken into lines says nothing.
fn render(notices: &[Notice<'_>]) -> String {
    let mut numbers = BTreeMap::new();
    let mut texts: Vec<&str> = Vec::new();
    let mut list = String::new();
    for Notice {
        component,
        texts: own,
    } in notices
    {
        let mut its: Vec<usize> = Vec::new();
        for text in own {
            let words: Vec<&str> = text.split_whitespace().collect();
            let number = *numbers.entry(words).or_insert_with(|| {
                texts.push(text);
                texts.len()
            });
            if !its.contains(&number) {
                its.push(number);
            }
        }
        let its: Vec<String> = its.iter().map(ToString::to_string).collect();
        let licences = component.licences.as_deref().unwrap_or("see its texts");
        let (name, version, url) = (&component.name, &component.version, &component.url);
        let its = its.join(", ");
        // writing to a String cannot fail
        let _ = writeln!(list, "{name} {version}, {licences}, {url}: {its}");
    }
    let mut all = format!("{HEAD}\n{list}");
    for (index, text) in texts.iter().enumerate() {
        let rule = "=".repeat(80);
        let _ = write!(all, "\n{rule}\n{}\n{rule}\n\n", index + 1);
        for line in text.trim_matches('\n').lines() {
            all.push_str(line.trim_end());
            all.push('\n');
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_shown_once_and_each_component_names_its_own() {
        let component = |name: &str, licences: Option<&str>| Component {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licences: licences.map(ToOwned::to_owned),
            url: format!("pkg:cargo/{name}@1.0.0"),
            ..Component::default()
        };
        let components = [component("a", Some("MIT OR Zlib")), component("b", None)];
        let texts = [
            vec!["Zlib text\n".to_owned(), "MIT text,\r\nbroken".to_owned()],
            vec!["MIT text, broken  \n".to_owned(), "\n  BSD\n".to_owned()],
        ];
        let notices: Vec<Notice<'_>> = components
            .iter()
            .zip(texts)
            .map(|(component, texts)| Notice { component, texts })
            .collect();
        let text = render(&notices);
        let (_, rest) = text.split_once("cargo xtask images`.\n\n").unwrap();
        let rule = "=".repeat(80);
        assert_eq!(
            rest,
            format!(
                "a 1.0.0, MIT OR Zlib, pkg:cargo/a@1.0.0: 1, 2\n\
                 b 1.0.0, see its texts, pkg:cargo/b@1.0.0: 2, 3\n\
                 \n{rule}\n1\n{rule}\n\nZlib text\n\
                 \n{rule}\n2\n{rule}\n\nMIT text,\nbroken\n\
                 \n{rule}\n3\n{rule}\n\n  BSD\n"
            )
        );
    }
}
