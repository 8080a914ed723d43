//! What a program is made of, as SPDX: the crates that cargo links into it, and what comes with them.

mod graph;
mod spdx;

pub(super) use self::{graph::Graph, spdx::document};

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
}

/// Name and version.
pub(super) type Id = (String, String);

// === impl Component ===

impl Component {
    pub(super) fn rust(version: &str) -> Self {
        Self::other("rust-std", version, "MIT OR Apache-2.0", "generic/rust-std")
    }

    pub(super) fn c_library(version: &str) -> Self {
        Self::other("glibc", version, "LGPL-2.1-or-later", "generic/glibc")
    }

    pub(super) fn certificates(version: &str) -> Self {
        Self::other("certifi", version, "MPL-2.0", "pypi/certifi")
    }

    pub(super) fn envoy(version: &str) -> Self {
        Self::other("envoy", version, "Apache-2.0", "github/envoyproxy/envoy")
    }

    pub(super) fn debian(package: &str, version: &str) -> Self {
        let licences = match package {
            "libc6" => "LGPL-2.1-or-later",
            _ => "GPL-3.0-or-later WITH GCC-exception-3.1",
        };
        Self::other(package, version, licences, &format!("deb/debian/{package}"))
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

    /// An image, by the program that is in it.
    pub(super) fn image(name: &str, version: &str, licences: &str) -> Self {
        Self::other(name, version, licences, &format!("generic/{name}"))
    }

    fn id(&self) -> Id {
        (self.name.clone(), self.version.clone())
    }
}

/// In package URLs `+` and `:` of a version are written as bytes.
fn encoded(version: &str) -> String {
    version.replace('+', "%2B").replace(':', "%3A")
}
