//! What a request is about.

use std::collections::BTreeMap;

use http::{Method, Uri};

use crate::kinds::{self, Kind};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object, or `/version`.
    Get,
    /// Objects of a kind.
    List,
    /// Changes of a kind.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH of any type.
    Patch,
    /// DELETE.
    Delete,
}

/// A request's URL, taken apart.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) verb: Verb,
    pub(crate) place: Place,
    pub(crate) query: BTreeMap<String, String>,
}

/// Where a URL leads.
#[derive(Debug)]
pub(crate) enum Place {
    Version,
    AccessReview,
    Objects {
        kind: &'static Kind,
        /// Empty: all, or a kind without namespaces.
        namespace: String,
        /// Empty: the collection.
        name: String,
        status: bool,
    },
    /// With the path.
    Nowhere(String),
}

// === impl Target ===

impl Target {
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Self {
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let place = Place::parse(uri.path());
        let place = place.unwrap_or_else(|| Place::Nowhere(uri.path().to_owned()));
        let on_one = matches!(&place, Place::Version)
            || matches!(&place, Place::Objects { name, .. } if !name.is_empty());
        let watching = query
            .get("watch")
            .is_some_and(|value| value == "true" || value == "1");
        let verb = match *method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if watching => Verb::Watch,
            _ if on_one => Verb::Get,
            _ => Verb::List,
        };
        Self { verb, place, query }
    }

    /// Plural of the kind, or the name of what else it is.
    pub(crate) fn resource(&self) -> &'static str {
        match &self.place {
            Place::Version => "version",
            Place::AccessReview => "selfsubjectaccessreviews",
            Place::Objects { kind, .. } => kind.plural,
            Place::Nowhere(_) => "unknown",
        }
    }

    /// Of the object, if it is about one.
    pub(crate) fn name(&self) -> &str {
        match &self.place {
            Place::Objects { name, .. } => name,
            _ => "",
        }
    }

    /// Namespace, name, and whether the status is meant.
    pub(crate) fn object(&self) -> (&str, &str, bool) {
        match &self.place {
            Place::Objects {
                namespace,
                name,
                status,
                ..
            } => (namespace, name, *status),
            Place::Nowhere(path) => ("", path, false),
            _ => ("", "", false),
        }
    }

    pub(crate) fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

// === impl Place ===

impl Place {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["version"] => return Some(Self::Version),
            [
                "apis",
                "authorization.k8s.io",
                "v1",
                "selfsubjectaccessreviews",
            ] => {
                return Some(Self::AccessReview);
            }
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let find = |plural: &str| {
            let mut all = kinds::ALL.iter();
            all.find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
                .copied()
        };
        let (plural, namespace, name, sub) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if find(plural).is_some() => match rest {
                [] => (*plural, *namespace, "", ""),
                [name] => (*plural, *namespace, *name, ""),
                [name, sub] => (*plural, *namespace, *name, *sub),
                _ => return None,
            },
            [plural] => (*plural, "", "", ""),
            [plural, name] => (*plural, "", *name, ""),
            [plural, name, sub] => (*plural, "", *name, *sub),
            _ => return None,
        };
        let known_sub = sub.is_empty() || sub == "status";
        match find(plural) {
            Some(kind)
                if known_sub && (name.is_empty() || kind.namespaced != namespace.is_empty()) =>
            {
                Some(Self::Objects {
                    kind,
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    status: sub == "status",
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: Method, url: &str) -> Target {
        Target::parse(&method, &url.parse().expect("a URL"))
    }

    #[test]
    fn urls_are_taken_apart() {
        let import =
            "/apis/inference.networking.x-k8s.io/v1alpha1/namespaces/ml/inferencepoolimports/llm";
        let target = parse(Method::PATCH, &format!("{import}/status?force=true"));
        assert_eq!(
            (target.verb, target.resource()),
            (Verb::Patch, "inferencepoolimports")
        );
        assert_eq!(target.param("force"), "true");
        assert!(
            matches!(&target.place, Place::Objects { namespace, name, status: true, .. } if namespace == "ml" && name == "llm")
        );
        let pages = parse(Method::GET, "/api/v1/services?&limit=500&continue=3%3Aa");
        assert_eq!(
            (pages.verb, pages.resource(), pages.param("continue")),
            (Verb::List, "services", "3:a")
        );
        let one = parse(Method::GET, "/api/v1/namespaces/kube-system");
        assert_eq!((one.verb, one.resource()), (Verb::Get, "namespaces"));
        let watch = parse(
            Method::GET,
            "/apis/discovery.k8s.io/v1/endpointslices?&watch=true",
        );
        assert_eq!(
            (watch.verb, watch.resource()),
            (Verb::Watch, "endpointslices")
        );
        assert_eq!(parse(Method::GET, "/version").verb, Verb::Get);
        for nowhere in [
            "/apis/x/v1/y",
            "/api/v1/services/a",
            "/",
            "/api/v1/namespaces/a/services/b/log",
        ] {
            assert!(
                matches!(parse(Method::GET, nowhere).place, Place::Nowhere(_)),
                "{nowhere}"
            );
        }
    }
}
