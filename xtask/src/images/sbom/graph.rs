//! The crates of each program: which ones from `cargo tree`, what they are from `cargo metadata` and `Cargo.lock`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::{Component, Id, Texts, encoded};
use crate::{
    command::{cargo, output},
    images::metadata::{Metadata, Package},
    workspace,
};

/// All crates that are linked into the programs, with those that each needs.
pub(in crate::images) struct Graph(BTreeMap<Id, Crate>);

/// What a program says of itself.
pub(in crate::images) struct About {
    pub(in crate::images) description: String,
    pub(in crate::images) licences: String,
}

struct Crate {
    component: Component,
    description: String,
}

/// Names and versions of the crates that each crate needs; a line is a depth, a name, `v` and a version.
fn needs(tree: &str) -> Result<BTreeMap<Id, BTreeSet<Id>>> {
    let mut needs = BTreeMap::<Id, BTreeSet<Id>>::new();
    let mut above: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let start = line.find(|it: char| !it.is_ascii_digit());
        let (depth, rest) = line.split_at(start.unwrap_or(0));
        let depth: usize = depth.parse().with_context(|| format!("no depth: {line}"))?;
        let mut words = rest.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let version = words.next().and_then(|it| it.strip_prefix('v'));
        let version = version.with_context(|| format!("no version: {line}"))?;
        let id = (name, version.to_owned());
        above.truncate(depth);
        if let Some(parent) = above.last() {
            needs.entry(parent.clone()).or_default().insert(id.clone());
        }
        needs.entry(id.clone()).or_default();
        above.push(id);
    }
    Ok(needs)
}

/// Of each crate that was fetched.
fn checksums(lock: &str) -> BTreeMap<Id, &str> {
    lock.split("[[package]]")
        .filter_map(|block| {
            let value = |key: &str| {
                let mut lines = block.lines();
                let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
                Some(value.trim_matches('"'))
            };
            let id = (value("name")?.to_owned(), value("version")?.to_owned());
            Some((id, value("checksum")?))
        })
        .collect()
}

/// Older manifests write `MIT/Apache-2.0` for `MIT OR Apache-2.0`.
fn expression(licence: &str) -> String {
    let parts: Vec<&str> = licence.split('/').map(str::trim).collect();
    parts.join(" OR ")
}

// === impl Graph ===

impl Graph {
    /// Of these programs, which are built together: what features a crate has depends on that.
    pub(in crate::images) fn read(
        target: &str,
        programs: &[&str],
        metadata: &Metadata,
    ) -> Result<Self> {
        // not `cargo metadata` alone: there the features of tests and of the rest of the workspace bring in more
        let edges = "normal,no-proc-macro";
        let mut tree = cargo(&["tree", "--locked", "--edges", edges, "--target", target]);
        tree.args(["--prefix", "depth", "--format", "{p}"]);
        for program in programs {
            tree.args(["--package", program]);
        }
        let tree = output(&mut tree)?;
        let lock = workspace::root().join("Cargo.lock");
        let lock = std::fs::read_to_string(&lock)
            .with_context(|| format!("reading {}", lock.display()))?;
        Self::new(&String::from_utf8_lossy(&tree), metadata, &lock)
    }

    fn new(tree: &str, metadata: &Metadata, lock: &str) -> Result<Self> {
        let needs = needs(tree).context("what cargo tree says")?;
        let checksums = checksums(lock);
        let packages = metadata.packages.iter();
        let mut packages: BTreeMap<Id, &Package> = packages
            .map(|package| ((package.name.clone(), package.version.clone()), package))
            .collect();
        let mut crates = BTreeMap::new();
        for (id, needs) in needs {
            let package = packages.remove(&id);
            let package =
                package.with_context(|| format!("cargo metadata lacks {} {}", id.0, id.1))?;
            let texts = match package.fetched_into() {
                Some(directory) => Texts::Source {
                    directory: directory.to_owned(),
                    authors: package.authors.clone(),
                },
                None => Texts::Ours,
            };
            let component = Component {
                url: format!("pkg:cargo/{}@{}", id.0, encoded(&id.1)),
                name: package.name.clone(),
                version: package.version.clone(),
                licences: package.license.as_deref().map(expression),
                checksum: checksums.get(&id).map(|it| (*it).to_owned()),
                needs: needs.into_iter().collect(),
                texts,
            };
            let description = package.description.clone().unwrap_or_default();
            crates.insert(
                id,
                Crate {
                    component,
                    description,
                },
            );
        }
        Ok(Self(crates))
    }

