//! What a program is made of, as SPDX: the crates that cargo links into it, and what comes with them.

mod graph;
mod spdx;

use std::path::PathBuf;

pub(super) use self::{
    graph::{About, Graph},
    spdx::document,
};
use super::system::{Library, Package, distribution};

/// A part of a program or of its image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Component {
    pub(super) name: String,
    pub(super) version: String,
    /// As an SPDX expression, where it is known.
    pub(super) licences: Option<String>,
    /// SHA-256 of what was fetched.
    pub(super) checksum: Option<String>,
    /// Package URL, by which scanners know it.
    pub(super) url: String,
    /// Names and versions of those that it depends on.
    pub(super) needs: Vec<Id>,
    pub(super) texts: Texts,
}

/// Name and version.
pub(super) type Id = (String, String);

/// Where the texts of a component's licences are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Texts {
    /// In the checkout: it is ours.
    #[default]
    Ours,
    /// In the source of a crate, by these authors.
    Source {
        directory: PathBuf,
        authors: Vec<String>,
    },
    /// With a package of the system, and this one among the texts that packages share.
    System(&'static str),
    /// In a document of Rust's.
    Rust,
    /// Here.
    Notice(&'static str),
    /// The common ones of these licences.
    Common,
}

/// What certifi has as its licence, shortened.
const CERTIFICATES: &str = "\
The certificate authorities of Mozilla, as the package certifi has them. This Source Code Form is subject to the terms of the
Mozilla Public License, v. 2.0. If a copy of the MPL was not distributed with this file, You can obtain one at
https://mozilla.org/MPL/2.0/.";

// === impl Component ===

impl Component {
    pub(super) fn rust(version: &str) -> Self {
        let licences = "MIT OR Apache-2.0";
        Self::other("rust-std", version, licences, "generic/rust-std").with(Texts::Rust)
    }

    pub(super) fn certificates(version: &str) -> Self {
        let notice = Texts::Notice(CERTIFICATES);
        Self::other("certifi", version, "MPL-2.0", "pypi/certifi").with(notice)
    }

    pub(super) fn envoy(version: &str) -> Self {
        let url = "github/envoyproxy/envoy";
        Self::other("envoy", version, "Apache-2.0", url).with(Texts::Common)
    }

    /// A library of the system, with no package that we know.
    pub(super) fn library(library: &Library, version: &str) -> Self {
        let url = format!("generic/{}", library.name);
        Self::other(library.name, version, library.licences, &url).with(Texts::System(library.text))
    }

    /// A library as the system packages it.
    pub(super) fn package(package: &Package, library: &Library) -> Self {
        let url = package_url(package, distribution().as_deref());
        let texts = Texts::System(library.text);
        Self {
            url,
            ..Self::other(&package.name, &package.version, library.licences, "").with(texts)
        }
    }

    fn other(name: &str, version: &str, licences: &str, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            licences: Some(licences.to_owned()),
            url: format!("pkg:{url}@{}", encoded(version)),
            ..Self::default()
        }
    }

    fn with(self, texts: Texts) -> Self {
        Self { texts, ..self }
    }

    /// An image, by the program that is in it.
    pub(super) fn image(name: &str, version: &str, licences: &str) -> Self {
        Self::other(name, version, licences, &format!("generic/{name}"))
    }

    fn id(&self) -> Id {
        (self.name.clone(), self.version.clone())
    }
}

/// Scanners look in the data of the distribution, and there by the name of the source.
fn package_url(package: &Package, distribution: Option<&str>) -> String {
    let vendor = distribution.and_then(|it| it.split('-').next());
    let vendor = vendor.unwrap_or("debian");
    let version = encoded(&package.version);
    let mut url = format!("pkg:deb/{vendor}/{}@{version}", package.name);
    let facts = [
        ("distro", distribution),
        ("upstream", package.source.as_deref()),
    ];
    let facts = facts
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value?)));
    for (fact, sign) in facts.zip(['?', '&']) {
        url.push(sign);
        url.push_str(&fact);
    }
    url
}

/// In package URLs `+` and `:` of a version are written as bytes.
fn encoded(version: &str) -> String {
    version.replace('+', "%2B").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_known_by_distribution_and_source() {
        let mut package = Package {
            name: "libc6-dev".to_owned(),
            version: "2.36-9+deb12u14".to_owned(),
            source: Some("glibc".to_owned()),
        };
        assert_eq!(
            package_url(&package, Some("debian-12")),
            "pkg:deb/debian/libc6-dev@2.36-9%2Bdeb12u14?distro=debian-12&upstream=glibc"
        );
        assert_eq!(
            package_url(&package, None),
            "pkg:deb/debian/libc6-dev@2.36-9%2Bdeb12u14?upstream=glibc"
        );
        package.source = None;
        assert_eq!(
            package_url(&package, Some("ubuntu-24.04")),
            "pkg:deb/ubuntu/libc6-dev@2.36-9%2Bdeb12u14?distro=ubuntu-24.04"
        );
    }
}