    pub(in crate::images) fn about(&self, program: &str) -> Result<About> {
        let (_, found) = self.program(program)?;
        Ok(About {
            description: found.description.clone(),
            licences: found.component.licences.clone().unwrap_or_default(),
        })
    }

    /// The program's crate, and all that it needs directly or not; in the order of their names.
    pub(in crate::images) fn components(&self, program: &str) -> Result<Vec<Component>> {
        let (id, _) = self.program(program)?;
        let (mut open, mut seen) = (vec![id], BTreeSet::new());
        while let Some(id) = open.pop() {
            if seen.insert(id)
                && let Some(found) = self.0.get(id)
            {
                open.extend(&found.component.needs);
            }
        }
        let found = seen.into_iter().filter_map(|id| self.0.get(id));
        Ok(found.map(|it| it.component.clone()).collect())
    }

    fn program(&self, program: &str) -> Result<(&Id, &Crate)> {
        let found = self.0.iter().find(|((name, _), _)| name == program);
        found.with_context(|| format!("no crate {program} in what cargo tree says"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0epp v0.1.0 (/checkout/crates/epp)\n1http v1.5.0\n2bytes v1.12.1\n1bytes v1.12.1\n\n\
                        0gateway v0.1.0 (/checkout/crates/gateway)\n1slab v0.4.11+x\n1http v1.5.0 (*)\n";
    /// Names, versions, licences and descriptions.
    const PACKAGES: [(&str, &str, Option<&str>, Option<&str>); 6] = [
        ("epp", "0.1.0", Some("Apache-2.0"), Some("Picks")),
        ("gateway", "0.1.0", Some("Apache-2.0"), None),
        ("http", "1.5.0", Some("MIT/Apache-2.0"), None),
        ("slab", "0.4.11+x", None, None),
        ("only-in-tests", "1.0.0", Some("MIT"), None),
        ("bytes", "1.12.1", Some("MIT"), None),
    ];
    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"bytes\"\nversion = \"1.12.1\"\nsource = \"registry\"\n\
                        checksum = \"00ff\"\n\n[[package]]\nname = \"epp\"\nversion = \"0.1.0\"\n";

    fn graph() -> Graph {
        let packages = PACKAGES.map(|(name, version, license, description)| {
            let source = description.is_none().then_some("registry");
            serde_json::json!({
                "name": name, "version": version, "license": license, "description": description,
                "authors": [], "source": source, "manifest_path": format!("/src/{name}/Cargo.toml"),
            })
        });
        let metadata = serde_json::json!({ "packages": packages }).to_string();
        let metadata = Metadata::parse(metadata.as_bytes()).unwrap();
        Graph::new(TREE, &metadata, LOCK).unwrap()
    }

    fn names(components: &[Component]) -> Vec<&str> {
        components.iter().map(|it| it.name.as_str()).collect()
    }

    #[test]
    fn a_program_has_the_crates_of_its_tree_and_no_others() {
        let graph = graph();
        let epp = graph.components("epp").unwrap();
        assert_eq!(names(&epp), ["bytes", "epp", "http"]);
        // the tree shows what http needs only once
        let gateway = graph.components("gateway").unwrap();
        assert_eq!(names(&gateway), ["bytes", "gateway", "http", "slab"]);
        assert!(graph.components("only-in-tests").is_err());
    }

    #[test]
    fn crates_have_their_licences_checksums_and_urls() {
        let graph = graph();
        let gateway = graph.components("gateway").unwrap();
        let [bytes, _, http, slab] = &gateway[..] else {
            panic!("{gateway:?}");
        };
        assert_eq!(bytes.checksum.as_deref(), Some("00ff"));
        assert_eq!(http.licences.as_deref(), Some("MIT OR Apache-2.0"));
        assert_eq!(http.needs, [("bytes".to_owned(), "1.12.1".to_owned())]);
        assert_eq!(
            (&slab.licences, &*slab.url),
            (&None, "pkg:cargo/slab@0.4.11%2Bx")
        );
        assert_eq!(graph.about("epp").unwrap().description, "Picks");
    }

    #[test]
    fn texts_are_in_the_source_of_what_was_fetched_and_ours_in_the_checkout() {
        let epp = graph().components("epp").unwrap();
        let directory = |nth: usize| match &epp[nth].texts {
            Texts::Source { directory, .. } => Some(directory.display().to_string()),
            _ => None,
        };
        assert_eq!(directory(0).unwrap(), "/src/bytes");
        assert_eq!(directory(1), None, "{:?}", epp[1]);
    }
}
